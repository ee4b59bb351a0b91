//! `cargo xtask bench`: speed, as ratios of two things that one machine did in one run.

use anyhow::{Result, bail};

pub(crate) fn run(_words: &[&str]) -> Result<()> {
    bail!("no benchmark yet")
}
