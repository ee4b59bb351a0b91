use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;

/// Becomes readable when a child has ended (`pidfd_open(2)`), for a poll loop.
#[derive(Debug)]
pub(crate) struct ExitWatch(OwnedFd);

impl ExitWatch {
    /// Watches `child`, which must not have been waited for.
    pub(crate) fn new(child: &Child) -> io::Result<Self> {
        Ok(Self(pidfd_open(
            Pid::from_child(child),
            PidfdFlags::empty(),
        )?))
    }
}

impl AsFd for ExitWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
