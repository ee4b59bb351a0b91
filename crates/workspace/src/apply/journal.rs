//! What an operation does is written down before it is done, so that a crash can be undone.

use super::ApplyError;
use super::beneath::Beneath;
use super::commit::{StagedFile, Transaction};
use super::plan::Step;
use crate::change::Change;
use base::{Digest, RelPath};
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The version of the journal and of [`Operation`].
pub(super) const VERSION: u32 = 1;

/// What was done to the host's files; with the baseline's and the result's contents it can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Format, 1.
    pub version: u32,
    /// Digest of the whole change set.
    pub change_set: Digest,
    /// The changes that were made.
    pub changes: Vec<Change>,
    /// Paths that were already as the change set has them.
    pub already: Vec<RelPath>,
    /// Directories that should have gone, and stay because they hold files that the machine never had.
    pub kept: Vec<RelPath>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// Nothing of the tree was touched.
    Staging,
    /// Some steps may be done.
    Commit,
    /// All steps are done.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Journal {
    pub(super) version: u32,
    /// Bytes of the root's path, which need not be UTF-8.
    pub(super) root: Vec<u8>,
    pub(super) staging: String,
    pub(super) phase: Phase,
    pub(super) steps: Vec<Step>,
    pub(super) staged: Vec<StagedFile>,
}

impl Journal {
    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.root.clone()))
    }

    pub(super) fn new(root: &Path, staging: String, steps: Vec<Step>) -> Self {
        Self {
            version: VERSION,
            root: root.as_os_str().as_bytes().to_vec(),
            staging,
            phase: Phase::Staging,
            steps,
            staged: Vec::new(),
        }
    }
}

/// The journal's file. It is there exactly while an operation is under way.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
}

impl JournalFile {
    /// Starts it; fails when one is there.
    pub(super) fn create(path: &Path, journal: &Journal) -> Result<Self, ApplyError> {
        let start = || {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(path)
        };
        match start() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ApplyError::Busy(path.to_path_buf()));
            }
            Err(source) => {
                let path = path.to_path_buf();
                return Err(ApplyError::Journal { path, source });
            }
        }
        let file = Self {
            path: path.to_path_buf(),
        };
        let written = file.write(journal);
        if written.is_err() {
            fs::remove_file(path).ok();
        }
        written.map(|()| file)
    }

    pub(super) fn write(&self, journal: &Journal) -> Result<(), ApplyError> {
        let write = || {
            let bytes = serde_json::to_vec(journal)?;
            let partial = self.path.with_extension("partial");
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&partial, &self.path)?;
            let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
            fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|source| ApplyError::Journal {
            path: self.path.clone(),
            source,
        })
    }

    pub(super) fn remove(self) -> Result<(), ApplyError> {
        fs::remove_file(&self.path).map_err(|source| ApplyError::Journal {
            path: self.path,
            source,
        })
    }
}

/// Puts the host back as it was before an operation that a crash cut short; `false` when there was none, or it
/// had come to its end. Fails with [`ApplyError::Busy`] while the operation is still at work.
pub fn recover(journal: &Path) -> Result<bool, ApplyError> {
    let error = |source| ApplyError::Journal {
        path: journal.to_path_buf(),
        source,
    };
    let bytes = match fs::read(journal) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(error)?,
    };
    let file = JournalFile {
        path: journal.to_path_buf(),
    };
    if bytes.is_empty() {
        // It was made and never written: nothing was done.
        return file.remove().map(|()| false);
    }
    let journal: Journal = serde_json::from_slice(&bytes).map_err(|source| error(source.into()))?;
    if journal.version != VERSION {
        return Err(error(io::Error::other(
            "another version of efimera wrote it",
        )));
    }
    let root = match Beneath::open(&journal.root()) {
        // With the directory went everything that could be put back.
        Err(Errno::NOENT) => return file.remove().map(|()| false),
        other => other.map_err(|errno| error(errno.into()))?,
    };
    if !root.lock().map_err(|errno| error(errno.into()))? {
        return Err(ApplyError::Busy(journal.root()));
    }
    let undone = journal.phase == Phase::Commit;
    let transaction = Transaction::resume(&root, journal).map_err(|errno| error(errno.into()))?;
    if undone {
        transaction.roll_back()?;
    }
    transaction.remove_staging();
    file.remove().map(|()| undone)
}
