//! A terminal with a program in it, as a person has one.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The user's side of a terminal in which a program runs.
#[derive(Debug)]
pub struct Terminal {
    ours: OwnedFd,
    /// Held open, so that the settings can be looked at when the program has ended.
    theirs: OwnedFd,
    child: Child,
    seen: String,
}

/// The longest that anything is waited for.
const PATIENCE: Duration = Duration::from_mins(2);

impl Terminal {
    /// Starts a program in a terminal of so many rows and columns.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        set_size(&ours, rows, columns);
        // A session of its own with the terminal as its own, which takes a step between fork and exec.
        let mut inside = Command::new("setsid");
        inside
            .args(["--ctty", "--wait"])
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .env("TERM", "xterm")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs.try_clone().unwrap());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        if let Some(directory) = command.get_current_dir() {
            inside.current_dir(directory);
        }
        Self {
            child: inside.spawn().unwrap(),
            ours,
            theirs,
            seen: String::new(),
        }
    }

    /// Types.
    pub fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.ours, bytes).unwrap(), bytes.len());
    }

    /// Changes the size.
    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.ours, rows, columns);
    }

    /// How the terminal is set.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.theirs).unwrap()
    }

    /// Waits until the screen has shown `text` since the last call.
    pub fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            assert!(
                Instant::now() < deadline && self.read(deadline),
                "`{text}` didn't come; there is:\n{}",
                self.seen
            );
        }
    }

    /// Waits for the program's end; its exit code, and what the screen showed since.
    pub fn end(mut self) -> (i32, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                while self.read(Instant::now()) {}
                return (status.code().unwrap_or(-1), std::mem::take(&mut self.seen));
            }
            assert!(Instant::now() < deadline, "no end after: {}", self.seen);
            self.read(Instant::now() + Duration::from_millis(50));
        }
    }

    /// Reads what comes until then; false when nothing did.
    fn read(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap();
        let mut fds = [PollFd::new(&self.ours, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).unwrap() == 0 {
            return false;
        }
        let mut bytes = [0; 4096];
        let count = rustix::io::read(&self.ours, &mut bytes).unwrap_or(0);
        self.seen
            .push_str(&String::from_utf8_lossy(&bytes[..count]));
        count > 0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves nothing running.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

fn set_size(terminal: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}
