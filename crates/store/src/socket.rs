//! Unix sockets at paths of any length. A socket's address holds 107 bytes of path; a home directory can be
//! longer, so a long one is reached through the descriptor of its directory.

use crate::StoreError;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// What `sun_path` holds, less its closing NUL (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// Listens at `path` (mode 0600). Whatever lay there is replaced: the caller holds the sandbox's lock, so no
/// living supervisor listens there.
pub fn bind(path: &Path) -> Result<UnixListener, StoreError> {
    let bound = (|| {
        match fs_err::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (short, _directory) = short_path(path)?;
        let listener = UnixListener::bind(short)?;
        fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    })();
    bound.map_err(|source| StoreError::io("listen at", path, source))
}

/// Connects to `path`.
pub fn connect(path: &Path) -> Result<UnixStream, StoreError> {
    short_path(path)
        .and_then(|(short, _directory)| UnixStream::connect(short))
        .map_err(|source| StoreError::io("connect to", path, source))
}

/// A path of the same socket that fits, and the descriptor that has to stay open while it is used.
fn short_path(path: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return Ok((path.to_owned(), None));
    }
    let (Some(parent), Some(file_name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let directory = rustix::fs::open(
        parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(file_name);
    Ok((short, Some(directory)))
}
