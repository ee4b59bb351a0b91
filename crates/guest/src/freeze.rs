//! Every process of the machine but this one stands still, while the machine is saved and until it has random keys of
//! its own again: a clone whose programs ran on at once would draw the same random bytes as its twin, for some
//! milliseconds.
//!
//! That is the freezer of control groups (kernel, `Documentation/admin-guide/cgroup-v2.rst`, `cgroup.freeze`), which
//! no process sees. The hierarchy is mounted for this alone, and nowhere: nobody finds it, unless root mounts it, too.

use crate::fault::{Context as _, Fault};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The group of all processes that are in none.
const GROUP: &str = "efimera";
/// Looks at who is there: each finds those that the ones before it started meanwhile.
const LOOKS: usize = 100;
/// How long the kernel may take to stop everybody: those in the middle of a system call finish it first.
const LIMIT: Duration = Duration::from_secs(5);

/// All processes, standing still until this is dropped.
#[derive(Debug)]
pub(crate) struct Frozen {
    groups: Vec<OwnedFd>,
}

impl Frozen {
    /// Stops everybody. Fails when the kernel can't, or somebody can't be stopped; everybody goes on then.
    pub(crate) fn freeze() -> Result<Self, Fault> {
        let doing = || "Having the machine's processes stand still".to_owned();
        let root = mount().context(doing)?;
        gather(&root).context(doing)?;
        let mut frozen = Self { groups: Vec::new() };
        for group in groups(&root).context(doing)? {
            write(&group, "cgroup.freeze", b"1").context(doing)?;
            frozen.groups.push(group);
        }
        let deadline = Instant::now() + LIMIT;
        for group in &frozen.groups {
            wait(group, deadline).context(doing)?;
        }
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for group in &self.groups {
            // A group that is gone has nobody in it.
            _ = write(group, "cgroup.freeze", b"0");
        }
    }
}

fn mount() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

/// Puts everybody who is in no group, but for ourselves and the kernel's own, into ours.
fn gather(root: &OwnedFd) -> Result<(), Errno> {
    match rustix::fs::mkdirat(root, GROUP, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let group = rustix::fs::openat(root, GROUP, flags, Mode::empty())?;
    for _ in 0..LOOKS {
        let mut moved = false;
        for pid in read(root, "cgroup.procs")?.lines() {
            if pid == "1" || is_kernels(pid) {
                continue;
            }
            match write(&group, "cgroup.procs", pid.as_bytes()) {
                Ok(()) => moved = true,
                // It has ended.
                Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
        if !moved {
            return Ok(());
        }
    }
    Err(Errno::AGAIN)
}

/// Threads of the kernel, which have no memory of their own, can't be stopped and needn't be. One that has ended
/// counts as one.
fn is_kernels(pid: &str) -> bool {
    fs_err::read_to_string(format!("/proc/{pid}/status"))
        .map_or(true, |status| !status.contains("\nVmSize:"))
}

/// The groups right below the root, ours and those that programs made.
fn groups(root: &OwnedFd) -> Result<Vec<OwnedFd>, Errno> {
    let mut groups = Vec::new();
    // The mount's own descriptor is for paths alone.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(root, ".", flags, Mode::empty())?;
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory || name.to_bytes().starts_with(b".") {
            continue;
        }
        match rustix::fs::openat(root, name, flags, Mode::empty()) {
            Ok(group) => groups.push(group),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(groups)
}

/// Waits until nobody in the group runs. The kernel tells of a change by POLLPRI.
fn wait(group: &OwnedFd, deadline: Instant) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let events = rustix::fs::openat(group, "cgroup.events", flags, Mode::empty())?;
    loop {
        let text = read_fd(events.as_fd())?;
        if text
            .lines()
            .any(|line| line == "frozen 1" || line == "populated 0")
        {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let left = crate::process::timespec(left);
        match poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn read(directory: &OwnedFd, name: &str) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    read_fd(file.as_fd())
}

/// From the beginning.
fn read_fd(file: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let at = u64::try_from(all.len()).unwrap_or_default();
        match rustix::io::pread(file, &mut buffer, at)? {
            0 => return Ok(String::from_utf8_lossy(&all).into_owned()),
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

fn write(directory: &OwnedFd, name: &str, text: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    rustix::io::write(&file, text).map(drop)
}
