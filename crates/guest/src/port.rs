//! The byte pipe to the host.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A virtio-serial port (or a socket, in tests).
///
/// While no host holds the other end, such a port is readable with nothing to read, for ever: a plain poll would
/// spin. An edge-triggered epoll around it wakes up only when that changes, so that is polled in its place.
#[derive(Debug)]
pub(crate) struct Port {
    fd: OwnedFd,
    edges: OwnedFd,
    connected: bool,
}

/// What came of one look at the port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// So many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The host's end was closed.
    Gone,
}

impl Port {
    /// Takes a descriptor that doesn't block.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &edges,
            &fd,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET,
        )?;
        Ok(Self {
            fd,
            edges,
            connected: true,
        })
    }

    /// What to poll, and for what; `output` when there is something to write.
    pub(crate) fn interest(&self, output: bool) -> (BorrowedFd<'_>, PollFlags) {
        if !self.connected {
            return (self.edges.as_fd(), PollFlags::IN);
        }
        let flags = if output {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        (self.fd.as_fd(), flags)
    }

    /// Reads what is there. [`Input::Gone`] is given once for each time that the host leaves.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Input {
        if !self.connected && !self.look_for_host() {
            return Input::Nothing;
        }
        match rustix::io::read(&self.fd, buffer) {
            Ok(0) => {
                self.connected = false;
                Input::Gone
            }
            Ok(count) => Input::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => Input::Nothing,
            Err(_) => {
                self.connected = false;
                Input::Gone
            }
        }
    }

    /// Writes what fits; how many bytes that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if !self.connected {
            return 0;
        }
        // A failed write shows in the next read, too.
        rustix::io::write(&self.fd, bytes).unwrap_or(0)
    }

    /// Whether the host is back. The edge is taken first: a host that comes after that makes a new one.
    fn look_for_host(&mut self) -> bool {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        _ = epoll::wait(&self.edges, &mut events, Some(&Timespec::default()));
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
        _ = poll(&mut fds, Some(&Timespec::default()));
        self.connected = !fds[0].revents().contains(PollFlags::HUP);
        self.connected
    }
}
