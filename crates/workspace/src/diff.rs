//! A change set as a diff: a patch in git's format for pipes, the same for a terminal with every foreign byte
//! escaped, and numbers.
//!
//! Attributes (`.gitattributes`) count nothing: whatever is text is shown as text. git's format knows no empty
//! directories and no permission bits but the owner's right to execute, so a patch doesn't carry those; the
//! numbers and the JSON form list them.

mod binary;
mod display;
mod lines;
mod patch;
mod quote;
mod stat;
#[cfg(test)]
mod tests;

pub use display::{MAX_SHOWN_LINE, Style, display};
pub use lines::{Hunk, Line, MAX_TEXT, Tag};
pub use patch::{ObjectFormat, write_patch};
pub use stat::{FileStat, Status, Summary, summarize};

use crate::change::{Change, Node};
use crate::import::copy_checked;
use crate::{Baseline, BlobDir, Kind};
use base::{Digest, RelPath};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};

/// One side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The baseline.
    Old,
    /// The machine.
    New,
}

/// Where the contents of both sides of a change set are.
pub trait Sides {
    /// Writes the bytes of the file that `node` is to `to`. Fails when they are not what its digest says.
    fn copy(&self, path: &RelPath, node: &Node, side: Side, to: &mut dyn Write) -> io::Result<()>;
}

/// The contents of a result: the baseline's image and the blobs beside the change set.
#[derive(Debug, Clone, Copy)]
pub struct ResultSides<'a> {
    /// The baseline.
    pub baseline: &'a Baseline,
    /// New contents.
    pub blobs: &'a BlobDir,
}

impl Sides for ResultSides<'_> {
    fn copy(&self, path: &RelPath, node: &Node, side: Side, to: &mut dyn Write) -> io::Result<()> {
        let digest = node.digest.unwrap_or_else(|| Digest::of(b""));
        let entry = self
            .baseline
            .entry(path)
            .map_err(io::Error::other)?
            .filter(|entry| entry.digest == node.digest);
        match entry {
            Some(entry) => {
                let mut image = fs_err::File::open(self.baseline.image())?;
                image.seek(SeekFrom::Start(entry.offset))?;
                copy_checked(&mut image.take(entry.size), &digest, to).map(|_| ())
            }
            None if side == Side::New => self.blobs.copy(&digest, to).map(|_| ()),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "The baseline has no such file",
            )),
        }
    }
}

/// All bytes of one side: a file's content, a link's target, nothing for a directory or an absent side.
fn content(sides: &dyn Sides, change: &Change, side: Side) -> io::Result<Vec<u8>> {
    let node = match side {
        Side::Old => &change.old,
        Side::New => &change.new,
    };
    match node {
        Some(node) if node.kind == Kind::Symlink => Ok(node.target.clone()),
        Some(node) if node.kind == Kind::File => {
            let mut bytes =
                Vec::with_capacity(usize::try_from(node.size).unwrap_or(0).min(1 << 24));
            sides.copy(&change.path, node, side, &mut bytes)?;
            Ok(bytes)
        }
        _ => Ok(Vec::new()),
    }
}

/// Parts of a change as git sees it: a change of kind is a deletion and an addition, directories are nothing.
fn parts(change: &Change) -> Vec<Change> {
    let part = |old: Option<&Node>, new: Option<&Node>| {
        let seen = |node: Option<&Node>| node.filter(|node| node.kind != Kind::Dir).cloned();
        let (old, new) = (seen(old), seen(new));
        let path = change.path.clone();
        (old.is_some() || new.is_some()).then_some(Change {
            path,
            old,
            new,
            torn: change.torn,
        })
    };
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let parts = if change.is_type_change() {
        [part(old, None), part(None, new)]
    } else {
        [part(old, new), None]
    };
    parts.into_iter().flatten().collect()
}

/// The mode as git has it.
fn git_mode(node: &Node) -> &'static str {
    match node.kind {
        Kind::Symlink => "120000",
        _ if node.mode & 0o100 != 0 => "100755",
        _ => "100644",
    }
}
