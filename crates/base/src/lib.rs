//! Small types that every efimera crate shares: digests, sandbox names, relative paths, sizes, and the
//! one way to make foreign bytes printable.
//!
//! Invariant: nothing here does IO, reads the environment or knows any other crate.

mod digest;
mod name;
mod path;
mod size;
mod text;

pub use digest::{Digest, DigestError, Hasher};
pub use name::{Name, NameError};
pub use path::{MAX_COMPONENT, MAX_DEPTH, MAX_PATH, PathError, RelPath};
pub use size::{Size, SizeError};
pub use text::{escape, escape_line};
