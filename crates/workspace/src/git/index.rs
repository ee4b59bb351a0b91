//! git's index file (gitformat-index(5)): read as it is in the host's repository, written anew for the machine's.
//!
//! It is read here and not by `git ls-files`, because no git command can write one that keeps its entries' times
//! without looking at the work tree, and looking at the work tree may run filters.

use super::oid::{ObjectFormat, Oid, checksum};

/// An index of more bytes is refused: a million files with long paths stay well below.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Kinds of entries, by the upper bits of their mode.
const GITLINK: u32 = 0o160_000;
const SYMLINK: u32 = 0o120_000;
const SPARSE_DIR: u32 = 0o040_000;
const TYPE_MASK: u32 = 0o170_000;

/// Flag bits of an entry.
const EXTENDED: u16 = 0x4000;
const STAGE: u16 = 0x3000;
const NAME_LENGTH: u16 = 0x0fff;
const SKIP_WORKTREE: u16 = 0x4000;

#[derive(Debug, Clone)]
pub(crate) struct Index {
    pub(crate) entries: Vec<IndexEntry>,
    /// The cache of tree names, as it stands in the file: valid as long as names, modes and objects are untouched.
    pub(crate) tree_cache: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(crate) struct IndexEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) oid: Oid,
    /// Change time, modification time (seconds, nanoseconds), device, inode, uid, gid, size, as git keeps them:
    /// cut to 32 bits.
    pub(crate) stat: IndexStat,
    flags: u16,
    extended: u16,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IndexStat {
    pub(crate) ctime: (u32, u32),
    pub(crate) mtime: (u32, u32),
    pub(crate) dev: u32,
    pub(crate) ino: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u32,
}

/// Why an index can't be read here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexFault {
    /// It is split: git itself has to make one file of it.
    Split,
    /// It is broken.
    Broken(&'static str),
}

impl IndexEntry {
    /// 0, or 1 to 3 for the sides of a conflict.
    pub(crate) fn stage(&self) -> u16 {
        (self.flags & STAGE) >> 12
    }

    pub(crate) fn is_gitlink(&self) -> bool {
        self.mode & TYPE_MASK == GITLINK
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.mode & TYPE_MASK == SYMLINK
    }

    /// True when git is told not to look for the file in the work tree.
    pub(crate) fn skips_worktree(&self) -> bool {
        self.extended & SKIP_WORKTREE != 0
    }

    pub(crate) fn set_skip_worktree(&mut self) {
        self.extended |= SKIP_WORKTREE;
    }
}

impl Index {
    /// An index without entries.
    pub(crate) fn empty() -> Self {
        Self {
            entries: Vec::new(),
            tree_cache: None,
        }
    }

    /// Reads versions 2 to 4.
    pub(crate) fn parse(bytes: &[u8], format: ObjectFormat) -> Result<Self, IndexFault> {
        const SHORT: IndexFault = IndexFault::Broken("it ends too early");
        let body_end = bytes.len().checked_sub(format.length()).ok_or(SHORT)?;
        let mut reader = Reader {
            bytes: &bytes[..body_end],
            at: 0,
        };
        if reader.take(4).ok_or(SHORT)? != b"DIRC" {
            return Err(IndexFault::Broken("it doesn't begin with `DIRC`"));
        }
        let version = reader.u32().ok_or(SHORT)?;
        if !(2..=4).contains(&version) {
            return Err(IndexFault::Broken("its version is not 2, 3 or 4"));
        }
        let count = reader.u32().ok_or(SHORT)? as usize;
        // An entry is never shorter than 62 bytes, so a lying count can't make us set aside more than the file holds.
        if count > body_end / (42 + format.length()) {
            return Err(IndexFault::Broken(
                "it claims more entries than it has room for",
            ));
        }
        let mut entries = Vec::with_capacity(count);
        let mut previous: Vec<u8> = Vec::new();
        for _ in 0..count {
            let entry = reader.entry(version, format, &previous).ok_or(SHORT)?;
            if version == 4 {
                previous.clone_from(&entry.path);
            }
            entries.push(entry);
        }
        let mut tree_cache = None;
        while reader.at < reader.bytes.len() {
            let signature: [u8; 4] = reader.array().ok_or(SHORT)?;
            let length = reader.u32().ok_or(SHORT)? as usize;
            let data = reader.take(length).ok_or(SHORT)?;
            match &signature {
                b"TREE" => tree_cache = Some(data.to_vec()),
                b"link" => return Err(IndexFault::Split),
                // `sdir` says that some entries are directories (see `sparse_dirs`), and an upper-case first letter
                // that the extension may be ignored.
                b"sdir" | [b'A'..=b'Z', ..] => {}
                _ => {
                    return Err(IndexFault::Broken(
                        "it needs an extension that is not known",
                    ));
                }
            }
        }
        Ok(Self {
            entries,
            tree_cache,
        })
    }

    /// The directories that stand for all that lies in them, and their trees (sparse index).
    pub(crate) fn sparse_dirs(&self) -> impl Iterator<Item = &IndexEntry> {
        self.entries
            .iter()
            .filter(|entry| entry.mode & TYPE_MASK == SPARSE_DIR)
    }

    /// Puts `files` (path, mode and object) in the place of the directories.
    pub(crate) fn expand(&mut self, files: impl IntoIterator<Item = (Vec<u8>, u32, Oid)>) {
        self.entries
            .retain(|entry| entry.mode & TYPE_MASK != SPARSE_DIR);
        self.entries
            .extend(files.into_iter().map(|(path, mode, oid)| IndexEntry {
                path,
                mode,
                oid,
                stat: IndexStat::default(),
                flags: 0,
                extended: SKIP_WORKTREE,
            }));
        self.entries
            .sort_by(|a, b| (&a.path, a.stage()).cmp(&(&b.path, b.stage())));
        // The trees of a sparse index need not be there.
        self.tree_cache = None;
    }

    /// Version 3 where an entry needs it, else 2, which every git reads.
    pub(crate) fn to_bytes(&self, format: ObjectFormat) -> Vec<u8> {
        let version: u32 = if self.entries.iter().any(|entry| entry.extended != 0) {
            3
        } else {
            2
        };
        let mut out = Vec::with_capacity(self.entries.len() * 100 + 64);
        out.extend(b"DIRC");
        out.extend(version.to_be_bytes());
        out.extend(
            u32::try_from(self.entries.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        for entry in &self.entries {
            let start = out.len();
            let stat = &entry.stat;
            for word in [
                stat.ctime.0,
                stat.ctime.1,
                stat.mtime.0,
                stat.mtime.1,
                stat.dev,
                stat.ino,
            ] {
                out.extend(word.to_be_bytes());
            }
            for word in [entry.mode, stat.uid, stat.gid, stat.size] {
                out.extend(word.to_be_bytes());
            }
            out.extend(entry.oid.as_bytes());
            let length = u16::try_from(entry.path.len())
                .unwrap_or(NAME_LENGTH)
                .min(NAME_LENGTH);
            let extended = if entry.extended == 0 { 0 } else { EXTENDED };
            out.extend((entry.flags & !(NAME_LENGTH | EXTENDED) | length | extended).to_be_bytes());
            if entry.extended != 0 {
                out.extend(entry.extended.to_be_bytes());
            }
            out.extend(&entry.path);
            // One to eight NUL bytes, so that the next entry starts at a multiple of eight from this one.
            let length = out.len() - start;
            out.resize(start + (length + 8) / 8 * 8, 0);
        }
        if let Some(tree) = &self.tree_cache {
            out.extend(b"TREE");
            out.extend(u32::try_from(tree.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend(tree);
        }
        let sum = checksum(format, &out);
        out.extend(sum);
        out
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn entry(&mut self, version: u32, format: ObjectFormat, previous: &[u8]) -> Option<IndexEntry> {
        let start = self.at;
        let ctime = (self.u32()?, self.u32()?);
        let mtime = (self.u32()?, self.u32()?);
        let (dev, ino) = (self.u32()?, self.u32()?);
        let mode = self.u32()?;
        let (uid, gid, size) = (self.u32()?, self.u32()?, self.u32()?);
        let oid = Oid::from_bytes(self.take(format.length())?)?;
        let flags = self.u16()?;
        let extended = if flags & EXTENDED == 0 {
            0
        } else {
            self.u16()?
        };
        let path = if version == 4 {
            let kept = previous.len().checked_sub(self.offset_varint()?)?;
            let rest = self.until_nul()?;
            [&previous[..kept], rest].concat()
        } else {
            let path = self.until_nul()?.to_vec();
            let length = self.at - 1 - start;
            self.at = start + (length + 8) / 8 * 8;
            (self.at <= self.bytes.len()).then_some(path)?
        };
        let stat = IndexStat {
            ctime,
            mtime,
            dev,
            ino,
            uid,
            gid,
            size,
        };
        Some(IndexEntry {
            path,
            mode,
            oid,
            stat,
            flags,
            extended,
        })
    }

    fn until_nul(&mut self) -> Option<&'a [u8]> {
        let length = self
            .bytes
            .get(self.at..)?
            .iter()
            .position(|byte| *byte == 0)?;
        let taken = self.take(length)?;
        self.at += 1;
        Some(taken)
    }

    /// The number format of pack files' offset deltas.
    fn offset_varint(&mut self) -> Option<usize> {
        let mut byte = *self.take(1)?.first()?;
        let mut value = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = *self.take(1)?.first()?;
            value = value
                .checked_add(1)?
                .checked_mul(128)?
                .checked_add(usize::from(byte & 0x7f))?;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests;
