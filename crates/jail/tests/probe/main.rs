//! Runs in QEMU's place and tries what an owned QEMU would try. Also plays the supervisor, so that the tests
//! can have all of it done by another user.
#![expect(
    clippy::print_stdout,
    reason = "its report goes to the test on standard output"
)]

mod attack;
mod plan;
mod supervise;

use plan::Plan;
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
        ["attack", plan] => attack::run(&parse(plan)),
        ["hang"] => loop {
            rustix::event::pause();
        },
        ["supervise", plan] => supervise::attack(&parse(plan)),
        ["supervise-without-namespaces", plan] => {
            supervise::forbid_namespaces();
            supervise::attack(&parse(plan))
        }
        ["supervise-hang"] => supervise::hang(),
        ["unconfined", plan] => supervise::unconfined(plan),
        other => panic!("unknown arguments {other:?}"),
    }
}

fn parse(plan: &str) -> Plan {
    serde_json::from_str(plan).expect("the test wrote a plan")
}
