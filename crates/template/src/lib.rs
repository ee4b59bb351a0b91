//! Templates: a machine booted once and frozen where its guest waits for orders. A new machine is a QEMU that goes on
//! from there, which takes a tenth of a boot.
//!
//! The data directory holds
//!
//! ```text
//! templates/KEY/template.json   what it is, and by what its files are known
//! templates/KEY/ram             the guest's memory, sparse
//! templates/KEY/state           the devices' state, as QEMU wrote it
//! templates/KEY/scratch         the scratch disk at that moment, sparse
//! templates/KEY/holders/PID-FD  a process that holds the memory, sealed, in this descriptor, while it has the lock
//! templates/KEY/filling         held while somebody fills the memory
//! templates/KEY.lock            held while it is made
//! ```
//!
//! The key is a digest of everything that could make a template wrong ([`Recipe::key`]); there is no other test of
//! whether it fits.
//!
//! Invariant: a template is made of an image, a kernel and our own guest, before anybody's identity, secret or
//! workspace is in the machine.
//! Invariant: everything appears by one rename of something complete, and is opened only when its files are those
//! that were written.
//! Invariant: no QEMU can open a template's files, nor change the memory that others start from: it gets a sealed
//! copy, or one of its own.

mod files;
mod hold;
mod key;
mod make;
mod snapshot;
mod store;
mod talk;

pub use files::FileError;
pub use hold::Held;
pub use key::{Key, Recipe};
pub use make::{MakeError, Step, make};
pub use snapshot::{Fit, Running, SaveError, Snapshot, SnapshotError};
pub use store::{OpenError, Store, Template};

/// The disks of a machine, as guest and host name them.
pub mod disks {
    /// The base image.
    pub const ROOT: &str = "root";
    /// What the machine writes to.
    pub const SCRATCH: &str = "scratch";
    /// The baseline.
    pub const WORKSPACE: &str = "workspace";
}
