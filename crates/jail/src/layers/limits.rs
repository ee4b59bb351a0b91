use base::Size;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, setrlimit, setsid, umask};
use std::io;

/// New files are private, no core dump, `max_file_size` and `max_open_files` as hard limits, a session of its own.
pub(crate) fn set(max_file_size: Option<Size>, max_open_files: u64) -> io::Result<()> {
    umask(Mode::RWXG | Mode::RWXO);
    // One byte, not none: the kernel takes 1 as "no dump, and no helper behind a pipe either" (core(5),
    // fs/coredump.c), while with 0 a helper such as systemd-coredump still gets the guest's memory.
    limit(Resource::Core, 1)?;
    limit(Resource::Nofile, max_open_files)?;
    if let Some(size) = max_file_size {
        limit(Resource::Fsize, size.bytes())?;
        ignore_file_size_signal()?;
    }
    // A Ctrl-C at the terminal is for our command line, not for the machine.
    match setsid() {
        // Already the leader of a session of its own.
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has the kernel kill this process when `parent` ends, and makes sure that it hasn't ended before that was set.
///
/// To be called after the last change of credentials, which clears the setting (prctl(2), `PR_SET_PDEATHSIG`).
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid()
        .map(Pid::as_raw_pid)
        .and_then(|pid| u32::try_from(pid).ok());
    if now == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the process that asked for it has ended",
        ))
    }
}

/// A write beyond the limit is to fail (`EFBIG`), not to end the process as it does by default (setrlimit(2)): QEMU
/// tells the guest, or us, as it does when the disk is full. An ignored signal stays ignored across execute.
#[expect(unsafe_code, reason = "neither std nor rustix sets dispositions")]
fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: `SIG_IGN` is no function of ours that could run at a bad moment.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(
        resource,
        Rlimit {
            current: Some(most),
            maximum: Some(most),
        },
    )?)
}
