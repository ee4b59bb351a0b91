//! A change set: what is different from the baseline, path by path. Inert data: contents are named by digest.

#[cfg(test)]
mod tests;

use crate::{Entry, Kind, names::is_git_store_alias};
use base::{Digest, Hasher, RelPath};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the JSON form.
const VERSION: u32 = 1;
/// Changes in one set.
pub const MAX_CHANGES: usize = 1_000_000;
/// Bytes of a link's target (`PATH_MAX`, less the closing NUL).
pub const MAX_TARGET: usize = 4095;

/// What a path is on one side of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// File, directory or link.
    pub kind: Kind,
    /// Permission bits, `0o777` at most; `0o777` for links.
    pub mode: u32,
    /// Bytes of a file or of a link's target; 0 for a directory.
    pub size: u64,
    /// Digest of a file's bytes or of a link's target; `None` for a directory.
    pub digest: Option<Digest>,
    /// A link's target; empty for others.
    #[serde(default, with = "bytes", skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<u8>,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Below the workspace root.
    pub path: RelPath,
    /// What the baseline has; `None` for an addition.
    pub old: Option<Node>,
    /// What the machine had; `None` for a deletion.
    pub new: Option<Node>,
    /// The file kept changing while it was read: the content may mix two of its states.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub torn: bool,
}

/// All changes, one for each path, sorted by path (bytewise).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct ChangeSet {
    changes: Vec<Change>,
}

/// The changes are not a change set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeSetError {
    /// Another version wrote it.
    #[error("The change set has version {0}, and this efimera reads version {VERSION}")]
    Version(u32),
    /// More than [`MAX_CHANGES`].
    #[error("The change set has more than {MAX_CHANGES} changes")]
    TooMany,
    /// Two changes for one path.
    #[error("`{0}` occurs twice in the change set")]
    Twice(RelPath),
    /// The path is the root, or could be taken for a git directory's.
    #[error("`{0}` may not be in a change set")]
    Forbidden(RelPath),
    /// The two sides are the same, or both absent, or a side contradicts itself.
    #[error("The change of `{0}` contradicts itself")]
    Inconsistent(RelPath),
    /// Something would lie below a file or link.
    #[error("`{path}` would lie below `{above}`, which is no directory")]
    BelowFile {
        /// What would lie there.
        path: RelPath,
        /// The file or link.
        above: RelPath,
    },
}

/// How many paths changed, and how: what every receipt and listing counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Files and links on both sides that differ, and files that moved as they were ([`ChangeSet::renames`]).
    pub changed: u64,
    /// Files and links that are new.
    pub added: u64,
    /// Files and links that are gone.
    pub deleted: u64,
    /// Directories that are new, gone, or have another mode.
    pub dirs: u64,
    /// Changes that are marked torn.
    pub torn: u64,
}

/// A deleted file and an added one with the same bytes: a view for people, not part of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rename {
    /// Where the file was.
    pub from: RelPath,
    /// Where it is.
    pub to: RelPath,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    changes: Vec<Change>,
}

impl Node {
    /// A regular file.
    pub fn file(mode: u32, size: u64, digest: Digest) -> Self {
        Self {
            kind: Kind::File,
            mode: mode & 0o777,
            size,
            digest: Some(digest),
            target: Vec::new(),
        }
    }

    /// A directory.
    pub fn dir(mode: u32) -> Self {
        Self {
            kind: Kind::Dir,
            mode: mode & 0o777,
            size: 0,
            digest: None,
            target: Vec::new(),
        }
    }

    /// A symbolic link.
    pub fn symlink(target: impl Into<Vec<u8>>) -> Self {
        let target = target.into();
        Self {
            kind: Kind::Symlink,
            mode: 0o777,
            size: target.len() as u64,
            digest: Some(Digest::of(&target)),
            target,
        }
    }

    /// What the baseline says of a path.
    pub fn of_entry(entry: &Entry) -> Self {
        match entry.kind {
            Kind::Dir => Self::dir(entry.mode),
            Kind::Symlink => Self::symlink(entry.target.clone()),
            Kind::File => Self {
                digest: entry.digest,
                ..Self::file(entry.mode, entry.size, Digest::from_bytes([0; 32]))
            },
        }
    }

    fn is_consistent(&self) -> bool {
        self.mode <= 0o777
            && match self.kind {
                Kind::File => self.digest.is_some() && self.target.is_empty(),
                Kind::Dir => self.digest.is_none() && self.target.is_empty() && self.size == 0,
                Kind::Symlink => {
                    is_target(&self.target) && *self == Self::symlink(self.target.clone())
                }
            }
    }

    fn hash(&self, hasher: &mut Hasher) {
        hasher.update(match self.kind {
            Kind::File => b"f",
            Kind::Dir => b"d",
            Kind::Symlink => b"l",
        });
        hasher.update(&self.mode.to_le_bytes());
        hasher.update(&self.size.to_le_bytes());
        if let Some(digest) = &self.digest {
            hasher.update(digest.as_bytes());
        }
    }
}

/// True for what a symbolic link can hold: 1 to [`MAX_TARGET`] bytes without NUL.
pub(crate) fn is_target(target: &[u8]) -> bool {
    (1..=MAX_TARGET).contains(&target.len()) && !target.contains(&0)
}

impl Change {
    /// The kinds on the two sides differ (and both are there).
    pub fn is_type_change(&self) -> bool {
        matches!((&self.old, &self.new), (Some(old), Some(new)) if old.kind != new.kind)
    }
}

impl ChangeSet {
    /// Sorts the changes and checks every rule: one change a path, two different sides, no git directory,
    /// nothing below a file or link.
    pub fn new(mut changes: Vec<Change>) -> Result<Self, ChangeSetError> {
        if changes.len() > MAX_CHANGES {
            return Err(ChangeSetError::TooMany);
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        let twice = changes.windows(2).find(|pair| pair[0].path == pair[1].path);
        if let Some(pair) = twice {
            return Err(ChangeSetError::Twice(pair[0].path.clone()));
        }
        let set = Self { changes };
        for change in &set.changes {
            set.check(change)?;
        }
        Ok(set)
    }

    fn check(&self, change: &Change) -> Result<(), ChangeSetError> {
        let path = &change.path;
        if path.is_root() || path.components().any(is_git_store_alias) {
            return Err(ChangeSetError::Forbidden(path.clone()));
        }
        let sides = [&change.old, &change.new];
        if change.old == change.new || !sides.into_iter().flatten().all(Node::is_consistent) {
            return Err(ChangeSetError::Inconsistent(path.clone()));
        }
        if change.new.is_none() {
            return Ok(());
        }
        let mut above = path.parent();
        while let Some(dir) = above {
            if let Some(other) = self.get(&dir)
                && other.new.as_ref().is_none_or(|node| node.kind != Kind::Dir)
            {
                return Err(ChangeSetError::BelowFile {
                    path: path.clone(),
                    above: dir,
                });
            }
            above = dir.parent();
        }
        Ok(())
    }

    /// The changes, sorted by path.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// True when nothing differs.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The change of `path`, if there is one.
    pub fn get(&self, path: &RelPath) -> Option<&Change> {
        let at = self
            .changes
            .binary_search_by(|change| change.path.cmp(path));
        at.ok().map(|at| &self.changes[at])
    }

    /// True when one of the changes below `dir` is a file's or link's and has what is asked for.
    pub fn holds_below(&self, dir: &RelPath, has: impl Fn(&Change) -> bool) -> bool {
        let start = self.changes.partition_point(|change| change.path <= *dir);
        let is_leaf = |change: &&Change| {
            let sides = [&change.old, &change.new];
            sides
                .into_iter()
                .flatten()
                .any(|node| node.kind != Kind::Dir)
        };
        // What begins with the same bytes may lie between, as `a.txt` and `a/b` do.
        self.changes[start..]
            .iter()
            .take_while(|change| change.path.as_bytes().starts_with(dir.as_bytes()))
            .filter(|change| change.path.is_within(dir))
            .filter(is_leaf)
            .any(has)
    }

    /// Counts.
    pub fn stat(&self) -> Stat {
        let mut stat = Stat::default();
        for change in &self.changes {
            let holds = |side: &Option<Node>| side.as_ref().is_some_and(|n| n.kind != Kind::Dir);
            match (holds(&change.old), holds(&change.new)) {
                (true, true) => stat.changed += 1,
                (false, true) => stat.added += 1,
                (true, false) => stat.deleted += 1,
                (false, false) => stat.dirs += 1,
            }
            stat.torn += u64::from(change.torn);
        }
        let moved = self.renames().len() as u64;
        stat.changed += moved;
        stat.added -= moved;
        stat.deleted -= moved;
        stat
    }

    /// A digest of everything that [`ChangeSet`] says: what was reviewed is what is applied when this is equal.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(b"efimera change set 1\n");
        for change in &self.changes {
            let path = change.path.as_bytes();
            hasher.update(&(path.len() as u64).to_le_bytes());
            hasher.update(path);
            for side in [&change.old, &change.new] {
                match side {
                    None => hasher.update(b"-"),
                    Some(node) => node.hash(&mut hasher),
                }
            }
            hasher.update(&[u8::from(change.torn)]);
        }
        hasher.finish()
    }

    /// Digests of the file contents that the new sides name and no old side of the same path has: what has to
    /// be kept with the change set.
    pub fn contents(&self) -> BTreeSet<Digest> {
        let needed = |change: &Change| {
            let new = change.new.as_ref().filter(|node| node.kind == Kind::File)?;
            let old = change.old.as_ref().and_then(|node| node.digest);
            new.digest.filter(|_| new.digest != old)
        };
        self.changes.iter().filter_map(needed).collect()
    }

    /// Pairs of a deleted and an added file with the same bytes, empty files aside. Where several fit, those
    /// with the same file name go together first. Sorted by the new path.
    pub fn renames(&self) -> Vec<Rename> {
        let mut gone: BTreeMap<Digest, Vec<&RelPath>> = BTreeMap::new();
        let mut came: BTreeMap<Digest, Vec<&RelPath>> = BTreeMap::new();
        for change in &self.changes {
            let (node, side) = match (&change.old, &change.new) {
                (Some(node), None) => (node, &mut gone),
                (None, Some(node)) => (node, &mut came),
                _ => continue,
            };
            if let Some(digest) = node
                .digest
                .filter(|_| node.kind == Kind::File && node.size > 0)
            {
                side.entry(digest).or_default().push(&change.path);
            }
        }
        let mut renames = Vec::new();
        for (digest, targets) in came {
            let Some(sources) = gone.get_mut(&digest) else {
                continue;
            };
            let mut by_name: BTreeMap<_, Vec<&RelPath>> = BTreeMap::new();
            for source in sources.iter().rev() {
                by_name.entry(source.file_name()).or_default().push(source);
            }
            let mut pairs: Vec<(Option<&RelPath>, &RelPath)> = targets
                .into_iter()
                .map(|to| (by_name.get_mut(&to.file_name()).and_then(Vec::pop), to))
                .collect();
            let taken: BTreeSet<&RelPath> = pairs.iter().filter_map(|pair| pair.0).collect();
            let mut rest = sources.iter().filter(|source| !taken.contains(*source));
            for pair in &mut pairs {
                pair.0 = pair.0.or_else(|| rest.next().copied());
            }
            renames.extend(pairs.into_iter().filter_map(|(from, to)| {
                let (from, to) = (from?.clone(), to.clone());
                Some(Rename { from, to })
            }));
        }
        renames.sort_by(|a, b| a.to.cmp(&b.to));
        renames
    }
}

impl TryFrom<Document> for ChangeSet {
    type Error = ChangeSetError;

    fn try_from(document: Document) -> Result<Self, ChangeSetError> {
        if document.version != VERSION {
            return Err(ChangeSetError::Version(document.version));
        }
        Self::new(document.changes)
    }
}

impl From<ChangeSet> for Document {
    fn from(set: ChangeSet) -> Self {
        Self {
            version: VERSION,
            changes: set.changes,
        }
    }
}

/// Bytes as a string where they are UTF-8, and as an array of numbers where they are not.
mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_seq(bytes),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Form::deserialize(source)? {
            Form::Text(text) => text.into_bytes(),
            Form::Bytes(bytes) => bytes,
        })
    }
}
