//! Writes a collected workspace into a [`Baseline`]: each file is read once, digested on the way, and is part of the
//! image a moment later. What was packed before and is unchanged by its stat is not read again.
//!
//! ```text
//! collected ──▶ plan: what of the last baseline is still true
//!                 │ all of it ─▶ the last baseline, as it is
//!                 ├─▶ readers (a thread or two): open, read, digest ─┐
//!                 ├─▶ git (a thread): packs of objects; then reads   ├─▶ image ─▶ index of git ─▶ list ─▶ rename
//!                 └─▶ data of the last image, copied ────────────────┘
//! ```

mod error;
mod gitdirs;
mod memory;
mod partial;
mod plan;
mod read;
mod write;

pub use error::PackError;

use crate::{Baseline, Collected};
use base::RelPath;
use std::path::PathBuf;

/// Where things go, and whose they are.
#[derive(Debug, Clone)]
pub struct PackOptions {
    /// The directory that holds baselines, each in one of its own.
    pub baselines: PathBuf,
    /// The user's cache directory: what was packed last is remembered there.
    pub cache: PathBuf,
    /// User and group in the machine.
    pub owner: (u32, u32),
}

/// How far a pack is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackProgress {
    /// Files that are in the image.
    pub files: u64,
    /// Files in all.
    pub files_total: u64,
    /// Bytes that are in the image.
    pub bytes: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// True from the moment on when all files are in and only git's objects are waited for.
    pub waits_for_git: bool,
}

/// Packs `collected`.
///
/// Fails when a file can't be read any more, git can't pack its objects, or the disk is full; nothing half-made
/// stays then.
pub fn pack(
    collected: &Collected,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<Baseline, PackError> {
    write::write(collected, options, progress)
}

/// Forgets what was packed of the workspace `root`, for whoever removes its baselines.
pub fn forget(cache: &std::path::Path, root: &std::path::Path) -> std::io::Result<()> {
    memory::forget(cache, root)
}

/// The names of the baselines that the next pack of some workspace would continue from, of workspaces that were packed
/// within the last `days`: for whoever removes baselines. Older workspaces are forgotten.
pub fn remembered(
    cache: &std::path::Path,
    days: u64,
) -> std::io::Result<std::collections::BTreeSet<String>> {
    memory::remembered(cache, days)
}

/// True when `path` is one of `dirs` or lies below one.
fn is_below_any(path: &RelPath, dirs: &[RelPath]) -> bool {
    dirs.iter().any(|dir| path.is_within(dir))
}

#[cfg(test)]
pub(crate) mod tests;
