//! A machine that was frozen with all that runs in it, and its disk of the same moment.

use crate::files::{Check, FileError, Known, private_dir};
use crate::hold::Held;
use crate::key::processor;
use base::{Digest, Size};
use machine::{Accel, Monitor, MonitorError, Qemu, Shape};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a frozen machine depends on, as a digest: QEMU's build, the hardware with its order and sizes, the guest
/// program, and the host's processor where it is the guest's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit(Digest);

/// A running machine that can be frozen.
#[derive(Debug)]
pub struct Running {
    /// Its monitor.
    pub monitor: Monitor,
    /// Its memory, if that is a file of its own; otherwise the state holds it.
    pub ram: Option<OwnedFd>,
    /// Its scratch disk.
    pub scratch: OwnedFd,
    /// What it depends on.
    pub fit: Fit,
}

/// A frozen machine whose files are those that were written.
#[derive(Debug)]
pub struct Snapshot {
    directory: PathBuf,
    record: Record,
    ram: Option<File>,
    state: File,
    scratch: File,
}

/// A machine can't be frozen. It goes on, unless QEMU is gone.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// QEMU can't.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// Its files can't be written.
    #[error("Can't write the snapshot's files")]
    Io(#[from] io::Error),
}

/// A snapshot can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Its record is missing or can't be understood.
    #[error("The snapshot's record `{}` can't be read", path.display())]
    Record {
        /// The record's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was made with something else.
    #[error("It was made by another QEMU, processor or version of efimera, so it can't go on here")]
    Other,
    /// One of its files can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no memory for it.
    #[error("Can't fill a machine's memory from it")]
    Io(#[from] io::Error),
}

/// `frozen.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    fit: Fit,
    /// In which run of the host's kernel it was written. Its files aren't flushed, which would take as long as the
    /// rest: after a power cut they may have their sizes and times without their contents.
    boot: String,
    /// The memory's size in bytes.
    memory: u64,
    ram: Option<Known>,
    state: Known,
    scratch: Known,
}

impl Fit {
    /// What a machine of this hardware depends on.
    ///
    /// Fails when the host's processor can't be looked at.
    pub fn of(shape: &Shape, qemu: &Qemu) -> io::Result<Self> {
        let mut text = format!("efimera snapshot {FORM}\n{}", shape.describe(qemu));
        text.push_str(&format!("guest {}\n", Digest::of(guest_bin::GUEST)));
        if shape.accel == Accel::Kvm {
            text.push_str(&processor()?);
        }
        Ok(Self(Digest::of(text.as_bytes())))
    }
}

impl Running {
    /// Freezes the machine into an empty directory, and lets it go on. Its processors stand still meanwhile, so that
    /// memory and disk are those of one moment; for about as long as a copy of the used memory and disk takes.
    pub fn freeze(&mut self, directory: &Path) -> Result<(), SaveError> {
        let frozen = self.copy(directory);
        // However it went. A QEMU that is gone has said so already.
        let went_on = self.monitor.cont(Instant::now() + GO_ON);
        let (ram, mut state, mut scratch) = frozen?;
        went_on?;
        let memory = match &self.ram {
            Some(ram) => rustix::fs::fstat(ram).map_err(io::Error::from)?.st_size,
            None => 0,
        };
        let record = Record {
            fit: self.fit.clone(),
            boot: machine::probe::boot_id()?,
            memory: u64::try_from(memory).unwrap_or_default(),
            ram: ram.map(|mut ram| Known::of(&mut ram)).transpose()?,
            state: Known::of(&mut state)?,
            scratch: Known::of(&mut scratch)?,
        };
        let mut file = new_file(&directory.join(RECORD))?;
        file.write_all(&serde_json::to_vec(&record).map_err(io::Error::from)?)?;
        Ok(())
    }

    fn copy(&mut self, directory: &Path) -> Result<(Option<File>, File, File), SaveError> {
        let state = new_file(&directory.join(STATE))?;
        self.monitor.save(&state, Instant::now() + SAVE)?;
        let ram = match &self.ram {
            Some(ram) => {
                let file = new_file(&directory.join(RAM))?;
                machine::copy_ram(ram, &file)?;
                Some(file)
            }
            None => None,
        };
        let scratch = new_file(&directory.join(SCRATCH))?;
        image::copy_sparse(File::from(self.scratch.try_clone()?), &scratch)?;
        Ok((ram, state, scratch))
    }
}

impl Snapshot {
    /// Opens the snapshot in `directory` for a machine that depends on `fit`.
    pub fn open(directory: &Path, fit: &Fit) -> Result<Self, SnapshotError> {
        let path = directory.join(RECORD);
        let record: Record = fs_err::read(&path)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .map_err(|source| SnapshotError::Record { path, source })?;
        if record.fit != *fit {
            return Err(SnapshotError::Other);
        }
        let check = match machine::probe::boot_id() {
            Ok(boot) if boot == record.boot => Check::Touched,
            _ => Check::Whole,
        };
        let open = |known: &Known, name| known.open_checked(&directory.join(name), check);
        let ram = record.ram.as_ref().map(|ram| open(ram, RAM)).transpose()?;
        Ok(Self {
            ram,
            state: open(&record.state, STATE)?,
            scratch: open(&record.scratch, SCRATCH)?,
            directory: directory.to_path_buf(),
            record,
        })
    }

    /// The memory for a machine that has it alone; `None` where the state holds it.
    pub fn own_ram(&self) -> io::Result<Option<OwnedFd>> {
        let copy = |ram| {
            let memory = machine::new_ram("efimera-machine", Size(self.record.memory))?;
            machine::copy_ram(ram, &memory)?;
            Ok(memory)
        };
        self.ram.as_ref().map(copy).transpose()
    }

    /// The memory for a machine that shares it with other forks, copy on write; `None` where the state holds it.
    pub fn hold(&self) -> io::Result<Option<Held>> {
        let Some(ram) = &self.ram else {
            return Ok(None);
        };
        let digest = Digest::of(self.directory.as_os_str().as_encoded_bytes());
        let name = format!("efimera-{}", &digest.hex()[..32]);
        let holders = self.directory.join(crate::store::HOLDERS);
        match private_dir(&holders) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Held::of(&holders, &name, ram, Size(self.record.memory)).map(Some)
    }

    /// The devices' state, at its beginning. To be read once: all descriptors of it have one position.
    pub fn state(&self) -> &File {
        &self.state
    }

    /// Writes the scratch disk that belongs to the memory into an empty file.
    pub fn copy_scratch(&self, target: &File) -> io::Result<()> {
        image::copy_sparse(&self.scratch, target)
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    crate::make::new_file(path)
}

/// The form of a snapshot's files.
const FORM: u32 = 2;
/// How long QEMU may take to write a state: a second for each gigabyte of memory in it, on a quick disk.
const SAVE: Duration = Duration::from_mins(5);
/// How long it may take to go on.
const GO_ON: Duration = Duration::from_secs(20);

const RECORD: &str = "frozen.json";
const RAM: &str = "ram";
const STATE: &str = "state";
const SCRATCH: &str = "scratch";
