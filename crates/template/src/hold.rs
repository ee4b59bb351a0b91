//! Who holds a template's memory. There is no daemon to keep it, so the machines that run from a template do: each
//! new one looks for a supervisor that holds the sealed copy, and shares it; the first one fills it anew. With the
//! last one the memory is gone.

use base::Size;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A template's memory that nobody can change, held for as long as this lives.
#[derive(Debug)]
pub struct Held {
    memory: OwnedFd,
    /// Locked: whoever finds it so can open our descriptor. `None` when others couldn't be told.
    _sign: Option<Sign>,
    shared: bool,
}

/// The file that tells others; removed at the end.
#[derive(Debug)]
struct Sign {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Held {
    /// Shares the memory of that name with a process that holds it, as `holders` says, or fills it from its file.
    pub(crate) fn of(holders: &Path, name: &str, ram: &File, size: Size) -> io::Result<Self> {
        // One fills it, and those who come meanwhile wait for that and share it.
        let _filling = filling(holders).ok();
        let found = find(holders, name, size);
        let shared = found.is_some();
        let memory = match found {
            Some(memory) => memory,
            None => machine::sealed_ram(name, ram, size)?,
        };
        let sign = Sign::put_up(holders, &memory).ok();
        Ok(Self {
            memory,
            _sign: sign,
            shared,
        })
    }

    /// Whether it is another process's too.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Another descriptor of the same memory.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// The right to fill the memory.
fn filling(holders: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = holders.with_file_name("filling");
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

/// The memory, if a living process of ours holds it. Signs of dead ones are removed.
fn find(directory: &Path, name: &str, size: Size) -> Option<OwnedFd> {
    for entry in fs_err::read_dir(directory).ok()?.flatten() {
        let file_name = entry.file_name();
        let parsed = file_name
            .to_str()
            .and_then(|name| name.split_once('-'))
            .and_then(|(pid, fd)| Some((pid.parse::<u32>().ok()?, fd.parse::<i32>().ok()?)));
        let Some((pid, fd)) = parsed else { continue };
        match is_locked(&entry.path()) {
            Ok(true) => {}
            Ok(false) => {
                // Its holder is gone. If another of that number has just put it up again, it loses a sharer.
                fs_err::remove_file(entry.path()).ok();
                continue;
            }
            Err(_) => continue,
        }
        let Ok(memory) = machine::share_of(pid, fd, name, size) else {
            continue;
        };
        // It was alive after the descriptor was opened, so the number was its own all the time.
        if matches!(is_locked(&entry.path()), Ok(true)) {
            return Some(memory);
        }
    }
    None
}

fn is_locked(path: &Path) -> io::Result<bool> {
    let file = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        Mode::empty(),
    )?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

impl Sign {
    fn put_up(directory: &Path, memory: &OwnedFd) -> io::Result<Self> {
        let name = format!("{}-{}", std::process::id(), memory.as_raw_fd());
        let path = directory.join(name);
        // Whatever has this name is a dead process's.
        fs_err::remove_file(&path).ok();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        // Should it stay, the next one who looks finds it without a lock.
        fs_err::remove_file(&self.path).ok();
    }
}
