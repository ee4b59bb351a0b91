use std::io;

/// The guest's account of its files can't be taken further.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// More names than [`super::Limits::entries`].
    #[error("The workspace in the machine has more than {0} new or changed names")]
    TooManyEntries(u64),
    /// More bytes of paths than [`super::Limits::path_bytes`].
    #[error("The names of new or changed files take more than {0} bytes")]
    TooManyPathBytes(u64),
    /// A message that does not belong here.
    #[error("The guest answered {0} out of order")]
    OutOfOrder(&'static str),
    /// A part of a listing with nothing in it, and more to come.
    #[error("The guest sent an empty part of a listing")]
    EmptyListing,
    /// Far more bytes than the file had.
    #[error("The guest sent more bytes than a file has")]
    TooMuchData,
    /// It keeps closing streams without all answers.
    #[error("The guest closed a stream without answering, {0} times")]
    Unanswered(u8),
    /// The import is not done, or it failed before.
    #[error("The export is not complete")]
    Unfinished,
    /// The host couldn't keep a file's content.
    #[error("Can't keep what came out of the machine")]
    Store(#[source] io::Error),
    /// What went in can't be looked up.
    #[error("Can't compare what came out of the machine with what went in")]
    Baseline(#[from] crate::BaselineError),
    /// The changes contradict each other; a fault of ours.
    #[error("What came out of the machine contradicts itself")]
    Contradiction(#[from] crate::change::ChangeSetError),
}
