//! Notices that the host's clock was set, or that the host slept: the machine's own clock knows of neither.

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Readable once the host's clock has jumped: a timer that no one waits for is cancelled by it (`timerfd_create(2)`,
/// `TFD_TIMER_CANCEL_ON_SET`), also at the end of a suspend.
#[derive(Debug)]
pub(crate) struct ClockWatch(OwnedFd);

impl ClockWatch {
    /// Watches from now on.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let never = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: NEVER,
                tv_nsec: 0,
            },
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&timer, flags, &never)?;
        Ok(Self(timer))
    }

    /// Whether it jumped since it was asked last.
    pub(crate) fn jumped(&self) -> bool {
        let mut expirations = [0; 8];
        rustix::io::read(&self.0, &mut expirations) == Err(Errno::CANCELED)
    }
}

impl AsFd for ClockWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Seconds since 1970, in the year 2239: the kernel's own times end in 2262.
const NEVER: i64 = 8_500_000_000;
