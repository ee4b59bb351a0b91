//! One session between a client and the guest: what came from one side and was not yet taken by the other.
//!
//! Credit is given back to the sender only when the receiver's side took the bytes, so a queue here never holds
//! more than one window, and a client that does not read makes the command in the machine wait, as a terminal at
//! home does.

#[cfg(test)]
mod tests;

use crate::control::{End, Note};
use std::collections::VecDeque;
use wire::message::{Control, Exit, Failure, Reply, decode, encode};
use wire::{Mux, SendError, StreamId};

/// What a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The sandbox's own command.
    Main,
    /// One more command.
    Exec,
    /// A request for files.
    Files,
}

/// Bytes, messages and ends on their way in one direction.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// Bytes of the first item that are gone already.
    taken: usize,
}

#[derive(Debug)]
struct Item {
    what: What,
    /// Credit to give back to the sender.
    cost: usize,
}

#[derive(Debug)]
enum What {
    Data { channel: u8, bytes: Vec<u8> },
    Message(Vec<u8>),
    Finish(u8),
    Close,
}

/// What came of pushing a queue on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Everything that can go has gone.
    Going,
    /// The end has gone: nothing will follow.
    Ended,
    /// The receiver's stream is gone.
    Gone,
}

impl Queue {
    pub(crate) fn data(&mut self, channel: u8, bytes: Vec<u8>, cost: usize) {
        let what = What::Data { channel, bytes };
        self.items.push_back(Item { what, cost });
    }

    pub(crate) fn message(&mut self, bytes: Vec<u8>, cost: usize) {
        let what = What::Message(bytes);
        self.items.push_back(Item { what, cost });
    }

    pub(crate) fn note(&mut self, note: &Note, cost: usize) {
        self.message(encode(note), cost);
    }

    pub(crate) fn finish(&mut self, channel: u8) {
        let what = What::Finish(channel);
        self.items.push_back(Item { what, cost: 0 });
    }

    pub(crate) fn close(&mut self) {
        let what = What::Close;
        self.items.push_back(Item { what, cost: 0 });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Throws everything away; what was owed for it.
    pub(crate) fn clear(&mut self) -> usize {
        self.taken = 0;
        self.items.drain(..).map(|item| item.cost).sum()
    }

    /// Hands on what `to` takes on its stream `id`; what is owed to the sender is added to `owed`.
    pub(crate) fn push(&mut self, to: &mut Mux, id: StreamId, owed: &mut usize) -> Pushed {
        while let Some(item) = self.items.front() {
            let sent = match &item.what {
                What::Data { channel, bytes } => {
                    match to.send_data(id, *channel, &bytes[self.taken..]) {
                        Ok(count) if self.taken + count < bytes.len() => {
                            self.taken += count;
                            return Pushed::Going;
                        }
                        other => other.map(drop),
                    }
                }
                // Without room it would wait in the multiplexer, and credit would be given back too early.
                What::Message(_) if to.is_open(id) && to.room(id) == 0 => return Pushed::Going,
                What::Message(bytes) => to.send_message(id, bytes),
                What::Finish(channel) => to.finish(id, *channel),
                What::Close => to.close(id),
            };
            match sent {
                // A message that is too long for its frame can only be one of the guest's that our note made
                // longer; dropping it would leave a hole, so the stream ends there.
                Err(SendError::TooLong) => {
                    to.reset(id);
                    return Pushed::Gone;
                }
                Err(SendError::Full) => return Pushed::Going,
                Err(SendError::Closed) => return Pushed::Gone,
                Ok(()) => {}
            }
            self.taken = 0;
            let ended = matches!(item.what, What::Close);
            *owed += item.cost;
            self.items.pop_front();
            if ended {
                return Pushed::Ended;
            }
        }
        Pushed::Going
    }
}

/// What a client is told about a session, made from the guest's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromGuest {
    /// The command runs.
    Started,
    /// It is over.
    Ended(End),
    /// Anything else: the guest speaks out of order.
    Nonsense,
}

/// Reads a message on a command's stream.
pub(crate) fn session_message(payload: &[u8]) -> FromGuest {
    match decode(payload) {
        Ok(Reply::Started { .. }) => FromGuest::Started,
        Ok(Reply::Exited(exit)) => FromGuest::Ended(End::Exit(plausible(exit))),
        Ok(Reply::Failed(failure)) => FromGuest::Ended(not_started(&failure)),
        _ => FromGuest::Nonsense,
    }
}

/// What a client may say on a session's stream: nothing but [`Control`], well-formed.
pub(crate) fn is_control(payload: &[u8]) -> bool {
    decode::<Control>(payload).is_ok()
}

/// A sentence for a guest's failure; the guest's words are only ever printed.
pub(crate) fn failure_sentence(failure: &Failure) -> String {
    let what = base::escape_line(&failure.what, 400);
    if failure.errno == 0 {
        return what;
    }
    let reason = rustix::io::Errno::from_raw_os_error(failure.errno.clamp(1, 4095));
    format!("{what}: {}", std::io::Error::from(reason))
}

/// A signal's exit code is 128 + n, so n stays below 128.
fn plausible(exit: Exit) -> Exit {
    match exit {
        Exit::Signal(signal) => Exit::Signal(signal.min(127)),
        code @ Exit::Code(_) => code,
    }
}

/// As a shell has it: 127 for a program that is not there, 126 for one that can't be executed.
fn not_started(failure: &Failure) -> End {
    const ENOENT: i32 = 2;
    let code = if failure.errno == ENOENT { 127 } else { 126 };
    End::NotStarted(code, failure_sentence(failure))
}
