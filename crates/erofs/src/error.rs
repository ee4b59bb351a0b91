use base::{RelPath, Size};
use std::io;

/// What can go wrong while an image is written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image's file can't be written (a full disk, most often).
    #[error("Can't write the image")]
    Write(#[source] io::Error),
    /// The reader of a file's contents failed.
    #[error("Can't read the contents of `{path}`")]
    Read {
        /// The path in the image.
        path: RelPath,
        /// The reader's own words.
        #[source]
        source: io::Error,
    },
    /// A file is larger than the caller allows.
    #[error("`{path}` is larger than {limit}")]
    TooLarge {
        /// The path in the image.
        path: RelPath,
        /// The most that the caller allows.
        limit: Size,
    },
    /// The path was added before.
    #[error("The image has `{path}` already")]
    Exists {
        /// The path in the image.
        path: RelPath,
    },
    /// A parent of the path is something other than a directory.
    #[error("`{path}` lies below something that is not a directory")]
    NotADirectory {
        /// The path in the image.
        path: RelPath,
    },
    /// A hard link names something that was not added before.
    #[error("The image has no file `{target}` that `{path}` could be a second name of")]
    NoTarget {
        /// The second name.
        path: RelPath,
        /// The first name.
        target: RelPath,
    },
    /// The target of a symbolic link is empty, too long or holds a NUL byte.
    #[error(
        "The target of the symbolic link `{path}` is empty, longer than 4095 bytes or holds a NUL byte"
    )]
    BadTarget {
        /// The path of the link.
        path: RelPath,
    },
    /// An extent does not lie within the data that the image holds.
    #[error("The data that `{path}` is said to have is not in the image")]
    BadExtent {
        /// The path in the image.
        path: RelPath,
    },
    /// More blocks or inodes than the format can count (16 TiB, or 2^32 inodes).
    #[error("The image grew larger than the format allows")]
    Full,
}
