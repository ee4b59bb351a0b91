use crate::Layer;
use base::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

/// What one confined process is and what it may touch. Everything that isn't named here is refused to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The program, as an absolute path. It must be among `executable_files`.
    pub program: PathBuf,
    /// Its arguments, without the program's own name.
    pub arguments: Vec<OsString>,
    /// Files that it may read and execute: itself, its libraries and its loader.
    pub executable_files: Vec<PathBuf>,
    /// Files that it may read.
    pub readable_files: Vec<PathBuf>,
    /// Device files that it may read, write and control (`/dev/kvm`).
    pub devices: Vec<PathBuf>,
    /// The longest that it may make a file, disks included. `None` leaves the limit as it is.
    pub max_file_size: Option<Size>,
    /// How many descriptors it may have open at once.
    pub max_open_files: u64,
    /// Layers without which the process must not start.
    pub required: BTreeSet<Layer>,
}
