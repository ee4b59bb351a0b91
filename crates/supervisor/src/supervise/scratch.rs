//! The scratch disk: made for the machine, kept with the sandbox, or nameless.

use super::Supervisor;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

impl Supervisor<'_> {
    /// The scratch disk that a kept sandbox has, or a new one.
    pub(super) fn open_scratch(&mut self) -> Result<File, String> {
        if self.record.spec.keep {
            let path = self.store.scratch_path(&self.name);
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(file) => return Ok(file.into()),
                Err(Errno::NOENT) => {}
                Err(found) => return Err(no_scratch(&path, found.into())),
            }
        }
        let new = self.new_scratch()?;
        let formatted = self.launcher.format_scratch(&self.record.spec, &new.file);
        formatted.map_err(|found| found.to_string())?;
        new.finish()
    }

    /// An empty file for a scratch disk: without a name for an ordinary run, in the sandbox's directory for a kept one.
    pub(super) fn new_scratch(&self) -> Result<NewScratch, String> {
        let path = self.store.scratch_path(&self.name);
        let open = |path: &Path, flags| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        };
        let half_made = path.with_extension("new");
        let keep = self.record.spec.keep;
        let file = if keep {
            open(&half_made, OFlags::CREATE | OFlags::TRUNC)
        } else {
            let dir = self.store.sandbox_dir(&self.name);
            open(&dir, OFlags::TMPFILE).or_else(|found| match found {
                // Some file systems have no files without a name.
                Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT => {
                    let file = open(&path, OFlags::CREATE | OFlags::EXCL)?;
                    rustix::fs::unlink(&path)?;
                    Ok(file)
                }
                other => Err(other),
            })
        };
        let file = file.map_err(|found| no_scratch(&path, found.into()))?;
        Ok(NewScratch {
            file: File::from(file),
            name: HalfMade(keep.then_some((half_made, path))),
        })
    }
}

/// A scratch disk that is being filled.
pub(super) struct NewScratch {
    pub(super) file: File,
    name: HalfMade,
}

/// The names of a kept sandbox's disk: it has its own only when it is whole. A half-made disk must not be taken for a
/// kept one by the next start.
struct HalfMade(Option<(PathBuf, PathBuf)>);

impl NewScratch {
    /// Gives the disk its name, in the place of another if there is one.
    pub(super) fn finish(mut self) -> Result<File, String> {
        if let Some((from, to)) = self.name.0.take() {
            fs_err::rename(from, &to).map_err(|error| no_scratch(&to, error))?;
        }
        Ok(self.file)
    }
}

impl Drop for HalfMade {
    fn drop(&mut self) {
        if let Some((half_made, _)) = &self.0 {
            // Should it stay, the next one takes its place.
            fs_err::remove_file(half_made).ok();
        }
    }
}

fn no_scratch(path: &Path, error: io::Error) -> String {
    format!(
        "the scratch disk `{}` can't be made: {error}",
        path.display()
    )
}
