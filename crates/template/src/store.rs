use crate::files::{FileError, Known};
use crate::hold::Held;
use crate::key::{FORM, Key};
use base::Size;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The data directory's templates.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
}

/// A template whose files are those that were made.
#[derive(Debug)]
pub struct Template {
    key: Key,
    directory: PathBuf,
    record: Record,
    ram: File,
    state: File,
    scratch: File,
}

/// A template can't be used. It is of no use to anybody then, and can be made anew.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its record can't be understood.
    #[error("Can't read the template's record `{}`", path.display())]
    Record {
        /// The record's file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// One of its files can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store can't be used. The source names the path.
    #[error("Can't use the templates' directory")]
    Io(#[from] io::Error),
}

/// `template.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) form: u32,
    /// The memory's size in bytes.
    pub(crate) memory: u64,
    pub(crate) ram: Known,
    pub(crate) state: Known,
    pub(crate) scratch: Known,
}

pub(crate) const RECORD: &str = "template.json";
pub(crate) const RAM: &str = "ram";
pub(crate) const STATE: &str = "state";
pub(crate) const SCRATCH: &str = "scratch";
pub(crate) const HOLDERS: &str = "holders";
/// What a name in the making begins with.
pub(crate) const UNFINISHED: &str = ".new-";

/// Templates that are kept, the last used first: one for each size that a person uses, and those of the image before.
const KEPT: usize = 4;
/// What was not used for so long goes.
const UNUSED: Duration = Duration::from_hours(30 * 24);
/// What was left unfinished goes after this time.
const ABANDONED: Duration = Duration::from_hours(1);

impl Store {
    /// The templates below a data directory, which is made where it is missing.
    pub fn open(data: &Path) -> io::Result<Self> {
        let directory = data.join("templates");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        Ok(Self { directory })
    }

    /// The template of that key; `None` when there is none. Counts as a use.
    pub fn find(&self, key: &Key) -> Result<Option<Template>, OpenError> {
        let directory = self.directory.join(key.as_str());
        let path = directory.join(RECORD);
        let bytes = match fs_err::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|source| OpenError::Record {
                path: path.clone(),
                source,
            })?;
        if record.form != FORM {
            return Err(FileError::Altered(path).into());
        }
        let template = Template {
            ram: record.ram.open(&directory.join(RAM))?,
            state: record.state.open(&directory.join(STATE))?,
            scratch: record.scratch.open(&directory.join(SCRATCH))?,
            key: key.clone(),
            directory,
            record,
        };
        touch(&path);
        Ok(Some(template))
    }

    /// Removes a template. Machines that run from it go on: they hold its memory.
    pub fn remove(&self, key: &Key) -> io::Result<()> {
        // At once, and then file by file: half of one must not be taken for one.
        let gone = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(&self.directory)?;
        match fs_err::rename(self.directory.join(key.as_str()), gone.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Ok(gone.close()?),
        }
    }

    /// Removes what nobody will want again: all but the [`KEPT`] last used, what was not used for [`UNUSED`], and what
    /// an interrupted maker left. Gives how many bytes that freed.
    pub fn collect_garbage(&self) -> io::Result<u64> {
        let now = SystemTime::now();
        let age = |path: &Path| {
            // Of one without a record, the directory's.
            let modified = fs_err::metadata(path).or_else(|_| {
                path.parent()
                    .map_or_else(|| fs_err::metadata(path), fs_err::metadata)
            });
            let modified = modified.and_then(|metadata| metadata.modified());
            modified.map_or(Duration::ZERO, |at| {
                now.duration_since(at).unwrap_or_default()
            })
        };
        let mut freed = 0;
        let mut whole = Vec::new();
        for entry in fs_err::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if Key::parse(name).is_some() {
                whole.push((age(&path.join(RECORD)), path));
            } else if name.starts_with(UNFINISHED) && age(&path) > ABANDONED {
                freed += remove_counted(&path)?;
            }
        }
        whole.sort();
        for (at, (age, path)) in whole.into_iter().enumerate() {
            if at >= KEPT || age > UNUSED {
                freed += remove_counted(&path)?;
            }
        }
        Ok(freed)
    }

    /// Names and sizes (bytes on the disk) of all templates.
    pub fn list(&self) -> io::Result<Vec<(Key, u64)>> {
        let mut found = Vec::new();
        for entry in fs_err::read_dir(&self.directory)? {
            let entry = entry?;
            if let Some(key) = entry.file_name().to_str().and_then(Key::parse) {
                found.push((key, size_of(&entry.path())));
            }
        }
        Ok(found)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the right to make the template of that key. `busy` is called if somebody else has it.
    pub(crate) fn lock(&self, key: &Key, busy: impl FnOnce()) -> io::Result<OwnedFd> {
        let path = self.directory.join(format!("{key}.lock"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                busy();
                rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(file)
    }
}

impl Template {
    /// Its name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The memory for a machine that shares it with others, copy on write.
    pub fn hold(&self) -> io::Result<Held> {
        let holders = self.directory.join(HOLDERS);
        Held::of(
            &holders,
            &format!("efimera-{}", self.key),
            &self.ram,
            self.memory(),
        )
    }

    /// The memory for a machine that has it alone, in a file that its QEMU may change.
    pub fn own_ram(&self) -> io::Result<OwnedFd> {
        let memory = machine::new_ram("efimera-machine", self.memory())?;
        machine::copy_ram(&self.ram, &memory)?;
        Ok(memory)
    }

    /// The devices' state, at its beginning. To be read once: all descriptors of it have one position.
    pub fn state(&self) -> &File {
        &self.state
    }

    /// Writes the scratch disk that belongs to the memory into an empty file.
    pub fn copy_scratch(&self, target: &File) -> io::Result<()> {
        image::copy_sparse(&self.scratch, target)
    }

    fn memory(&self) -> Size {
        Size(self.record.memory)
    }
}

/// Notes down that it was used: the record's time. That it can't be written is no reason not to use it.
fn touch(record: &Path) {
    if let Ok(file) = fs_err::OpenOptions::new().append(true).open(record) {
        file.file().set_modified(SystemTime::now()).ok();
    }
}

fn remove_counted(path: &Path) -> io::Result<u64> {
    let size = size_of(path);
    fs_err::remove_dir_all(path)?;
    Ok(size)
}

/// Bytes that the files of a directory take on the disk.
fn size_of(directory: &Path) -> u64 {
    let Ok(entries) = fs_err::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}
