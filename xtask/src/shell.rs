//! Running programs, with what is run shown first.

use anyhow::{Context as _, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}

/// Runs `cargo` with these words in the repository.
pub(crate) fn cargo(words: &[&str]) -> Result<()> {
    run(Command::new(env!("CARGO")).args(words).current_dir(root()))
}

/// Runs a program to its end; anything but success is an error.
#[expect(
    clippy::print_stderr,
    reason = "a command for developers, not the product"
)]
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("+ {shown}");
    let status = command
        .status()
        .with_context(|| format!("can't start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// The standard output of a program that succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command
        .output()
        .with_context(|| format!("can't start `{shown}`"))?;
    if !output.status.success() {
        bail!(
            "`{shown}` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shown(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}
