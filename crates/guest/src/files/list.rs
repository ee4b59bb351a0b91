use super::{Base, REPLY_ROOM, describe, show, stat_at};
use crate::fault::{Context as _, Fault};
use crate::setup::Identified;
use rustix::fs::{Dir, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use wire::message::{FileKind, ListDir, ListEntry, MAX_BATCH, Reply, Tree, encode};
use wire::{MAX_PAYLOAD, Mux, StreamId};

/// Entries of one message, and of one step.
const PER_STEP: usize = 256;
/// Encoded bytes of one entry beyond its name and target, at most: kind, lengths, and seven numbers.
const ENTRY_OVERHEAD: usize = 64;

/// Directories, one after the other.
#[derive(Debug)]
pub(crate) struct List {
    merged: Base,
    upper: Base,
    dirs: VecDeque<ListDir>,
    index: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    dir: Dir,
    path: Vec<u8>,
    whole: bool,
    /// Read, but without room in the last message.
    left_over: Option<ListEntry>,
}

impl List {
    pub(super) fn start(
        tree: Tree,
        dirs: Vec<ListDir>,
        machine: &Identified,
    ) -> Result<Self, Fault> {
        if dirs.len() > MAX_BATCH {
            return Err(Fault::new(
                "A request lists too many directories",
                Errno::INVAL,
            ));
        }
        if tree == Tree::Root && dirs.iter().any(|dir| !dir.whole) {
            return Err(Fault::new(
                "Only the workspace has an upper layer",
                Errno::INVAL,
            ));
        }
        Ok(Self {
            merged: Base::merged(tree, machine)?,
            upper: Base::upper(machine)?,
            dirs: dirs.into(),
            index: 0,
            open: None,
        })
    }

    pub(super) fn step(&mut self, id: StreamId, mux: &mut Mux) -> bool {
        if mux.room(id) < REPLY_ROOM {
            return false;
        }
        if self.open.is_none() {
            let Some(next) = self.dirs.pop_front() else {
                _ = mux.close(id);
                return true;
            };
            match self.enter(next) {
                Ok(open) => self.open = Some(open),
                Err(fault) => {
                    self.index += 1;
                    _ = mux.send_message(id, &encode(&Reply::Failed(fault.to_failure())));
                    return false;
                }
            }
        }
        let Some(open) = &mut self.open else {
            return false;
        };
        let reply = match open.take(mux.room(id).min(MAX_PAYLOAD)) {
            Ok((entries, last)) => {
                let index = self.index;
                if last {
                    self.open = None;
                    self.index += 1;
                }
                Reply::Entries {
                    index,
                    entries,
                    last,
                }
            }
            Err(fault) => {
                self.open = None;
                self.index += 1;
                Reply::Failed(fault.to_failure())
            }
        };
        _ = mux.send_message(id, &encode(&reply));
        false
    }

    fn enter(&self, next: ListDir) -> Result<Open, Fault> {
        let base = if next.whole {
            &self.merged
        } else {
            &self.upper
        };
        let doing = || format!("Listing `{}`", show(&next.path));
        let fd = base
            .open(&next.path, OFlags::RDONLY | OFlags::DIRECTORY)
            .context(doing)?;
        let dir = Dir::new(fd).context(doing)?;
        Ok(Open {
            dir,
            path: next.path,
            whole: next.whole,
            left_over: None,
        })
    }
}

impl Open {
    /// Entries for one message of at most `room` bytes, and whether they are the last.
    fn take(&mut self, room: usize) -> Result<(Vec<ListEntry>, bool), Fault> {
        // The message's own head takes a few bytes.
        let room = room.saturating_sub(ENTRY_OVERHEAD);
        let mut entries = Vec::new();
        let mut used = 0;
        loop {
            let entry = match self.left_over.take() {
                Some(entry) => entry,
                None => match self.next() {
                    Some(entry) => entry?,
                    None => return Ok((entries, true)),
                },
            };
            let cost = entry.name.len() + entry.target.len() + ENTRY_OVERHEAD;
            if used + cost > room || entries.len() == PER_STEP {
                self.left_over = Some(entry);
                return Ok((entries, false));
            }
            used += cost;
            entries.push(entry);
        }
    }

    fn next(&mut self) -> Option<Result<ListEntry, Fault>> {
        loop {
            let entry = match self.dir.read()? {
                Ok(entry) => entry,
                Err(errno) => {
                    let what = format!("Listing `{}`", show(&self.path));
                    return Some(Err(Fault::new(what, errno)));
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            match self.look(name) {
                // It was there a moment ago: somebody is at work in here.
                Err(Errno::NOENT) => {}
                found => {
                    let path = [self.path.as_slice(), b"/", name].concat();
                    return Some(found.context(|| format!("Looking at `{}`", show(&path))));
                }
            }
        }
    }

    fn look(&self, name: &[u8]) -> Result<ListEntry, Errno> {
        let path = Path::new(OsStr::from_bytes(name));
        let dir = self.dir.fd()?;
        let mut stat = describe(&stat_at(dir, path)?);
        let mut target = Vec::new();
        match stat.kind {
            FileKind::Symlink => {
                target = rustix::fs::readlinkat(dir, path, Vec::new())?.into_bytes();
            }
            FileKind::Dir if !self.whole && is_fresh(dir, path)? => stat.kind = FileKind::FreshDir,
            // Only a layer has whiteouts; in the merged tree it is a device that somebody made.
            FileKind::Whiteout if self.whole => stat.kind = FileKind::Other,
            _ => {}
        }
        Ok(ListEntry {
            name: name.to_vec(),
            stat,
            target,
        })
    }
}

/// Whether the overlay takes nothing, or something else, from below a directory of the upper layer.
fn is_fresh(parent: impl std::os::fd::AsFd, name: &Path) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(parent, name, flags, rustix::fs::Mode::empty())?;
    // Any value of any counts: a directory that is listed whole for nothing costs time, the other error would
    // lose changes. So it doesn't matter that anybody may set the last one, which is for overlays of a test.
    for name in [
        "trusted.overlay.opaque",
        "trusted.overlay.redirect",
        "user.overlay.opaque",
    ] {
        match rustix::fs::fgetxattr_query(&dir, name) {
            Ok(_) => return Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}
