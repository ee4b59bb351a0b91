use crate::dirs::remove_tree;
use crate::{Store, StoreError};
use base::Name;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Keeps baselines from being collected: held from before one is packed or chosen until a sandbox's record
/// names it.
#[derive(Debug)]
pub struct BaselineHold {
    _lock: fs_err::File,
}

/// What a collection removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// Keys of the baselines.
    pub baselines: Vec<String>,
    /// Bytes that they took on disk.
    pub bytes: u64,
}

/// Bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Usage {
    /// Scratch disks of kept sandboxes.
    pub sandboxes: u64,
    /// Results.
    pub results: u64,
    /// Baselines.
    pub baselines: u64,
    /// Base images, and the templates made of them.
    pub images: u64,
    /// Kernels.
    pub kernels: u64,
    /// Caches.
    pub cache: u64,
}

/// What to purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// Sandboxes at rest, results and baselines.
    Work,
    /// Everything that was ever stored: also images, kernels and caches.
    All,
}

/// What a purge removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Purged {
    /// Sandboxes.
    pub sandboxes: Vec<Name>,
    /// Results.
    pub results: Vec<Name>,
    /// Bytes that all of it took on disk.
    pub bytes: u64,
}

impl Usage {
    /// All of them together.
    pub fn total(&self) -> u64 {
        self.sandboxes + self.results + self.baselines + self.images + self.kernels + self.cache
    }
}

impl Store {
    /// Keeps [`Store::collect_garbage`] away from baselines while one is packed. Waits for a collection that is
    /// under way (milliseconds to seconds).
    pub fn hold_baselines(&self) -> Result<BaselineHold, StoreError> {
        let dir = self.baselines_dir();
        let io = |source| StoreError::io("lock", &dir, source);
        let lock = fs_err::File::open(&dir).map_err(io)?;
        flock(&lock, FlockOperation::LockShared).map_err(|error| io(error.into()))?;
        Ok(BaselineHold { _lock: lock })
    }

    /// Removes the baselines that no sandbox, no result and nothing in `also_keep` (keys that a cache names)
    /// refers to. Does nothing while somebody packs one, or when a record can't be read: what it refers to is
    /// not known then.
    pub fn collect_garbage(&self, also_keep: &BTreeSet<String>) -> Result<Collected, StoreError> {
        let dir = self.baselines_dir();
        let io = |source| StoreError::io("clean", &dir, source);
        let lock = fs_err::File::open(&dir).map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Collected::default()),
            Err(error) => return Err(io(error.into())),
        }
        let listing = self.list()?;
        let results = self.results()?;
        if !listing.broken.is_empty() || !results.broken.is_empty() {
            return Ok(Collected::default());
        }
        let mut used = also_keep.clone();
        used.extend(
            listing
                .sandboxes
                .into_iter()
                .map(|one| one.record.spec.baseline),
        );
        used.extend(results.heads.into_iter().map(|head| head.spec.baseline));
        let mut collected = Collected::default();
        for entry in fs_err::read_dir(&dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let Ok(key) = entry.file_name().into_string() else {
                continue;
            };
            if key.starts_with('.') || used.contains(&key) || !entry.path().is_dir() {
                continue;
            }
            collected.bytes += disk_usage(&entry.path());
            remove_tree(&entry.path())?;
            collected.baselines.push(key);
        }
        collected.baselines.sort();
        Ok(collected)
    }

    /// What takes how much space. What can't be read counts as nothing.
    pub fn usage(&self) -> Usage {
        Usage {
            sandboxes: disk_usage(&self.sandboxes_dir()),
            results: disk_usage(&self.results_dir()),
            baselines: disk_usage(&self.baselines_dir()),
            images: disk_usage(&self.images_dir()) + disk_usage(&self.templates_dir()),
            kernels: disk_usage(&self.kernels_dir()),
            cache: disk_usage(&self.dirs().cache),
        }
    }

    /// Bytes that one result takes on disk.
    pub fn result_usage(&self, name: &Name) -> u64 {
        disk_usage(self.result_dir(name).path())
    }

    /// Removes what was stored. Refuses while sandboxes run, naming them; nothing is removed then.
    pub fn purge(&self, what: Purge) -> Result<Purged, StoreError> {
        let listing = self.list()?;
        let running = listing.sandboxes.iter().filter(|one| one.alive);
        let running: Vec<Name> = running.map(|one| one.record.spec.name.clone()).collect();
        if !running.is_empty() {
            return Err(StoreError::InTheWay(running));
        }
        let mut purged = Purged::default();
        let broken = listing.broken.into_iter().map(|(name, _)| name);
        let names = listing
            .sandboxes
            .into_iter()
            .map(|one| one.record.spec.name)
            .chain(broken);
        for name in names {
            let dir = self.sandbox_dir(&name);
            let bytes = disk_usage(&dir);
            match self.lock(&name) {
                Ok(lock) => self.remove(&name, &lock)?,
                // A damaged sandbox without even a lock.
                Err(StoreError::NoSandbox(_)) => {
                    remove_tree(&dir)?;
                }
                Err(error) => return Err(error),
            }
            purged.bytes += bytes;
            purged.sandboxes.push(name);
        }
        for name in crate::dirs::names_in(&self.results_dir())? {
            purged.bytes += self.result_usage(&name);
            match self.discard(&name) {
                Ok(()) => purged.results.push(name),
                Err(StoreError::NoResult(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut emptied = vec![self.baselines_dir()];
        if what == Purge::All {
            emptied.extend([
                self.images_dir(),
                self.kernels_dir(),
                self.dirs().data.join("scratch"),
                self.templates_dir(),
                self.dirs().cache.clone(),
            ]);
        }
        for dir in emptied.into_iter().filter(|dir| dir.exists()) {
            purged.bytes += disk_usage(&dir);
            empty(&dir).map_err(|source| StoreError::io("empty", &dir, source))?;
        }
        Ok(purged)
    }
}

/// Removes what a directory holds, not the directory (others hold its descriptor or lock).
fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs_err::remove_dir_all(entry.path())?;
        } else {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Bytes on disk below `path`, following no link.
pub(crate) fn disk_usage(path: &Path) -> u64 {
    let Ok(found) = fs_err::symlink_metadata(path) else {
        return 0;
    };
    // st_blocks counts 512 bytes each, whatever the file system's block size (inode(7)).
    let own = found.blocks() * 512;
    if !found.is_dir() {
        return own;
    }
    let below: u64 = fs_err::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| disk_usage(&entry.path()))
        .sum();
    own + below
}
