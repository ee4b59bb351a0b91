use super::Conflict;
use base::RelPath;
use std::io;
use std::path::PathBuf;

/// A change set can't be applied as the host is.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The directory can't be opened.
    #[error("Can't open `{path}`")]
    Root {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The host moved on, in all of these places. Nothing was changed.
    #[error("{} {} not as the machine was given {}", .0.len(),
        if .0.len() == 1 { "path is" } else { "paths are" }, if .0.len() == 1 { "it" } else { "them" })]
    Conflicts(Vec<Conflict>),
}

/// Applying failed. Unless it says otherwise the host is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another operation is at work in this directory, or was cut short and has to be recovered first.
    #[error("Another operation is under way in `{0}`")]
    Busy(PathBuf),
    /// The journal can't be written or read.
    #[error("Can't use the journal `{path}`")]
    Journal {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A content is missing or damaged.
    #[error("Can't get the content of `{path}`")]
    Content {
        /// The path that it is for.
        path: RelPath,
        /// Why.
        source: io::Error,
    },
    /// The host's file system refused.
    #[error("Can't {doing} `{path}`; nothing was changed")]
    Step {
        /// `write`, `remove` and the like.
        doing: &'static str,
        /// The path.
        path: RelPath,
        /// Why.
        source: io::Error,
    },
    /// Somebody changed it while we were at work.
    #[error("`{0}` was changed while the result was applied; nothing was changed by us")]
    MovedOn(RelPath),
    /// After a failure not everything could be put back. The journal is kept, so that it can be tried again.
    #[error("`{path}` can't be put back; what was there is in `{staging}`")]
    Rollback {
        /// The first path that could not be put back.
        path: RelPath,
        /// The staging directory with the originals.
        staging: PathBuf,
        /// Why.
        source: io::Error,
    },
}
