use rustix::fs::FlockOperation;
use std::path::{Path, PathBuf};

/// The start of the names of directories that are being filled.
const PREFIX: &str = ".partial-";

/// A directory that is being filled. It is locked as long as its maker lives, so that what a killed maker leaves
/// behind can be told from what is still being made. Dropped unpublished, it is removed.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    _lock: fs_err::File,
}

impl Partial {
    /// Makes one in `parent`, and removes what dead makers left there.
    pub(super) fn new(parent: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        // Making and locking a directory are two steps; nobody sweeps in between.
        let gate = fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(parent.join(".lock"))?;
        rustix::fs::flock(&gate, FlockOperation::LockExclusive)?;
        sweep(parent);
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .rand_bytes(12)
            .make_in(parent, |path| {
                std::fs::DirBuilder::new().mode(0o700).create(path)
            })?;
        let path = made.into_temp_path().keep().map_err(|error| error.error)?;
        let lock = fs_err::File::open(&path)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory its final name. Where the name is taken, what has it is the same.
    pub(super) fn publish(self, name: &Path) -> std::io::Result<()> {
        match fs_err::rename(&self.path, name) {
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a rename there is nothing by this name; otherwise whatever can't be removed is swept the next time.
        fs_err::remove_dir_all(&self.path).ok();
    }
}

fn sweep(parent: &Path) {
    for entry in fs_err::read_dir(parent).into_iter().flatten().flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
        {
            continue;
        }
        let path = entry.path();
        let dead = fs_err::File::open(&path).is_ok_and(|dir| {
            rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if dead {
            fs_err::remove_dir_all(&path).ok();
        }
    }
}
