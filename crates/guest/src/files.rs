//! The host's requests for files: lists, reads and writes, each in small steps between two looks at the clock.

mod list;
mod read;
mod write;

use crate::fault::{Context as _, Fault};
use crate::setup::Identified;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use wire::message::{FileKind, Request, Stat, Tree};
use wire::{Mux, StreamId};

/// Room that an encoded reply needs at most: one entry with the longest name and target, or a failure.
const REPLY_ROOM: usize = 12 * 1024;

/// A request under way.
#[derive(Debug)]
pub(crate) enum Transfer {
    List(list::List),
    Read(read::Read),
    Write(write::Write),
}

impl Transfer {
    /// `None` for a request that is not about files.
    pub(crate) fn start(request: Request, machine: &Identified) -> Option<Result<Self, Fault>> {
        Some(match request {
            Request::List { tree, dirs } => {
                list::List::start(tree, dirs, machine).map(Transfer::List)
            }
            Request::Read { tree, paths } => {
                read::Read::start(tree, paths, machine).map(Transfer::Read)
            }
            Request::Write {
                tree,
                path,
                kind,
                mode,
                target,
            } => {
                write::Write::start(tree, &path, kind, mode, &target, machine).map(Transfer::Write)
            }
            _ => return None,
        })
    }

    /// One bounded step. True when the transfer is over.
    pub(crate) fn step(&mut self, id: StreamId, mux: &mut Mux, buffer: &mut [u8]) -> bool {
        match self {
            Transfer::List(list) => list.step(id, mux),
            Transfer::Read(read) => read.step(id, mux, buffer),
            Transfer::Write(write) => write.step(id, mux),
        }
    }

    /// Whether a step would do something now.
    pub(crate) fn can_step(&self, id: StreamId, mux: &Mux) -> bool {
        match self {
            Transfer::List(_) => mux.room(id) >= REPLY_ROOM,
            Transfer::Read(read) => read.can_step(mux.room(id)),
            Transfer::Write(write) => write.is_settled(),
        }
    }

    /// Bytes on channel 0.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if let Transfer::Write(write) = self {
            write.feed(bytes);
        }
    }

    /// The end of channel 0.
    pub(crate) fn end_input(&mut self) {
        if let Transfer::Write(write) = self {
            write.finish();
        }
    }

    /// The host sends nothing more. True when that leaves the transfer without what it needs.
    pub(crate) fn close_input(&mut self) -> bool {
        match self {
            Transfer::Write(write) => !write.is_settled(),
            Transfer::List(_) | Transfer::Read(_) => false,
        }
    }
}

/// Where a tree's paths start, and how they may be followed.
#[derive(Debug)]
struct Base {
    dir: OwnedFd,
    resolve: ResolveFlags,
}

impl Base {
    /// The merged tree.
    fn merged(tree: Tree, machine: &Identified) -> Result<Self, Fault> {
        match tree {
            Tree::Workspace => Self::beneath(machine.layers.merged.as_fd()),
            Tree::Root => {
                let dir = rustix::fs::open(
                    "/",
                    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                )
                .context(|| "Opening `/`".to_owned())?;
                // Here links on the way count: `/bin` is one in most images.
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                Ok(Self { dir, resolve })
            }
        }
    }

    /// The workspace's upper layer.
    fn upper(machine: &Identified) -> Result<Self, Fault> {
        Self::beneath(machine.layers.upper.as_fd())
    }

    fn beneath(dir: BorrowedFd<'_>) -> Result<Self, Fault> {
        let dir = dir
            .try_clone_to_owned()
            .context(|| "Opening the workspace".to_owned())?;
        // Nothing that was mounted or linked into the workspace is part of it.
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        Ok(Self { dir, resolve })
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let path = Path::new(OsStr::from_bytes(path));
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        loop {
            match rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), self.resolve) {
                // With IN_ROOT and BENEATH the kernel asks for another try when something was renamed meanwhile.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

fn describe(stat: &rustix::fs::Stat) -> Stat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice if stat.st_rdev == 0 => FileKind::Whiteout,
        _ => FileKind::Other,
    };
    // Times before 1970 have a positive part below the second, too. What doesn't fit stands at the edge.
    let nanos = |seconds: i64, part: u64| {
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(part).unwrap_or(0))
    };
    Stat {
        kind,
        mode: stat.st_mode & 0o7777,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        ino: stat.st_ino,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        mtime_ns: nanos(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: nanos(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// What to call a path in a sentence to a person.
fn show(path: &[u8]) -> String {
    base::escape_line(if path.is_empty() { b"." } else { path }, 400)
}

fn stat_at(dir: impl AsFd, name: &Path) -> Result<rustix::fs::Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}
