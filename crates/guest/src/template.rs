//! What a machine does before it is frozen into a template: it warms its memory, and then goes silent.

use crate::process;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wire::StreamId;
use wire::message::MAX_BATCH;

/// How long one program may take. Under an emulator on a loaded host a first start takes seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Programs that are being run for what they leave in memory.
#[derive(Debug)]
pub(crate) struct Warming {
    id: StreamId,
    left: VecDeque<Vec<Vec<u8>>>,
    running: Option<(Pid, Instant)>,
}

impl Warming {
    /// Starts the first one.
    pub(crate) fn start(id: StreamId, commands: Vec<Vec<Vec<u8>>>) -> Self {
        let mut warming = Self {
            id,
            left: commands.into_iter().take(MAX_BATCH).collect(),
            running: None,
        };
        warming.next();
        warming
    }

    /// Whose answer is due when all have ended.
    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    /// True when all have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.running.is_none() && self.left.is_empty()
    }

    /// When the running one is killed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.running.map(|(_, deadline)| deadline)
    }

    /// A child has ended; the next one starts if it was ours.
    pub(crate) fn ended(&mut self, pid: Pid, _how: WaitStatus) {
        if self.running.is_some_and(|(running, _)| running == pid) {
            self.running = None;
            self.next();
        }
    }

    /// Kills what has run too long.
    pub(crate) fn watch(&mut self) {
        if let Some((pid, deadline)) = self.running
            && Instant::now() >= deadline
        {
            // It is a child that was not reaped yet, so the number is still its own.
            _ = rustix::process::kill_process(pid, Signal::KILL);
            self.running = Some((pid, Instant::now() + LIMIT));
        }
    }

    fn next(&mut self) {
        while self.running.is_none() {
            let Some(words) = self.left.pop_front() else {
                return;
            };
            self.running = run(&words).ok().map(|pid| (pid, Instant::now() + LIMIT));
        }
    }
}

/// How much free memory is cleared, in bytes. What a boot and the warm programs have used and given back comes first
/// when memory is asked for, since it is in small pieces: this is several times as much.
const CLEARED: usize = 128 << 20;

/// Clears free memory that something was in: what is all zero takes no place in a template and isn't copied for the
/// machines that start from it. The kernel clears what it gives out, so it is enough to ask. Nothing depends on it.
#[expect(unsafe_code, reason = "a mapping, as anonymous memory has no safe one")]
pub(crate) fn clear_free_memory() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let known = rustix::system::sysinfo();
    let free = usize::try_from(known.freeram).unwrap_or_default() * known.mem_unit as usize;
    let length = CLEARED.min(free / 2) & !0xfff;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at no address in particular.
    let made = unsafe { mmap_anonymous(std::ptr::null_mut(), length, rights, MapFlags::PRIVATE) };
    let Ok(start) = made else { return };
    for advice in [Advice::LinuxNoHugepage, Advice::LinuxPopulateWrite] {
        // SAFETY: it is our mapping, and nothing refers to what is in it.
        _ = unsafe { madvise(start, length, advice) };
    }
    // SAFETY: as above.
    _ = unsafe { munmap(start, length) };
}

#[expect(unsafe_code, reason = "pre_exec runs in a forked child")]
fn run(words: &[Vec<u8>]) -> Result<Pid, Errno> {
    let (program, arguments) = words.split_first().ok_or(Errno::INVAL)?;
    let mut command = Command::new(OsStr::from_bytes(program));
    command
        .args(arguments.iter().map(|word| OsStr::from_bytes(word)))
        .env_clear()
        .env("PATH", OsStr::from_bytes(crate::spawn::PATH))
        .env("HOME", "/")
        .env("LANG", "C.UTF-8")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: one plain system call in the child of a process with a single thread.
    unsafe { command.pre_exec(|| Ok(process::unblock_signals()?)) };
    let child = command
        .spawn()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::SRCH)
}
