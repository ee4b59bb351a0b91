use base::{Digest, RelPath};
use std::collections::HashMap;
use wire::message::Stat;

/// What an import knows of the files that it read, so that the next one reads only what changed since.
#[derive(Debug, Clone, Default)]
pub struct KnownState {
    pub(super) files: HashMap<RelPath, Known>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) mark: Mark,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) mode: u32,
    /// A write right after reading could have left the times as they were: the kernel's clock for files moves
    /// in steps. Settled is what was read at least one step after its last change.
    pub(super) settled: bool,
}

/// What changes when a file's content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    ino: u64,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
}

impl Mark {
    /// Of no file: inode 0 does not exist.
    pub(super) const NEVER: Self = Self {
        ino: 0,
        size: 0,
        mtime_ns: 0,
        ctime_ns: 0,
    };

    /// Nothing but the inode number may differ.
    pub(super) fn is_same_time(&self, other: &Self) -> bool {
        Self {
            ino: other.ino,
            ..*self
        } == *other
    }

    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            ino: stat.ino,
            size: stat.size,
            mtime_ns: stat.mtime_ns,
            ctime_ns: stat.ctime_ns,
        }
    }
}

impl KnownState {
    /// Files that it knows.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True before the first import.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
