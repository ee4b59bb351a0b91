//! Working in the workspace, against working on the machine's own disk: in one machine, by turns.

use super::lab::Lab;
use super::report::Row;
use super::sample;
use anyhow::{Context as _, Result};
use std::time::Duration;

/// The workspace may cost a tenth.
const LIMIT: f64 = 1.1;
/// A first `git status` may look at what a later one need not, but not at every file's content.
const FIRST_LIMIT: f64 = 2.0;

/// The timing script of the machine.
const SCRIPT: &str = include_str!("inside.bash");

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let repository = sample::large(lab)?;
    let kept = lab.keep(&repository, &["true"])?;
    let rounds = lab.rounds.to_string();
    let text = kept.exec(&["bash", "-c", SCRIPT, "inside", &rounds])?;
    let mut rows = vec![Row::ratio(
        "first git status / second",
        &times(&text, "status-first", "workspace")?,
        &times(&text, "status-second", "workspace")?,
        FIRST_LIMIT,
    )];
    for (what, title) in [
        ("status", "git status, workspace / scratch disk"),
        ("search", "rg, workspace / scratch disk"),
        (
            "search-cold",
            "rg with cold caches, workspace / scratch disk",
        ),
        ("build", "C build, workspace / scratch disk"),
    ] {
        rows.push(Row::ratio(
            title,
            &times(&text, what, "workspace")?,
            &times(&text, what, "scratch")?,
            LIMIT,
        ));
    }
    Ok(rows)
}

/// The script's lines about one thing in one place.
fn times(text: &str, what: &str, place: &str) -> Result<Vec<Duration>> {
    let begin = format!("{what} {place} ");
    let times: Option<Vec<Duration>> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&begin))
        .map(|micros| micros.parse().ok().map(Duration::from_micros))
        .collect();
    times
        .filter(|times| !times.is_empty())
        .with_context(|| format!("the machine said nothing of `{begin}`"))
}
