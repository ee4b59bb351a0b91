//! One command and the bytes between it and the host.
//!
//! A session ends when its command has ended and its output has been read: up to the end of the pipes where
//! nothing holds them any more, as docker and ssh wait for it, but no longer than [`IDLE`] after the last byte and
//! [`LINGER`] in all where something in the background keeps them open. What lay in a pipe when the command ended
//! is always delivered, however slowly the host takes it.

use crate::fault::Fault;
use crate::setup::Identified;
use crate::spawn::{Started, resize, spawn};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use wire::message::{Control, Exec, Exit, Reply, decode, encode};
use wire::{MAX_PAYLOAD, Mux, StreamId};

/// How long a pipe that something in the background holds may stay silent after the command's end: a filter that
/// the shell started beside it (`> >(tee log)`) gets to write its last lines, even in an emulator.
const IDLE: Duration = Duration::from_millis(250);
/// How long output is taken after the command's end altogether.
const LINGER: Duration = Duration::from_secs(2);

/// A running command.
#[derive(Debug)]
pub(crate) struct Session {
    id: StreamId,
    pid: Pid,
    terminal: bool,
    /// Held while the command runs: without any open end a terminal looks hung up, although the command can open
    /// it again by `/dev/tty`.
    terminal_end: Option<OwnedFd>,
    /// The terminal or the pipe to standard input, until it is closed.
    input: Option<OwnedFd>,
    outputs: Vec<Output>,
    /// What the host sent and the command has not read: at most one window.
    queue: VecDeque<(Vec<u8>, usize)>,
    /// How much of the first piece is written.
    written: usize,
    input_ends: bool,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Output {
    fd: OwnedFd,
    channel: u8,
    /// Bytes that lay in it when the command ended, and are still to be sent.
    owed: u64,
}

#[derive(Debug)]
struct Ended {
    exit: Exit,
    last_byte: Instant,
    limit: Instant,
}

impl Session {
    pub(crate) fn start(id: StreamId, exec: &Exec, machine: &Identified) -> Result<Self, Fault> {
        let Started {
            pid,
            terminal,
            terminal_end,
            stdin,
            stdout,
            stderr,
        } = spawn(exec, machine)?;
        let is_terminal = terminal.is_some();
        let mut outputs = Vec::new();
        let mut input = stdin;
        if let Some(terminal) = terminal {
            let copy = terminal
                .try_clone()
                .map_err(|_| Fault::new("Making a terminal", Errno::MFILE))?;
            input = Some(terminal);
            outputs.push((copy, 1));
        }
        outputs.extend(stdout.map(|fd| (fd, 1)));
        outputs.extend(stderr.map(|fd| (fd, 2)));
        Ok(Self {
            id,
            pid,
            terminal: is_terminal,
            terminal_end,
            input,
            outputs: outputs
                .into_iter()
                .map(|(fd, channel)| Output {
                    fd,
                    channel,
                    owed: 0,
                })
                .collect(),
            queue: VecDeque::new(),
            written: 0,
            input_ends: false,
            ended: None,
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether `pid` is this session's command. Once that was reaped, the number can be anybody's.
    pub(crate) fn is_running_as(&self, pid: Pid) -> bool {
        self.pid == pid && self.ended.is_none()
    }

    /// Descriptors to wait for. Output is not looked at while the host takes none: the command then waits, too.
    pub(crate) fn interests(&self, mux: &Mux) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let room = mux.room(self.id) > 0;
        let input = self
            .input
            .iter()
            .filter(|_| !self.queue.is_empty())
            .map(|fd| (fd.as_fd(), PollFlags::OUT));
        let outputs = self
            .outputs
            .iter()
            .filter(move |_| room)
            .map(|output| (output.fd.as_fd(), PollFlags::IN));
        input.chain(outputs)
    }

    /// When to look at this session even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let ended = self.ended.as_ref()?;
        if self.outputs.iter().any(|output| output.owed > 0) {
            // Nothing ends before that is sent, and both the pipe and the host's credit wake the loop.
            return None;
        }
        Some((ended.last_byte + IDLE).min(ended.limit))
    }

    /// Bytes for standard input.
    pub(crate) fn feed(&mut self, mux: &mut Mux, bytes: Vec<u8>, cost: usize) {
        if self.input.is_none() || self.input_ends {
            // Nobody will read them. The credit is given back, or the host would wait for ever.
            mux.consume(self.id, cost);
            return;
        }
        self.queue.push_back((bytes, cost));
        self.write_input(mux);
    }

    /// No more bytes come for standard input.
    pub(crate) fn end_input(&mut self) {
        self.input_ends = true;
        self.close_input_if_done();
    }

    /// A message on the session's stream. One that makes no sense for it is passed over: the command may have
    /// ended meanwhile.
    pub(crate) fn control(&mut self, payload: &[u8]) {
        match decode(payload) {
            Ok(Control::Resize(size)) if self.terminal => {
                if let Some(terminal) = &self.input {
                    _ = resize(terminal, size);
                }
            }
            Ok(Control::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
                    self.signal(signal);
                }
            }
            Ok(Control::Resize(_)) | Err(_) => {}
        }
    }

    /// Signals the foreground process group: the terminal's where there is one, otherwise the command's own.
    pub(crate) fn signal(&self, signal: Signal) {
        let foreground = self
            .input
            .as_ref()
            .filter(|_| self.terminal)
            .and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
        if self.ended.is_some() && foreground.is_none() {
            // The number may be somebody else's by now.
            return;
        }
        _ = rustix::process::kill_process_group(foreground.unwrap_or(self.pid), signal);
    }

    /// The host is gone: so is the session's terminal or other end, which the kernel tells the command.
    pub(crate) fn hang_up(self) {
        self.signal(Signal::HUP);
        self.signal(Signal::CONT);
    }

    /// The command was reaped.
    pub(crate) fn ended(&mut self, status: WaitStatus) {
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
            (None, None) => return,
        };
        let now = Instant::now();
        self.terminal_end = None;
        for output in &mut self.outputs {
            output.owed = rustix::io::ioctl_fionread(&output.fd).unwrap_or(0);
        }
        self.ended = Some(Ended {
            exit,
            last_byte: now,
            limit: now + LINGER,
        });
        // A terminal's input stays open with its output; a pipe has no reader that matters any more.
        if !self.terminal {
            self.input = None;
        }
    }

    /// Does what can be done now: input, output, and the end. True when the session is over.
    pub(crate) fn turn(&mut self, mux: &mut Mux, buffer: &mut [u8]) -> bool {
        self.write_input(mux);
        let mut moved = false;
        let mut index = 0;
        while index < self.outputs.len() {
            let room = mux.room(self.id).min(MAX_PAYLOAD).min(buffer.len());
            if room == 0 {
                break;
            }
            let output = &mut self.outputs[index];
            match rustix::io::read(&output.fd, &mut buffer[..room]) {
                Ok(count) if count > 0 => {
                    moved = true;
                    output.owed = output.owed.saturating_sub(count as u64);
                    // `room` is what one frame takes, so all of it goes.
                    _ = mux.send_data(self.id, output.channel, &buffer[..count]);
                    index += 1;
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    output.owed = 0;
                    index += 1;
                }
                // A terminal whose last user is gone gives EIO.
                Ok(_) | Err(_) => {
                    let output = self.outputs.remove(index);
                    if !self.terminal {
                        _ = mux.finish(self.id, output.channel);
                    }
                }
            }
        }
        let now = Instant::now();
        let Some(ended) = &mut self.ended else {
            return false;
        };
        if moved {
            ended.last_byte = now;
        }
        let owed = self.outputs.iter().any(|output| output.owed > 0);
        let late = now >= ended.limit || now >= ended.last_byte + IDLE;
        if !self.outputs.is_empty() && (owed || !late) {
            return false;
        }
        let exit = ended.exit;
        for output in self.outputs.drain(..) {
            if !self.terminal {
                _ = mux.finish(self.id, output.channel);
            }
        }
        if self.terminal {
            _ = mux.finish(self.id, 1);
        }
        // The stream's own limit on waiting messages is far above these three.
        _ = mux.send_message(self.id, &encode(&Reply::Exited(exit)));
        _ = mux.close(self.id);
        true
    }

    fn write_input(&mut self, mux: &mut Mux) {
        while let (Some(fd), Some((bytes, cost))) = (&self.input, self.queue.front()) {
            match rustix::io::write(fd, &bytes[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    if self.written == bytes.len() {
                        mux.consume(self.id, *cost);
                        self.queue.pop_front();
                        self.written = 0;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody reads it any more, as with `yes | head -1`.
                Err(_) => self.input = None,
            }
        }
        if self.input.is_none() {
            for (_, cost) in self.queue.drain(..) {
                mux.consume(self.id, cost);
            }
            self.written = 0;
        }
        self.close_input_if_done();
    }

    fn close_input_if_done(&mut self) {
        // A terminal is one thing in both directions: it ends with the command.
        if self.input_ends && self.queue.is_empty() && !self.terminal {
            self.input = None;
        }
    }
}
