use super::HistoryUsed;
use crate::git::{self, DotGit, Git, Repository};
use base::RelPath;
use std::path::Path;

/// A repository of the workspace: its own, a submodule, or one that just lies there.
#[derive(Debug)]
pub(crate) struct Nested {
    /// Its work tree, below the workspace's root.
    pub(crate) dir: RelPath,
    pub(crate) repository: Repository,
    /// The position of the repository around it.
    pub(crate) outer: Option<usize>,
    /// Its name as a submodule of the outer one.
    pub(crate) module: Option<Vec<u8>>,
    /// How much of its history goes along.
    pub(crate) history: HistoryUsed,
}

/// What a directory below the workspace's root is to git.
pub(super) enum Opened {
    /// A directory as any other.
    Plain,
    /// A repository of its own.
    Repository(Box<Repository>),
    /// Something that says it is one, and can't be read.
    Broken,
}

/// Opens the repository whose `.git` stands in `path`, if there is one.
pub(super) fn open(
    git: &Git,
    path: &Path,
    root: &Path,
    home: Option<&Path>,
    scratch: &Path,
    trust: bool,
) -> Opened {
    let dirs = match git::inspect(path) {
        Ok(DotGit::None) => return Opened::Plain,
        Ok(DotGit::Repository(dirs)) => dirs,
        Ok(DotGit::Broken { .. }) | Err(_) => return Opened::Broken,
    };
    let Ok(repository) = Repository::open(git, path, dirs, home, scratch) else {
        return Opened::Broken;
    };
    let known = trust || git::check_owner(path, &repository.dirs, &repository.config, root).is_ok();
    if known {
        Opened::Repository(Box::new(repository))
    } else {
        Opened::Broken
    }
}
