//! Other programs, started without a shell and with an environment that is ours.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read, Write as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The variables that children get.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    passed: Vec<(OsString, OsString)>,
}

/// A child process failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It can't be started.
    #[error("Can't start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Talking to it failed.
    #[error("Can't talk to `{program}`")]
    Talk {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended with an error.
    #[error("`{command}` ended with {status}{}", tail(.said))]
    Failed {
        /// The command as a person would type it.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it said on standard error, printable.
        said: Vec<String>,
    },
}

/// Lines of a failed command that are kept: enough for the cause, not for the whole log.
const KEPT_LINES: usize = 12;
/// Lines that wait for someone to look at them; the oldest make room.
const WAITING_LINES: usize = 64;
/// The longest line that is kept, in bytes.
const MAX_LINE: usize = 400;
/// How long lines may wait to be handed on: a quarter of a second.
const LISTEN_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

impl Environment {
    /// The fixed variables and those of `passed` (proxies, certificates), which the caller chose from its own.
    pub fn new(passed: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self {
            passed: passed.into_iter().collect(),
        }
    }

    /// A command with nothing but this environment, without standard input.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(self.variables())
            .stdin(Stdio::null());
        command
    }

    /// All variables: the passed ones first, so that the fixed ones win.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let fixed = [
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C.UTF-8"),
            ("DEBIAN_FRONTEND", "noninteractive"),
        ];
        let fixed = fixed
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        self.passed.iter().cloned().chain(fixed)
    }
}

/// A child whose standard error is listened to while its standard output is read. Dropped before its end, it is
/// asked to end (SIGTERM, so that it can clean up) and waited for.
pub(crate) struct Running {
    child: Child,
    heard: Arc<Mutex<Heard>>,
    listener: Option<JoinHandle<()>>,
    command: String,
    ended: bool,
}

#[derive(Default)]
struct Heard {
    /// Lines that nobody has looked at yet.
    fresh: VecDeque<String>,
    /// The last lines.
    last: VecDeque<String>,
}

impl Running {
    /// Starts the command; `input` becomes its standard input.
    pub(crate) fn start(command: &mut Command, input: Option<Vec<u8>>) -> Result<Self, ChildError> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .map_err(|source| ChildError::Start { program, source })?;
        if let Some((bytes, mut pipe)) = input.zip(child.stdin.take()) {
            // On a thread of its own: a child that doesn't read must not keep us from reading it. One that never
            // reads all of it is its own affair, and says so by its exit code.
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        let heard = Arc::new(Mutex::new(Heard::default()));
        let listener = child.stderr.take().map(|stderr| {
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || listen(stderr, &heard))
        });
        Ok(Self {
            child,
            heard,
            listener,
            command: words(command),
            ended: false,
        })
    }

    /// The child's standard output; it can be taken once.
    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child
            .stdout
            .take()
            .expect("the output of a child is taken once")
    }

    /// Waits until `stdout` has something to read or is closed, and meanwhile hands on what the child says on standard
    /// error, a few times a second.
    pub(crate) fn until_output(&self, stdout: &ChildStdout, heard: &mut dyn FnMut(&str)) {
        loop {
            while let Some(line) = self.next_line() {
                heard(&line);
            }
            let mut wanted = [PollFd::new(stdout, PollFlags::IN)];
            match rustix::event::poll(&mut wanted, Some(&LISTEN_EVERY)) {
                Ok(0) | Err(Errno::INTR) => {}
                // Readable, closed, or not to be waited for: reading tells.
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// The next line of standard error that nobody has looked at, without waiting for one.
    fn next_line(&self) -> Option<String> {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fresh
            .pop_front()
    }

    /// Waits for the end.
    ///
    /// Fails when the child ended with an error.
    pub(crate) fn finish(mut self) -> Result<(), ChildError> {
        drop(self.child.stdout.take());
        let status = self.child.wait().map_err(|source| ChildError::Talk {
            program: self.command.clone(),
            source,
        })?;
        self.ended = true;
        if let Some(listener) = self.listener.take() {
            // A listener that panicked has heard nothing more; there is nothing to do about it.
            drop(listener.join());
        }
        if status.success() {
            return Ok(());
        }
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let said = heard.last.iter().cloned().collect();
        Err(ChildError::Failed {
            command: self.command.clone(),
            status,
            said,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // The child may have ended by itself: that it can't be told any more is what we want.
            _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.child),
                rustix::process::Signal::TERM,
            );
            drop(self.child.wait());
        }
    }
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, ChildError> {
    with_output(command, |mut stdout| {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Runs a command and lets `take` have its standard output.
pub(crate) fn with_output<T>(
    command: &mut Command,
    take: impl FnOnce(ChildStdout) -> io::Result<T>,
) -> Result<T, ChildError> {
    let mut running = Running::start(command, None)?;
    let stdout = running.stdout();
    let taken = take(stdout);
    let program = running.command.clone();
    running.finish()?;
    taken.map_err(|source| ChildError::Talk { program, source })
}

/// The command as a person would type it.
pub(crate) fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// A word that a shell takes as one.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+/.,:@%^".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Takes standard error apart at newlines and carriage returns (progress bars use those).
fn listen(mut stderr: impl Read, heard: &Mutex<Heard>) {
    let mut chunk = [0; 4096];
    let mut line = Vec::new();
    let tell = |line: &mut Vec<u8>| {
        if !line.iter().all(u8::is_ascii_whitespace) {
            let text = base::escape_line(line, MAX_LINE);
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            let heard = &mut *heard;
            for (lines, most) in [
                (&mut heard.fresh, WAITING_LINES),
                (&mut heard.last, KEPT_LINES),
            ] {
                if lines.len() == most {
                    lines.pop_front();
                }
                lines.push_back(text.clone());
            }
        }
        line.clear();
    };
    loop {
        let count = match stderr.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in &chunk[..count] {
            match byte {
                b'\n' | b'\r' => tell(&mut line),
                _ if line.len() < MAX_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    tell(&mut line);
}

fn tail(said: &[String]) -> String {
    if said.is_empty() {
        String::new()
    } else {
        format!("; it said:\n  {}", said.join("\n  "))
    }
}

#[cfg(test)]
mod tests;
