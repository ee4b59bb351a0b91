use super::limits::MAX_NAMED;
use serde::{Deserialize, Serialize};

/// Why a path of the machine stays there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Some file system could take it for a git directory, or it is one.
    GitStore,
    /// The name is no single component (`..`, a slash, a NUL, too long).
    BadName,
    /// Deeper or longer than a path may be.
    TooDeep,
    /// A link's target is empty, too long or holds a NUL.
    BadTarget,
    /// A device, FIFO or socket.
    Special,
    /// Larger than one file may be.
    TooLarge,
    /// It doesn't fit what all files together may be.
    OverTotal,
    /// The guest couldn't read or list it.
    Unreadable,
    /// The host's disk is full.
    NoRoom,
}

/// One path that stays in the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The path as printable text: a bad name is no path.
    pub path: String,
    /// Why.
    pub reason: Reason,
}

/// What an import saw, besides the changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Names that the guest listed.
    pub entries: u64,
    /// Bytes of files that were read.
    pub read: u64,
    /// Files that were read.
    pub files_read: u64,
    /// Topmost paths that the baseline's rules ignore and that stay in the machine.
    pub ignored: u64,
    /// Files whose set-user-id, set-group-id or sticky bit was dropped.
    pub special_bits: u64,
    /// Files that went away between being listed and being read.
    pub vanished: u64,
    /// Files that wait for the next import ([`super::Limits::read`]).
    pub deferred: u64,
    /// Files that the host had no room for. An older state of one may stand for it.
    pub no_room: u64,
    /// Names that occurred twice in one directory; the first counts.
    pub duplicates: u64,
    /// The first few ([`super::MAX_NAMED`]) of what was left out.
    pub left_out: Vec<Refusal>,
    /// How many were left out in all.
    pub left_out_count: u64,
}

impl Counts {
    pub(super) fn leave_out(&mut self, path: &[u8], reason: Reason) {
        self.left_out_count += 1;
        if self.left_out.len() < MAX_NAMED {
            let path = base::escape_line(path, 200);
            self.left_out.push(Refusal { path, reason });
        }
    }
}
