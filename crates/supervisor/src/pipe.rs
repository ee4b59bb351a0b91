//! A multiplexer on a non-blocking descriptor: what both ends of the control protocol and the guest's port
//! have in common.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::{AtRest, Event, Mux, ProtocolError, Side};

/// Bytes that are read from one descriptor before others get their turn.
const TURN: usize = 256 * 1024;
/// Bytes of one read.
const CHUNK: usize = 32 * 1024;

/// A connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    fd: OwnedFd,
    pub(crate) mux: Mux,
    /// Nothing more comes.
    ended: bool,
}

/// The connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipeError {
    #[error("The connection failed")]
    Io(#[source] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl Pipe {
    pub(crate) fn new(fd: OwnedFd, side: Side) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self {
            fd,
            mux: Mux::new(side),
            ended: false,
        })
    }

    /// The pipe to a guest that was frozen in the middle of a connection.
    pub(crate) fn resumed(fd: OwnedFd, rest: AtRest) -> io::Result<Self> {
        let mut pipe = Self::new(fd, Side::Opener)?;
        pipe.mux = Mux::resume(rest);
        Ok(pipe)
    }

    /// Takes in what is there, up to one turn's worth. True when there may be more.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<bool, PipeError> {
        buffer.resize(CHUNK, 0);
        let mut taken = 0;
        while !self.ended {
            match rustix::io::read(&self.fd, &mut buffer[..]) {
                // The peer died with bytes of ours unread: the same as an end to us.
                Ok(0) | Err(Errno::CONNRESET) => self.ended = true,
                Ok(count) => {
                    self.mux.receive(&buffer[..count])?;
                    taken += count;
                    if taken >= TURN {
                        return Ok(true);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(PipeError::Io(error.into())),
            }
        }
        Ok(false)
    }

    /// Writes what waits, as far as the peer takes it.
    pub(crate) fn write(&mut self) -> Result<(), PipeError> {
        while !self.mux.outgoing().is_empty() {
            match rustix::io::write(&self.fd, self.mux.outgoing()) {
                Ok(count) => self.mux.wrote(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // What the peer said before it went can still be read.
                    let rest = self.mux.outgoing().len();
                    self.mux.wrote(rest);
                    return Ok(());
                }
                Err(error) => return Err(PipeError::Io(error.into())),
            }
        }
        Ok(())
    }

    pub(crate) fn wants_write(&self) -> bool {
        !self.mux.outgoing().is_empty()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.mux.next_event()
    }

    /// Nothing more comes from the peer (what came before may still wait as events).
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
