//! Workspace in, change set out, diff, apply.

mod baseline;

pub use baseline::{Entry, IgnoreFile, Kind};
