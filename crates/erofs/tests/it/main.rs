//! Images as the reference tools (erofs-utils), an independent reader and the writer's own promises see them.

#![allow(
    clippy::unwrap_used,
    reason = "the lint knows tests only by their attribute, not their helpers"
)]

mod oracle;
mod random;
mod reader;
mod refusals;
mod tar_stream;
mod tree;
