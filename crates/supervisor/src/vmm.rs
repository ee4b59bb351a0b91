//! What the loop needs of a machine monitor, so that tests can put something else in QEMU's place.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use store::Spec;

/// Starts machines.
pub trait Launcher {
    /// Starts the machine of `spec` with this scratch disk, without waiting for the guest. The disk holds what the
    /// last call of [`Launcher::format_scratch`] gave it, or what the machine left when it last ran.
    fn launch(&mut self, spec: &Spec, scratch: File) -> Result<Launched, LaunchError>;

    /// A scratch disk's first content, of `spec.disk` bytes, written into an empty file.
    fn format_scratch(&mut self, spec: &Spec, scratch: &File) -> Result<(), LaunchError>;
}

/// The machine could not be started: a sentence and its causes, for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LaunchError(pub String);

/// A machine that was started.
#[derive(Debug)]
pub struct Launched {
    /// The guest's control port: a stream socket.
    pub control: OwnedFd,
    /// What the guest's console prints, only read.
    pub console: Option<OwnedFd>,
    /// What the monitor itself prints (its complaints), only read.
    pub complaints: Option<OwnedFd>,
    /// The monitor's process.
    pub process: Box<dyn Process>,
    /// Layers of the jail that are on.
    pub jail: Vec<String>,
    /// Layers that could not be put on.
    pub jail_missing: Vec<String>,
    /// What a person should know of the start: that the machine had to boot, and why.
    pub notice: Option<String>,
}

/// A monitor's process. Dropping it ends the process.
pub trait Process: std::fmt::Debug {
    /// Its id, for records.
    fn pid(&self) -> Option<u32>;

    /// Readable once the process has ended.
    fn ended_fd(&self) -> BorrowedFd<'_>;

    /// How it ended, as a sentence; `None` while it runs. Reaps it.
    fn reap(&mut self) -> Option<String>;

    /// Ends it at once (SIGKILL).
    fn kill(&mut self);
}
