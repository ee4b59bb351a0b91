//! Automation: `cargo xtask VERB`. Everything that a person or a CI machine has to do, in Rust, so that it is
//! the same everywhere.
#![allow(
    clippy::disallowed_methods,
    reason = "a command for developers; paths are in the errors' context"
)]

mod bench;
mod host;
mod shell;
mod test;
mod try_it;

use anyhow::{Result, bail};
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask try     build efimera, set up what is missing, run it on a sample repository, show the diff
cargo xtask test    install what the tests need, then check format, lints, documents and run every test
cargo xtask bench   measure, as ratios of two things run side by side
cargo xtask man DIR write the man pages
";

#[expect(
    clippy::print_stderr,
    reason = "a command for developers, not the product"
)]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match verb(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn verb(words: &[&str]) -> Result<()> {
    match words {
        ["try"] => try_it::run(),
        ["test", rest @ ..] => test::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["man", directory] => shell::cargo(&[
            "run",
            "--release",
            "--quiet",
            "--package",
            "cli",
            "--",
            "man",
            directory,
        ]),
        _ => bail!("unknown words\n\n{HELP}"),
    }
}
