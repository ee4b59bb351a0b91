//! Plays the hidden roles of the command line, and a supervisor that any user can run.
#![expect(
    clippy::print_stdout,
    reason = "its report goes to the test on standard output"
)]

mod attack;
mod clone;
mod plan;
mod supervise;

use std::ffi::OsStr;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["__vmm", channel] => {
            // The supervisor has been told why.
            drop(jail::enter(OsStr::new(channel)));
            ExitCode::FAILURE
        }
        ["__probe-kvm"] => {
            println!("{}", machine::probe::kvm_child());
            ExitCode::SUCCESS
        }
        ["supervise", plan] => {
            supervise::run(&serde_json::from_str(plan).expect("the test wrote a plan"));
            ExitCode::SUCCESS
        }
        ["clone", plan] => {
            clone::run(&serde_json::from_str(plan).expect("the test wrote a plan"));
            ExitCode::SUCCESS
        }
        ["attack-memory"] => attack::outside(),
        ["attack", number] => attack::inside(number),
        ["hold-memory"] => {
            attack::hold();
            ExitCode::SUCCESS
        }
        other => panic!("unknown arguments {other:?}"),
    }
}
