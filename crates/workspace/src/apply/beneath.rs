use crate::Kind;
use crate::change::Node;
use base::{Digest, Hasher, RelPath};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A directory that everything is reached from. No path leads out of it or through a link.
#[derive(Debug)]
pub(super) struct Beneath {
    fd: OwnedFd,
}

/// What is at a path of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Absent,
    /// A directory above is not there, or is no directory.
    NoParent,
    /// A directory above is a symbolic link.
    LinkAbove,
    /// A file, directory or link.
    Node(Node),
    /// A device, FIFO or socket.
    Other,
}

/// How often a lookup that a rename disturbed is repeated (`openat2` then says `EAGAIN`).
const LOOKUP_TRIES: u32 = 128;

impl Beneath {
    /// Opens the root. The way to it is the user's own, links and all.
    pub(super) fn open(root: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Keeps other operations out for as long as this is held; false when one is at work. The kernel lets go when
    /// the process dies.
    pub(super) fn lock(&self) -> Result<bool, Errno> {
        match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            // Some network file systems lock no directories; the journal is what is left there.
            Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::NOLCK | Errno::OPNOTSUPP) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// The directory `path`.
    pub(super) fn dir(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The directory that holds `path`, and its name in it. The root itself has none.
    pub(super) fn parent<'a>(&self, path: &'a RelPath) -> Result<(OwnedFd, &'a Path), Errno> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let parent = path.parent().ok_or(Errno::INVAL)?;
        Ok((self.dir(&parent)?, Path::new(OsStr::from_bytes(name))))
    }

    /// Sets the permission bits of the directory `path`, readable or not.
    pub(super) fn chmod(&self, path: &RelPath, mode: Mode) -> Result<(), Errno> {
        let fd = self.open_at(path, OFlags::PATH | OFlags::DIRECTORY)?;
        // `fchmod` takes no such descriptor; its name in /proc leads to the very same directory.
        let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::chmodat(rustix::fs::CWD, name, mode, AtFlags::empty())
    }

    fn open_at(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Not NOFOLLOW: with it a link at the end is "not a directory", and we want to tell the two apart.
        let flags = flags | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut tries = LOOKUP_TRIES;
        loop {
            match rustix::fs::openat2(&self.fd, path.as_path(), flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) if tries > 0 => tries -= 1,
                other => return other,
            }
        }
    }

    /// What `lstat` says of `path`.
    pub(super) fn stat(&self, path: &RelPath) -> Result<Stat, Errno> {
        let (parent, name) = self.parent(path)?;
        stat_at(&parent, name)
    }

    /// What is at `path`, content digested.
    pub(super) fn look(&self, path: &RelPath) -> Result<Found, Errno> {
        match self.parent(path) {
            Ok((parent, name)) => look_at(&parent, name),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Found::NoParent),
            Err(Errno::LOOP) => Ok(Found::LinkAbove),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn stat_at(dir: impl AsFd, name: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// What `name` in `dir` is, without following it, content digested.
pub(super) fn look_at(dir: impl AsFd, name: &Path) -> Result<Found, Errno> {
    let dir = dir.as_fd();
    let stat = match stat_at(dir, name) {
        Err(Errno::NOENT) => return Ok(Found::Absent),
        other => other?,
    };
    let mode = stat.st_mode & 0o777;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Found::Node(Node::dir(mode)),
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes();
            Found::Node(Node::symlink(target))
        }
        FileType::RegularFile => {
            // NONBLOCK: a FIFO that took its place meanwhile must not hold us up.
            let flags = OFlags::RDONLY
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK
                | OFlags::NOCTTY
                | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
                Err(Errno::LOOP | Errno::NXIO) => return Ok(Found::Other),
                other => other?,
            };
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Ok(Found::Other);
            }
            let (digest, size) = digest(file)?;
            Found::Node(Node::file(stat.st_mode & 0o777, size, digest))
        }
        _ => Found::Other,
    })
}

fn digest(file: OwnedFd) -> Result<(Digest, u64), Errno> {
    let mut file = File::from(file);
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut size = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                size += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

impl Found {
    /// True when this is exactly `node` (`None`: nothing there).
    pub(super) fn is(&self, node: Option<&Node>) -> bool {
        match (self, node) {
            (Self::Absent | Self::NoParent, None) => true,
            (Self::Node(found), Some(node)) => found == node,
            _ => false,
        }
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Node(node) => Some(node.kind),
            _ => None,
        }
    }
}

/// Names in a directory, `.` and `..` aside.
pub(super) fn names(dir: OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
