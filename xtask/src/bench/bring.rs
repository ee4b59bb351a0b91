//! Bringing out a small change, of a large repository against a small one.

use super::lab::{Lab, run_to_marker};
use super::report::Row;
use super::sample;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// "The same", with room for the noise of one computer.
const LIMIT: f64 = 1.2;
/// Files that are changed.
const CHANGED: u32 = 10;

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let (few, many) = (sample::few(lab)?, sample::many(lab)?);
    // Each is packed once before, so that all runs are alike.
    bring_out(lab, &few)?;
    bring_out(lab, &many)?;
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    for _ in 0..lab.rounds {
        of_few.push(bring_out(lab, &few)?);
        of_many.push(bring_out(lab, &many)?);
    }
    Ok(vec![Row::ratio(
        "10 changes out of 100,000 files / out of 1,000",
        &of_many,
        &of_few,
        LIMIT,
    )])
}

/// From the command's last word, as it arrives here, to the end of `efimera run`.
fn bring_out(lab: &Lab, repository: &Path) -> Result<Duration> {
    let paths: Vec<String> = (0..CHANGED)
        .map(|number| sample::path_of(number * 90))
        .collect();
    let script = format!(
        "for path in {}; do echo changed >> $path; done; echo changed",
        paths.join(" ")
    );
    let name = lab.name();
    let mut command = lab.efimera(
        repository,
        &["run", "--name", &name, "--", "sh", "-c", &script],
    );
    let took = run_to_marker(&mut command, "changed")?;
    let changed = lab.ask(repository, &["diff", &name, "--name-only"])?;
    anyhow::ensure!(
        changed.lines().count() == paths.len(),
        "the result has not all of the changes: {changed}"
    );
    lab.ask(repository, &["discard", &name])?;
    Ok(took)
}
