//! The guest program: PID 1 of a machine. It boots it, waits on its port for the host's requests, runs commands
//! and reports files, and powers the machine off. It never exits while the machine should live.

mod accounts;
mod ahead;
mod balloon;
mod boot;
mod child;
mod console;
mod device;
mod fault;
mod files;
mod freeze;
mod guest;
mod network;
mod place;
mod port;
mod process;
mod rehearsal;
mod session;
mod setup;
mod spawn;
mod template;

use console::say;
use std::ffi::OsString;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|first| first == "--test-port")
    {
        if let Err(fault) = rehearsal::run(&arguments) {
            say(fault);
        }
        return;
    }
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        say("This is the first program of an efimera machine, and does nothing anywhere else");
        return;
    }
    // A PID 1 that ends is a kernel panic, which tells nobody why.
    match std::panic::catch_unwind(guest::boot_and_serve) {
        Ok(()) => {}
        Err(_) => say("The guest program failed; powering off"),
    }
    power_off();
}

fn power_off() {
    if let Err(errno) = rustix::system::reboot(rustix::system::RebootCommand::PowerOff) {
        say(format!("Powering off: {errno}"));
    }
    // A machine without a way to power off stands still: the host ends it.
    if let Err(errno) = rustix::system::reboot(rustix::system::RebootCommand::Halt) {
        say(format!("Halting: {errno}"));
    }
}
