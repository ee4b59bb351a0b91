//! `cargo xtask bench`: speed, as ratios of two things that this computer did by turns in one run. A missed limit
//! is printed, and is no failure: numbers of a shared computer prove nothing by themselves. What each line means is
//! in `docs/performance.md`.

mod bring;
mod clone;
mod inside;
mod lab;
mod pack;
mod report;
mod sample;
mod small;
mod snapshot;
mod start;

use crate::host::{data_dir, set_up, target_dir};
use crate::shell::cargo;
use anyhow::{Result, bail};
use lab::Lab;
use report::{Report, Row};
use std::path::PathBuf;

const HELP: &str = "\
cargo xtask bench [--json] [--rounds N] [--built DIR] [PART …]
  --json       print a JSON document instead of a table
  --rounds N   how often each thing is done; the median counts (default: 5)
  --built DIR  measure what was built before (a directory such as `target/release`) instead of building
  PART         start, clone, snapshot, pack, bring, inside, small (default: all)";

/// Every part, in the order in which they run.
const PARTS: [(&str, Part); 7] = [
    ("start", start::measure),
    ("clone", clone::measure),
    ("snapshot", snapshot::measure),
    ("pack", pack::measure),
    ("bring", bring::measure),
    ("inside", inside::measure),
    ("small", small::measure),
];

type Part = fn(&Lab) -> Result<Vec<Row>>;

struct Options {
    json: bool,
    rounds: usize,
    built: Option<PathBuf>,
    parts: Vec<(&'static str, Part)>,
}

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let options = Options::of(words)?;
    let release = match &options.built {
        Some(built) => built.clone(),
        None => build()?,
    };
    set_up(&release.join("efimera"), &data_dir())?;
    let lab = Lab::open(&release, &data_dir(), options.rounds)?;
    let mut report = Report::new(&lab)?;
    let mut failed = None;
    for (name, part) in &options.parts {
        lab.say(&format!("measuring: {name}"));
        match part(&lab) {
            Ok(rows) => report.add(rows),
            // What the other parts took minutes to find out is shown all the same.
            Err(error) => failed = Some(error.context(format!("measuring `{name}` failed"))),
        }
    }
    report.print(options.json);
    failed.map_or(Ok(()), Err)
}

/// Builds the programs, and says where they are.
fn build() -> Result<PathBuf> {
    let release = ["build", "--release", "--locked", "--package"];
    cargo(&[release.as_slice(), &["cli"]].concat())?;
    cargo(&[release.as_slice(), &["workspace", "--example", "pack"]].concat())?;
    Ok(target_dir().join("release"))
}

impl Options {
    fn of(words: &[&str]) -> Result<Self> {
        let mut options = Self {
            json: false,
            rounds: 5,
            built: None,
            parts: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--json" => options.json = true,
                "--rounds" => match words.next().map(|number| number.parse()) {
                    Some(Ok(rounds @ 1..=1000)) => options.rounds = rounds,
                    _ => bail!("`--rounds` takes a number from 1 to 1000"),
                },
                "--built" => match words.next() {
                    Some(directory) => options.built = Some(std::path::absolute(directory)?),
                    None => bail!("`--built` takes a directory"),
                },
                name => match PARTS.iter().find(|(part, _)| *part == name) {
                    Some(part) => options.parts.push(*part),
                    None => bail!("unknown word `{name}`\n\n{HELP}"),
                },
            }
        }
        if options.parts.is_empty() {
            options.parts = PARTS.to_vec();
        }
        Ok(options)
    }
}
