use crate::disks;
use crate::files::{Known, private_dir};
use crate::key::{FORM, Key, Recipe, WARM};
use crate::store::{
    HOLDERS, OpenError, RAM, RECORD, Record, SCRATCH, STATE, Store, Template, UNFINISHED,
};
use crate::talk::{Talk, TalkError};
use base::Size;
use image::{ImageError, KernelError, Silent};
use machine::{Accel, Begin, Disk, LaunchError, Monitor, MonitorError, Ram, Spec};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::message::Request;

/// A template could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The base image can't be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The kernel can't be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The machine was not started.
    #[error("Can't start a machine to make a template of")]
    Launch(#[from] LaunchError),
    /// It didn't come up, or refused.
    #[error("The machine of the template is of no use")]
    Talk(#[from] TalkError),
    /// QEMU could not save it.
    #[error("The machine of the template can't be frozen")]
    Monitor(#[from] MonitorError),
    /// A file can't be written. The source names the path where it is one's fault.
    #[error("Can't write the template")]
    Io(#[from] io::Error),
    /// What was made can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// How long the machine may take to come up, and to do what it is asked.
const BOOT_EMULATED: Duration = Duration::from_mins(3);
const BOOT_HARDWARE: Duration = Duration::from_secs(30);
/// How long QEMU may take to save it.
const SAVE: Duration = Duration::from_mins(1);

/// What is told of the making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Another process makes the same one, and is waited for.
    Waiting,
    /// The machine boots.
    Booting,
    /// It runs the programs that it is to remember.
    Warming,
    /// Its memory is written.
    Saving,
}

/// Gives the template of this recipe, which is made if it isn't there; by one process, however many ask at the same
/// time. `role` is the command that calls [`jail::enter`](machine::launch).
///
/// A template that is there and damaged is an [`OpenError`] of [`Store::find`]: it is replaced here.
///
/// Fails when a machine can't be booted and saved, or the disk is full; nothing is left behind then.
pub fn make(
    store: &Store,
    recipe: &Recipe<'_>,
    role: &[OsString],
    tell: &mut dyn FnMut(Step),
) -> Result<Template, MakeError> {
    let key = recipe.key()?;
    if let Ok(Some(template)) = store.find(&key) {
        return Ok(template);
    }
    let lock = store.lock(&key, || tell(Step::Waiting))?;
    match store.find(&key) {
        Ok(Some(template)) => return Ok(template),
        // What is left of one that was being removed is in the way, too.
        Ok(None) | Err(_) => store.remove(&key)?,
    }
    let new = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(store.directory())?;
    let record = boot_and_freeze(recipe, role, new.path(), tell)?;
    put_in_place(store, &key, new, &record)?;
    drop(lock);
    store
        .find(&key)?
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
}

fn boot_and_freeze(
    recipe: &Recipe<'_>,
    role: &[OsString],
    directory: &Path,
    tell: &mut dyn FnMut(Step),
) -> Result<Record, MakeError> {
    tell(Step::Booting);
    let memory = Spec::ram_size(recipe.memory);
    let ram = machine::new_ram("efimera-template", memory)?;
    let mut scratch = new_file(&directory.join(SCRATCH))?;
    image::copy_sparse(fs_err::File::open(recipe.scratch)?.file(), &scratch)?;
    // Nobody is at the other end, and what the card sends into it is lost.
    let cable = recipe.network.then(UnixDatagram::pair).transpose()?;
    let (cable, _other_end) = cable.map(|(cable, end)| (cable.into(), end)).unzip();
    let spec = spec(recipe, ram.try_clone()?, scratch.try_clone()?.into(), cable)?;
    let limit = match recipe.accel {
        Accel::Kvm => BOOT_HARDWARE,
        Accel::Tcg => BOOT_EMULATED,
    };
    let deadline = Instant::now() + limit;
    let mut started = machine::launch(&spec, role)?;
    drop(spec);
    let mut talk = Talk::new(started.control, started.console, started.stderr);
    let commands = WARM
        .iter()
        .map(|words| words.iter().map(|word| word.as_bytes().to_vec()).collect());
    // The first answer is also the sign that it is up.
    let nothing = Request::Warm {
        commands: Vec::new(),
    };
    talk.ask(&nothing, &started.process, deadline)?;
    tell(Step::Warming);
    let warm = Request::Warm {
        commands: commands.collect(),
    };
    talk.ask(&warm, &started.process, deadline + limit)?;
    talk.ask(&Request::Freeze, &started.process, deadline + limit)?;

    tell(Step::Saving);
    let mut state = new_file(&directory.join(STATE))?;
    Monitor::new(started.qmp).save(&state, Instant::now() + SAVE)?;
    started.process.kill()?;
    drop(talk);
    let mut ram_file = new_file(&directory.join(RAM))?;
    machine::copy_ram(&ram, &ram_file)?;
    // A file that has its size and times may still lose its contents in a power cut.
    for file in [&ram_file, &state, &scratch] {
        file.sync_all()?;
    }
    Ok(Record {
        form: FORM,
        memory: memory.bytes(),
        ram: Known::of(&mut ram_file)?,
        state: Known::of(&mut state)?,
        scratch: Known::of(&mut scratch)?,
    })
}

fn spec(
    recipe: &Recipe<'_>,
    ram: OwnedFd,
    scratch: OwnedFd,
    cable: Option<OwnedFd>,
) -> Result<Spec, MakeError> {
    let root = recipe.image.open(&mut Silent)?;
    // Nothing reads it before there is a workspace.
    let workspace = read_only(&machine::new_ram("efimera-workspace", recipe.workspace)?)?;
    let disk = |file: OwnedFd, read_only, serial: &str| -> Result<Disk, MakeError> {
        Ok(Disk {
            file,
            read_only,
            serial: serial.parse().map_err(io::Error::other)?,
        })
    };
    Ok(Spec {
        qemu: recipe.qemu.clone(),
        accel: recipe.accel,
        cpus: recipe.cpus,
        memory: recipe.memory,
        ram: Ram::Shared(ram),
        begin: Begin::Boot {
            kernel: machine::sealed_copy("kernel", recipe.kernel.open(&mut Silent)?)?,
            initramfs: machine::sealed_copy("initramfs", recipe.kernel.initramfs()?.as_slice())?,
            words: Vec::new(),
        },
        disks: vec![
            disk(root.into_parts().0.into(), true, disks::ROOT)?,
            disk(scratch, false, disks::SCRATCH)?,
            disk(workspace, true, disks::WORKSPACE)?,
        ],
        network: cable,
        max_file_size: Some(max_file_size(recipe)?),
        required_layers: BTreeSet::new(),
    })
}

/// What QEMU writes: the scratch disk, and the memory and state, which a limit holds for as well.
fn max_file_size(recipe: &Recipe<'_>) -> io::Result<Size> {
    Ok(recipe.disk()?.max(Spec::ram_size(recipe.memory)))
}

/// The same file, open for reading alone: QEMU asks for what it is told.
fn read_only(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

fn put_in_place(
    store: &Store,
    key: &Key,
    new: tempfile::TempDir,
    record: &Record,
) -> io::Result<()> {
    private_dir(&new.path().join(HOLDERS))?;
    let mut file = new_file(&new.path().join(RECORD))?;
    file.write_all(&serde_json::to_vec(record)?)?;
    let target = store.directory().join(key.as_str());
    fs_err::rename(new.path(), target)?;
    // Its name is another now, so there is nothing for it to remove.
    let _moved = new.keep();
    Ok(())
}

pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    let file = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    let (file, _) = file.into_parts();
    rustix::fs::fchmod(&file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    Ok(file)
}
