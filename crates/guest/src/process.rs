//! Signals and children: the calls that rustix does not have.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// A descriptor that becomes readable whenever a child ends. From here on SIGCHLD is blocked in this process; a
/// child inherits that, and undoes it by [`unblock_signals`].
#[expect(unsafe_code, reason = "signalfd and sigprocmask are not in rustix")]
pub(crate) fn child_events() -> Result<OwnedFd, Errno> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to memory of the right size, which the call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialised by the line above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set is initialised; a null pointer for the old mask is allowed.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) } != 0 {
        return Err(last_error());
    }
    // SAFETY: the set is initialised, and -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes every signal, as programs expect to find it: none blocked, none ignored.
#[expect(unsafe_code, reason = "signal and sigprocmask are not in rustix")]
pub(crate) fn unblock_signals() -> Result<(), Errno> {
    // Ignored ones are inherited. The two that can't be set refuse, and nothing else can go wrong.
    for signal in 1..=31 {
        // SAFETY: no handler is installed, so nothing of ours is called.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to memory of the right size, which the call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised; a null pointer for the old mask is allowed.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Sends a signal to every process but this one (and kernel threads). A plain loop over `/proc` would lose the
/// race against a process that forks.
#[expect(unsafe_code, reason = "kill(-1) is not in rustix")]
pub(crate) fn signal_everyone(signal: rustix::process::Signal) {
    // SAFETY: kill takes no memory of ours. As PID 1 (of the machine, or of a namespace in tests) we are
    // left out by the kernel.
    unsafe { libc::kill(-1, signal.as_raw()) };
}

/// One child that has ended, if there is any.
pub(crate) enum Reaped {
    Child(Pid, WaitStatus),
    /// Children are left, and none of them has ended.
    Waiting,
    /// There is no child at all: every process descends from PID 1, so none is left.
    Nobody,
}

pub(crate) fn reap() -> Reaped {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => return Reaped::Child(pid, status),
            Ok(None) => return Reaped::Waiting,
            Err(Errno::INTR) => {}
            Err(_) => return Reaped::Nobody,
        }
    }
}

/// Kills every process and waits until none is left, at most `limit` long.
pub(crate) fn kill_everyone(children: &OwnedFd, limit: Duration) {
    let deadline = std::time::Instant::now() + limit;
    loop {
        signal_everyone(rustix::process::Signal::KILL);
        drain(children);
        loop {
            match reap() {
                Reaped::Child(..) => {}
                Reaped::Waiting => break,
                Reaped::Nobody => return,
            }
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        let mut fds = [PollFd::from_borrowed_fd(children.as_fd(), PollFlags::IN)];
        let pause = timespec(left.min(Duration::from_millis(100)));
        _ = poll(&mut fds, Some(&pause));
    }
}

/// Takes what a [`child_events`] descriptor holds; the children themselves are asked for by [`reap`].
pub(crate) fn drain(children: &OwnedFd) {
    let mut buffer = [0; 16 * size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(children, &mut buffer).is_ok_and(|count| count == buffer.len()) {}
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
