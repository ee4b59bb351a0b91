use crate::RunError;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// SIGTERM (and SIGINT, which nobody sends to a process without a terminal by accident) as a descriptor that
/// becomes readable, and SIGHUP without effect. SIGPIPE is ignored by every Rust program.
#[derive(Debug)]
pub(crate) struct Signals {
    readable: UnixStream,
    ids: Vec<SigId>,
}

impl Signals {
    pub(crate) fn catch() -> Result<Self, RunError> {
        let io = |source| RunError::Io {
            what: "catching of signals",
            source,
        };
        let (readable, written) = UnixStream::pair().map_err(io)?;
        let other = written.try_clone().map_err(io)?;
        let ids = vec![
            pipe::register(SIGTERM, written).map_err(io)?,
            pipe::register(SIGINT, other).map_err(io)?,
            signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false))).map_err(io)?,
        ];
        Ok(Self { readable, ids })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in &self.ids {
            unregister(*id);
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
