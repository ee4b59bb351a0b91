//! `cargo xtask bench`: speed, as ratios of two things that this computer did by turns in one run. A missed limit
//! is printed, and is no failure: numbers of a shared computer prove nothing by themselves. `--write` makes
//! `docs/performance.md` of it.

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
mod yardsticks;

use crate::host::{data_dir, set_up, target_dir};
use crate::shell::{cargo, output};
use anyhow::{Context as _, Result, bail};
use lab::Lab;
use report::{Report, Row};
use std::path::PathBuf;
use std::process::Command;

const HELP: &str = "\
cargo xtask bench [--json] [--rounds N] [--built DIR] [--yardsticks] [--write FILE] [PART …]
  --json       print a JSON document instead of a table
  --rounds N   how often each thing is done; the median counts (default: 5)
  --built DIR  measure what was built before (a directory such as `target/release`) instead of building
  --yardsticks first install what the part `yardsticks` compares with and is missing: Debian packages (bubblewrap,
               socat, ripgrep, nodejs, npm, python3-venv), sandbox-runtime (by npm) and virtme-ng (by pip), the last
               two below cargo's target directory; without it nothing is installed, and what is missing is listed
  --write FILE write the table to FILE as well, as a page of Markdown (such as `docs/performance.md`)
  PART         start, clone, snapshot, yardsticks, pack, bring, inside, small (default: all)";

/// How often each thing is done, unless something else is said.
const ROUNDS: usize = 5;

/// Every part, in the order in which they run.
const PARTS: [Part; 8] = [
    Part {
        name: "start",
        about: "Everything from nothing to a command's end without a template, against the boot alone.",
        measure: start::measure,
    },
    Part {
        name: "clone",
        about: "Machines that start from a template, against machines that boot, and what they cost.",
        measure: clone::measure,
    },
    Part {
        name: "snapshot",
        about: "Running machines that are frozen, taken back and forked, against a machine that boots.",
        measure: snapshot::measure,
    },
    Part {
        name: "yardsticks",
        about: "The whole of `efimera run -- true` in a repository of 100 MB, against other ways to run one command apart \
                from the computer. Of these only the plain boot and virtme-ng are machines, and the plain boot ends \
                where the kernel would start its first program.",
        measure: yardsticks::measure,
    },
    Part {
        name: "pack",
        about: "Packing a repository with its history, against reading it.",
        measure: pack::measure,
    },
    Part {
        name: "bring",
        about: "From a command's last word to the end of `efimera run` with ten changed files, in a large repository against a \
                small one.",
        measure: bring::measure,
    },
    Part {
        name: "inside",
        about: "Working in the workspace, against working on the machine's own disk.",
        measure: inside::measure,
    },
    Part {
        name: "small",
        about: "What efimera itself costs.",
        measure: small::measure,
    },
];

#[derive(Debug, Clone, Copy)]
struct Part {
    name: &'static str,
    /// A sentence for whoever reads the numbers.
    about: &'static str,
    measure: fn(&Lab) -> Result<Vec<Row>>,
}

struct Options {
    json: bool,
    rounds: usize,
    built: Option<PathBuf>,
    yardsticks: bool,
    write: Option<PathBuf>,
    parts: Vec<Part>,
}

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let options = Options::of(words)?;
    if options.yardsticks {
        yardsticks::install_tools()?;
    }
    let release = match &options.built {
        Some(built) => built.clone(),
        None => build()?,
    };
    set_up(&release.join("efimera"), &data_dir())?;
    let lab = Lab::open(&release, &data_dir(), options.rounds)?;
    let mut report = Report::new(&lab)?;
    let mut failed = None;
    for part in &options.parts {
        lab.say(&format!("measuring: {}", part.name));
        match (part.measure)(&lab) {
            Ok(rows) => report.add(part.about, rows),
            // What the other parts took minutes to find out is shown all the same.
            Err(error) => failed = Some(error.context(format!("measuring `{}` failed", part.name))),
        }
    }
    report.print(options.json);
    match (failed, &options.write) {
        (Some(error), _) => Err(error),
        (None, None) => Ok(()),
        (None, Some(file)) => {
            let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
            std::fs::write(file, report.page(&options.shown(), date.trim()))
                .with_context(|| file.display().to_string())
        }
    }
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
            rounds: ROUNDS,
            built: None,
            yardsticks: false,
            write: None,
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
                "--yardsticks" => options.yardsticks = true,
                "--write" => match words.next() {
                    Some(file) => options.write = Some(PathBuf::from(file)),
                    None => bail!("`--write` takes a file"),
                },
                name => match PARTS.iter().find(|part| part.name == name) {
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

    /// The command that measures the same, wherever the programs were built.
    fn shown(&self) -> String {
        let mut words = vec!["cargo xtask bench".to_owned()];
        if self.rounds != ROUNDS {
            words.push(format!("--rounds {}", self.rounds));
        }
        if let Some(file) = &self.write {
            words.push(format!("--write {}", file.display()));
        }
        if self.parts.len() < PARTS.len() {
            words.extend(self.parts.iter().map(|part| part.name.to_owned()));
        }
        words.join(" ")
    }
}
