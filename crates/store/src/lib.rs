//! Records, results, baselines on disk.

mod record;

pub use record::*;
