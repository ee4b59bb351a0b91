use jail::{ProgramError, ProgramFiles, program_files};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// QEMU as found on this host. Finding it runs two programs (60 ms): keep it, and look with [`Qemu::is_current`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qemu {
    /// The program.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
    /// All files that it needs.
    pub files: ProgramFiles,
    /// Device, inode, size and change time (s, ns) of the program.
    stamp: (u64, u64, u64, i64, i64),
}

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

/// The oldest version that the tests run with.
pub const MINIMUM: Version = Version {
    major: 7,
    minor: 2,
    patch: 0,
};

/// No QEMU to work with.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// None of the usual places has one.
    #[error("QEMU for x86-64 is not installed (looked for {})", places())]
    Missing,
    /// It can be changed by others than root and the user who asks.
    #[error("`{0}` can be changed by other users")]
    Unsafe(PathBuf),
    /// It didn't say its version.
    #[error("Can't learn the version of `{path}`")]
    Version {
        /// The program.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It is too old.
    #[error("`{path}` is version {version}; at least {MINIMUM} is needed")]
    TooOld {
        /// The program.
        path: PathBuf,
        /// What it is.
        version: Version,
    },
    /// Its libraries could not be found.
    #[error("Can't find the files of `{path}`")]
    Files {
        /// The program.
        path: PathBuf,
        /// What went wrong.
        source: ProgramError,
    },
}

/// Where distributions put it: Debian, Ubuntu, Fedora and Arch; Red Hat; built by hand. All belong to root.
const PLACES: [&str; 3] = [
    "/usr/bin/qemu-system-x86_64",
    "/usr/libexec/qemu-kvm",
    "/usr/local/bin/qemu-system-x86_64",
];

/// Finds QEMU: at `given`, or in the usual places. `PATH` isn't looked at, since it may lead into directories that
/// anything can write to.
pub fn find(given: Option<&Path>) -> Result<Qemu, FindError> {
    let path = match given {
        Some(path) => path,
        None => PLACES
            .map(Path::new)
            .into_iter()
            .find(|path| path.is_file())
            .ok_or(FindError::Missing)?,
    };
    let version_error = |source| FindError::Version {
        path: path.to_path_buf(),
        source,
    };
    let stamp = stamp(path).map_err(version_error)?;
    if changeable_by_others(path).map_err(version_error)? {
        return Err(FindError::Unsafe(path.to_path_buf()));
    }
    let version = ask_version(path).map_err(version_error)?;
    if version < MINIMUM {
        return Err(FindError::TooOld {
            path: path.to_path_buf(),
            version,
        });
    }
    let files = program_files(path).map_err(|source| FindError::Files {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Qemu {
        path: path.to_path_buf(),
        version,
        files,
        stamp,
    })
}

impl Qemu {
    /// A text that is another one when the program was exchanged.
    pub fn build(&self) -> String {
        format!("{} {} {:?}", self.path.display(), self.version, self.stamp)
    }

    /// Whether the program is still the one that was found, and its files are there.
    pub fn is_current(&self) -> bool {
        stamp(&self.path).is_ok_and(|stamp| stamp == self.stamp)
            && self
                .files
                .executable
                .iter()
                .chain(&self.files.readable)
                .all(|path| path.exists())
    }
}

#[cfg(test)]
impl Qemu {
    pub(crate) fn for_tests(path: &str, version: Version) -> Self {
        let files = ProgramFiles {
            executable: Vec::new(),
            readable: Vec::new(),
        };
        Self {
            path: path.into(),
            version,
            files,
            stamp: (0, 0, 0, 0, 0),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

fn places() -> String {
    PLACES.map(|place| format!("`{place}`")).join(", ")
}

fn stamp(path: &Path) -> io::Result<(u64, u64, u64, i64, i64)> {
    let metadata = fs_err::metadata(path)?;
    Ok((
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ))
}

/// A program that is run with the user's rights must not be in the hands of another user.
fn changeable_by_others(path: &Path) -> io::Result<bool> {
    let own = rustix::process::geteuid().as_raw();
    let mut changeable = false;
    let resolved = fs_err::canonicalize(path)?;
    for part in resolved.ancestors() {
        let metadata = fs_err::symlink_metadata(part)?;
        let strange_owner = ![0, own].contains(&metadata.uid());
        // Others may write into a sticky directory (such as /tmp), but not replace what isn't theirs.
        let sticky_directory = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
        let writable = metadata.mode() & 0o002 != 0 && !sticky_directory;
        changeable |= strange_owner || writable;
    }
    Ok(changeable)
}

fn ask_version(path: &Path) -> io::Result<Version> {
    let output = Command::new(path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).ok_or_else(|| {
        let said = if output.stdout.is_empty() {
            &output.stderr
        } else {
            &output.stdout
        };
        io::Error::other(format!("it says `{}`", base::escape_line(said, 200)))
    })
}

/// Reads `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
fn parse_version(text: &str) -> Option<Version> {
    let after = text.strip_prefix("QEMU emulator version ")?;
    let end = after
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(after.len());
    let mut numbers = after[..end].split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let (major, minor) = (next()?, next()?);
    Some(Version {
        major,
        minor,
        patch: next().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests;
