use std::collections::VecDeque;

/// What a machine's serial console said: the first part and the last part, and nothing between once it is long.
/// A guest can write without end; this doesn't grow.
#[derive(Debug, Clone, Default)]
pub struct Console {
    first: Vec<u8>,
    last: VecDeque<u8>,
    dropped: u64,
}

impl Console {
    /// How much of the beginning is kept, in bytes. A kernel's complaints about its hardware fit.
    pub const FIRST: usize = 16 * 1024;
    /// How much of the end is kept, in bytes. A kernel's last words fit several times.
    pub const LAST: usize = 64 * 1024;

    /// A console that has said nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what was said.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = Self::FIRST - self.first.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        // Of a long piece only the end can stay.
        let (skipped, kept) = rest.split_at(rest.len().saturating_sub(Self::LAST));
        let surplus = (self.last.len() + kept.len()).saturating_sub(Self::LAST);
        self.last.drain(..surplus);
        self.last.extend(kept);
        self.dropped += (skipped.len() + surplus) as u64;
    }

    /// How many bytes between the first and the last part were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What is kept, with a line in place of what is not. The bytes are the guest's: to be printed through
    /// [`base::escape`] only.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.clone();
        if self.dropped > 0 {
            bytes.extend_from_slice(format!("\n[{} bytes left out]\n", self.dropped).as_bytes());
        }
        bytes.extend(&self.last);
        bytes
    }
}

#[cfg(test)]
mod tests;
