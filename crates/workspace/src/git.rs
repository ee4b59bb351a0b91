//! What a workspace's git repositories hold, and the sanitised copies of them that machines get.
//!
//! Invariant: nothing here writes to the host's repository, and git itself runs only through [`run`].

mod config;
mod discover;
mod guest;
mod index;
mod oid;
mod repository;
mod run;
mod scratch;

pub use repository::GitError;

pub(crate) use config::Config;
pub(crate) use discover::{DotGit, Found, discover, inspect, normal};
pub(crate) use guest::{
    FileFacts, FileStat, GitFile, GuestPlan, Module, Place, index, is_proven, modules, pending,
    plan,
};
pub(crate) use index::Index;
pub(crate) use oid::{BlobHasher, ObjectFormat, Oid, blob_oid};
pub(crate) use repository::{Repository, check_owner};
pub(crate) use run::Git;
pub(crate) use scratch::Scratch;
