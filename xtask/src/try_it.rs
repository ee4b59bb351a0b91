//! `cargo xtask try`: the product's main job on a sample repository.

use crate::host::{data_dir, set_up, target_dir};
use crate::shell::{self, cargo, root};
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

pub(crate) fn run() -> Result<()> {
    cargo(&["build", "--release", "--package", "cli"])?;
    let efimera = target_dir().join("release/efimera");
    let data = data_dir();
    set_up(&efimera, &data)?;
    let shop = target_dir().join("shop");
    make_sample(&shop)?;
    let verb = |words: &[&str]| {
        shell::run(
            Command::new(&efimera)
                .args(words)
                .current_dir(&shop)
                .env("EFIMERA_HOME", &data)
                .env("PAGER", "cat"),
        )
    };
    verb(&[
        "run",
        "--name",
        "sample",
        "--",
        "sh",
        "-c",
        "make test > report.txt; sed -i s/colour/color/ src/*.py",
    ])?;
    verb(&["diff", "sample"])?;
    verb(&["discard", "sample"])
}

/// A fresh git repository with one commit, one edit that is not committed, and a secret that has to stay out.
fn make_sample(shop: &Path) -> Result<()> {
    if shop.exists() {
        fs_remove(shop)?;
    }
    shell::run(
        Command::new("cp")
            .arg("-r")
            .arg(root().join("examples/shop"))
            .arg(shop),
    )?;
    let git = |words: &[&str]| {
        shell::run(
            Command::new("git")
                .args([
                    "-c",
                    "user.name=Sample",
                    "-c",
                    "user.email=sample@localhost",
                    "-c",
                    "init.defaultBranch=main",
                ])
                .args(words)
                .current_dir(shop),
        )
    };
    git(&["init", "--quiet"])?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "--message", "Sell paint"])?;
    write(&shop.join(".env"), "TOKEN=not-for-the-machine\n")?;
    write(&shop.join("debug.log"), "ignored\n")
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

fn fs_remove(path: &Path) -> Result<()> {
    std::fs::remove_dir_all(path).with_context(|| path.display().to_string())
}
