//! By what a template's files are known: a digest of all that they hold, and the file's place and times, so that the
//! digest is taken again only of files that were touched since.

use base::{Digest, Hasher};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A file of a template can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It can't be read.
    #[error("Can't read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It isn't what was written.
    #[error("`{}` was cut off or altered since it was made", .0.display())]
    Altered(PathBuf),
}

/// What a file is known by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    digest: Digest,
    place: Place,
}

/// Where the kernel has a file, and when it was last changed. An edit changes it, a copy too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Which files are read whole when they are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Those whose place or times changed.
    Touched,
    /// Every one.
    Whole,
}

impl Known {
    /// What a file is known by that was just written.
    pub(crate) fn of(file: &mut File) -> io::Result<Self> {
        Ok(Self {
            digest: digest(file)?,
            place: Place::of(file)?,
        })
    }

    /// Opens the file, and makes sure that it is the one: by its place and times, and by all that it holds where
    /// these differ.
    pub(crate) fn open(&self, path: &Path) -> Result<File, FileError> {
        self.open_checked(path, Check::Touched)
    }

    /// As [`open`](Self::open), and reads all of it where that is asked for.
    pub(crate) fn open_checked(&self, path: &Path, check: Check) -> Result<File, FileError> {
        let read = |source| FileError::Read {
            path: path.to_path_buf(),
            source,
        };
        let mut file = File::from(
            rustix::fs::open(
                path,
                rustix::fs::OFlags::RDONLY
                    | rustix::fs::OFlags::CLOEXEC
                    | rustix::fs::OFlags::NOFOLLOW,
                rustix::fs::Mode::empty(),
            )
            .map_err(|errno| read(errno.into()))?,
        );
        let place = Place::of(&file).map_err(read)?;
        if place.size != self.place.size {
            return Err(FileError::Altered(path.to_path_buf()));
        }
        let touched = place != self.place || check == Check::Whole;
        if touched && digest(&mut file).map_err(read)? != self.digest {
            return Err(FileError::Altered(path.to_path_buf()));
        }
        file.rewind().map_err(read)?;
        Ok(file)
    }
}

impl Place {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// A digest of the size and of every page that isn't zero. Where the holes are makes no difference: a copy may have
/// others.
fn digest(file: &mut File) -> io::Result<Digest> {
    let size = file.metadata()?.len();
    let mut hasher = Hasher::new();
    hasher.update(&size.to_le_bytes());
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        // To a whole chunk, wherever a hole ends.
        let data = match rustix::fs::seek(&*file, SeekFrom::Data(at)) {
            Ok(data) => data - data % CHUNK as u64,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = data.max(at);
        file.seek(io::SeekFrom::Start(at))?;
        let wanted = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK);
        file.read_exact(&mut chunk[..wanted])?;
        for (page, bytes) in (0_u64..).zip(chunk[..wanted].chunks(PAGE)) {
            if bytes.iter().any(|byte| *byte != 0) {
                hasher.update(&(at + page * PAGE as u64).to_le_bytes());
                hasher.update(bytes);
            }
        }
        at += wanted as u64;
    }
    Ok(hasher.finish())
}

const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;

/// Makes a directory that is this user's alone.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

#[cfg(test)]
mod tests;
