use crate::given::GivenError;
use std::io;
use store::StoreError;

/// A supervisor could not do its work. Whatever can be told to a client or written into the result has been by
/// then.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The record or the socket can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the machine was given can't be read.
    #[error(transparent)]
    Given(#[from] GivenError),
    /// The result's end could not be written; it counts as its last checkpoint.
    #[error("The end of the result could not be written ({0})")]
    Unsaved(String),
    /// A system call of the loop failed.
    #[error("The supervisor's {what} failed")]
    Io {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
