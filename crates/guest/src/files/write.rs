use super::{Base, show};
use crate::fault::{Context as _, Fault};
use crate::setup::Identified;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use wire::message::{FileKind, Reply, Tree, encode};
use wire::{Mux, StreamId};

/// One file, link or directory from the host. A file appears under its name only when all of it came.
#[derive(Debug)]
pub(crate) struct Write {
    path: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes are coming.
    Taking(Partial),
    /// What to answer.
    Settled(Result<(), Fault>),
}

/// A file that is not complete. Dropped as it is, it is removed.
#[derive(Debug)]
struct Partial {
    parent: OwnedFd,
    name: PathBuf,
    temporary: PathBuf,
    file: OwnedFd,
    mode: Mode,
}

impl Write {
    pub(super) fn start(
        tree: Tree,
        path: &[u8],
        kind: FileKind,
        mode: u32,
        target: &[u8],
        machine: &Identified,
    ) -> Result<Self, Fault> {
        let doing = || format!("Writing `{}`", show(path));
        let base = Base::merged(tree, machine)?;
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..=slash], &path[slash + 1..]),
            None => (b"".as_slice(), path),
        };
        if matches!(name, b"" | b"." | b"..") || name.contains(&0) || target.contains(&0) {
            return Err(Fault::new(doing(), Errno::INVAL));
        }
        let parent = base
            .open(parent, OFlags::RDONLY | OFlags::DIRECTORY)
            .context(doing)?;
        let name = Path::new(OsStr::from_bytes(name));
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let owner = (
            Uid::from_raw(machine.user.uid),
            Gid::from_raw(machine.user.gid),
        );
        let own = |name: &Path| {
            rustix::fs::chownat(
                &parent,
                name,
                Some(owner.0),
                Some(owner.1),
                AtFlags::SYMLINK_NOFOLLOW,
            )
        };
        let temporary = PathBuf::from(format!(
            ".efimera-{:x}",
            rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec
                ^ rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec << 32
        ));
        let state = match kind {
            FileKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file =
                    rustix::fs::openat(&parent, &temporary, flags, Mode::RUSR).context(doing)?;
                let partial = Partial {
                    parent,
                    name: name.to_path_buf(),
                    temporary,
                    file,
                    mode,
                };
                rustix::fs::fchown(&partial.file, Some(owner.0), Some(owner.1)).context(doing)?;
                State::Taking(partial)
            }
            FileKind::Dir | FileKind::FreshDir => {
                match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(Fault::new(doing(), errno)),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let dir = rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty())
                    .context(doing)?;
                rustix::fs::fchown(&dir, Some(owner.0), Some(owner.1)).context(doing)?;
                rustix::fs::fchmod(&dir, mode).context(doing)?;
                State::Settled(Ok(()))
            }
            FileKind::Symlink => {
                let target = Path::new(OsStr::from_bytes(target));
                rustix::fs::symlinkat(target, &parent, &temporary).context(doing)?;
                let placed = own(&temporary)
                    .and_then(|()| rustix::fs::renameat(&parent, &temporary, &parent, name));
                if placed.is_err() {
                    _ = rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty());
                }
                placed.context(doing)?;
                State::Settled(Ok(()))
            }
            FileKind::Whiteout => {
                let removed = match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
                    Err(Errno::ISDIR) => rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR),
                    other => other,
                };
                removed.context(doing)?;
                State::Settled(Ok(()))
            }
            FileKind::Other => return Err(Fault::new(doing(), Errno::INVAL)),
        };
        Ok(Self {
            path: path.to_vec(),
            state,
        })
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled(_))
    }

    pub(super) fn step(&mut self, id: StreamId, mux: &mut Mux) -> bool {
        let State::Settled(result) = &self.state else {
            return false;
        };
        let reply = match result {
            Ok(()) => Reply::Done,
            Err(fault) => Reply::Failed(fault.to_failure()),
        };
        _ = mux.send_message(id, &encode(&reply));
        _ = mux.close(id);
        true
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let State::Taking(partial) = &self.state else {
            return;
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&partial.file, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let what = format!("Writing `{}`", show(&self.path));
                    self.state = State::Settled(Err(Fault::new(what, errno)));
                    return;
                }
            }
        }
    }

    pub(super) fn finish(&mut self) {
        let State::Taking(partial) = &self.state else {
            return;
        };
        let placed = rustix::fs::fchmod(&partial.file, partial.mode).and_then(|()| {
            rustix::fs::renameat(
                &partial.parent,
                &partial.temporary,
                &partial.parent,
                &partial.name,
            )
        });
        let result = placed.context(|| format!("Writing `{}`", show(&self.path)));
        self.state = State::Settled(result);
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename the name is gone, or somebody else's who asked for it: names are not used twice.
        _ = rustix::fs::unlinkat(&self.parent, &self.temporary, AtFlags::empty());
    }
}
