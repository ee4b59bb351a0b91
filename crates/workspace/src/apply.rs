//! Puts a change set into a host directory: all of it or nothing, beneath one directory descriptor, following no
//! link, never in a git directory.
//!
//! ```text
//!  plan ── compares each path with the host ──▶ conflicts, all of them
//!    │
//!    ▼ apply
//!  staging: new contents are written beside the tree, digests checked    failure: staging is removed
//!    ▼ journal says "commit"
//!  commit: rename by rename, what was there goes into staging            failure: everything goes back
//!    ▼ journal says "done"
//!  staging and journal are removed
//! ```
//!
//! What is swapped out is compared with the plan once more, so an edit in between is never lost: it ends the
//! whole operation, and goes back where it was. [`recover`] does the same after a crash, from the journal.

mod beneath;
mod commit;
mod conflict;
mod error;
mod journal;
mod landing;
mod plan;
#[cfg(test)]
mod tests;

pub use conflict::{Conflict, ConflictKind};
pub use error::{ApplyError, PlanError};
pub use journal::{Operation, recover};
pub use landing::{LandError, Landing, LandingFile};
pub use plan::{Plan, plan};

use base::Digest;
use std::io;

/// Where the contents of a change set are.
pub trait Contents {
    /// Writes all bytes of the content to `to`. Whoever calls checks the digest.
    fn copy_to(&self, digest: &Digest, to: &mut dyn io::Write) -> io::Result<()>;
}

impl Contents for crate::BlobDir {
    fn copy_to(&self, digest: &Digest, to: &mut dyn io::Write) -> io::Result<()> {
        self.copy(digest, to).map(|_| ())
    }
}
