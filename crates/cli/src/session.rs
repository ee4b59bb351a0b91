//! One command in a machine, seen from the user's terminal: its output, its input, signals, size, and its end.

use crate::error::{CommandError, Result, exit};
use crate::keys::{Key, Keys};
use crate::start::Turn;
use crate::terminal::{self, RawMode};
use crate::ui::{Progress, Ui};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use supervisor::client::{Connection, Handler, Next, Order, Pumped};
use supervisor::control::{Command, End, Note};
use wire::StreamId;
use wire::message::{Control, Exit};

/// How a session ended for its client.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The command ended.
    Ended {
        /// How.
        end: End,
        /// The result is written and the machine gone.
        saved: bool,
    },
    /// The client left, and the command goes on or is ended by the supervisor.
    Left {
        /// By the key for it, and not because the terminal is gone.
        asked: bool,
    },
}

/// Milliseconds that a command has to end itself after the second Ctrl-C.
const GRACE_MS: u32 = 3000;
/// The signal of a command whose reader is gone (Linux, all architectures but MIPS alike).
const SIGPIPE: u8 = 13;

/// Opens a session and carries it to its end.
pub(crate) fn run(
    ui: Ui,
    connection: &mut Connection,
    command: &Command,
    tty: bool,
    stdin: bool,
    turn: Option<Turn>,
) -> Result<Outcome> {
    let stream = connection.open(command)?;
    carry(ui, connection, stream, tty, stdin, turn)
}

fn carry(
    ui: Ui,
    connection: &mut Connection,
    stream: StreamId,
    tty: bool,
    stdin: bool,
    turn: Option<Turn>,
) -> Result<Outcome> {
    let signals = Signals::listen()?;
    let wake = signals.wake.try_clone()?;
    let input = io::stdin();
    let mut session = Session {
        ui,
        tty,
        signals,
        raw: None,
        keys: Keys::default(),
        progress: Some(Progress::new(ui)),
        turn,
        reader_gone: false,
        interrupts: 0,
        asked_to_leave: false,
        failed: None,
        end: None,
        saved: false,
    };
    let stdin = stdin.then(|| input.as_fd());
    let pumped = connection.pump(stream, stdin, Some(wake.as_fd()), &mut session);
    session.raw = None;
    session.progress = None;
    session.turn = None;
    if session.asked_to_leave {
        // The cursor is in the middle of some line of the command's.
        ui.say("");
    }
    if let Some(error) = session.failed {
        return Err(error);
    }
    match (pumped, session.end) {
        // The command's end is known, so what failed after it is the saving.
        (_, Some(end)) => Ok(Outcome::Ended {
            end,
            saved: session.saved,
        }),
        (Ok(Pumped::Left), None) => Ok(Outcome::Left {
            asked: session.asked_to_leave,
        }),
        (Ok(Pumped::Closed), None) => Err(CommandError::new(
            "The sandbox ended without a word about the command",
        )),
        (Err(error), None) => Err(error.into()),
    }
}

/// The exit code that a shell would show.
pub(crate) fn exit_code(end: &End) -> u8 {
    match end {
        End::Exit(Exit::Code(code)) | End::NotStarted(code, _) => *code,
        End::Exit(Exit::Signal(signal)) => 128_u8.saturating_add(*signal),
        End::TimedOut => exit::TIMED_OUT,
        End::Stopped => 128 + 15,
        End::Crashed(_) => exit::EFIMERA,
    }
}

/// What the user has to be told about an end, beyond the exit code.
pub(crate) fn tell(ui: Ui, end: &End) {
    match end {
        End::NotStarted(_, message) | End::Crashed(message) => {
            ui.error(&CommandError::new(message));
        }
        End::TimedOut => ui.warn("The command was ended by `--timeout`"),
        End::Exit(_) | End::Stopped => {}
    }
}

struct Session {
    ui: Ui,
    tty: bool,
    signals: Signals,
    raw: Option<RawMode>,
    keys: Keys,
    progress: Option<Progress>,
    /// Until the machine is up.
    turn: Option<Turn>,
    reader_gone: bool,
    interrupts: u32,
    asked_to_leave: bool,
    failed: Option<CommandError>,
    end: Option<End>,
    saved: bool,
}

impl Handler for Session {
    fn output(&mut self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        self.progress = None;
        if channel == 2 {
            return io::stderr().lock().write_all(bytes);
        }
        if self.reader_gone {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            // `| head` has seen enough: the command learns of it as it would at home.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                self.signals.remind()
            }
            other => other,
        }
    }

    fn note(&mut self, note: Note) -> Next {
        match note {
            Note::Booting => {
                if let Some(progress) = &mut self.progress {
                    progress.at("starting the machine", 0, 0, false);
                }
            }
            Note::Started => {
                self.turn = None;
                self.progress = None;
                if self.tty {
                    // A terminal that can't be made raw still shows output.
                    self.raw = RawMode::enter().ok();
                }
            }
            Note::Exited(end) => {
                self.turn = None;
                self.raw = None;
                self.end = Some(end);
                let mut progress = Progress::new(self.ui);
                progress.at("bringing out the result", 0, 0, false);
                self.progress = Some(progress);
            }
            Note::Saved => self.saved = true,
            Note::Failed { message, hint } => {
                self.raw = None;
                self.failed = Some(CommandError::told(message, hint));
            }
            Note::Reply(_) | Note::Status(_) => {}
        }
        Next::Go
    }

    fn input(&mut self, bytes: &mut Vec<u8>) -> Vec<Order> {
        // Without a terminal they are bytes as any other.
        if !self.tty {
            return Vec::new();
        }
        let keys = self.keys.take(bytes);
        keys.into_iter()
            .map(|key| match key {
                Key::Detach => {
                    self.asked_to_leave = true;
                    Order::Leave
                }
                Key::Stop => Order::Stop { grace_ms: GRACE_MS },
            })
            .collect()
    }

    fn woken(&mut self) -> Vec<Order> {
        self.signals.drain();
        let mut orders = Vec::new();
        if self.reader_gone && !self.signals.told_reader_gone {
            self.signals.told_reader_gone = true;
            orders.push(Order::Control(Control::Signal(SIGPIPE)));
        }
        if self.signals.take(SIGWINCH) && self.tty {
            orders.push(Order::Control(Control::Resize(terminal::size())));
        }
        if self.signals.take(SIGINT) {
            self.interrupts += 1;
            orders.push(match self.interrupts {
                1 if self.end.is_none() => Order::Control(Control::Signal(2)),
                1 | 2 => {
                    self.ui
                        .say("Stopping: the result is saved first. Ctrl-C again leaves at once.");
                    Order::Stop { grace_ms: GRACE_MS }
                }
                _ => Order::Leave,
            });
        }
        if self.signals.take(SIGQUIT) {
            orders.push(Order::Control(Control::Signal(3)));
        }
        if self.signals.take(SIGTERM) {
            orders.push(Order::Stop { grace_ms: GRACE_MS });
        }
        // The terminal is gone: whether the command goes on is the sandbox's `linger`.
        if self.signals.take(SIGHUP) {
            orders.push(Order::Leave);
        }
        orders
    }
}

/// Signals as bytes on a socket that a poll can wait for.
struct Signals {
    wake: UnixStream,
    sender: UnixStream,
    seen: Vec<(i32, Arc<AtomicBool>)>,
    told_reader_gone: bool,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let (wake, sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        let mut seen = Vec::new();
        for signal in [SIGWINCH, SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            // After the flag, since actions run in the order of their registration.
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            seen.push((signal, flag));
        }
        Ok(Self {
            wake,
            sender,
            seen,
            told_reader_gone: false,
        })
    }

    /// Has [`Handler::woken`] called although no signal came.
    fn remind(&mut self) -> io::Result<()> {
        match self.sender.write(b"!") {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.wake.read(&mut bytes), Ok(1..)) {}
    }

    fn take(&self, signal: i32) -> bool {
        self.seen
            .iter()
            .any(|(number, flag)| *number == signal && flag.swap(false, Ordering::SeqCst))
    }
}

/// True when standard input is open at all (a closed one reads as an error, not as an end).
pub(crate) fn has_stdin() -> bool {
    !matches!(rustix::io::fcntl_getfd(io::stdin()), Err(Errno::BADF))
}
