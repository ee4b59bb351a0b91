//! `cargo xtask test`: everything that has to hold.

use crate::host::{ACCOUNT, data_dir, install_packages, is_root, make_account, set_up, target_dir};
use crate::shell::{self, cargo, root};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `cargo xtask test [--quick | --as-user]`: with `--quick`, without the machines; with `--as-user`, only what an
/// ordinary account does (as root, after a whole run).
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let quick = words.contains(&"--quick");
    if words.contains(&"--as-user") {
        return as_ordinary_user(&data_dir());
    }
    install_packages()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])?;
    if quick {
        return cargo(&["test", "--workspace", "--locked", "--", "--skip", "vm::"]);
    }
    cargo(&["build", "--workspace", "--all-targets", "--locked"])?;
    let data = data_dir();
    set_up(&target_dir().join("debug/efimera"), &data)?;
    shell::run(
        Command::new(env!("CARGO"))
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .current_dir(root())
            .env("EFIMERA_TEST_DATA", &data),
    )?;
    if is_root() {
        as_ordinary_user(&data)?;
    }
    Ok(())
}

/// The product's own tests once more, machines and all, as an account without any privilege.
fn as_ordinary_user(data: &Path) -> Result<()> {
    make_account()?;
    // The account may not reach into this user's directories, so it gets copies in a place that it can.
    let stage = PathBuf::from("/var/tmp/efimera-test-stage");
    remove(&stage)?;
    std::fs::create_dir(&stage).with_context(|| stage.display().to_string())?;
    let copied = copy_and_run(data, &stage);
    remove(&stage)?;
    copied
}

fn copy_and_run(data: &Path, stage: &Path) -> Result<()> {
    let stage_data = stage.join("data");
    std::fs::create_dir(&stage_data).with_context(|| stage_data.display().to_string())?;
    for part in ["images", "kernels"] {
        shell::run(
            Command::new("cp")
                .arg("-r")
                .arg(data.join(part))
                .arg(&stage_data),
        )?;
    }
    let tests = test_program("cli", "it")?;
    for (from, to) in [
        (target_dir().join("debug/efimera"), "efimera"),
        (tests, "tests"),
    ] {
        shell::run(Command::new("cp").arg(from).arg(stage.join(to)))?;
    }
    shell::run(
        Command::new("chown")
            .arg("--recursive")
            .arg(format!("{ACCOUNT}:{ACCOUNT}"))
            .arg(stage),
    )?;
    shell::run(
        Command::new("runuser")
            .args(["--user", ACCOUNT, "--", "env", "--chdir"])
            .arg(stage)
            .args([
                "--ignore-environment",
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "LC_ALL=C.UTF-8",
            ])
            .arg(format!("EFIMERA_TEST_DATA={}", stage_data.display()))
            .arg(format!(
                "EFIMERA_TEST_PROGRAM={}",
                stage.join("efimera").display()
            ))
            .arg(stage.join("tests")),
    )
}

/// Where cargo put a package's integration tests.
fn test_program(package: &str, test: &str) -> Result<PathBuf> {
    let words = [
        "test",
        "--package",
        package,
        "--test",
        test,
        "--no-run",
        "--locked",
        "--message-format",
        "json",
    ];
    let text = shell::output(Command::new(env!("CARGO")).args(words).current_dir(root()))?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == test)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo did not say where the tests are")
}

fn remove(stage: &Path) -> Result<()> {
    match std::fs::remove_dir_all(stage) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| stage.display().to_string())
        }
        _ => Ok(()),
    }
}
