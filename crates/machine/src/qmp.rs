//! QEMU's monitor protocol, without the input and output: JSON objects, one a line, in both directions.
//!
//! ```text
//!  Greeting ── {"QMP": …} ──▶ Negotiating ── {"return": {}} ──▶ Ready: Event::Ready, then answers and events
//!            (we send qmp_capabilities)        (we send what was asked for meanwhile)
//! ```
//!
//! The peer counts as hostile (a guest may own it). A line has a longest length, an answer to nothing that was
//! asked is an error, and after an error the monitor is not used any more.
//!
//! Reference: QEMU's `docs/interop/qmp-spec.rst`.

use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;

/// What can be asked of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// End the process now.
    Quit,
    /// Press the machine's power button.
    PowerDown,
    /// Tell the machine's state; it comes with [`Event::Done`].
    QueryStatus,
    /// Stop the processors.
    Stop,
    /// Let the processors go on.
    Continue,
    /// Leave memory that lies in a shared file out of a saved state, and tell how saving goes by events. To be set
    /// alike where the state is read.
    SetCapabilities,
    /// Save as fast as the host can: QEMU's own limit is 128 MiB/s, for a network.
    SetSpeed,
    /// Take the descriptor that comes with this command's first byte, as the file of the state.
    GetFd,
    /// Save the state to the file that was handed over.
    Migrate,
    /// Go on from the file that was handed over. Only if it was started for that.
    MigrateIncoming,
    /// Tell how saving went; [`Event::Done`] has the reason if it failed.
    QueryMigrate,
}

/// How far saving or loading a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Migration {
    /// Neither of the others.
    Underway,
    /// All of it is written or read.
    Completed,
    /// It failed or was cancelled.
    Failed,
}

/// What QEMU said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The monitor can be used.
    Ready,
    /// A command was carried out.
    Done {
        /// Which one.
        command: Command,
        /// The state of the machine, for [`Command::QueryStatus`]; why it failed, for [`Command::QueryMigrate`].
        status: Option<String>,
    },
    /// A command was refused.
    Failed {
        /// Which one.
        command: Command,
        /// QEMU's words, bounded and printable.
        reason: String,
    },
    /// The machine is about to end.
    Shutdown {
        /// Whether the guest wanted it (powered off, restarted), rather than the host.
        by_guest: bool,
        /// QEMU's word for why (`guest-shutdown`, `guest-reset`, `host-qmp-quit`…), bounded and printable.
        reason: String,
    },
    /// The guest's kernel gave up.
    Panicked,
    /// The machine was restarted.
    Reset,
    /// The processors were stopped.
    Stopped,
    /// The processors go on.
    Resumed,
    /// Saving or loading a state has got somewhere.
    Migration(Migration),
    /// A block device answered with an error, as when the host's disk is full.
    BlockError,
    /// Something else, by QEMU's name for it, bounded and printable.
    Other(String),
}

/// QEMU broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QmpError {
    /// A line is too long.
    #[error("QEMU's monitor sent a line of more than {MAX_LINE} bytes")]
    TooLong,
    /// A line is not what the protocol knows.
    #[error("QEMU's monitor sent something that isn't QMP: `{0}`")]
    Malformed(String),
    /// An answer without a question.
    #[error("QEMU's monitor answered what it wasn't asked")]
    Unasked,
    /// Too many commands wait for their answers.
    #[error("QEMU's monitor doesn't answer")]
    Silent,
}

/// The longest line that is read. The greeting has 150 bytes, events a few hundred.
pub const MAX_LINE: usize = 64 * 1024;

/// The most commands that may wait for an answer. We send a handful in a machine's life.
const MAX_WAITING: usize = 16;

/// The longest text taken from QEMU into an event.
const MAX_TEXT: usize = 120;

/// The client's side of the protocol.
#[derive(Debug, Default)]
pub struct Qmp {
    state: State,
    /// The beginning of a line whose end hasn't come.
    partial: Vec<u8>,
    /// Commands that were sent, oldest first, with their numbers. QEMU answers in order.
    waiting: VecDeque<(u64, Command)>,
    /// Commands that wait for the greeting.
    early: VecDeque<Command>,
    next_number: u64,
    output: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Greeting,
    Negotiating,
    Ready,
    Broken,
}

/// Any line from QEMU. Exactly one of the first four is there.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    #[serde(rename = "return")]
    answer: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    id: Option<u64>,
    data: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    desc: String,
}

#[derive(Debug, Deserialize)]
struct Status {
    status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MigrationInfo {
    error_desc: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ShutdownData {
    guest: bool,
    #[serde(default)]
    reason: String,
}

impl Qmp {
    /// A client that has heard nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what QEMU sent. After an error, everything that comes is ignored.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, QmpError> {
        let mut events = Vec::new();
        let outcome = self.take(bytes, &mut events);
        if outcome.is_err() {
            self.state = State::Broken;
            self.partial = Vec::new();
            self.output.clear();
        }
        outcome.map(|()| events)
    }

    /// Asks for something. Before the greeting it is kept, and sent after it.
    pub fn execute(&mut self, command: Command) -> Result<(), QmpError> {
        if self.waiting.len() + self.early.len() >= MAX_WAITING {
            return Err(QmpError::Silent);
        }
        match self.state {
            State::Ready => self.send(command),
            State::Greeting | State::Negotiating => self.early.push_back(command),
            State::Broken => {}
        }
        Ok(())
    }

    /// What is to be sent to QEMU.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Forgets the first `count` bytes of [`Qmp::output`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.drain(..count.min(self.output.len()));
    }

    fn take(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), QmpError> {
        if self.state == State::Broken {
            return Ok(());
        }
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.partial.len() + piece.len() > MAX_LINE {
                return Err(QmpError::TooLong);
            }
            self.partial.extend_from_slice(piece);
            if self.partial.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                self.line(line.trim_ascii(), events)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, text: &[u8], events: &mut Vec<Event>) -> Result<(), QmpError> {
        if text.is_empty() {
            return Ok(());
        }
        let malformed = || QmpError::Malformed(base::escape_line(text, MAX_TEXT));
        let line: Line = serde_json::from_slice(text).map_err(|_| malformed())?;
        match (self.state, line) {
            (
                State::Greeting,
                Line {
                    greeting: Some(_), ..
                },
            ) => {
                self.output
                    .extend_from_slice(b"{\"execute\":\"qmp_capabilities\"}\n");
                self.state = State::Negotiating;
            }
            (
                State::Negotiating,
                Line {
                    answer: Some(_),
                    id: None,
                    ..
                },
            ) => {
                self.state = State::Ready;
                events.push(Event::Ready);
                for command in std::mem::take(&mut self.early) {
                    self.send(command);
                }
            }
            (
                State::Negotiating | State::Ready,
                Line {
                    event: Some(name),
                    data,
                    ..
                },
            ) => {
                events.push(event(&name, data).ok_or_else(malformed)?);
            }
            (
                State::Ready,
                Line {
                    answer: Some(answer),
                    id: Some(id),
                    ..
                },
            ) => {
                let command = self.answered(id)?;
                let status = match command {
                    Command::QueryStatus => {
                        let status = Status::deserialize(answer).map_err(|_| malformed())?;
                        Some(text_of(&status.status))
                    }
                    Command::QueryMigrate => {
                        let info = MigrationInfo::deserialize(answer).map_err(|_| malformed())?;
                        info.error_desc.as_deref().map(text_of)
                    }
                    _ => None,
                };
                events.push(Event::Done { command, status });
            }
            (
                State::Ready,
                Line {
                    error: Some(refusal),
                    id: Some(id),
                    ..
                },
            ) => {
                let command = self.answered(id)?;
                events.push(Event::Failed {
                    command,
                    reason: text_of(&refusal.desc),
                });
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }

    fn answered(&mut self, id: u64) -> Result<Command, QmpError> {
        match self.waiting.pop_front() {
            Some((number, command)) if number == id => Ok(command),
            _ => Err(QmpError::Unasked),
        }
    }

    fn send(&mut self, command: Command) {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.push_back((number, command));
        let (name, arguments) = (command.name(), command.arguments());
        self.output.extend_from_slice(
            format!("{{\"execute\":\"{name}\",\"id\":{number}{arguments}}}\n").as_bytes(),
        );
    }
}

impl Command {
    /// QEMU's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quit => "quit",
            Self::PowerDown => "system_powerdown",
            Self::QueryStatus => "query-status",
            Self::Stop => "stop",
            Self::Continue => "cont",
            Self::SetCapabilities => "migrate-set-capabilities",
            Self::SetSpeed => "migrate-set-parameters",
            Self::GetFd => "getfd",
            Self::Migrate => "migrate",
            Self::MigrateIncoming => "migrate-incoming",
            Self::QueryMigrate => "query-migrate",
        }
    }

    /// What follows the name and number, as JSON.
    const fn arguments(self) -> &'static str {
        match self {
            Self::SetCapabilities => {
                r#","arguments":{"capabilities":[{"capability":"x-ignore-shared","state":true},{"capability":"events","state":true}]}"#
            }
            // In bytes a second: 1 TiB.
            Self::SetSpeed => r#","arguments":{"max-bandwidth":1099511627776}"#,
            Self::GetFd => r#","arguments":{"fdname":"state"}"#,
            Self::Migrate | Self::MigrateIncoming => r#","arguments":{"uri":"fd:state"}"#,
            Self::Quit
            | Self::PowerDown
            | Self::QueryStatus
            | Self::Stop
            | Self::Continue
            | Self::QueryMigrate => "",
        }
    }
}

fn event(name: &str, data: Option<Value>) -> Option<Event> {
    Some(match name {
        "SHUTDOWN" => {
            let data = ShutdownData::deserialize(data?).ok()?;
            Event::Shutdown {
                by_guest: data.guest,
                reason: text_of(&data.reason),
            }
        }
        "GUEST_PANICKED" => Event::Panicked,
        "RESET" => Event::Reset,
        "STOP" => Event::Stopped,
        "RESUME" => Event::Resumed,
        "MIGRATION" => {
            let data = Status::deserialize(data?).ok()?;
            Event::Migration(match data.status.as_str() {
                "completed" => Migration::Completed,
                "failed" | "cancelled" => Migration::Failed,
                _ => Migration::Underway,
            })
        }
        "BLOCK_IO_ERROR" => Event::BlockError,
        other => Event::Other(text_of(other)),
    })
}

fn text_of(text: &str) -> String {
    base::escape_line(text.as_bytes(), MAX_TEXT)
}

#[cfg(test)]
mod tests;
