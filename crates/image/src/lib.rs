//! Base images and guest kernels: how they are made, stored by digest and checked, and the plan that sets a host up.
//!
//! The data directory holds
//!
//! ```text
//! images/HEX/root.erofs      the root file system; HEX is its SHA-256
//! images/HEX/manifest.json   what is in it and how it was made
//! images/HEX/checked.json    when the digest was last checked, and on which inode
//! kernels/ID/vmlinuz         a kernel
//! kernels/ID/modules/NN-NAME.ko   what an initramfs needs of its modules, in the order of loading
//! kernels/ID/kernel.json     where it came from, digests
//! scratch/ext4-BYTES.img     an empty file system of that size, sparse
//! ```
//!
//! Invariant: everything appears there by one rename of something complete; directories are 0700, files 0600.
//! Invariant: nothing here prints, asks, or reads the environment; what a child process gets of it is given by the
//! caller as an [`Environment`].
//! Invariant: an image or kernel is opened through its digest, which is checked once per boot of the host and
//! change of the file.

mod boot_id;
mod check;
mod child;
mod clean;
mod debian;
mod dpkg;
mod host;
mod import;
mod kernel;
mod kernel_source;
mod manifest;
mod modules;
mod os_release;
mod progress;
mod scratch;
mod setup;
mod sources;
mod sparse;
mod store;
mod subid;
mod table;

pub use child::{ChildError, Environment};
pub use debian::{BuildError, DebianOptions, build_debian};
pub use host::HostFacts;
pub use import::{ImportError, import_tar};
pub use kernel::{Kernel, KernelError, KernelRecord, ModuleRecord};
pub use kernel_source::{AptOptions, FetchError, install_files, install_from_apt, install_running};
pub use manifest::{Manifest, Origin, Package};
pub use modules::ModulesError;
pub use os_release::{Family, OsRelease};
pub use progress::{Progress, Silent, Step, Unit};
pub use scratch::ScratchError;
pub use setup::{GivenKernel, Item, ItemKind, Plan, PlanOptions, SetupError, execute, plan};
pub use sources::SourcesError;
pub use sparse::copy_sparse;
pub use store::{Image, ImageError, Store, StoreError};
