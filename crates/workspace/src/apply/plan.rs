use super::beneath::{Beneath, Found, names};
use super::{Conflict, ConflictKind, PlanError};
use crate::Kind;
use crate::change::{Change, ChangeSet, Node};
use crate::import::is_git_directory;
use base::RelPath;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// What has to be done, and was found possible.
#[derive(Debug)]
pub struct Plan {
    pub(super) root: Beneath,
    pub(super) root_path: PathBuf,
    pub(super) steps: Vec<Step>,
    pub(super) todo: Vec<Change>,
    pub(super) already: Vec<RelPath>,
    pub(super) change_set: base::Digest,
}

/// One thing to do. They are done in the order of [`Step::order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Step {
    /// Gives a directory its mode at last, and before that the right to write for its owner.
    DirMode { path: RelPath, old: u32, new: u32 },
    /// Removes a file or link.
    Remove { path: RelPath, old: Node },
    /// Removes a directory; `forced`: something else takes its place, so that it may not stay.
    RemoveDir {
        path: RelPath,
        mode: u32,
        forced: bool,
    },
    /// Makes a directory.
    MakeDir { path: RelPath, mode: u32 },
    /// Puts a file or link in place, of nothing or of `old`.
    Place {
        path: RelPath,
        old: Option<Node>,
        new: Node,
    },
}

impl Step {
    pub(super) fn path(&self) -> &RelPath {
        match self {
            Self::DirMode { path, .. }
            | Self::Remove { path, .. }
            | Self::RemoveDir { path, .. }
            | Self::MakeDir { path, .. }
            | Self::Place { path, .. } => path,
        }
    }

    fn order(&self) -> u8 {
        match self {
            Self::DirMode { .. } => 0,
            Self::Remove { .. } => 1,
            Self::RemoveDir { .. } => 2,
            Self::MakeDir { .. } => 3,
            Self::Place { .. } => 4,
        }
    }
}

/// Compares every change with what the host has: it must be the change's old side, or its new side already.
/// Fails with all conflicts, and changes nothing.
pub fn plan(changes: &ChangeSet, root: &Path) -> Result<Plan, PlanError> {
    let opened = Beneath::open(root).map_err(|errno| PlanError::Root {
        path: root.to_path_buf(),
        source: errno.into(),
    })?;
    let mut planner = Planner {
        root: &opened,
        changes,
        git_verdicts: HashMap::new(),
        devices: HashMap::new(),
        steps: Vec::new(),
        todo: Vec::new(),
        already: Vec::new(),
        conflicts: Vec::new(),
    };
    for change in changes.changes() {
        if let Err(kind) = planner.consider(change) {
            let path = change.path.clone();
            planner.conflicts.push(Conflict { path, kind });
        }
    }
    let Planner {
        mut steps,
        todo,
        already,
        conflicts,
        ..
    } = planner;
    if !conflicts.is_empty() {
        return Err(PlanError::Conflicts(conflicts));
    }
    steps.sort_by(|a, b| {
        let by_path = a.path().cmp(b.path());
        // Directories go from the deepest up, and come from the top down.
        let by_path = if a.order() == 2 {
            by_path.reverse()
        } else {
            by_path
        };
        a.order().cmp(&b.order()).then(by_path)
    });
    Ok(Plan {
        root: opened,
        root_path: root.to_path_buf(),
        steps,
        todo,
        already,
        change_set: changes.digest(),
    })
}

impl Plan {
    /// Paths that will change.
    pub fn todo(&self) -> &[Change] {
        &self.todo
    }

    /// Paths that are already as the change set has them.
    pub fn already(&self) -> &[RelPath] {
        &self.already
    }
}

struct Planner<'a> {
    root: &'a Beneath,
    changes: &'a ChangeSet,
    git_verdicts: HashMap<RelPath, bool>,
    devices: HashMap<RelPath, bool>,
    steps: Vec<Step>,
    todo: Vec<Change>,
    already: Vec<RelPath>,
    conflicts: Vec<Conflict>,
}

impl Planner<'_> {
    fn consider(&mut self, change: &Change) -> Result<(), ConflictKind> {
        let path = &change.path;
        let mut found = self.root.look(path).map_err(unreadable)?;
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        if found == Found::LinkAbove {
            // Right where the set itself puts the link there, or a directory in its place.
            let expected =
                self.parent_comes(path) || (new.is_none() && self.link_comes_above(path));
            if !expected {
                return Err(ConflictKind::LinkAbove);
            }
            found = Found::NoParent;
        }
        let is_dir = |node: Option<&Node>| node.is_some_and(|node| node.kind == Kind::Dir);
        // A directory that both made is the same directory: the host's mode stays.
        let both_made = old.is_none() && is_dir(new) && found.kind() == Some(Kind::Dir);
        if both_made || found.is(new) {
            self.already.push(path.clone());
            return Ok(());
        }
        if self.is_in_git_directory(path) {
            return Err(ConflictKind::GitDirectory);
        }
        // The mode of a directory that goes anyway doesn't matter.
        let leaves = is_dir(old) && !is_dir(new) && found.kind() == Some(Kind::Dir);
        if !leaves && !found.is(old) {
            return Err(difference(&found, old));
        }
        if found == Found::NoParent && !self.parent_comes(path) {
            return Err(ConflictKind::NoParent);
        }
        if found != Found::NoParent && !self.is_on_the_roots_device(path).map_err(unreadable)? {
            return Err(ConflictKind::OtherFileSystem);
        }
        if leaves && new.is_some() {
            self.must_be_emptied(path)?;
        }
        self.add_steps(change, &found);
        self.todo.push(change.clone());
        Ok(())
    }

    fn add_steps(&mut self, change: &Change, found: &Found) {
        let path = change.path.clone();
        let Change { old, new, .. } = change.clone();
        let found_mode = match found {
            Found::Node(node) => node.mode,
            _ => 0o755,
        };
        match (old, new) {
            (Some(old), Some(new)) if old.kind == Kind::Dir && new.kind == Kind::Dir => {
                self.steps.push(Step::DirMode {
                    path,
                    old: old.mode,
                    new: new.mode,
                });
            }
            (Some(old), Some(new)) if old.kind != Kind::Dir && new.kind != Kind::Dir => {
                self.steps.push(Step::Place {
                    path,
                    old: Some(old),
                    new,
                });
            }
            (old, new) => {
                match old {
                    Some(old) if old.kind == Kind::Dir => self.steps.push(Step::RemoveDir {
                        path: path.clone(),
                        mode: found_mode,
                        forced: new.is_some(),
                    }),
                    Some(old) => self.steps.push(Step::Remove {
                        path: path.clone(),
                        old,
                    }),
                    None => {}
                }
                match new {
                    Some(new) if new.kind == Kind::Dir => {
                        self.steps.push(Step::MakeDir {
                            path,
                            mode: new.mode,
                        });
                    }
                    Some(new) => self.steps.push(Step::Place {
                        path,
                        old: None,
                        new,
                    }),
                    None => {}
                }
            }
        }
    }

    /// The nearest directory above that the set speaks of will be there.
    fn parent_comes(&self, path: &RelPath) -> bool {
        let parent = path.parent().and_then(|parent| self.changes.get(&parent));
        parent.is_some_and(|change| change.new.as_ref().is_some_and(|new| new.kind == Kind::Dir))
    }

    /// The set puts a link in the place of a directory above. Whether it is there already is a question of its own.
    fn link_comes_above(&self, path: &RelPath) -> bool {
        let above = std::iter::successors(path.parent(), RelPath::parent);
        let changes = above.filter_map(|dir| self.changes.get(&dir));
        let news = changes.filter_map(|change| change.new.as_ref());
        news.into_iter().any(|new| new.kind == Kind::Symlink)
    }

    fn must_be_emptied(&self, path: &RelPath) -> Result<(), ConflictKind> {
        let dir = self.root.dir(path).map_err(unreadable)?;
        for name in names(dir).map_err(unreadable)? {
            let goes = path
                .join(&name)
                .ok()
                .and_then(|path| self.changes.get(&path))
                .is_some_and(|change| change.new.is_none());
            if !goes {
                return Err(ConflictKind::NotEmpty);
            }
            let below = path.join(&name).map_err(|_| ConflictKind::NotEmpty)?;
            if self.root.dir(&below).is_ok() {
                self.must_be_emptied(&below)?;
            }
        }
        Ok(())
    }

    fn is_on_the_roots_device(&mut self, path: &RelPath) -> Result<bool, Errno> {
        let parent = path.parent().unwrap_or_default();
        if let Some(known) = self.devices.get(&parent) {
            return Ok(*known);
        }
        let device = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
        let same = device(self.root.dir(&parent)?)? == device(self.root.dir(&RelPath::root())?)?;
        self.devices.insert(parent, same);
        Ok(same)
    }

    fn is_in_git_directory(&mut self, path: &RelPath) -> bool {
        let mut above = path.parent();
        while let Some(dir) = above {
            let verdict = self
                .git_verdicts
                .get(&dir)
                .copied()
                .unwrap_or_else(|| is_git_directory(|name| self.will_be_there(&dir, name)));
            self.git_verdicts.insert(dir.clone(), verdict);
            if verdict {
                return true;
            }
            above = dir.parent();
        }
        false
    }

    fn will_be_there(&self, dir: &RelPath, name: &[u8]) -> bool {
        dir.join(name).is_ok_and(|path| {
            let added = self
                .changes
                .get(&path)
                .is_some_and(|change| change.new.is_some());
            added || self.root.stat(&path).is_ok()
        })
    }
}

fn difference(found: &Found, old: Option<&Node>) -> ConflictKind {
    match (found, old) {
        (Found::Absent | Found::NoParent, Some(_)) => ConflictKind::Gone,
        (_, None) => ConflictKind::Exists,
        (Found::Node(found), Some(old)) if found.kind != old.kind => ConflictKind::OtherKind,
        (Found::Node(found), Some(old)) if found.digest == old.digest => ConflictKind::OtherMode,
        (Found::Node(_), Some(_)) => ConflictKind::Edited,
        (Found::Other | Found::LinkAbove, Some(_)) => ConflictKind::OtherKind,
    }
}

fn unreadable(errno: Errno) -> ConflictKind {
    ConflictKind::Unreadable(std::io::Error::from(errno).to_string())
}
