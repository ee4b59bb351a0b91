//! The command line's end of the control protocol: one connection to one supervisor, blocking, with deadlines.

mod pump;

pub use pump::{Handler, Next, Order, Pumped};

use crate::control::{Command, Note};
use crate::pipe::{Pipe, PipeError};
use base::Name;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use store::{Store, StoreError};
use wire::message::{decode, encode};
use wire::{Event, ProtocolError, SendError, Side, StreamId};

/// A connection to a supervisor.
#[derive(Debug)]
pub struct Connection {
    pipe: Pipe,
    /// What came for streams that nobody asked about yet; at most a window's worth for each.
    waiting: VecDeque<(StreamId, Item)>,
    buffer: Vec<u8>,
}

/// What comes on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A note of the supervisor.
    Note(Note),
    /// Bytes of a channel.
    Data {
        /// 1 output, 2 error; 1 for a file's bytes.
        channel: u8,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A channel's end.
    Finished(u8),
    /// The stream's end.
    Closed,
}

/// The conversation with a supervisor failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The sandbox does not run.
    #[error("The sandbox `{0}` is not running")]
    NotRunning(Name),
    /// The socket can't be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The supervisor went away.
    #[error("The sandbox's supervisor is gone")]
    Lost,
    /// Nothing came in time.
    #[error("The sandbox's supervisor does not answer")]
    Deadline,
    /// A system call failed.
    #[error("Talking to the sandbox's supervisor failed")]
    Io(#[source] io::Error),
    /// It doesn't speak our protocol, or not our version of it.
    #[error("The sandbox's supervisor can't be understood")]
    Protocol(#[from] ProtocolError),
    /// Something can't be sent.
    #[error("A request can't be sent to the sandbox's supervisor")]
    Send(#[from] SendError),
    /// It sent something that is no note.
    #[error("The sandbox's supervisor sent something that is not a note")]
    NotANote,
    /// Output could not be passed on (the reader of a pipe is gone, the disk is full …).
    #[error("The command's output can't be written")]
    Output(#[source] io::Error),
    /// Standard input could not be read.
    #[error("Standard input can't be read")]
    Input(#[source] io::Error),
}

impl From<PipeError> for ClientError {
    fn from(error: PipeError) -> Self {
        match error {
            PipeError::Io(source) => Self::Io(source),
            PipeError::Protocol(source) => Self::Protocol(source),
        }
    }
}

/// Connects to the supervisor of `name`.
pub fn connect(store: &Store, name: &Name) -> Result<Connection, ClientError> {
    if !store.is_alive(name)? {
        return Err(ClientError::NotRunning(name.clone()));
    }
    match store::connect(&store.socket_path(name)) {
        Ok(stream) => Connection::new(stream),
        // It is alive, but is just starting or just going.
        Err(StoreError::Io { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            Err(ClientError::NotRunning(name.clone()))
        }
        Err(error) => Err(error.into()),
    }
}

impl Connection {
    /// A conversation on a connected socket, such as the one that a new supervisor inherits the other end of.
    pub fn new(stream: UnixStream) -> Result<Self, ClientError> {
        Ok(Self {
            pipe: Pipe::new(stream.into(), Side::Opener).map_err(ClientError::Io)?,
            waiting: VecDeque::new(),
            buffer: Vec::new(),
        })
    }

    /// Opens a stream.
    pub fn open(&mut self, command: &Command) -> Result<StreamId, ClientError> {
        Ok(self.pipe.mux.open(&encode(command))?)
    }

    /// The next thing on a stream; `None` for no deadline.
    pub fn next(
        &mut self,
        stream: StreamId,
        deadline: Option<Instant>,
    ) -> Result<Item, ClientError> {
        loop {
            if let Some(at) = self.waiting.iter().position(|(id, _)| *id == stream)
                && let Some((_, item)) = self.waiting.remove(at)
            {
                return Ok(item);
            }
            self.turn(&[], deadline)?;
        }
    }

    /// The next note on a stream; output in between is dropped. `None` when the stream was closed instead.
    pub fn next_note(
        &mut self,
        stream: StreamId,
        deadline: Option<Instant>,
    ) -> Result<Option<Note>, ClientError> {
        loop {
            match self.next(stream, deadline)? {
                Item::Note(note) => return Ok(Some(note)),
                Item::Closed => return Ok(None),
                Item::Data { .. } | Item::Finished(_) => {}
            }
        }
    }

    /// Opens a stream, and waits for its first note that is not [`Note::Booting`].
    pub fn ask(
        &mut self,
        command: &Command,
        deadline: Option<Instant>,
    ) -> Result<Note, ClientError> {
        let stream = self.open(command)?;
        loop {
            match self.next_note(stream, deadline)? {
                Some(Note::Booting) => {}
                Some(note) => return Ok(note),
                None => return Err(ClientError::Lost),
            }
        }
    }

    /// Sends all of `bytes` on a channel, waiting for credit.
    pub fn send(
        &mut self,
        stream: StreamId,
        channel: u8,
        mut bytes: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), ClientError> {
        loop {
            let sent = self.pipe.mux.send_data(stream, channel, bytes)?;
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                return Ok(());
            }
            self.turn(&[], deadline)?;
        }
    }

    /// Sends an encoded [`wire::message::Control`].
    pub fn control(
        &mut self,
        stream: StreamId,
        control: wire::message::Control,
    ) -> Result<(), ClientError> {
        Ok(self.pipe.mux.send_message(stream, &encode(&control))?)
    }

    /// Ends a channel.
    pub fn finish(&mut self, stream: StreamId, channel: u8) -> Result<(), ClientError> {
        Ok(self.pipe.mux.finish(stream, channel)?)
    }

    /// Says that nothing more is sent on a stream.
    pub fn close(&mut self, stream: StreamId) -> Result<(), ClientError> {
        Ok(self.pipe.mux.close(stream)?)
    }

    /// Writes what waits, and takes in what comes until something does or one of `others` is readable; which of
    /// them are is the answer.
    fn turn(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<Vec<bool>, ClientError> {
        self.pipe.write()?;
        if self.pipe.ended() {
            return Err(ClientError::Lost);
        }
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        let mut own = PollFlags::IN;
        if self.pipe.wants_write() {
            own |= PollFlags::OUT;
        }
        let socket = self.pipe.as_fd();
        let mut fds = vec![PollFd::new(&socket, own)];
        fds.extend(others.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Err(ClientError::Deadline),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(ClientError::Io(error.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            self.pipe.read(&mut self.buffer)?;
            self.take_events()?;
            self.pipe.write()?;
        }
        Ok(ready[1..].to_vec())
    }

    fn take_events(&mut self) -> Result<(), ClientError> {
        while let Some(event) = self.pipe.next_event() {
            let (id, item) = match event {
                Event::Hello | Event::Opened { .. } => continue,
                Event::Message { id, payload, cost } => {
                    self.pipe.mux.consume(id, cost);
                    let note = decode(&payload).map_err(|_| ClientError::NotANote)?;
                    (id, Item::Note(note))
                }
                Event::Data {
                    id,
                    channel,
                    payload,
                    cost,
                } => {
                    // The supervisor is no enemy of ours; what counts is that a slow terminal slows the
                    // command down, and that holds as long as nothing is read while output is written.
                    self.pipe.mux.consume(id, cost);
                    let bytes = payload;
                    (id, Item::Data { channel, bytes })
                }
                Event::Finished { id, channel } => (id, Item::Finished(channel)),
                Event::Closed { id } => {
                    // Its answer is complete, so is our side of it.
                    self.pipe.mux.close(id).ok();
                    (id, Item::Closed)
                }
                Event::Reset { id } => (id, Item::Closed),
            };
            self.waiting.push_back((id, item));
        }
        Ok(())
    }
}
