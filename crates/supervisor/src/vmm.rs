//! What the loop needs of a machine monitor, so that tests can put something else in QEMU's place.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use store::Spec;

/// Starts machines.
pub trait Launcher {
    /// Starts the machine of `spec` with this scratch disk, without waiting for the guest. The disk holds what the
    /// last call of [`Launcher::format_scratch`] gave it, or what the machine left when it last ran.
    fn launch(&mut self, spec: &Spec, scratch: File) -> Result<Launched, LaunchError>;

    /// Starts a machine that goes on from the snapshot in `directory`, with this empty file as its scratch disk, which
    /// is filled from the snapshot. Its guest holds still. What can't be used is an error before anything is started.
    fn resume(
        &mut self,
        spec: &Spec,
        directory: &Path,
        memory: Memory,
        scratch: &File,
    ) -> Result<Launched, LaunchError>;

    /// A scratch disk's first content, of `spec.disk` bytes, written into an empty file.
    fn format_scratch(&mut self, spec: &Spec, scratch: &File) -> Result<(), LaunchError>;
}

/// Whose the memory of a resumed machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Its own.
    Own,
    /// Shared with other machines of the same snapshot, as far as none of them writes.
    Shared,
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
    /// Its memory is a file of its own, and what its guest gives back is the host's again.
    pub owns_memory: bool,
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

    /// What freezes the machine; `None` for one that can't be frozen.
    fn freezer(&self) -> Option<Box<dyn Freezer>>;
}

/// Freezes a machine, on a thread of its own: that takes as long as copying its memory does.
pub trait Freezer: Send {
    /// Writes memory and disk of one moment into an empty directory, and lets the machine go on, whatever comes of it.
    /// Its guest holds still meanwhile.
    fn freeze(&mut self, directory: &Path) -> Result<(), LaunchError>;
}
