//! Rows, and how they are printed.

#[cfg(test)]
mod tests;

use super::lab::Lab;
use crate::shell;
use anyhow::Result;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// One line of the report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) found: Found,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// Two things side by side.
    Ratio {
        /// What is judged.
        measured: Spread,
        /// What it is compared with.
        reference: Spread,
        /// The largest quotient of the two medians that is good.
        limit: f64,
    },
    /// One number with a limit of its own.
    Value {
        value: f64,
        unit: &'static str,
        limit: f64,
    },
    /// It was not measured.
    NotRun(String),
}

/// Several measurements of one thing, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of at least one measurement.
    pub(crate) fn of(times: &[Duration]) -> Self {
        let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        let middle = times.len() / 2;
        let median = if times.len().is_multiple_of(2) {
            f64::midpoint(at(middle.saturating_sub(1)), at(middle))
        } else {
            at(middle)
        };
        Self {
            median,
            least: at(0),
            most: at(times.len().saturating_sub(1)),
        }
    }
}

impl Row {
    pub(crate) fn ratio(
        what: impl Into<String>,
        measured: &[Duration],
        reference: &[Duration],
        limit: f64,
    ) -> Self {
        Self {
            what: what.into(),
            found: Found::Ratio {
                measured: Spread::of(measured),
                reference: Spread::of(reference),
                limit,
            },
        }
    }

    pub(crate) fn value(
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        limit: f64,
    ) -> Self {
        Self {
            what: what.into(),
            found: Found::Value { value, unit, limit },
        }
    }

    /// What is held against the limit, and the limit.
    fn judged(&self) -> Option<(f64, f64)> {
        match &self.found {
            Found::Ratio {
                measured,
                reference,
                limit,
            } => Some((measured.median / reference.median, *limit)),
            Found::Value { value, limit, .. } => Some((*value, *limit)),
            Found::NotRun(_) => None,
        }
    }

    fn verdict(&self) -> &'static str {
        match self.judged() {
            Some((value, limit)) if value <= limit => "ok",
            Some(_) => "over",
            None => "not run",
        }
    }

    fn cells(&self) -> [String; 6] {
        let spread = |spread: &Spread| {
            format!(
                "{:.0} ({:.0}…{:.0}) ms",
                spread.median, spread.least, spread.most
            )
        };
        let (measured, reference, ratio, limit) = match (&self.found, self.judged()) {
            (
                Found::Ratio {
                    measured,
                    reference,
                    ..
                },
                Some((ratio, limit)),
            ) => (
                spread(measured),
                spread(reference),
                format!("{ratio:.2}"),
                format!("{limit:.2}"),
            ),
            (Found::Value { value, unit, limit }, _) => (
                format!("{value:.1} {unit}"),
                String::new(),
                String::new(),
                format!("{limit} {unit}"),
            ),
            (Found::NotRun(why), _) => (why.clone(), String::new(), String::new(), String::new()),
            (Found::Ratio { .. }, None) => Default::default(),
        };
        [
            self.what.clone(),
            measured,
            reference,
            ratio,
            limit,
            self.verdict().to_owned(),
        ]
    }

    fn as_json(&self) -> Value {
        let spread = |spread: &Spread| json!({ "median_ms": spread.median, "least_ms": spread.least, "most_ms": spread.most });
        let mut value = json!({ "what": self.what, "verdict": self.verdict() });
        match &self.found {
            Found::Ratio {
                measured,
                reference,
                ..
            } => {
                value["measured"] = spread(measured);
                value["reference"] = spread(reference);
            }
            Found::Value { unit, .. } => value["unit"] = json!(unit),
            Found::NotRun(why) => value["why"] = json!(why),
        }
        if let Some((judged, limit)) = self.judged() {
            let key = if matches!(self.found, Found::Ratio { .. }) {
                "ratio"
            } else {
                "value"
            };
            value[key] = json!(judged);
            value["limit"] = json!(limit);
        }
        value
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Report {
    machine: String,
    rounds: usize,
    rows: Vec<Row>,
}

impl Report {
    /// Begins with what computer this is, and with what its hardware offers.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let text = doctor(lab)?;
        let kvm = match text.as_array().into_iter().flatten().find(is_processor) {
            Some(finding) if finding["ok"] == true => None,
            Some(finding) => Some(finding["text"].as_str().unwrap_or_default().to_owned()),
            None => Some("`efimera doctor` says nothing of it".to_owned()),
        };
        let mode = if kvm.is_some() {
            "emulated machines"
        } else {
            "machines on KVM"
        };
        let rows = kvm
            .map(|why| Row {
                what: "all of this on KVM".to_owned(),
                found: Found::NotRun(why),
            })
            .into_iter()
            .collect();
        Ok(Self {
            machine: format!("{}, {mode}", computer()),
            rounds: lab.rounds,
            rows,
        })
    }

    /// Adds rows, before the one of what was not run.
    pub(crate) fn add(&mut self, rows: Vec<Row>) {
        let at = self
            .rows
            .iter()
            .position(|row| matches!(row.found, Found::NotRun(_)))
            .unwrap_or(self.rows.len());
        self.rows.splice(at..at, rows);
    }

    /// Prints a table or a document.
    #[expect(
        clippy::print_stdout,
        reason = "a command for developers, not the product"
    )]
    pub(crate) fn print(&self, json: bool) {
        if json {
            let rows: Vec<Value> = self.rows.iter().map(Row::as_json).collect();
            println!(
                "{:#}",
                json!({ "machine": self.machine, "rounds": self.rounds, "rows": rows })
            );
        } else {
            println!(
                "{}; median (least…most) of {} rounds\n",
                self.machine, self.rounds
            );
            print!("{}", table(&self.rows));
        }
    }
}

/// Rows below a heading, in columns.
fn table(rows: &[Row]) -> String {
    let heading = ["what", "measured", "against", "ratio", "limit", ""].map(str::to_owned);
    let lines: Vec<[String; 6]> = std::iter::once(heading)
        .chain(rows.iter().map(Row::cells))
        .collect();
    let mut text = String::new();
    for line in &lines {
        // What was not run has a sentence instead of columns.
        if line[5] == "not run" {
            text.push_str(&format!("{}: not run ({})\n", line[0], line[1]));
            continue;
        }
        for (column, cell) in line.iter().enumerate() {
            let width = lines
                .iter()
                .filter(|line| line[5] != "not run")
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or_default();
            text.push_str(&format!("{cell:<width$}  "));
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

fn doctor(lab: &Lab) -> Result<Value> {
    let here = lab.path("home");
    // Its exit code says whether machines can start, which they could a moment ago.
    let output = lab.efimera(&here, &["doctor", "--json"]).output()?;
    let mut document: Value = serde_json::from_slice(&output.stdout)?;
    Ok(document["findings"].take())
}

fn is_processor(finding: &&Value) -> bool {
    finding["what"] == "processor"
}

/// Processors and system, without any name.
fn computer() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let word = |program: &str, word: &str| {
        shell::output(Command::new(program).arg(word))
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    };
    format!(
        "{cores} cores, {}, kernel {}",
        word("uname", "-m"),
        word("uname", "-r")
    )
}
