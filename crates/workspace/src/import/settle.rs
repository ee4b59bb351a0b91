//! What becomes of a path that was looked at: left out, as it was, or a change.

use super::known::Known;
use super::{BlobSink, IgnoreRules, Import, ImportError, Listing, Reason};
use crate::Kind;
use crate::change::{Change, Node};
use crate::names::is_git_store_alias;
use base::{Digest, RelPath};

impl<B: Listing, I: IgnoreRules, S: BlobSink> Import<B, I, S> {
    /// Leaves a file out. For want of room it may have an older state that was kept: then that one stands.
    pub(super) fn refuse(&mut self, path: RelPath, reason: Reason) -> Result<(), ImportError> {
        self.counts.leave_out(path.as_bytes(), reason);
        if reason != Reason::NoRoom {
            return Ok(());
        }
        self.counts.no_room += 1;
        self.stand(path)
    }

    /// What was known of a file before, and is kept, stands for it.
    pub(super) fn stand(&mut self, path: RelPath) -> Result<(), ImportError> {
        match self.previous.files.get(&path).cloned() {
            Some(known) if self.is_kept(&path, &known.digest, known.size)? => {
                self.settle(path, known, false)
            }
            _ => Ok(()),
        }
    }

    /// The content is the baseline's at this path, or in the sink.
    pub(super) fn is_kept(
        &self,
        path: &RelPath,
        digest: &Digest,
        size: u64,
    ) -> Result<bool, ImportError> {
        let same = |entry: crate::Entry| entry.kind == Kind::File && entry.digest == Some(*digest);
        Ok(self.baseline.find(path)?.is_some_and(same) || self.sink.holds(digest, size))
    }

    pub(super) fn settle(
        &mut self,
        path: RelPath,
        known: Known,
        torn: bool,
    ) -> Result<(), ImportError> {
        if self.total.saturating_add(known.size) > self.limits.total.bytes() {
            self.counts.leave_out(path.as_bytes(), Reason::OverTotal);
            return Ok(());
        }
        self.total += known.size;
        self.counts.special_bits += u64::from(known.mode & 0o7000 != 0);
        let node = Node::file(known.mode, known.size, known.digest);
        self.emit(&path, Some(node), torn)?;
        self.known.files.insert(path, known);
        Ok(())
    }

    /// Writes down what became of `path`. Each path comes here at most once.
    pub(super) fn emit(
        &mut self,
        path: &RelPath,
        new: Option<Node>,
        torn: bool,
    ) -> Result<(), ImportError> {
        let old = self.baseline.find(path)?.as_ref().map(Node::of_entry);
        let is_dir = new.as_ref().is_some_and(|node| node.kind == Kind::Dir);
        if !is_dir {
            for entry in self.baseline.below(path)? {
                if entry.path.components().any(is_git_store_alias) {
                    continue;
                }
                let change = Change {
                    old: Some(Node::of_entry(&entry)),
                    path: entry.path,
                    new: None,
                    torn: false,
                };
                self.changes.insert(change.path.clone(), change);
            }
        }
        if new.is_some() {
            self.open_passages(path);
        }
        if old != new {
            let change = Change {
                path: path.clone(),
                old,
                new,
                torn,
            };
            self.changes.insert(path.clone(), change);
        }
        Ok(())
    }

    fn open_passages(&mut self, path: &RelPath) {
        let mut above = path.parent().filter(|_| !self.passages.is_empty());
        while let Some(dir) = above {
            if let Some(mode) = self.passages.remove(&dir) {
                let new = Some(Node::dir(mode));
                let change = Change {
                    path: dir.clone(),
                    old: None,
                    new,
                    torn: false,
                };
                self.changes.insert(dir.clone(), change);
            }
            above = dir.parent();
        }
    }
}
