use std::io;
use store::StoreError;

/// A supervisor could not do its work. Whatever can be told to a client or written into the result has been by
/// then.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The record or the socket can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call of the loop failed.
    #[error("The supervisor's {what} failed")]
    Io {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
