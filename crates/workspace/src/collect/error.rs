use crate::GitError;
use base::{RelPath, Size};
use std::fmt;
use std::path::PathBuf;

/// Why a workspace can't be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The path is not a directory.
    #[error("`{path}` is not a directory")]
    NotADirectory {
        /// The path that was given.
        path: PathBuf,
    },
    /// The path can't be looked at.
    #[error("Can't look at `{path}`")]
    Look {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Too much or too private to be a workspace.
    #[error("`{path}` is {what}, which is hardly meant to go into a machine as a whole")]
    Unusual {
        /// The workspace's root.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The workspace belongs to someone else.
    #[error("`{path}` belongs to another user (uid {owner})")]
    NotYours {
        /// The workspace's root.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The repository can't be taken along.
    #[error(transparent)]
    Git(#[from] GitError),
    /// `only` names nothing.
    #[error("`{path}` is not in the workspace")]
    NoSuchPath {
        /// The path that was asked for.
        path: RelPath,
    },
    /// A pattern is no pattern.
    #[error("`{pattern}` is not a pattern that can match anything")]
    BadPattern {
        /// The pattern.
        pattern: String,
    },
    /// Files or directories may not be read.
    #[error("{} can't be read: {first}", if *count == 1 { "One path".to_owned() } else { format!("{count} paths") })]
    Unreadable {
        /// How many.
        count: usize,
        /// The first of them.
        first: Several,
    },
    /// Files are larger than the limit.
    #[error("{} larger than {limit}: {first}", if *count == 1 { "One file is".to_owned() } else { format!("{count} files are") })]
    TooLarge {
        /// How many.
        count: usize,
        /// The first of them.
        first: Several,
        /// The largest size that is allowed.
        limit: Size,
    },
    /// All files together are larger than the limit.
    #[error("The files of the workspace take {size}, more than {limit}")]
    TooMuch {
        /// Bytes of all files.
        size: Size,
        /// The most that is allowed.
        limit: Size,
    },
    /// There are more paths than the limit.
    #[error(
        "The workspace holds more than {limit} files and directories; `{largest}` alone holds {count}"
    )]
    TooMany {
        /// The most that is allowed.
        limit: u64,
        /// The top directory that holds most of those that were counted.
        largest: RelPath,
        /// How many it holds.
        count: u64,
    },
    /// A path is too long or too deep for any machine.
    #[error("A path below `{dir}` can't go in")]
    Path {
        /// The directory.
        dir: RelPath,
        /// What is wrong with it.
        #[source]
        source: base::PathError,
    },
}

/// The first few of a longer list of paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Several(Vec<String>, usize);

/// How many paths a message names.
const NAMED: usize = 3;

impl Several {
    /// The first few of `items`, each in the words of `say`.
    pub(crate) fn new<T>(items: &[T], say: impl Fn(&T) -> String) -> Self {
        Self(
            items.iter().take(NAMED).map(say).collect(),
            items.len().saturating_sub(NAMED),
        )
    }
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))?;
        if self.1 > 0 {
            write!(f, " and {} more", self.1)?;
        }
        Ok(())
    }
}
