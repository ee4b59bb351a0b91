//! Finds out what goes into a machine: the working state of a workspace as it is right now.
//!
//! Invariant: nothing is written to the workspace or its repositories, no link is followed, and no byte of a file
//! is read here but rules (`.gitignore`, `.gitmodules`) and the start of a few files that are likely to hold a
//! secret. What a path is, is found out once; [`crate::pack`] checks that it still is.

mod error;
mod nested;
mod place;
mod walk;

pub use error::{CollectError, Several};

pub(crate) use nested::Nested;

use crate::{IgnoreFile, git};
use base::{RelPath, Size};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The most paths of a workspace, unless the options say otherwise.
pub const DEFAULT_MAX_FILES: u64 = 1_000_000;
/// The largest file of a workspace, unless the options say otherwise.
pub const DEFAULT_MAX_FILE_SIZE: Size = Size::gib(2);
/// The most bytes of a workspace's files, unless the options say otherwise.
pub const DEFAULT_MAX_TOTAL_SIZE: Size = Size::gib(20);
/// How much of git's packed objects still goes along as a whole when [`History::Auto`] decides. Copying a pack of
/// this size takes about as long as a cold boot; beyond it, the history would be what one waits for.
pub const AUTO_HISTORY_LIMIT: Size = Size::gib(1);
/// How many commits a shallow history keeps: enough to see how people write here, and what changed last.
pub const SHALLOW_COMMITS: usize = 50;

/// What of a workspace is wanted, and who asks.
#[derive(Debug, Clone)]
pub struct CollectOptions {
    /// Any directory in the workspace.
    pub directory: PathBuf,
    /// Take this path alone, below the workspace's root.
    pub only: Option<RelPath>,
    /// Patterns in gitignore's syntax, relative to the workspace's root: take these along though they are ignored or
    /// look like secrets.
    pub include: Vec<String>,
    /// Patterns in gitignore's syntax, relative to the workspace's root: leave these out, tracked or not.
    pub exclude: Vec<String>,
    /// Leave unreadable files out instead of refusing.
    pub skip_unreadable: bool,
    /// How much of git's history goes along.
    pub history: History,
    /// Take `/`, the home directory, directories of other users, and git directories that don't know their work tree.
    pub allow_unusual: bool,
    /// The git program, as an absolute path; the usual places are searched without.
    pub git_program: Option<PathBuf>,
    /// The user's home directory, for what must not go in and for git's settings.
    pub home: Option<PathBuf>,
    /// The largest file.
    pub max_file_size: Size,
    /// The most bytes of all files.
    pub max_total_size: Size,
    /// The most paths.
    pub max_files: u64,
    /// A directory of the user's where temporary files may be made.
    pub scratch: PathBuf,
}

/// How much of git's history goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// Everything that the current branch reaches.
    Full,
    /// The newest [`SHALLOW_COMMITS`].
    Shallow,
    /// No git directory at all.
    None,
    /// Full up to [`AUTO_HISTORY_LIMIT`], else shallow.
    Auto,
}

/// The working state of a workspace: what goes in, and what does not.
#[derive(Debug)]
pub struct Collected {
    /// Absolute, without symbolic links: git's top level, or the directory itself without git.
    pub root: PathBuf,
    /// Where in it the asked-for directory is.
    pub cwd: RelPath,
    /// All paths, in the order of their bytes.
    pub entries: Vec<Found>,
    /// What stays out.
    pub left_out: Omitted,
    /// Tracked files that look like secrets. They are in the history anyway, so they go in.
    pub tracked_secrets: Vec<RelPath>,
    /// What there is of git; `None` without git or without history.
    pub git: Option<GitFacts>,
    /// The rules that decide what is ignored, the weakest first.
    pub ignore: Vec<IgnoreFile>,
    /// Roots of repositories below the workspace's own, where ignore rules from above end.
    pub nested: Vec<RelPath>,
    pub(crate) root_meta: (u32, (i64, u32)),
    pub(crate) repositories: Vec<Nested>,
    pub(crate) git_program: Option<git::Git>,
    pub(crate) absent: Vec<RelPath>,
    pub(crate) only: Option<RelPath>,
    pub(crate) attributes: Vec<u8>,
    pub(crate) user_ignore: Vec<u8>,
    pub(crate) skip_unreadable: bool,
    pub(crate) max_file_size: Size,
}

/// One path that goes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Below the workspace's root.
    pub path: RelPath,
    /// File, directory or link.
    pub kind: crate::Kind,
    /// Permission bits (`0o777` at most).
    pub mode: u32,
    /// Bytes of a file or of a link's target.
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Change time: seconds since 1970 and nanoseconds.
    pub ctime: (i64, u32),
    /// The inode's number.
    pub ino: u64,
    /// A link's target; empty for others.
    pub target: Vec<u8>,
}

/// What does not go in, and why. Directories count as one path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Paths that git ignores.
    pub ignored: u64,
    /// Untracked files that look like secrets.
    pub secrets: Vec<RelPath>,
    /// Paths that the user left out.
    pub excluded: Vec<RelPath>,
    /// Files and directories that may not be read.
    pub unreadable: Vec<RelPath>,
    /// FIFOs, sockets and devices.
    pub special: Vec<RelPath>,
}

/// What there is of git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFacts {
    /// The commit in hex digits; `None` before the first one.
    pub head: Option<String>,
    /// The current branch without `refs/heads/`; `None` when HEAD is detached.
    pub branch: Option<String>,
    /// What kind of repository it is.
    pub shape: Shape,
    /// How much of the history goes along.
    pub history: HistoryUsed,
    /// The user's effective name for commits.
    pub user_name: Option<String>,
    /// The user's effective address for commits.
    pub user_email: Option<String>,
    /// What a person should know about this repository's copy.
    pub notes: Vec<GitNote>,
}

/// Kinds of repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// `.git` is a directory.
    Plain,
    /// One of several work trees of a repository.
    Worktree,
    /// A submodule of another repository, or one with its git directory set apart.
    Apart,
}

/// How much of the history goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryUsed {
    /// All that is there.
    Full,
    /// The newest [`SHALLOW_COMMITS`].
    Shallow,
    /// None.
    None,
}

/// What a person should know about a repository's copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GitNote {
    /// The history was cut, because the packed objects take this much.
    Cut {
        /// Bytes of all packs on the host.
        packed: Size,
    },
    /// A partial clone: objects that are missing here are missing there too, and are never fetched.
    Partial,
    /// The host's history is shallow itself.
    Shallow,
    /// Replaced objects show their originals inside.
    Replaced,
    /// A rebase is going on, which does not go along.
    Rebasing,
    /// The repository in this directory is broken or can't be read; its files go in, its history does not.
    BrokenNested {
        /// Below the workspace's root.
        dir: RelPath,
    },
}

impl std::fmt::Display for GitNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cut { packed } => write!(
                f,
                "the history is cut to its newest {SHALLOW_COMMITS} commits, because git's objects take {packed} \
                 (`--history full` brings all)"
            ),
            Self::Partial => f.write_str(
                "this is a partial clone: objects that are not here are not there either",
            ),
            Self::Shallow => f.write_str("the history is shallow on this computer, and inside"),
            Self::Replaced => f.write_str("replaced git objects show their originals inside"),
            Self::Rebasing => f.write_str("the rebase that is going on can't be continued inside"),
            Self::BrokenNested { dir } => write!(
                f,
                "the git repository in `{dir}` is broken, so its history stays out"
            ),
        }
    }
}

/// Collects the working state of the workspace that `options.directory` lies in.
///
/// Fails when the directory is none or an unusual one, when its repository is broken, when files can't be read, and
/// when a limit is exceeded; every such error names the path and what can be done.
pub fn collect(options: &CollectOptions) -> Result<Collected, CollectError> {
    let place = place::find(options)?;
    walk::walk(options, place)
}

#[cfg(test)]
mod tests;
