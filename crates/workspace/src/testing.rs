//! Trees for tests: in memory, on disk, at random, and compared in the plainest way there is.

use crate::change::{Change, ChangeSet, Node};
use crate::diff::{Side, Sides};
use crate::import::BlobSink;
use crate::{Contents, Entry};
use base::{Digest, RelPath};
use fs_err as fs;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    File(u32, Vec<u8>),
    Dir(u32),
    Link(Vec<u8>),
}

/// Every directory is listed before what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files(pub(crate) BTreeMap<RelPath, Item>);

pub(crate) fn path(text: impl AsRef<[u8]>) -> RelPath {
    RelPath::new(text.as_ref()).unwrap()
}

pub(crate) fn file(text: &str) -> Item {
    Item::File(0o644, text.as_bytes().to_vec())
}

pub(crate) fn dir() -> Item {
    Item::Dir(0o755)
}

pub(crate) fn link(target: &str) -> Item {
    Item::Link(target.as_bytes().to_vec())
}

impl Item {
    pub(crate) fn node(&self) -> Node {
        match self {
            Self::File(mode, bytes) => Node::file(*mode, bytes.len() as u64, Digest::of(bytes)),
            Self::Dir(mode) => Node::dir(*mode),
            Self::Link(target) => Node::symlink(target.clone()),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self, Self::Dir(_))
    }
}

impl Files {
    pub(crate) fn of<const N: usize>(items: [(&str, Item); N]) -> Self {
        let mut files = Self::default();
        for (at, item) in items {
            assert!(files.put(&path(at), item), "{at}");
        }
        files
    }

    pub(crate) fn get(&self, at: &RelPath) -> Option<&Item> {
        self.0.get(at)
    }

    pub(crate) fn children(&self, dir: &RelPath) -> BTreeSet<Vec<u8>> {
        self.0
            .keys()
            .filter(|at| at.parent().as_ref() == Some(dir))
            .filter_map(|at| at.file_name().map(<[u8]>::to_vec))
            .collect()
    }

    /// Everything at and below `at`.
    pub(crate) fn subtree(&self, at: &RelPath) -> BTreeMap<RelPath, Item> {
        let within = self.0.iter().filter(|(path, _)| path.is_within(at));
        within
            .map(|(path, item)| (path.clone(), item.clone()))
            .collect()
    }

    /// Puts an item, missing directories included; false where a file is in the way.
    pub(crate) fn put(&mut self, at: &RelPath, item: Item) -> bool {
        let mut above = at.parent();
        let mut missing = Vec::new();
        while let Some(dir) = above.filter(|dir| !dir.is_root()) {
            match self.get(&dir) {
                Some(Item::Dir(_)) => {}
                Some(_) => return false,
                None => missing.push(dir.clone()),
            }
            above = dir.parent();
        }
        for dir in missing {
            self.0.insert(dir, Item::Dir(0o755));
        }
        if !item.is_dir() || !self.get(at).is_some_and(Item::is_dir) {
            self.remove(at);
        }
        self.0.insert(at.clone(), item);
        true
    }

    pub(crate) fn remove(&mut self, at: &RelPath) {
        self.0.retain(|path, _| !path.is_within(at));
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entry = |(at, item): (&RelPath, &Item)| {
            let node = item.node();
            Entry {
                path: at.clone(),
                kind: node.kind,
                mode: node.mode,
                size: node.size,
                mtime: (0, 0),
                digest: node.digest,
                offset: 0,
                target: node.target,
            }
        };
        self.0.iter().map(entry).collect()
    }

    pub(crate) fn write(&self, root: &Path) {
        let full = |at: &RelPath| root.join(OsStr::from_bytes(at.as_bytes()));
        for (at, item) in &self.0 {
            match item {
                Item::Dir(_) => fs::create_dir(full(at)).unwrap(),
                Item::Link(target) => {
                    std::os::unix::fs::symlink(OsStr::from_bytes(target), full(at)).unwrap();
                }
                Item::File(mode, bytes) => {
                    fs::write(full(at), bytes).unwrap();
                    fs::set_permissions(full(at), Permissions::from_mode(*mode)).unwrap();
                }
            }
        }
        for (at, item) in self.0.iter().rev() {
            if let Item::Dir(mode) = item {
                fs::set_permissions(full(at), Permissions::from_mode(*mode)).unwrap();
            }
        }
    }

    pub(crate) fn read(root: &Path) -> Self {
        let mut files = Self::default();
        files.read_dir(root, &RelPath::root());
        files
    }

    fn read_dir(&mut self, full: &Path, at: &RelPath) {
        for entry in fs::read_dir(full).unwrap() {
            let entry = entry.unwrap();
            let at = at.join(entry.file_name().as_bytes()).unwrap();
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            let mode = meta.permissions().mode() & 0o777;
            if meta.is_dir() {
                self.0.insert(at.clone(), Item::Dir(mode));
                self.read_dir(&entry.path(), &at);
            } else if meta.is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                self.0
                    .insert(at, Item::Link(target.as_os_str().as_bytes().to_vec()));
            } else {
                self.0
                    .insert(at, Item::File(mode, fs::read(entry.path()).unwrap()));
            }
        }
    }
}

/// What differs, worked out by looking at every path of both.
pub(crate) fn compare(old: &Files, new: &Files) -> ChangeSet {
    let paths: BTreeSet<_> = old.0.keys().chain(new.0.keys()).collect();
    let changes = paths
        .into_iter()
        .map(|at| Change {
            path: at.clone(),
            old: old.get(at).map(Item::node),
            new: new.get(at).map(Item::node),
            torn: false,
        })
        .filter(|change| change.old != change.new);
    ChangeSet::new(changes.collect()).unwrap()
}

/// Both sides of a change set, in memory.
#[derive(Debug, Clone)]
pub(crate) struct Pair(pub(crate) Files, pub(crate) Files);

impl Sides for Pair {
    fn copy(&self, at: &RelPath, _: &Node, side: Side, to: &mut dyn io::Write) -> io::Result<()> {
        let files = if side == Side::Old { &self.0 } else { &self.1 };
        match files.get(at) {
            Some(Item::File(_, bytes)) => to.write_all(bytes),
            other => Err(io::Error::other(format!("{at} is {other:?}"))),
        }
    }
}

impl Contents for Files {
    fn copy_to(&self, digest: &Digest, to: &mut dyn io::Write) -> io::Result<()> {
        let found = self.0.values().find_map(|item| match item {
            Item::File(_, bytes) if Digest::of(bytes) == *digest => Some(bytes),
            _ => None,
        });
        to.write_all(found.ok_or_else(|| io::Error::other("no such content"))?)
    }
}

/// Contents in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) kept: BTreeMap<Digest, Vec<u8>>,
    open: Option<Vec<u8>>,
    pub(crate) synced: bool,
}

impl BlobSink for &mut Memory {
    fn begin(&mut self) -> io::Result<()> {
        self.open = Some(Vec::new());
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open.as_mut().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self, digest: &Digest) -> io::Result<()> {
        let bytes = self.open.take().unwrap();
        assert_eq!(Digest::of(&bytes), *digest);
        self.kept.insert(*digest, bytes);
        Ok(())
    }

    fn discard(&mut self) {
        self.open = None;
    }

    fn holds(&self, digest: &Digest, size: u64) -> bool {
        self.kept
            .get(digest)
            .is_some_and(|bytes| bytes.len() as u64 == size)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced = true;
        Ok(())
    }
}

const NAMES: [&[u8]; 16] = [
    b"a",
    b"b",
    b"c",
    b"a-b",
    b"src",
    b"with space",
    b"new\nline",
    b"tab\t.x",
    b"\xff\xfe",
    b"-lead",
    b"q\"uote",
    b"back\\slash",
    "ü".as_bytes(),
    b".gitignore",
    b"a.b",
    b"HEAD",
];

pub(crate) fn any_path() -> impl Strategy<Value = RelPath> {
    let name = prop::sample::select(NAMES.to_vec());
    prop::collection::vec(name, 1..4).prop_map(|names| path(names.join(b"/".as_slice())))
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "",
        "one",
        "two",
        "three",
        "\t{",
        "ünï",
        "- x",
        "+",
        "@@ -1 +1 @@",
        "\r",
        "\\",
    ]);
    let text = prop::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n").into_bytes());
    let ended = text.clone().prop_map(|mut text| {
        text.push(b'\n');
        text
    });
    prop_oneof![
        3 => text,
        3 => ended,
        1 => Just(Vec::new()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]
}

pub(crate) fn any_item() -> impl Strategy<Value = Item> {
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600, 0o444, 0o777]);
    // None of them leads to a name that a tree here has: below a link that leads to itself, git can't put a file in the
    // link's place (it asks whether the file is there, and takes the loop for a failure).
    let target = prop::sample::select(vec![
        "nowhere",
        "../x",
        "/etc/passwd",
        "src/nothing",
        "no where",
        "ü",
    ]);
    prop_oneof![
        6 => (mode, any_bytes()).prop_map(|(mode, bytes)| Item::File(mode, bytes)),
        1 => prop::sample::select(vec![0o755, 0o700, 0o775]).prop_map(Item::Dir),
        1 => target.prop_map(link),
    ]
}

pub(crate) fn any_files() -> impl Strategy<Value = Files> {
    prop::collection::vec((any_path(), any_item()), 0..16).prop_map(|items| {
        let mut files = Files::default();
        for (at, item) in items {
            files.put(&at, item);
        }
        files
    })
}

#[derive(Debug, Clone)]
enum Edit {
    Put(RelPath, Item),
    Remove(prop::sample::Index),
    Chmod(prop::sample::Index, u32),
    Insert(prop::sample::Index, u8),
    Rename(prop::sample::Index, RelPath),
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (any_path(), any_item()).prop_map(|(at, item)| Edit::Put(at, item)),
        2 => index().prop_map(Edit::Remove),
        1 => (index(), prop::sample::select(vec![0o644, 0o755, 0o700])).prop_map(|(at, mode)| Edit::Chmod(at, mode)),
        3 => (index(), any::<u8>()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        2 => (index(), any_path()).prop_map(|(from, to)| Edit::Rename(from, to)),
    ]
}

impl Edit {
    fn apply(self, files: &mut Files) {
        let paths: Vec<RelPath> = files.0.keys().cloned().collect();
        let pick =
            |index: prop::sample::Index| (!paths.is_empty()).then(|| index.get(&paths).clone());
        match self {
            Self::Put(at, item) => {
                files.put(&at, item);
            }
            Self::Remove(at) => {
                if let Some(at) = pick(at) {
                    files.remove(&at);
                }
            }
            Self::Chmod(at, mode) => match pick(at).and_then(|at| files.0.get_mut(&at)) {
                Some(Item::File(old, _)) => *old = mode,
                Some(Item::Dir(old)) => *old = mode | 0o700,
                _ => {}
            },
            Self::Insert(at, byte) => {
                if let Some(Item::File(_, bytes)) = pick(at).and_then(|at| files.0.get_mut(&at)) {
                    bytes.insert(bytes.len() / 2, byte);
                }
            }
            Self::Rename(from, to) => {
                let Some(from) = pick(from).filter(|from| !to.is_within(from)) else {
                    return;
                };
                let moved = files.subtree(&from);
                files.remove(&from);
                for (at, item) in moved {
                    let below = at.below(&from).unwrap();
                    let at = if below.is_root() {
                        to.clone()
                    } else {
                        path([to.as_bytes(), b"/", below.as_bytes()].concat())
                    };
                    files.put(&at, item);
                }
            }
        }
    }
}

/// A tree, and what became of it.
pub(crate) fn any_pair() -> impl Strategy<Value = Pair> {
    (any_files(), prop::collection::vec(any_edit(), 0..10)).prop_map(|(old, edits)| {
        let mut new = old.clone();
        for edit in edits {
            edit.apply(&mut new);
        }
        Pair(old, new)
    })
}

/// Every file, link and directory of a directory with its bytes and modes: what "unchanged" means.
pub(crate) fn fingerprint(root: &Path) -> Vec<(PathBuf, Item)> {
    let files = Files::read(root).0;
    files
        .into_iter()
        .map(|(at, item)| (at.as_path().to_path_buf(), item))
        .collect()
}
