//! Workspace in, change set out, diff, apply.

mod apply;
mod baseline;
mod change;
mod codec;
mod collect;
mod diff;
mod git;
mod ignore;
mod import;
mod list;
mod names;
mod pack;
mod secrets;
#[cfg(test)]
mod testing;

pub use apply::{
    ApplyError, Conflict, ConflictKind, Contents, LandError, Landing, LandingFile, Operation, Plan,
    PlanError, plan, recover,
};
pub use baseline::{
    Baseline, BaselineError, DISK_SIZE, Entry, IMAGE_FILE, IgnoreFile, Kind, LIST_FILE,
};
pub use change::{Change, ChangeSet, ChangeSetError, MAX_CHANGES, MAX_TARGET, Node, Rename, Stat};
pub use codec::Malformed;
pub use collect::{
    AUTO_HISTORY_LIMIT, CollectError, CollectOptions, Collected, DEFAULT_MAX_FILE_SIZE,
    DEFAULT_MAX_FILES, DEFAULT_MAX_TOTAL_SIZE, Found, GitFacts, GitNote, History, HistoryUsed,
    Omitted, SHALLOW_COMMITS, Several, Shape, collect,
};
pub use diff::{
    FileStat, Hunk, Line, MAX_SHOWN_LINE, MAX_TEXT, ObjectFormat, ResultSides, Side, Sides, Status,
    Style, Summary, Tag, display, summarize, write_patch,
};
pub use git::GitError;
pub use ignore::Ignore;
pub use import::{
    ArtifactError, Artifacts, BlobDir, BlobSink, Counts, IgnoreRules, Import, ImportError,
    KnownState, Limits, Listing, MAX_ENTRIES, MAX_EXCESS, MAX_FILE, MAX_NAMED, MAX_PATH_BYTES,
    MAX_TOTAL, MAX_TRIES, NoRules, Reason, Refusal,
};
pub use list::Entries;
pub use names::{Refused, check_exported, is_git_store_alias};
pub use pack::{PackError, PackOptions, PackProgress, forget, pack, remembered};

#[cfg(test)]
use pack::tests as pack_tests;
