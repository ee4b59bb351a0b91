//! `cargo xtask test`: everything that has to hold.

use crate::host::{ACCOUNT, data_dir, install_packages, is_root, make_account, set_up, target_dir};
use crate::shell::{self, cargo, root};
use anyhow::Result;
use std::process::Command;

/// `cargo xtask test [--quick]`: with `--quick`, without the machines.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let quick = words.contains(&"--quick");
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
    cargo(&["build", "--workspace", "--all-targets", "--locked"])?;
    let efimera = target_dir().join("debug/efimera");
    let data = data_dir();
    if quick {
        return cargo(&["test", "--workspace", "--locked", "--", "--skip", "vm::"]);
    }
    set_up(&efimera, &data)?;
    shell::run(
        Command::new(env!("CARGO"))
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .current_dir(root())
            .env("EFIMERA_TEST_DATA", &data),
    )?;
    if is_root() {
        as_ordinary_user()?;
    }
    Ok(())
}

/// The machine tests once more, as an account without any privilege.
fn as_ordinary_user() -> Result<()> {
    make_account()?;
    shell::run(
        Command::new("runuser")
            .args(["--user", ACCOUNT, "--"])
            .args(["env", "-C", "/tmp"])
            .arg(format!("EFIMERA_TEST_DATA={}", data_dir().display()))
            .arg(target_dir().join("debug/efimera-vm-tests")),
    )
}
