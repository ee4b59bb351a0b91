//! Packing a workspace, against reading it.

use super::lab::{Lab, remove, time};
use super::report::Row;
use super::sample;
use anyhow::Result;

/// Against `tar`, which reads everything, computes no digest and writes nothing.
const LIMIT: f64 = 2.0;
/// Unchanged, against the first time.
const AGAIN_LIMIT: f64 = 0.25;

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let repository = sample::large(lab)?;
    let state = lab.path("packed");
    let (mut tar, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..lab.rounds {
        tar.push(time(
            lab.command("sh")
                .args(["-c", "tar cf - . | cat >/dev/null"])
                .current_dir(&repository),
        )?);
        remove(&state)?;
        for times in [&mut first, &mut again] {
            times.push(time(lab.command(&lab.pack).args([&repository, &state]))?);
        }
    }
    remove(&state)?;
    Ok(vec![
        Row::ratio("pack 100 MB / tar | cat", &first, &tar, LIMIT),
        Row::ratio("pack unchanged / pack", &again, &first, AGAIN_LIMIT),
    ])
}
