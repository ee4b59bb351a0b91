//! What efimera itself costs: the supervisor's memory, the command line's start.

use super::lab::{Lab, time};
use super::report::{Row, Spread};
use super::sample;
use anyhow::{Context as _, Result};
use std::path::Path;

/// MiB.
const MEMORY_LIMIT: f64 = 20.0;
/// Milliseconds.
const START_LIMIT: f64 = 20.0;
/// Starts are short, so there are many for each round.
const STARTS: usize = 20;

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, repository) in [
        ("5,000", sample::large(lab)?),
        ("100,000", sample::many(lab)?),
    ] {
        let (now, peak) = supervisor_memory(lab, &repository)?;
        rows.push(Row::value(
            format!("supervisor's memory, {name} files"),
            now,
            "MiB",
            MEMORY_LIMIT,
        ));
        rows.push(Row::value(
            format!("supervisor's memory at its peak, {name} files"),
            peak,
            "MiB",
            MEMORY_LIMIT,
        ));
    }
    let mut starts = Vec::new();
    for _ in 0..lab.rounds * STARTS {
        starts.push(time(&mut lab.efimera(&lab.path("home"), &["version"]))?);
    }
    rows.push(Row::value(
        "start of the command line (version)",
        Spread::of(&starts).median,
        "ms",
        START_LIMIT,
    ));
    Ok(rows)
}

/// Resident memory in MiB, at rest and at its peak, of a supervisor that has passed output on and brought a change
/// out.
fn supervisor_memory(lab: &Lab, repository: &Path) -> Result<(f64, f64)> {
    let script = "echo made > made; head -c 20000000 /dev/zero";
    let kept = lab.keep(repository, &["sh", "-c", script])?;
    let pid = kept.inspect()?["sandbox"]["supervisor_pid"]
        .as_u64()
        .context("`efimera inspect` names no supervisor")?;
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .map(|kib: f64| kib / 1024.0)
            .with_context(|| format!("`{path}` has no `{name}`"))
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}
