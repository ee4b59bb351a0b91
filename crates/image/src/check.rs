//! Digest checks that cost their time once per boot.
//!
//! A check is remembered with what the kernel says about the file: device, inode, size, modification and change
//! time, and the host's boot. Whoever can write the file can write that record too, so this guards against damage
//! and mistakes, not against the file's owner.

use crate::boot_id::boot_id;
use crate::progress::{Progress, Step};
use crate::store::UNFINISHED;
use base::{Digest, Hasher};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// How a check ended without a file.
#[derive(Debug)]
pub(crate) enum CheckError {
    /// The file can't be read.
    Read(io::Error),
    /// The file is something else than the digest says.
    Altered,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    digest: Digest,
    boot: String,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Opens a file for reading and makes sure that it has the digest. `record` remembers that for the next time; that it
/// can't be written is no error, but costs the time again.
pub(crate) fn open(
    path: &Path,
    digest: Digest,
    record: &Path,
    what: &str,
    progress: &mut dyn Progress,
) -> Result<fs_err::File, CheckError> {
    let mut file = fs_err::File::open(path).map_err(CheckError::Read)?;
    let before = checked(&file, digest).map_err(CheckError::Read)?;
    if !before.boot.is_empty() && recorded(record).is_some_and(|recorded| recorded == before) {
        return Ok(file);
    }
    let found = digest_of(&mut file, before.size, what, progress).map_err(CheckError::Read)?;
    let after = checked(&file, digest).map_err(CheckError::Read)?;
    if found != digest || before != after {
        return Err(CheckError::Altered);
    }
    remember(record, &after);
    file.rewind().map_err(CheckError::Read)?;
    Ok(file)
}

/// Notes down that a file has the digest, for whoever has just taken it.
pub(crate) fn note(path: &Path, digest: Digest, record: &Path) {
    if let Ok(checked) = fs_err::File::open(path).and_then(|file| checked(&file, digest)) {
        remember(record, &checked);
    }
}

/// The digest of the whole file.
pub(crate) fn digest_of(
    file: &mut fs_err::File,
    size: u64,
    what: &str,
    progress: &mut dyn Progress,
) -> io::Result<Digest> {
    file.rewind()?;
    let mut hasher = Hasher::new();
    let mut chunk = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => {
                hasher.update(&chunk[..count]);
                done += count as u64;
                // Every 64 MiB: a few times a second.
                if done % (64 << 20) < count as u64 {
                    progress.step(Step::bytes(what, done, Some(size)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn checked(file: &fs_err::File, digest: Digest) -> io::Result<Checked> {
    let metadata = file.metadata()?;
    Ok(Checked {
        digest,
        boot: boot_id(),
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn recorded(record: &Path) -> Option<Checked> {
    serde_json::from_slice(&fs_err::read(record).ok()?).ok()
}

fn remember(record: &Path, checked: &Checked) {
    let Some(directory) = record.parent() else {
        return;
    };
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(directory)?;
        file.write_all(&serde_json::to_vec(checked)?)?;
        file.persist(record)?;
        Ok(())
    };
    // Without the record the next start checks again.
    drop(write());
}

#[cfg(test)]
mod tests;
