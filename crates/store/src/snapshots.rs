//! Snapshots of a sandbox: `sandboxes/NAME/snapshots/LABEL/`. They go with their sandbox.

use crate::clean::disk_usage;
use crate::dirs::{NEW, remove_tree};
use crate::{Store, StoreError, VERSION, document};
use base::Name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a person calls a snapshot: 1 to 40 letters, digits, dots, hyphens and underscores, the first one a letter or
/// digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

/// The text is not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a label (want 1 to 40 letters, digits, dots, hyphens and underscores, beginning with a letter or digit)"
)]
pub struct LabelError(String);

/// What is written down about a snapshot: `snapshot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHead {
    /// Format, [`VERSION`].
    pub version: u32,
    /// Its name within the sandbox.
    pub label: Label,
    /// When it was taken, in nanoseconds since 1970.
    pub created_ns: i64,
    /// What it takes on the disk, in bytes.
    pub size: u64,
    /// Whether the sandbox's own command ran.
    pub running: bool,
}

/// A snapshot in the making. Dropping it without [`NewSnapshot::finish`] removes it.
#[derive(Debug)]
pub struct NewSnapshot {
    hidden: PathBuf,
    target: PathBuf,
    label: Label,
    finished: bool,
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let well_formed = (1..=40).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(LabelError(base::escape_line(text.as_bytes(), 60)))
        }
    }
}

impl TryFrom<String> for Label {
    type Error = LabelError;

    fn try_from(text: String) -> Result<Self, LabelError> {
        text.parse()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0
    }
}

impl Label {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Store {
    /// A snapshot's directory, there or not.
    pub fn snapshot_dir(&self, name: &Name, label: &Label) -> PathBuf {
        self.snapshots_dir(name).join(label.as_str())
    }

    /// A sandbox's snapshots, the oldest first.
    pub fn snapshots(&self, name: &Name) -> Result<Vec<SnapshotHead>, StoreError> {
        let parent = self.snapshots_dir(name);
        let entries = match fs_err::read_dir(&parent) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io("read", &parent, error)),
        };
        let mut heads = Vec::new();
        for entry in entries.flatten() {
            let label = entry
                .file_name()
                .to_str()
                .and_then(|text| text.parse().ok());
            // Hidden ones are being made or removed.
            let Some(label) = label else { continue };
            if let Some(head) = self.snapshot(name, &label)? {
                heads.push(head);
            }
        }
        heads.sort_by_key(|head| (head.created_ns, head.label.clone()));
        Ok(heads)
    }

    /// One snapshot; `None` if there is none of that label.
    pub fn snapshot(&self, name: &Name, label: &Label) -> Result<Option<SnapshotHead>, StoreError> {
        document::load(&self.snapshot_dir(name, label).join(HEAD), VERSION)
    }

    /// Begins a snapshot, whose files go to [`NewSnapshot::path`]. Only who holds the sandbox's lock does this.
    pub fn new_snapshot(&self, name: &Name, label: Label) -> Result<NewSnapshot, StoreError> {
        let parent = self.snapshots_dir(name);
        let target = parent.join(label.as_str());
        if target.exists() {
            return Err(StoreError::LabelTaken(name.clone(), label.to_string()));
        }
        let hidden = parent.join(format!("{NEW}{label}"));
        // What a supervisor left that died over it: there is one supervisor at a time.
        remove_tree(&hidden)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&hidden)
            .map_err(|error| StoreError::io("make", &hidden, error))?;
        Ok(NewSnapshot {
            hidden,
            target,
            label,
            finished: false,
        })
    }

    /// Removes a snapshot; false if there is none of that label. Machines that run from it go on.
    pub fn remove_snapshot(&self, name: &Name, label: &Label) -> Result<bool, StoreError> {
        remove_tree(&self.snapshot_dir(name, label))
    }

    fn snapshots_dir(&self, name: &Name) -> PathBuf {
        self.sandbox_dir(name).join("snapshots")
    }
}

impl NewSnapshot {
    /// Where its files go.
    pub fn path(&self) -> &Path {
        &self.hidden
    }

    /// Writes its head and gives it its name.
    pub fn finish(mut self, created_ns: i64, running: bool) -> Result<SnapshotHead, StoreError> {
        let head = SnapshotHead {
            version: VERSION,
            label: self.label.clone(),
            created_ns,
            size: disk_usage(&self.hidden),
            running,
        };
        document::save(&self.hidden.join(HEAD), &head)?;
        fs_err::rename(&self.hidden, &self.target)
            .map_err(|error| StoreError::io("make", &self.target, error))?;
        self.finished = true;
        Ok(head)
    }
}

impl Drop for NewSnapshot {
    fn drop(&mut self) {
        if !self.finished {
            // Should it stay, the next one of that label removes it.
            fs_err::remove_dir_all(&self.hidden).ok();
        }
    }
}

const HEAD: &str = "snapshot.json";
