//! `cargo xtask bench`: speed, as ratios of two things that this computer did by turns in one run. A missed limit
//! is printed, and is no failure: numbers of a shared computer prove nothing by themselves. What each line means is
//! in `docs/performance.md`.

mod bring;
mod inside;
mod lab;
mod pack;
mod report;
mod sample;
mod small;
mod start;

use crate::host::{data_dir, set_up, target_dir};
use crate::shell::cargo;
use anyhow::{Result, bail};
use lab::Lab;
use report::{Report, Row};

const HELP: &str = "\
cargo xtask bench [--json] [--rounds N] [PART …]
  --json      print a JSON document instead of a table
  --rounds N  how often each thing is done; the median counts (default: 5)
  PART        start, pack, bring, inside, small (default: all)";

/// Every part, in the order in which they run.
const PARTS: [(&str, Part); 5] = [
    ("start", start::measure),
    ("pack", pack::measure),
    ("bring", bring::measure),
    ("inside", inside::measure),
    ("small", small::measure),
];

type Part = fn(&Lab) -> Result<Vec<Row>>;

struct Options {
    json: bool,
    rounds: usize,
    parts: Vec<(&'static str, Part)>,
}

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let options = Options::of(words)?;
    cargo(&["build", "--release", "--locked", "--package", "cli"])?;
    cargo(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "workspace",
        "--example",
        "pack",
    ])?;
    let release = target_dir().join("release");
    set_up(&release.join("efimera"), &data_dir())?;
    let lab = Lab::open(&release, &data_dir(), options.rounds)?;
    let mut report = Report::new(&lab)?;
    for (name, part) in &options.parts {
        lab.say(&format!("measuring: {name}"));
        report.add(part(&lab)?);
    }
    report.print(options.json);
    Ok(())
}

impl Options {
    fn of(words: &[&str]) -> Result<Self> {
        let mut options = Self {
            json: false,
            rounds: 5,
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
