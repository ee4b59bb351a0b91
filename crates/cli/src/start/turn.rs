//! Machines start a few at a time: many at once would each take as long as all of them, and too long for some. Whoever
//! comes later waits for a turn, and says so.

use crate::context::Context;
use crate::error::Result;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::OwnedFd;

/// The right to start a machine, until it is up. It goes with the process that has it.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "a lock is held by being there")] OwnedFd);

/// A turn, if one is free.
pub(crate) fn take(context: &Context) -> Result<Option<Turn>> {
    for at in 0..turns() {
        let file = open(context, at)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(Turn(file))),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Waits for a turn. Not to be called by who has one: two who do that would wait for each other.
pub(crate) fn wait(context: &Context) -> Result<Turn> {
    if let Some(turn) = take(context)? {
        return Ok(turn);
    }
    context.ui.say("Waiting for other machines to start.");
    // Those who wait are spread over all turns by chance, and each turn is passed on in no order.
    let mine = usize::try_from(std::process::id()).unwrap_or_default() % turns();
    let file = open(context, mine)?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(Turn(file))
}

/// How many machines start at the same time: the processors, and one that waits for the disk.
fn turns() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) + 1
}

fn open(context: &Context, at: usize) -> Result<OwnedFd> {
    let directory = context.dirs.cache.join("starts");
    fs_err::create_dir_all(&directory)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = directory.join(at.to_string());
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?)
}
