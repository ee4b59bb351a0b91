//! Machines that start from a template, against machines that boot, and what they cost.

use super::lab::{Lab, Running, make_dir, time};
use super::report::Row;
use super::sample;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// A clone answers in a tenth of a boot.
const ANSWER_LIMIT: f64 = 0.1;
/// A whole run takes a fifth of one that boots.
const RUN_LIMIT: f64 = 0.2;
/// MiB of memory that an idle clone has to itself.
const PRIVATE_LIMIT: f64 = 40.0;
/// Milliseconds until nothing is left of a sandbox.
const END_LIMIT: f64 = 100.0;
/// How many are started at once.
const CROWD: usize = 20;

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let repository = sample::large(lab)?;
    let empty = lab.path("empty");
    make_dir(&empty)?;
    // Packs the repository, and makes the template.
    run(lab, &repository, &[])?;
    let (mut cold, mut warm, mut boots, mut clones) = (vec![], vec![], vec![], vec![]);
    let (mut execs, mut ends) = (vec![], vec![]);
    for _ in 0..lab.rounds {
        cold.push(run(lab, &repository, &["--no-template"])?);
        warm.push(run(lab, &repository, &[])?);
        boots.push(
            lab.keep_with(&empty, &["--no-template"], &["true"])?
                .boot()?,
        );
        let kept = lab.keep(&empty, &["true"])?;
        clones.push(kept.boot()?);
        let begun = Instant::now();
        kept.exec(&["true"])?;
        execs.push(begun.elapsed());
        ends.push(kept.end()?);
    }
    let one: Vec<Duration> = warm.clone();
    let crowd = vec![all_at_once(lab, &repository)?];
    let alone = memory(lab, &empty, 1)?;
    let eight = memory(lab, &empty, 8)?;
    let value = |what: &str, value, unit, limit| Row::value(what.to_owned(), value, unit, limit);
    Ok(vec![
        Row::ratio(
            "clone until it answers / boot",
            &clones,
            &boots,
            ANSWER_LIMIT,
        ),
        Row::ratio(
            "run from a template / run that boots",
            &warm,
            &cold,
            RUN_LIMIT,
        ),
        Row::ratio(
            "exec in a running machine / run from a template",
            &execs,
            &warm,
            1.0,
        ),
        Row::ratio("20 runs at once / one", &crowd, &one, CROWD_LIMIT),
        // Of one that is alone, all that it could share counts as its own, as nobody else happens to look at it.
        value(
            "private memory of an idle clone, of eight",
            eight.private,
            "MiB",
            PRIVATE_LIMIT,
        ),
        value(
            "private memory of an idle clone, alone",
            alone.private,
            "MiB",
            f64::INFINITY,
        ),
        value("Pss of one idle clone", alone.pss, "MiB", f64::INFINITY),
        value("Pss of each of eight", eight.pss, "MiB", f64::INFINITY),
        value(
            "end of a sandbox",
            super::report::Spread::of(&ends).median,
            "ms",
            END_LIMIT,
        ),
    ])
}

/// They share two cores or more.
#[expect(clippy::cast_precision_loss, reason = "a small number")]
const CROWD_LIMIT: f64 = CROWD as f64;

/// The whole of `efimera run -- true`.
pub(crate) fn run(lab: &Lab, repository: &Path, options: &[&str]) -> Result<Duration> {
    let name = lab.name();
    let words = [&["run", "--name", &name], options, &["--", "true"]].concat();
    let took = time(&mut lab.efimera(repository, &words))?;
    lab.ask(repository, &["discard", &name])?;
    Ok(took)
}

fn all_at_once(lab: &Lab, repository: &Path) -> Result<Duration> {
    let names: Vec<String> = (0..CROWD).map(|_| lab.name()).collect();
    let begun = Instant::now();
    let mut running = Vec::new();
    for name in &names {
        running.push(lab.start(repository, &["run", "--name", name, "--", "true"])?);
    }
    for one in running {
        one.end()?;
    }
    let took = begun.elapsed();
    for name in &names {
        lab.ask(repository, &["discard", name])?;
    }
    Ok(took)
}

/// MiB of one QEMU's memory.
struct Memory {
    private: f64,
    pss: f64,
}

/// The mean of so many idle machines at the same time.
fn memory(lab: &Lab, empty: &Path, count: usize) -> Result<Memory> {
    let mut names = Vec::new();
    let mut running: Vec<Running> = Vec::new();
    for _ in 0..count {
        let name = lab.name();
        let script = "echo up; exec sleep 600";
        let words = ["run", "--name", &name, "--", "sh", "-c", script];
        let mut one = lab.start(empty, &words)?;
        one.wait_for("up")?;
        running.push(one);
        names.push(name);
    }
    let (mut private, mut pss) = (0.0, 0.0);
    for name in &names {
        let text = lab.ask(empty, &["inspect", name])?;
        let known: serde_json::Value = serde_json::from_str(&text)?;
        let pid = known["sandbox"]["vmm_pid"]
            .as_u64()
            .context("`efimera inspect` names no QEMU")?;
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let field = |name: &str| -> Result<f64> {
            let kib: f64 = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
                .with_context(|| format!("`{path}` has no `{name}`"))?
                .parse()?;
            Ok(kib / 1024.0)
        };
        private += field("Private_Clean:")? + field("Private_Dirty:")?;
        pss += field("Pss:")?;
    }
    for name in &names {
        lab.ask(empty, &["stop", "-t", "0s", name])?;
    }
    for one in running {
        one.wait()?;
    }
    for name in &names {
        lab.ask(empty, &["discard", name])?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let count = count as f64;
    Ok(Memory {
        private: private / count,
        pss: pss / count,
    })
}
