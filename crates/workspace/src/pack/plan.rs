use super::memory::{Mark, Memory};
use crate::{Baseline, Collected, Entry, Found, Kind};
use std::path::Path;

/// A changed workspace's image begins with the data of the last one when at least this share of its bytes is still
/// true (in percent); else reading everything again costs about the same and leaves no garbage.
const WORTH_COPYING: u64 = 50;
/// The most of an image (in percent) that may be data which no path uses any more.
const MAX_GARBAGE: u64 = 25;

/// What of the last baseline is still true.
#[derive(Debug)]
pub(super) struct Plan {
    /// The last baseline, as long as it can serve.
    pub(super) last: Option<Last>,
    /// For each collected entry: where it is in the last baseline, if it is unchanged.
    pub(super) kept: Vec<Option<usize>>,
    /// True when the last baseline's entries are exactly the collected ones.
    pub(super) unchanged: bool,
}

/// The last baseline of this workspace.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) baseline: Baseline,
    /// Those of the baseline, all of them.
    pub(super) entries: Vec<Entry>,
    pub(super) memory: Memory,
}

impl Plan {
    pub(super) fn new(
        collected: &Collected,
        baselines: &Path,
        cache: &Path,
        owner: (u32, u32),
    ) -> Self {
        let last = Memory::load(cache, &collected.root).and_then(|memory| {
            let baseline = Baseline::load(&baselines.join(&memory.baseline)).ok()?;
            let fits = memory.marks.len() as u64 == baseline.entries.len()
                && memory.owner == owner
                && baseline.root == collected.root;
            let entries = fits.then(|| baseline.entries.to_vec().ok()).flatten()?;
            Some(Last {
                baseline,
                entries,
                memory,
            })
        });
        let Some(last) = last else {
            return Self {
                last: None,
                kept: vec![None; collected.entries.len()],
                unchanged: false,
            };
        };
        let old = &last.entries;
        let mut at = 0;
        let kept: Vec<Option<usize>> = collected
            .entries
            .iter()
            .map(|found| {
                while old.get(at).is_some_and(|entry| entry.path < found.path) {
                    at += 1;
                }
                let same = old
                    .get(at)
                    .is_some_and(|entry| is_same(entry, &last.memory.marks[at], found));
                same.then_some(at)
            })
            .collect();
        let unchanged = kept.len() == old.len()
            && kept.iter().enumerate().all(|(at, kept)| *kept == Some(at))
            && last.baseline.root_meta == collected.root_meta;
        Self {
            last: Some(last),
            kept,
            unchanged,
        }
    }

    /// True when it is worth to begin the new image with the last one's data.
    pub(super) fn copies_data(&self, collected: &Collected) -> bool {
        let Some(last) = &self.last else { return false };
        let blocks = |size: u64| size.next_multiple_of(erofs::BLOCK);
        let total: u64 = collected
            .entries
            .iter()
            .map(|found| blocks(found.size))
            .sum();
        let kept = self.kept_blocks();
        let garbage = last.memory.garbage + self.new_garbage();
        kept * 100 >= total * WORTH_COPYING && garbage * 100 <= last.baseline.data_end * MAX_GARBAGE
    }

    /// Bytes of blocks that files of the last image used and those of the new one don't.
    pub(super) fn new_garbage(&self) -> u64 {
        let Some(last) = &self.last else { return 0 };
        let all: u64 = last.entries.iter().map(file_blocks).sum();
        all.saturating_sub(self.kept_blocks())
    }

    fn kept_blocks(&self) -> u64 {
        let Some(last) = &self.last else { return 0 };
        self.kept
            .iter()
            .flatten()
            .map(|at| file_blocks(&last.entries[*at]))
            .sum()
    }
}

fn file_blocks(entry: &Entry) -> u64 {
    if entry.kind == Kind::File {
        entry.size.next_multiple_of(erofs::BLOCK)
    } else {
        0
    }
}

fn is_same(entry: &Entry, mark: &Mark, found: &Found) -> bool {
    let alike = entry.path == found.path
        && entry.kind == found.kind
        && entry.mode == found.mode
        && entry.mtime == found.mtime
        && entry.target == found.target;
    alike
        && (found.kind != Kind::File
            || (mark.settled
                && entry.size == found.size
                && mark.ctime == found.ctime
                && mark.ino == found.ino))
}
