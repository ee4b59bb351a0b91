use super::{Base, REPLY_ROOM, describe, show};
use crate::fault::{Context as _, Fault};
use crate::setup::Identified;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use wire::message::{MAX_BATCH, Reply, Tree, encode};
use wire::{MAX_PAYLOAD, Mux, StreamId};

/// Pieces of one step. A step is what other sessions wait for.
const PIECES: usize = 4;

/// Files, one after the other.
#[derive(Debug)]
pub(crate) struct Read {
    base: Base,
    paths: VecDeque<Vec<u8>>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: OwnedFd,
    path: Vec<u8>,
    /// A file that somebody appends to is read as far as it went when it was opened: its new size shows in the
    /// state after it.
    left: u64,
    done: bool,
}

impl Read {
    pub(super) fn start(
        tree: Tree,
        paths: Vec<Vec<u8>>,
        machine: &Identified,
    ) -> Result<Self, Fault> {
        if paths.len() > MAX_BATCH {
            return Err(Fault::new("A request reads too many files", Errno::INVAL));
        }
        Ok(Self {
            base: Base::merged(tree, machine)?,
            paths: paths.into(),
            open: None,
        })
    }

    pub(super) fn can_step(&self, room: usize) -> bool {
        match &self.open {
            Some(open) if !open.done => room > 0,
            _ => room >= REPLY_ROOM,
        }
    }

    pub(super) fn step(&mut self, id: StreamId, mux: &mut Mux, buffer: &mut [u8]) -> bool {
        for _ in 0..PIECES {
            if !self.can_step(mux.room(id)) {
                return false;
            }
            let reply = match &mut self.open {
                None => match self.paths.pop_front() {
                    None => {
                        _ = mux.close(id);
                        return true;
                    }
                    Some(path) => match self.enter(path) {
                        Ok(reply) => reply,
                        Err(fault) => Reply::Failed(fault.to_failure()),
                    },
                },
                Some(open) if open.done => {
                    let reply = match rustix::fs::fstat(&open.file) {
                        Ok(stat) => Reply::FileEnd(describe(&stat)),
                        Err(errno) => {
                            let what = format!("Looking at `{}`", show(&open.path));
                            Reply::Failed(Fault::new(what, errno).to_failure())
                        }
                    };
                    self.open = None;
                    reply
                }
                Some(open) => match open.piece(id, mux, buffer) {
                    Ok(()) => continue,
                    Err(fault) => {
                        self.open = None;
                        Reply::Failed(fault.to_failure())
                    }
                },
            };
            _ = mux.send_message(id, &encode(&reply));
        }
        false
    }

    fn enter(&mut self, path: Vec<u8>) -> Result<Reply, Fault> {
        let doing = || format!("Reading `{}`", show(&path));
        // NONBLOCK: a FIFO that took the file's place must not hold up PID 1.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.base.open(&path, flags).context(doing)?;
        let stat = rustix::fs::fstat(&file).context(doing)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let what = format!("`{}` is not a regular file", show(&path));
            return Err(Fault::new(what, Errno::INVAL));
        }
        let stat = describe(&stat);
        self.open = Some(Open {
            file,
            path,
            left: stat.size,
            done: stat.size == 0,
        });
        Ok(Reply::File(stat))
    }
}

impl Open {
    fn piece(&mut self, id: StreamId, mux: &mut Mux, buffer: &mut [u8]) -> Result<(), Fault> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = mux.room(id).min(MAX_PAYLOAD).min(buffer.len()).min(left);
        let count = match rustix::io::read(&self.file, &mut buffer[..length]) {
            Err(Errno::INTR) => return Ok(()),
            other => other.context(|| format!("Reading `{}`", show(&self.path)))?,
        };
        self.left -= count as u64;
        self.done = count == 0 || self.left == 0;
        // No more than there is room for, so all of it goes.
        _ = mux.send_data(id, 1, &buffer[..count]);
        Ok(())
    }
}
