//! A short conversation with a machine that is nobody's yet: it greets, does what it is asked, and says so.

use machine::{Console, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use wire::message::{Reply, Request, decode, encode};
use wire::{Event, Mux, ProtocolError, Side, StreamId};

/// The host's side.
#[derive(Debug)]
pub(crate) struct Talk {
    mux: Mux,
    control: UnixStream,
    /// Console and QEMU's own complaints. Read all the time, or the machine would wait for that.
    asides: [OwnedFd; 2],
    /// What they said.
    said: Console,
    buffer: Vec<u8>,
}

/// The machine did not do it.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// Not in time.
    #[error("The machine didn't answer in time{0}")]
    TimedOut(
        /// Its last words, printable.
        String,
    ),
    /// QEMU or the guest has ended.
    #[error("The machine has ended{0}")]
    Ended(
        /// Its last words, printable.
        String,
    ),
    /// The guest says why.
    #[error("The machine says: {0}")]
    Refused(
        /// Its words, printable.
        String,
    ),
    /// The guest broke the protocol.
    #[error("The machine broke the protocol")]
    Protocol(#[from] ProtocolError),
    /// A descriptor failed.
    #[error("Can't talk to the machine")]
    Io(#[from] io::Error),
}

impl Talk {
    pub(crate) fn new(control: UnixStream, console: UnixStream, complaints: OwnedFd) -> Self {
        Self {
            mux: Mux::new(Side::Opener),
            control,
            asides: [console.into(), complaints],
            said: Console::new(),
            buffer: vec![0; 64 * 1024],
        }
    }

    /// Waits until it has done this.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        process: &Process,
        deadline: Instant,
    ) -> Result<(), TalkError> {
        let Ok(stream) = self.mux.open(&encode(request)) else {
            return Err(TalkError::Refused("too much is asked of it".to_owned()));
        };
        loop {
            while let Some(event) = self.mux.next_event() {
                if let Some(outcome) = outcome(stream, event) {
                    return outcome;
                }
            }
            self.turn(process, deadline)?;
        }
    }

    fn turn(&mut self, process: &Process, deadline: Instant) -> Result<(), TalkError> {
        let mut flags = PollFlags::IN;
        if !self.mux.outgoing().is_empty() {
            flags |= PollFlags::OUT;
        }
        let left = deadline
            .checked_duration_since(Instant::now())
            .and_then(|left| Timespec::try_from(left).ok())
            .ok_or_else(|| TalkError::TimedOut(self.last_line()))?;
        let process = process.as_fd();
        let mut fds = [
            PollFd::new(&self.control, flags),
            PollFd::new(&self.asides[0], PollFlags::IN),
            PollFd::new(&self.asides[1], PollFlags::IN),
            PollFd::new(&process, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let ended = !fds[3].revents().is_empty();
        self.read_asides();
        if !self.mux.outgoing().is_empty() {
            match self.control.write(self.mux.outgoing()) {
                Ok(count) => self.mux.wrote(count),
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        match self.control.read(&mut self.buffer) {
            Ok(0) => return Err(TalkError::Ended(self.last_line())),
            Ok(count) => self.mux.receive(&self.buffer[..count])?,
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(self.failed(error)),
        }
        if ended {
            return Err(TalkError::Ended(self.last_line()));
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> TalkError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                TalkError::Ended(self.last_line())
            }
            _ => error.into(),
        }
    }

    fn read_asides(&mut self) {
        for aside in &self.asides {
            // Nothing now, or nothing any more: the machine's end shows elsewhere.
            if let Ok(count) = rustix::io::read(aside, &mut self.buffer) {
                self.said.push(&self.buffer[..count]);
            }
        }
    }

    /// What was said last: often it says why.
    fn last_line(&self) -> String {
        let said = self.said.bytes();
        let line = said
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .rfind(|line| !line.is_empty());
        line.map_or_else(String::new, |line| {
            format!("; its last words: {}", base::escape_line(line, 200))
        })
    }
}

/// What an event means for the request on this stream.
fn outcome(stream: StreamId, event: Event) -> Option<Result<(), TalkError>> {
    let refused = |words: &str| Some(Err(TalkError::Refused(words.to_owned())));
    match event {
        Event::Message { id, payload, .. } if id == stream => match decode(&payload) {
            Ok(Reply::Done) => Some(Ok(())),
            Ok(Reply::Failed(failure)) => refused(&base::escape_line(&failure.what, 200)),
            _ => refused("something that was not asked"),
        },
        Event::Closed { id } | Event::Reset { id } if id == stream => refused("nothing"),
        _ => None,
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
