use base::Name;
use std::io;
use std::path::{Path, PathBuf};

/// Something on disk could not be read, written or found.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("Can't {what} `{path}`")]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No space, or no quota.
    #[error(
        "The disk is full: can't {what} `{path}` (`efimera purge` and `efimera discard` free space)"
    )]
    DiskFull {
        /// What was being done.
        what: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A document that can't be understood.
    #[error("`{path}` is damaged, or was written by something else")]
    Malformed {
        /// The document.
        path: PathBuf,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A document of another format version.
    #[error(
        "`{path}` has format version {found}, this efimera reads version {want}: use the one that wrote it, or remove it"
    )]
    Version {
        /// The document.
        path: PathBuf,
        /// What it says.
        found: u32,
        /// What we read.
        want: u32,
    },
    /// Another sandbox or result has the name.
    #[error("The name `{0}` is taken by another sandbox or result")]
    NameTaken(Name),
    /// Every name that was tried is taken.
    #[error("Every name that was tried is taken (`efimera discard` frees names)")]
    NoFreeName,
    /// No such sandbox.
    #[error("There is no sandbox `{0}`")]
    NoSandbox(Name),
    /// No such result.
    #[error("There is no result `{0}`")]
    NoResult(Name),
    /// The sandbox has a snapshot of that label.
    #[error("The sandbox `{0}` has a snapshot `{1}` already")]
    LabelTaken(Name, String),
    /// It runs, so it can't be removed or started.
    #[error("The sandbox `{0}` is running")]
    Running(Name),
    /// They run, so nothing is purged.
    #[error("These sandboxes are running: {}", names_of(.0, ", "))]
    InTheWay(Vec<Name>),
}

impl StoreError {
    /// The error of a system call.
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { what, path, source }
            }
            _ => Self::Io { what, path, source },
        }
    }

    /// True when the disk or the quota is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }
}

/// Names in a row.
pub fn names_of(names: &[Name], between: &str) -> String {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    names.join(between)
}
