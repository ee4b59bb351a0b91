use super::beneath::{Beneath, stat_at};
use crate::import::is_git_directory;
use crate::names::{check_exported, is_git_store_alias};
use base::RelPath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A host directory that foreign files are copied into (`cp`): beneath one descriptor, through no link, into no
/// git directory. An existing file or link of the name is replaced; a link is never followed.
#[derive(Debug)]
pub struct Landing {
    root: Beneath,
}

/// A file that is being written. It appears under its name with [`LandingFile::finish`]; dropped before, it is
/// gone.
#[derive(Debug)]
pub struct LandingFile {
    path: RelPath,
    parent: OwnedFd,
    name: PathBuf,
    temporary: PathBuf,
    file: File,
    mode: Mode,
    placed: bool,
}

/// A copy can't be written.
#[derive(Debug, thiserror::Error)]
pub enum LandError {
    /// The directory can't be opened.
    #[error("Can't open `{path}`")]
    Root {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The destination is in a git directory.
    #[error("`{0}` lies in a git directory, and nothing from a machine may go there")]
    GitDirectory(PathBuf),
    /// The path could be taken for a git directory's.
    #[error(transparent)]
    Refused(#[from] crate::names::Refused),
    /// It can't be written.
    #[error("Can't write `{path}`")]
    Write {
        /// The path below the destination.
        path: RelPath,
        /// Why.
        source: io::Error,
    },
}

impl Landing {
    /// Opens the directory `root`.
    pub fn open(root: &Path) -> Result<Self, LandError> {
        let error = |source| LandError::Root {
            path: root.to_path_buf(),
            source,
        };
        let real = fs_err::canonicalize(root).map_err(error)?;
        let mut above = Some(real.as_path());
        while let Some(dir) = above {
            let alias = dir
                .file_name()
                .is_some_and(|name| is_git_store_alias(name.as_bytes()));
            let has = |name: &[u8]| dir.join(OsStr::from_bytes(name)).symlink_metadata().is_ok();
            if alias || is_git_directory(has) {
                return Err(LandError::GitDirectory(root.to_path_buf()));
            }
            above = dir.parent();
        }
        let root = Beneath::open(&real).map_err(|errno| error(errno.into()))?;
        Ok(Self { root })
    }

    /// Makes the directory `path` and those above it; one that is there stays as it is.
    pub fn dir(&self, path: &RelPath, mode: u32) -> Result<(), LandError> {
        check_exported(path)?;
        if path.is_root() {
            return Ok(());
        }
        let fail = |errno: Errno| write_error(path, errno.into());
        if let Some(parent) = path.parent().filter(|parent| !parent.is_root())
            && self.root.dir(&parent).is_err()
        {
            self.dir(&parent, 0o755)?;
        }
        let (parent, name) = self.root.parent(path).map_err(fail)?;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => {
                // A copied directory must take its files in.
                let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
                rustix::fs::fchmod(self.root.dir(path).map_err(fail)?, mode).map_err(fail)
            }
            // Opened, so that a link or a file of the name is an error.
            Err(Errno::EXIST) => self.root.dir(path).map(|_| ()).map_err(fail),
            Err(errno) => Err(fail(errno)),
        }
    }

    /// Makes the symbolic link `path`.
    pub fn symlink(&self, path: &RelPath, target: &[u8]) -> Result<(), LandError> {
        check_exported(path)?;
        let fail = |errno: Errno| write_error(path, errno.into());
        let (parent, name) = self.root.parent(path).map_err(fail)?;
        let temporary = temporary().map_err(fail)?;
        let target = Path::new(OsStr::from_bytes(target));
        rustix::fs::symlinkat(target, &parent, &temporary).map_err(fail)?;
        replace(&parent, &temporary, name).map_err(|errno| {
            rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty()).ok();
            fail(errno)
        })
    }

    /// Starts the file `path`. Its directory must be there.
    pub fn file(&self, path: &RelPath, mode: u32) -> Result<LandingFile, LandError> {
        check_exported(path)?;
        let fail = |errno: Errno| write_error(path, errno.into());
        let (parent, name) = self.root.parent(path).map_err(fail)?;
        let temporary = temporary().map_err(fail)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(fail)?;
        Ok(LandingFile {
            path: path.clone(),
            name: name.to_path_buf(),
            parent,
            temporary,
            file: File::from(file),
            mode: Mode::from_raw_mode(mode & 0o777),
            placed: false,
        })
    }
}

impl LandingFile {
    /// Puts it in place.
    pub fn finish(mut self) -> Result<(), LandError> {
        let place = || {
            rustix::fs::fchmod(&self.file, self.mode)?;
            replace(&self.parent, &self.temporary, &self.name)
        };
        place().map_err(|errno| write_error(&self.path, errno.into()))?;
        self.placed = true;
        Ok(())
    }
}

impl Write for LandingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for LandingFile {
    fn drop(&mut self) {
        if !self.placed {
            rustix::fs::unlinkat(&self.parent, &self.temporary, AtFlags::empty()).ok();
        }
    }
}

/// Renames over a file or link; anything else of the name is an error.
fn replace(dir: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    match stat_at(dir, to) {
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::EXIST),
        },
    }
    rustix::fs::renameat(dir, from, dir, to)
}

fn temporary() -> Result<PathBuf, Errno> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(PathBuf::from(format!(
        ".efimera-{:016x}",
        u64::from_le_bytes(random)
    )))
}

fn write_error(path: &RelPath, source: io::Error) -> LandError {
    LandError::Write {
        path: path.clone(),
        source,
    }
}
