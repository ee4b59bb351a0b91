//! Machines start a few at a time: many at once would each take as long as all of them, and too long for some. Whoever
//! comes later waits for a turn, and says so.

use crate::context::Context;
use crate::error::Result;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The right to start a machine, until it is up. It goes with the process that has it.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "a lock is held by being there")] OwnedFd);

/// Machines that one command starts: those that are up make room for the next ones.
#[derive(Debug)]
pub(crate) struct Starts<T> {
    begun: Vec<T>,
    /// How many of them are up; each of the others has a turn.
    up: usize,
    turns: VecDeque<Turn>,
}

impl<T> Starts<T> {
    pub(crate) fn new() -> Self {
        Self {
            begun: Vec::new(),
            up: 0,
            turns: VecDeque::new(),
        }
    }

    /// Waits until one more may start. `until_up` waits for one of those that were begun.
    pub(crate) fn make_room(
        &mut self,
        context: &Context,
        until_up: &mut dyn FnMut(&mut T) -> Result,
    ) -> Result {
        let turn = loop {
            match take(context)? {
                Some(turn) => break turn,
                None if self.turns.is_empty() => break wait(context)?,
                None => self.advance(until_up)?,
            }
        };
        self.turns.push_back(turn);
        Ok(())
    }

    /// The next one has begun, for which room was made.
    pub(crate) fn push(&mut self, begun: T) {
        self.begun.push(begun);
    }

    /// All of them, once the last one is up.
    pub(crate) fn finish(mut self, until_up: &mut dyn FnMut(&mut T) -> Result) -> Result<Vec<T>> {
        while self.up < self.begun.len() {
            self.advance(until_up)?;
        }
        Ok(self.begun)
    }

    fn advance(&mut self, until_up: &mut dyn FnMut(&mut T) -> Result) -> Result {
        if let Some(next) = self.begun.get_mut(self.up) {
            until_up(next)?;
            self.up += 1;
        }
        self.turns.pop_front();
        Ok(())
    }
}

/// A turn, if one is free.
fn take(context: &Context) -> Result<Option<Turn>> {
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
