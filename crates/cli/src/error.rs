//! What a verb gives back when it fails: one sentence, its causes, what to type next, and the exit code.

use std::error::Error;
use std::fmt;

/// Exit codes of efimera itself. `run` and `exec` pass the command's own code through, so they keep to docker's
/// habit of 125 for "efimera failed, not the command".
pub(crate) mod exit {
    /// It was not done.
    pub(crate) const FAILED: u8 = 1;
    /// The arguments make no sense.
    pub(crate) const USAGE: u8 = 2;
    /// `--timeout` was over (as timeout(1) has it).
    pub(crate) const TIMED_OUT: u8 = 124;
    /// `run` and `exec`: efimera failed, not the command.
    pub(crate) const EFIMERA: u8 = 125;
}

/// A failure for a person.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) exit: u8,
    pub(crate) message: String,
    pub(crate) causes: Vec<String>,
    pub(crate) hints: Vec<String>,
}

pub(crate) type Result<T = (), E = CommandError> = std::result::Result<T, E>;

impl CommandError {
    /// It was not done, and this is why.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            exit: exit::FAILED,
            message: message.to_string(),
            causes: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// The arguments make no sense together.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            exit: exit::USAGE,
            ..Self::new(message)
        }
    }

    /// What a supervisor said.
    pub(crate) fn told(message: impl fmt::Display, hint: Option<String>) -> Self {
        hint.into_iter().fold(Self::new(message), Self::hint)
    }

    /// Adds what to type next.
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hints.push(hint.to_string());
        self
    }

    /// Adds what made it fail.
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Self {
        self.causes.push(cause.to_string());
        self
    }

    /// The message and its causes in one sentence.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.message.clone();
        for cause in &self.causes {
            text.extend([": ", cause]);
        }
        text
    }

    /// For `run` and `exec`, whose small exit codes belong to the command.
    pub(crate) fn around_a_command(mut self) -> Self {
        if self.exit == exit::FAILED {
            self.exit = exit::EFIMERA;
        }
        self
    }
}

impl<E: Error> From<E> for CommandError {
    fn from(error: E) -> Self {
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        Self {
            causes,
            ..Self::new(error)
        }
    }
}
