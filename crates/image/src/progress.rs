use base::Size;
use std::fmt;

/// Is told how long work goes on. Calls come at most a few times a second per kind of work.
pub trait Progress {
    /// The work is at this point.
    fn step(&mut self, step: Step<'_>);
}

/// One point of long work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// What is being done, such as `Downloading the kernel`.
    pub what: &'a str,
    /// How much of it is done; 0 at its start.
    pub done: u64,
    /// How much there is, where it is known.
    pub total: Option<u64>,
    /// What `done` and `total` count.
    pub unit: Unit,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Hundredths of the whole.
    Percent,
    /// Nothing: the work has only a beginning and an end.
    Nothing,
}

/// Ignores all progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: Step<'_>) {}
}

impl<'a> Step<'a> {
    /// Work that begins and can't be measured.
    pub(crate) fn begin(what: &'a str) -> Self {
        Self {
            what,
            done: 0,
            total: None,
            unit: Unit::Nothing,
        }
    }

    /// Work that is counted in bytes.
    pub(crate) fn bytes(what: &'a str, done: u64, total: Option<u64>) -> Self {
        Self {
            what,
            done,
            total,
            unit: Unit::Bytes,
        }
    }
}

impl fmt::Display for Step<'_> {
    /// A line for people: `Packing the image: 120 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match (self.unit, self.total) {
            (Unit::Nothing, _) => Ok(()),
            (Unit::Percent, _) => write!(f, ": {} %", self.done),
            (Unit::Bytes, None) => write!(f, ": {}", Size(self.done)),
            (Unit::Bytes, Some(total)) => write!(f, ": {} of {}", Size(self.done), Size(total)),
        }
    }
}
