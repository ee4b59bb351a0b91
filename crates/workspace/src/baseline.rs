//! The baseline: the exact content that went into a machine, and what every diff is taken against.
//!
//! On disk it is a directory of two files: `image.erofs`, which the guest mounts as its workspace, and
//! `baseline.bin`, a versioned list of entries that says for each path what it is, its digest, and where its
//! bytes lie in the image. The sanitised git directories are in the image and not in the list, so that no diff
//! can ever speak of them.

use base::{Digest, RelPath};
use serde::{Deserialize, Serialize};

/// What a path is. Anything else (devices, FIFOs, sockets) never goes in and never comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; its content is its target.
    Symlink,
}

/// One path of the baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Below the workspace root.
    pub path: RelPath,
    /// File, directory or link.
    pub kind: Kind,
    /// Permission bits (`0o777` at most). Meaningless for links, where it is `0o777`.
    pub mode: u32,
    /// Bytes of a file, or of a link's target; 0 for a directory.
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Digest of a file's bytes or of a link's target; `None` for a directory.
    pub digest: Option<Digest>,
    /// Where a file's bytes start in the image, in bytes. Links keep theirs in [`Entry::target`].
    pub offset: u64,
    /// A link's target; empty for others.
    pub target: Vec<u8>,
}

/// A file of ignore rules as it was when the baseline was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoreFile {
    /// The directory whose content the rules speak of (the root for `info/exclude` and the user's own file).
    pub dir: RelPath,
    /// The rules, in gitignore's syntax.
    pub rules: Vec<u8>,
}
