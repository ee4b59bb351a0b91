//! QEMU's monitor where waiting is fine: each call returns when QEMU has done it, or at its deadline.

use crate::qmp::{Command, Event, Migration, Qmp, QmpError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// The other end of QEMU's monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    qmp: Qmp,
    /// Answers that nobody has taken. QEMU gives none that wasn't asked for.
    answers: Vec<Event>,
    /// The last that was heard of saving or loading.
    migration: Option<Migration>,
    /// What else came.
    events: VecDeque<Event>,
}

/// QEMU didn't do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// It hasn't answered in time. What it does now is unknown: it is best ended.
    #[error("QEMU hasn't finished `{0}` in time")]
    TimedOut(&'static str),
    /// It has ended.
    #[error("QEMU has ended")]
    Ended,
    /// It refused a command.
    #[error("QEMU refuses `{command}`: {reason}")]
    Refused {
        /// QEMU's name for the command.
        command: &'static str,
        /// QEMU's words, bounded and printable.
        reason: String,
    },
    /// It couldn't write the state.
    #[error("QEMU can't save the machine: {0}")]
    Save(
        /// QEMU's words, bounded and printable.
        String,
    ),
    /// It couldn't start.
    #[error("QEMU can't start: {0}")]
    Start(
        /// QEMU's words, bounded and printable.
        String,
    ),
    /// It couldn't take the state: of another build or machine, or damaged.
    #[error("QEMU doesn't take the saved machine: {0}")]
    Resume(
        /// QEMU's words, bounded and printable.
        String,
    ),
    /// It broke the protocol.
    #[error("QEMU's monitor is of no use")]
    Protocol(#[from] QmpError),
    /// The socket failed.
    #[error("Can't talk to QEMU's monitor")]
    Stream(#[source] io::Error),
}

/// The most events that are kept for [`Monitor::events`]; the oldest go.
const MAX_EVENTS: usize = 64;

/// The longest text taken from QEMU's complaints.
const MAX_WORDS: usize = 400;

/// How much of QEMU's complaints is read, in bytes.
const MAX_COMPLAINTS: usize = 16 * 1024;

impl Monitor {
    /// Takes [`crate::Machine::qmp`] of a machine that was started.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            qmp: Qmp::new(),
            answers: Vec::new(),
            migration: None,
            events: VecDeque::new(),
        }
    }

    /// Lets a machine of [`crate::Begin::Resume`] go on from `state`, a file whose position nobody else uses meanwhile.
    /// `complaints` is [`crate::Machine::stderr`], which has QEMU's words when it refuses a state: it ends then, and
    /// only [`MonitorError::Resume`] says so. Anything else is the host's trouble, not the state's.
    pub fn resume(
        &mut self,
        state: impl AsFd,
        complaints: impl AsFd,
        deadline: Instant,
    ) -> Result<(), MonitorError> {
        seek(state.as_fd(), SeekFrom::Start(0)).map_err(broken)?;
        let ready = self
            .execute(Command::SetCapabilities, deadline)
            .and_then(|_| self.give(state.as_fd(), deadline));
        if let Err(error) = ready {
            return Err(match error {
                // It hasn't looked at the state yet: there is no memory for it, for one.
                MonitorError::Ended => words(complaints).map_or(error, MonitorError::Start),
                other => other,
            });
        }
        match self.load(deadline) {
            Err(MonitorError::Ended) => Err(match words(complaints) {
                Some(words) => MonitorError::Resume(words),
                // Killed, as when the host's memory is full.
                None => MonitorError::Ended,
            }),
            other => other,
        }
    }

    /// Stops the processors and writes the machine's state to `state`, from its position on. With
    /// [`crate::Ram::Shared`] the memory isn't in it: it is what the memory's file holds when this returns. The
    /// disks' files are complete then, too. The processors stay stopped, also after an error.
    pub fn save(&mut self, state: impl AsFd, deadline: Instant) -> Result<(), MonitorError> {
        self.stop(deadline)?;
        self.execute(Command::SetCapabilities, deadline)?;
        self.execute(Command::SetSpeed, deadline)?;
        self.give(state.as_fd(), deadline)?;
        if let Some(reason) = self.migrate(Command::Migrate, deadline)? {
            return Err(MonitorError::Save(reason));
        }
        // The event comes a moment before QEMU takes itself for done, and nothing else tells of that.
        let finishing = Some("finish-migrate".to_owned());
        while self.execute(Command::QueryStatus, deadline)? == finishing {}
        Ok(())
    }

    /// Lets the processors go on.
    pub fn cont(&mut self, deadline: Instant) -> Result<(), MonitorError> {
        self.execute(Command::Continue, deadline).map(drop)
    }

    /// Stops the processors, and waits until what they have written is in the disks' files.
    pub fn stop(&mut self, deadline: Instant) -> Result<(), MonitorError> {
        self.execute(Command::Stop, deadline).map(drop)
    }

    /// Ends the process.
    pub fn quit(&mut self, deadline: Instant) -> Result<(), MonitorError> {
        match self.execute(Command::Quit, deadline) {
            // It may be gone before its answer is out.
            Ok(_) | Err(MonitorError::Ended) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the answer to one command, which is the machine's state for [`Command::QueryStatus`].
    pub fn execute(
        &mut self,
        command: Command,
        deadline: Instant,
    ) -> Result<Option<String>, MonitorError> {
        self.qmp.execute(command)?;
        self.answer(command, deadline)
    }

    /// Takes what QEMU said by itself meanwhile, but for how saving goes, without waiting. To be called when the monitor polls as readable. QEMU tells
    /// nothing before the first command of the others here has been answered.
    pub fn events(&mut self) -> Result<Vec<Event>, MonitorError> {
        self.read()?;
        self.write()?;
        Ok(self.events.drain(..).collect())
    }

    fn load(&mut self, deadline: Instant) -> Result<(), MonitorError> {
        match self.migrate(Command::MigrateIncoming, deadline)? {
            None => self.cont(deadline),
            Some(reason) => Err(MonitorError::Resume(reason)),
        }
    }

    /// Hands a descriptor over, which has to go with the first byte of its command, so nothing else may wait to be
    /// sent.
    fn give(&mut self, file: BorrowedFd<'_>, deadline: Instant) -> Result<(), MonitorError> {
        while !self.qmp.output().is_empty() {
            self.step(Command::GetFd, deadline)?;
        }
        self.qmp.execute(Command::GetFd)?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        loop {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let output = [IoSlice::new(self.qmp.output())];
            match sendmsg(&self.stream, &output, &mut control, flags) {
                Ok(count) => {
                    self.qmp.sent(count);
                    break;
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.poll(PollFlags::OUT, Command::GetFd, deadline)?;
                }
                Err(error) => return Err(broken(error)),
            }
        }
        self.answer(Command::GetFd, deadline).map(drop)
    }

    /// Starts a migration and waits for its end. If it failed, gives QEMU's words.
    fn migrate(
        &mut self,
        command: Command,
        deadline: Instant,
    ) -> Result<Option<String>, MonitorError> {
        self.migration = None;
        self.execute(command, deadline)?;
        loop {
            match self.migration {
                Some(Migration::Completed) => return Ok(None),
                Some(Migration::Failed) => break,
                Some(Migration::Underway) | None => self.step(command, deadline)?,
            }
        }
        // The event doesn't say why.
        let reason = self.execute(Command::QueryMigrate, deadline)?;
        Ok(Some(
            reason.unwrap_or_else(|| "it doesn't say why".to_owned()),
        ))
    }

    fn answer(
        &mut self,
        command: Command,
        deadline: Instant,
    ) -> Result<Option<String>, MonitorError> {
        loop {
            let mut answer = None;
            self.answers.retain(|event| {
                let this = match event {
                    Event::Done {
                        command: done,
                        status,
                    } if *done == command => Ok(status.clone()),
                    Event::Failed {
                        command: failed,
                        reason,
                    } if *failed == command => Err(MonitorError::Refused {
                        command: command.name(),
                        reason: reason.clone(),
                    }),
                    _ => return true,
                };
                answer = Some(this);
                false
            });
            match answer {
                Some(answer) => return answer,
                None => self.step(command, deadline)?,
            }
        }
    }

    /// Waits until QEMU takes or says something, and deals with that.
    fn step(&mut self, what: Command, deadline: Instant) -> Result<(), MonitorError> {
        let flags = if self.qmp.output().is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        self.poll(flags, what, deadline)?;
        self.write()?;
        self.read()
    }

    fn poll(&self, flags: PollFlags, what: Command, deadline: Instant) -> Result<(), MonitorError> {
        let left = deadline
            .checked_duration_since(Instant::now())
            .ok_or(MonitorError::TimedOut(what.name()))?;
        let left = Timespec::try_from(left).map_err(io::Error::other);
        let left = left.map_err(MonitorError::Stream)?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&left)) {
            Ok(0) => Err(MonitorError::TimedOut(what.name())),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }

    fn write(&mut self) -> Result<(), MonitorError> {
        while !self.qmp.output().is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.stream, self.qmp.output(), flags) {
                Ok(count) => self.qmp.sent(count),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), MonitorError> {
        let mut buffer = [0; 4096];
        loop {
            match recv(&self.stream, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(MonitorError::Ended),
                Ok((count, _)) => {
                    for event in self.qmp.feed(&buffer[..count])? {
                        self.sort(event);
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    fn sort(&mut self, event: Event) {
        match event {
            Event::Done { .. } | Event::Failed { .. } => self.answers.push(event),
            Event::Migration(state) => self.migration = Some(state),
            other => {
                if self.events.len() == MAX_EVENTS {
                    self.events.pop_front();
                }
                self.events.push_back(other);
            }
        }
    }
}

impl AsFd for Monitor {
    /// Polls as readable when [`Monitor::events`] has something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn broken(error: Errno) -> MonitorError {
    match error {
        // The other end goes with the process.
        Errno::PIPE | Errno::CONNRESET => MonitorError::Ended,
        error => MonitorError::Stream(error.into()),
    }
}

/// What QEMU said before it ended, as one line.
fn words(complaints: impl AsFd) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    // An error is "nothing more for now", and QEMU has ended: no more will come.
    while bytes.len() < MAX_COMPLAINTS
        && let Ok(count @ 1..) = rustix::io::read(complaints.as_fd(), &mut buffer)
    {
        bytes.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(unprefixed).collect();
    (!lines.is_empty()).then(|| base::escape_line(lines.join("; ").as_bytes(), MAX_WORDS))
}

/// A line without the program's name before it.
fn unprefixed(line: &str) -> &str {
    match line.split_once(": ") {
        Some((name, rest)) if name.starts_with("qemu") && !name.contains(' ') => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests;
