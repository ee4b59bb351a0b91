use super::{ClientError, Connection, Item};
use crate::control::{Command, Note};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wire::StreamId;
use wire::message::{Control, encode};

/// The terminal's side of a session.
pub trait Handler {
    /// Output of the command: 1 standard output, 2 standard error. May block; the command waits meanwhile.
    fn output(&mut self, channel: u8, bytes: &[u8]) -> io::Result<()>;

    /// A note on the session's stream (or on that of an [`Order::Stop`]).
    fn note(&mut self, note: Note) -> Next;

    /// The wake descriptor is readable: empty it, and say what is to be done.
    fn woken(&mut self) -> Vec<Order>;

    /// Standard input on its way to the command: takes out what isn't for the command, and says what is to be
    /// done about it. Adds no more than one byte.
    fn input(&mut self, _bytes: &mut Vec<u8>) -> Vec<Order> {
        Vec::new()
    }
}

/// What to do after a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on until the stream ends.
    Go,
    /// Leave at once.
    Leave,
}

/// What a person wants in mid-session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A new size, or a signal for the command.
    Control(Control),
    /// Stop the sandbox.
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u32,
    },
    /// Leave; what happens to the command is the sandbox's `tty` and `linger`.
    Leave,
}

/// Why a pump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// The stream ended after its last note.
    Closed,
    /// The handler wanted to leave.
    Left,
}

/// Bytes of one read of standard input.
const CHUNK: usize = 16 * 1024;

impl Connection {
    /// Carries a session: standard input in (until its end), output and notes out, orders when `wake` becomes
    /// readable. Ends with the stream.
    pub fn pump(
        &mut self,
        stream: StreamId,
        mut stdin: Option<BorrowedFd<'_>>,
        wake: Option<BorrowedFd<'_>>,
        handler: &mut dyn Handler,
    ) -> Result<Pumped, ClientError> {
        let mut buffer = Vec::with_capacity(CHUNK);
        let mut stops = Vec::new();
        loop {
            while let Some((id, item)) = self.waiting.pop_front() {
                if id != stream && !stops.contains(&id) {
                    continue;
                }
                match item {
                    Item::Data { channel, bytes } => {
                        handler
                            .output(channel, &bytes)
                            .map_err(ClientError::Output)?;
                    }
                    Item::Note(note) => {
                        if handler.note(note) == Next::Leave {
                            self.flush()?;
                            return Ok(Pumped::Left);
                        }
                    }
                    Item::Closed if id == stream => return Ok(Pumped::Closed),
                    Item::Closed | Item::Finished(_) => {}
                }
            }
            // A full window means that the command does not read: neither do we then.
            let input = stdin.filter(|_| self.pipe.mux.room(stream) > CHUNK);
            let others: Vec<BorrowedFd<'_>> = wake.into_iter().chain(input).collect();
            let ready = self.turn(&others, None)?;
            let mut orders = Vec::new();
            if wake.is_some() && ready[0] {
                orders = handler.woken();
            }
            if let Some(input) = input
                && ready[usize::from(wake.is_some())]
            {
                buffer.clear();
                match rustix::io::read(input, rustix::buffer::spare_capacity(&mut buffer)) {
                    // A terminal that hung up gives EIO: that is an end too.
                    Ok(0) | Err(Errno::IO) => {
                        stdin = None;
                        self.pipe.mux.finish(stream, 0).ok();
                    }
                    Ok(_) => {
                        orders.extend(handler.input(&mut buffer));
                        // There is room for all of it; a session that just ended takes none.
                        self.pipe.mux.send_data(stream, 0, &buffer).ok();
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => return Err(ClientError::Input(error.into())),
                }
            }
            for order in orders {
                if self.carry_out(order, stream, &mut stops)? == Next::Leave {
                    self.flush()?;
                    return Ok(Pumped::Left);
                }
            }
        }
    }

    fn carry_out(
        &mut self,
        order: Order,
        stream: StreamId,
        stops: &mut Vec<StreamId>,
    ) -> Result<Next, ClientError> {
        match order {
            Order::Control(control) => {
                // A session that ends in this moment needs no new size.
                self.pipe.mux.send_message(stream, &encode(&control)).ok();
            }
            Order::Stop { grace_ms } => stops.push(self.open(&Command::Stop {
                grace_ms,
                remove: false,
            })?),
            Order::Leave => return Ok(Next::Leave),
        }
        Ok(Next::Go)
    }

    /// Writes what waits before leaving, as long as the supervisor takes it promptly.
    fn flush(&mut self) -> Result<(), ClientError> {
        let deadline = Instant::now() + FAREWELL;
        while self.pipe.wants_write() {
            match self.turn(&[], Some(deadline)) {
                Ok(_) => {}
                Err(ClientError::Deadline | ClientError::Lost) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

const FAREWELL: Duration = Duration::from_secs(1);
