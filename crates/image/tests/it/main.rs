//! The store with real files, and images and kernels made by the host's own tools.

#![allow(
    clippy::unwrap_used,
    reason = "the lint knows tests only by their attribute, not their helpers"
)]

mod bench;
mod import;
mod real;
mod scratch;
mod store;
