//! The user's terminal: raw while a session with a terminal is attached, and put right on every way out.

use rustix::io::Result;
use rustix::termios::{self, OptionalActions, Termios};
use std::io::{self, IsTerminal as _};
use wire::message::TtySize;

/// While this lives the terminal is raw; when it goes the terminal is as it was.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Makes standard input raw, as ssh and docker do.
    pub(crate) fn enter() -> Result<Self> {
        let stdin = io::stdin();
        let before = termios::tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // The terminal may be gone, and then there is nothing to put right.
        let _gone = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

impl std::fmt::Debug for RawMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawMode").finish_non_exhaustive()
    }
}

/// A session gets a terminal when both ends of the user's are one, as with ssh.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The size of the user's terminal; 24 by 80 where it doesn't say.
pub(crate) fn size() -> TtySize {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TtySize {
            rows: size.ws_row,
            cols: size.ws_col,
        },
        _ => TtySize { rows: 24, cols: 80 },
    }
}
