//! Writer of uncompressed EROFS images that Linux 5.4 and later mounts.
//!
//! ```text
//! block 0         the superblock, at byte 1024
//! block 1 …       data of the files, in the order in which they came, each from a block boundary
//! data_end …      inodes (64 bytes each, nanosecond times, 32-bit owners), with short directories and
//!                 symbolic links inline
//!                 blocks of the directories that are too long to be inline
//! ```
//!
//! Metadata comes last, so nothing needs to be known about a file before its last byte went by, and a later
//! image can be made from an earlier one's data: copy the file, [`Writer::continue_from`] its `data_end`, and
//! name again what is still there with [`Writer::add_existing`].
//!
//! Invariant: the same tree gives the same bytes, whatever the order of the names, as long as the data came in
//! the same order. Nothing here knows a clock, a random number or the environment.
//!
//! The format is described in the kernel's `Documentation/filesystems/erofs.rst` and
//! `fs/erofs/erofs_fs.h`.

mod crc;
mod data;
mod error;
mod finish;
mod layout;
pub mod tar;
mod tree;
mod writer;

pub use error::Error;
pub use layout::BLOCK;
pub use writer::{Extent, Finished, Meta, Special, Writer, Written};
