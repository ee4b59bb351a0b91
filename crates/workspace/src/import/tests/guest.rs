//! A guest that answers as the real one does, over an overlay that is made up: a lower tree, a merged tree, and
//! chance for everything that an overlay leaves open.

use crate::change::ChangeSet;
use crate::import::{
    Artifacts, BlobSink, Counts, IgnoreRules, Import, ImportError, KnownState, Limits, Listing,
    NoRules,
};
use crate::testing::{Files, Item, Memory, path};
use base::{Digest, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use wire::message::{
    Failure, FileKind, ListDir, ListEntry, MAX_BATCH, Reply, Request, Stat, encode,
};

#[derive(Debug)]
pub(super) struct Guest {
    lower: Files,
    merged: Files,
    /// `None`: the upper layer holds what differs and nothing more.
    seed: Option<u64>,
    /// Last change of each path, in ticks.
    times: BTreeMap<RelPath, i64>,
    now: i64,
    extras: Vec<(Vec<u8>, Vec<u8>, FileKind)>,
    pub(super) sizes: BTreeMap<Vec<u8>, u64>,
    pub(super) requests: usize,
    pub(super) longest_request: usize,
    pub(super) listed: Vec<RelPath>,
    pub(super) read: Vec<RelPath>,
    /// Grows whenever it is read.
    pub(super) restless: Option<RelPath>,
    /// Paths that fail with an error number.
    pub(super) failing: BTreeMap<RelPath, i32>,
    /// For the next requests: hang up after so many messages.
    pub(super) hang_up: Vec<usize>,
}

/// One import against the guest's own lower tree.
pub(super) fn run(
    guest: &mut Guest,
    known: KnownState,
    memory: &mut Memory,
) -> Result<(ChangeSet, KnownState, Counts), ImportError> {
    let import = guest.import(known, NoRules, &[]);
    guest.drive(import(memory))
}

impl Guest {
    pub(super) fn new(lower: Files, merged: Files, seed: u64) -> Self {
        Self {
            seed: Some(seed),
            ..Self::plain(lower, merged)
        }
    }

    pub(super) fn plain(lower: Files, merged: Files) -> Self {
        let times = merged.0.keys().map(|at| (at.clone(), 1)).collect();
        Self {
            lower,
            merged,
            seed: None,
            times,
            now: 1,
            extras: Vec::new(),
            sizes: BTreeMap::new(),
            requests: 0,
            longest_request: 0,
            listed: Vec::new(),
            read: Vec::new(),
            restless: None,
            failing: BTreeMap::new(),
            hang_up: Vec::new(),
        }
    }

    /// The tree is another some time later.
    pub(super) fn edit(&mut self, merged: Files) {
        self.now += 1;
        for (at, item) in &merged.0 {
            if self.merged.get(at) != Some(item) {
                self.times.insert(at.clone(), self.now);
            }
        }
        self.merged = merged;
    }

    /// The tree is another, and no time has passed.
    pub(super) fn edit_within_a_tick(&mut self, merged: Files) {
        self.merged = merged;
    }

    /// A name that is listed in `dir` besides.
    pub(super) fn extra(&mut self, dir: &[u8], name: &[u8], kind: FileKind) {
        self.extras.push((dir.to_vec(), name.to_vec(), kind));
    }

    pub(super) fn import<'a, I: IgnoreRules + 'a>(
        &self,
        known: KnownState,
        ignore: I,
        artifacts: &[&str],
    ) -> impl FnOnce(&'a mut Memory) -> Import<Vec<crate::Entry>, I, &'a mut Memory> + use<'a, I>
    {
        let entries = self.lower.entries();
        let artifacts = Artifacts::new(artifacts).unwrap();
        move |memory| Import::new(entries, known, Limits::default(), ignore, artifacts, memory)
    }

    pub(super) fn drive<B: Listing, I: IgnoreRules, S: BlobSink>(
        &mut self,
        mut import: Import<B, I, S>,
    ) -> Result<(ChangeSet, KnownState, Counts), ImportError> {
        self.requests = 0;
        while let Some(request) = import.next_request().unwrap() {
            assert!(
                import.next_request().unwrap().is_none(),
                "a second request before the first is answered"
            );
            self.requests += 1;
            self.longest_request = self.longest_request.max(encode(&request).len());
            let mut left = if self.hang_up.is_empty() {
                usize::MAX
            } else {
                self.hang_up.remove(0)
            };
            for piece in self.answer(request) {
                if left == 0 {
                    break;
                }
                left -= 1;
                match piece {
                    Piece::Message(reply) => import.message(reply)?,
                    Piece::Data(bytes) => import.data(&bytes)?,
                }
            }
            import.closed()?;
        }
        assert!(import.is_done());
        import.finish()
    }

    /// A coin that falls the same way for the same question, as an overlay's state does.
    fn chance(&self, question: &str, at: &RelPath, one_in: u64) -> bool {
        self.seed.is_some_and(|seed| {
            let text = [&seed.to_le_bytes(), question.as_bytes(), at.as_bytes()].concat();
            u64::from(Digest::of(&text).as_bytes()[0]) % one_in == 0
        })
    }

    fn answer(&mut self, request: Request) -> Vec<Piece> {
        match request {
            Request::List { dirs, .. } => {
                assert!((1..=MAX_BATCH).contains(&dirs.len()));
                let numbered = (0..).zip(dirs);
                numbered
                    .flat_map(|(index, dir)| self.list(index, &dir))
                    .collect()
            }
            Request::Read { paths, .. } => {
                assert!((1..=MAX_BATCH).contains(&paths.len()));
                paths
                    .into_iter()
                    .flat_map(|at| self.send(&path(at)))
                    .collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn list(&mut self, index: u32, dir: &ListDir) -> Vec<Piece> {
        let at = if dir.path.is_empty() {
            RelPath::root()
        } else {
            path(&dir.path)
        };
        assert!(!self.listed.contains(&at) || !self.hang_up.is_empty() || self.requests > 0);
        self.listed.push(at.clone());
        if let Some(errno) = self.failing.get(&at) {
            return vec![failed(*errno)];
        }
        let names: BTreeSet<Vec<u8>> = if dir.whole {
            self.merged.children(&at)
        } else {
            self.merged
                .children(&at)
                .into_iter()
                .chain(self.lower.children(&at))
                .collect()
        };
        let mut entries: Vec<ListEntry> = names
            .into_iter()
            .filter_map(|name| self.entry(&at, name, dir.whole))
            .collect();
        for (_, name, kind) in self.extras.iter().filter(|extra| extra.0 == dir.path) {
            let mut stat = stat(*kind, 0o644, 0, 1);
            stat.size = self.sizes.get(name).copied().unwrap_or(0);
            entries.retain(|entry| entry.name != *name);
            entries.push(ListEntry {
                name: name.clone(),
                stat,
                target: Vec::new(),
            });
        }
        let mut pieces = Vec::new();
        let cut = if self.chance("cut", &at, 2) { 1 } else { 100 };
        while entries.len() > cut {
            let entries = entries.drain(..cut).collect();
            pieces.push(Piece::Message(Reply::Entries {
                index,
                entries,
                last: false,
            }));
        }
        pieces.push(Piece::Message(Reply::Entries {
            index,
            entries,
            last: true,
        }));
        pieces
    }

    fn entry(&self, dir: &RelPath, name: Vec<u8>, whole: bool) -> Option<ListEntry> {
        let at = dir.join(&name).unwrap();
        let Some(item) = self.merged.get(&at) else {
            let stat = stat(FileKind::Whiteout, 0, 0, 1);
            return Some(ListEntry {
                name,
                stat,
                target: Vec::new(),
            });
        };
        let below = self.lower.get(&at);
        if !whole && below == Some(item) && !self.chance("touched", &at, 4) {
            // Lower directories show up where something below them is in the upper layer.
            let inside = |files: &Files| files.subtree(&at);
            if !item.is_dir()
                || (inside(&self.lower) == inside(&self.merged) && !self.chance("opened", &at, 4))
            {
                return None;
            }
        }
        let both_dirs = item.is_dir() && below.is_some_and(Item::is_dir);
        let kind = match item {
            Item::File(..) => FileKind::File,
            Item::Link(_) => FileKind::Symlink,
            // A whole listing is of the merged tree, which has no opaque directories.
            Item::Dir(_) if whole || (both_dirs && !self.chance("fresh", &at, 4)) => FileKind::Dir,
            Item::Dir(_) => FileKind::FreshDir,
        };
        let target = match item {
            Item::Link(target) => target.clone(),
            _ => Vec::new(),
        };
        Some(ListEntry {
            name,
            stat: self.stat(&at, kind),
            target,
        })
    }

    fn stat(&self, at: &RelPath, kind: FileKind) -> Stat {
        let (mode, size) = match &self.merged.0[at] {
            Item::File(mode, bytes) => (*mode, bytes.len() as u64),
            Item::Dir(mode) => (*mode, 4096),
            Item::Link(target) => (0o777, target.len() as u64),
        };
        let ticks = self.times.get(at).copied().unwrap_or(0);
        let mut stat = stat(kind, mode, size, ticks);
        stat.ino = u64::from(Digest::of(at.as_bytes()).as_bytes()[0]) + 1;
        stat
    }

    fn send(&mut self, at: &RelPath) -> Vec<Piece> {
        self.read.push(at.clone());
        if let Some(errno) = self.failing.get(at) {
            return vec![failed(*errno)];
        }
        // The overlay shows another inode number than its upper layer does.
        let stat = |guest: &Self| Stat {
            ino: 7,
            ..guest.stat(at, FileKind::File)
        };
        let start = stat(self);
        let Item::File(mode, bytes) = self.merged.0[at].clone() else {
            panic!("{at} is no file");
        };
        if self.restless.as_ref() == Some(at) {
            self.now += 1;
            self.times.insert(at.clone(), self.now);
            self.merged.0.insert(
                at.clone(),
                Item::File(mode, [bytes.as_slice(), b"more\n"].concat()),
            );
        }
        let chunks = bytes
            .chunks(32 * 1024)
            .map(|chunk| Piece::Data(chunk.to_vec()));
        [Piece::Message(Reply::File(start))]
            .into_iter()
            .chain(chunks)
            .chain([Piece::Message(Reply::FileEnd(stat(self)))])
            .collect()
    }
}

#[derive(Debug)]
enum Piece {
    Message(Reply),
    Data(Vec<u8>),
}

fn failed(errno: i32) -> Piece {
    Piece::Message(Reply::Failed(Failure {
        what: b"looking".to_vec(),
        errno,
    }))
}

fn stat(kind: FileKind, mode: u32, size: u64, ticks: i64) -> Stat {
    let time = ticks * 1_000_000_000;
    Stat {
        kind,
        mode,
        size,
        ino: 1,
        nlink: 1,
        mtime_ns: time,
        ctime_ns: time,
    }
}
