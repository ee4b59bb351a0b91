//! Helpers for tests: clean homes, git shapes, real machines.
#![allow(
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "helpers of tests panic with what went wrong"
)]

mod env;
pub mod guest;
mod terminal;

pub use env::{DATA, Env, PROGRAM, Ran};
pub use terminal::Terminal;
