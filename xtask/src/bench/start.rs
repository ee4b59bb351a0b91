//! From nothing to a command's end without a template, against the boot alone.

use super::lab::{Lab, make_dir, time};
use super::report::Row;
use super::sample;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// A run may cost the boot and about half as much again.
const LIMIT: f64 = 1.6;

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let repository = sample::large(lab)?;
    let empty = lab.path("empty");
    make_dir(&empty)?;
    // The first machine finds out things that later ones read from a cache.
    boot_alone(lab, &empty)?;
    let (mut alone, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..lab.rounds {
        alone.push(boot_alone(lab, &empty)?);
        lab.forget()?;
        first.push(run_nothing(lab, &repository)?);
        again.push(run_nothing(lab, &repository)?);
    }
    Ok(vec![
        Row::ratio(
            "run on 100 MB, never packed / boot alone",
            &first,
            &alone,
            LIMIT,
        ),
        Row::ratio(
            "run on 100 MB, unchanged / boot alone",
            &again,
            &alone,
            LIMIT,
        ),
    ])
}

/// The supervisor's own measurement, on a directory without a file: from its start until the guest says that it is
/// ready.
fn boot_alone(lab: &Lab, empty: &Path) -> Result<Duration> {
    lab.keep_with(empty, &["--no-template"], &["true"])?.boot()
}

/// The whole of `efimera run -- true`.
fn run_nothing(lab: &Lab, repository: &Path) -> Result<Duration> {
    let name = lab.name();
    let words = ["run", "--no-template", "--name", &name, "--", "true"];
    let took = time(&mut lab.efimera(repository, &words))?;
    lab.ask(repository, &["discard", &name])?;
    Ok(took)
}
