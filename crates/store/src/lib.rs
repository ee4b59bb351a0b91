//! Records, results and baselines on disk. No process owns the directories: any number of them may read and
//! write at once, and each may be killed between two system calls.
//!
//! ```text
//! data/sandboxes/NAME/{record.json, lock, scratch.img}     while the sandbox exists
//! data/results/NAME/{result.json, changes.json, blobs/, commits/, output/}    until discarded
//! data/baselines/KEY/{image.erofs, baseline.bin}           while a sandbox, a result or a cache names it
//! data/{images,kernels}/, cache/
//! run/NAME.sock                                            while a supervisor listens
//! ```
//!
//! How it stays right without a daemon:
//! - A directory appears under its name by a rename of a finished one, and disappears by a rename to a hidden
//!   one that is then removed. A name is taken by whoever's rename succeeds.
//! - A sandbox is alive exactly while its `lock` is locked (`flock`). Its creator locks it before the directory
//!   has a name, and hands the descriptor on to the supervisor, so there is no moment at which a new sandbox
//!   looks like a dead one. The kernel unlocks it when the supervisor dies, however it does.
//! - A document is replaced by a rename. Read-modify-write of a result's head happens with the result's
//!   directory locked.
//! - Whatever a dead process left is put right by [`Store::heal`], by whoever sees it first.

mod clean;
mod dirs;
mod document;
mod error;
mod log;
mod record;
mod results;
mod sandboxes;
mod snapshots;
mod socket;
#[cfg(test)]
mod tests;

pub use clean::{BaselineHold, Collected, Purge, Purged, Usage};
pub use dirs::{Dirs, Store};
pub use error::{StoreError, names_of};
pub use log::{LogPiece, LogReader, OutputLog, SEGMENT};
pub use record::*;
pub use results::{RESULT_FILES, ResultDir, Results};
pub use sandboxes::{Created, Healed, Listed, Listing, Lock};
pub use snapshots::{Label, LabelError, NewSnapshot, SnapshotHead};
pub use socket::{bind, connect};
