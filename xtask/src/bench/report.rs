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

    /// Something that was not measured, and how to get what it needs.
    pub(crate) fn not_run(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            found: Found::NotRun(why.into()),
        }
    }

    fn was_run(&self) -> bool {
        !matches!(self.found, Found::NotRun(_))
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
            Some((_, f64::INFINITY)) => "",
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
                only_finite(limit, format!("{limit:.2}")),
            ),
            (Found::Value { value, unit, limit }, _) => (
                format!("{value:.1} {unit}"),
                String::new(),
                String::new(),
                only_finite(*limit, format!("{limit} {unit}")),
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

/// A limit in words; none where everything is good.
fn only_finite(limit: f64, text: String) -> String {
    if limit.is_finite() {
        text
    } else {
        String::new()
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Report {
    machine: Machine,
    rounds: usize,
    groups: Vec<Group>,
    /// What this computer has no hardware for.
    lacking: Vec<Row>,
}

/// The rows of one part.
#[derive(Debug)]
pub(crate) struct Group {
    /// A sentence of what is compared with what.
    pub(crate) about: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// The computer, by its kind.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Processors.
    pub(crate) computer: String,
    /// The kernel's version, with what its builder calls it.
    pub(crate) kernel: String,
    pub(crate) qemu: String,
    /// How machines are run.
    pub(crate) mode: &'static str,
}

impl Report {
    /// Begins with what computer this is, and with what its hardware offers.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let kvm = lab.why_no_kvm()?;
        let mode = if kvm.is_some() {
            "emulated machines"
        } else {
            "machines on KVM"
        };
        Ok(Self {
            machine: Machine {
                computer: computer(),
                kernel: uname("-r"),
                qemu: qemu(lab),
                mode,
            },
            rounds: lab.rounds,
            groups: Vec::new(),
            lacking: kvm
                .map(|why| Row::not_run("all of this on KVM", why))
                .into_iter()
                .collect(),
        })
    }

    /// Adds the rows of a part.
    pub(crate) fn add(&mut self, about: &'static str, rows: Vec<Row>) {
        self.groups.push(Group { about, rows });
    }

    /// Prints a table or a document.
    #[expect(
        clippy::print_stdout,
        reason = "a command for developers, not the product"
    )]
    pub(crate) fn print(&self, json: bool) {
        let all = self.groups.iter().flat_map(|group| &group.rows);
        let (run, not_run): (Vec<&Row>, Vec<&Row>) =
            all.chain(&self.lacking).partition(|row| row.was_run());
        let rows: Vec<Row> = run.into_iter().chain(not_run).cloned().collect();
        let Machine {
            computer,
            kernel,
            qemu,
            mode,
        } = &self.machine;
        let machine = format!("{computer}, kernel {kernel}, {mode}");
        if json {
            let rows: Vec<Value> = rows.iter().map(Row::as_json).collect();
            println!(
                "{:#}",
                json!({ "machine": machine, "qemu": qemu, "rounds": self.rounds, "rows": rows })
            );
        } else {
            println!("{machine}; median (least…most) of {} rounds\n", self.rounds);
            print!("{}", table(&rows));
        }
    }

    /// The whole as a page of the documents. `command` is what makes it, `date` when that was.
    pub(crate) fn page(&self, command: &str, date: &str) -> String {
        page(
            &self.machine,
            &self.groups,
            &self.lacking,
            &format!(
                "Made on {date} by `{command}`; median (least…most) of {} rounds.",
                self.rounds
            ),
        )
    }
}

/// A page of Markdown.
fn page(machine: &Machine, groups: &[Group], lacking: &[Row], made: &str) -> String {
    // A kind of computer: what a builder appends to the version says which one it is.
    let kernel = machine.kernel.split('-').next().unwrap_or_default();
    let mut text = format!(
        "# Performance\n\nEach row holds two things against each other that one computer did by turns, or one number against \
         its limit. {made}\n\nThe computer: {}, kernel {kernel}. Machines: {}, {}.\n",
        machine.computer, machine.qemu, machine.mode
    );
    for group in groups {
        text.push_str(&format!("\n{}\n", group.about));
        let (run, not_run): (Vec<&Row>, Vec<&Row>) =
            group.rows.iter().partition(|row| row.was_run());
        if !run.is_empty() {
            text.push_str("\n| What | Measured | Against | Ratio | Limit | |\n");
            text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        }
        for row in run {
            let cells = row.cells().map(|cell| cell.replace('|', "\\|"));
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        text.push_str(&list_not_run(not_run));
    }
    text.push_str(&list_not_run(lacking.iter().collect()));
    text
}

/// What was not run, as a list.
fn list_not_run(rows: Vec<&Row>) -> String {
    let mut text = String::new();
    for row in rows {
        if text.is_empty() {
            text.push('\n');
        }
        let [what, why, ..] = row.cells();
        text.push_str(&format!("- {what}: not run ({why})\n"));
    }
    text
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

/// What QEMU calls itself, without its builder's words.
fn qemu(lab: &Lab) -> String {
    let answer = shell::output(lab.command(QEMU).arg("--version"));
    let first = answer.ok().and_then(|text| {
        let words = text.lines().next()?.split_whitespace();
        words
            .skip_while(|word| *word != "version")
            .nth(1)
            .map(str::to_owned)
    });
    first.map_or_else(
        || "QEMU of an unknown version".to_owned(),
        |version| format!("QEMU {version}"),
    )
}

/// QEMU for machines like this computer.
pub(crate) const QEMU: &str = if cfg!(target_arch = "aarch64") {
    "qemu-system-aarch64"
} else {
    "qemu-system-x86_64"
};

/// Processors, without any name.
fn computer() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores, {}", uname("-m"))
}

fn uname(word: &str) -> String {
    shell::output(Command::new("uname").arg(word))
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
