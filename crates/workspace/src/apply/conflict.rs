use base::RelPath;
use serde::Serialize;
use std::fmt;

/// A path where the host is not what the change set was made against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The path.
    pub path: RelPath,
    /// What is the matter with it.
    pub kind: ConflictKind,
}

/// Why a change can't be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictKind {
    /// It was added in the machine, and the host has something else there.
    Exists,
    /// The host's content is another by now.
    Edited,
    /// The host's permission bits are others by now.
    OtherMode,
    /// The host doesn't have it any more.
    Gone,
    /// It is a file on one side and a directory or link on the other, or a device, FIFO or socket.
    OtherKind,
    /// The directory that should hold it is gone, or is no directory.
    NoParent,
    /// A directory above it is a symbolic link on the host.
    LinkAbove,
    /// A directory that gives way to a file holds files that the machine never had.
    NotEmpty,
    /// It lies in a git directory, or would make its directory one.
    GitDirectory,
    /// It lies on another file system than the workspace's root.
    OtherFileSystem,
    /// The host can't read it: the system's reason.
    Unreadable(String),
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exists => "added in the machine, and there is another one here",
            Self::Edited => "edited here since",
            Self::OtherMode => "its permissions changed here since",
            Self::Gone => "deleted here since",
            Self::OtherKind => "of another kind here",
            Self::NoParent => "its directory is gone here",
            Self::LinkAbove => "a directory above it is a link here",
            Self::NotEmpty => "a directory that holds other files here",
            Self::GitDirectory => "in a git directory",
            Self::OtherFileSystem => "on another file system here",
            Self::Unreadable(reason) => return write!(f, "can't be read here: {reason}"),
        })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.kind)
    }
}
