//! What the tests need from the distribution, and the data that they share.

use crate::shell::{output, root, run};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian packages that the tests need beyond what efimera itself sets up: the oracles for images (erofs-utils),
/// real git, compressors, a terminal (tmux), and accounts (passwd).
const PACKAGES: &[&str] = &[
    "git",
    "qemu-system-x86",
    "mmdebstrap",
    "uidmap",
    "e2fsprogs",
    "erofs-utils",
    "tmux",
    "passwd",
    "sudo",
    "procps",
    "xz-utils",
    "zstd",
    "python3",
    "make",
    "gcc",
    "libc6-dev",
    "ca-certificates",
];

/// The account that the tests also run as.
pub(crate) const ACCOUNT: &str = "efimera-test";

/// Installs the packages that are missing.
pub(crate) fn install_packages() -> Result<()> {
    install(PACKAGES)
}

/// Installs those of the packages that are missing.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        bail!(
            "these packages are needed: sudo apt-get install --no-install-recommends {}",
            missing.join(" ")
        );
    }
    run(apt().arg("update"))?;
    run(apt()
        .args(["install", "--yes", "--no-install-recommends"])
        .args(missing))
}

/// Makes the unprivileged account that the tests also run as.
pub(crate) fn make_account() -> Result<()> {
    if Command::new("id")
        .arg("-u")
        .arg(ACCOUNT)
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return Ok(());
    }
    run(Command::new("useradd").args(["--create-home", "--shell", "/bin/bash", ACCOUNT]))
}

/// True for root.
pub(crate) fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// Where the base image and the kernel of the tests are kept from one run to the next.
pub(crate) fn data_dir() -> PathBuf {
    target_dir().join("efimera-data")
}

/// Cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    let metadata = output(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(root()),
    );
    metadata
        .ok()
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
        .and_then(|json| json["target_directory"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| root().join("target"))
}

/// Has efimera set up what is missing into `data`.
pub(crate) fn set_up(efimera: &Path, data: &Path) -> Result<()> {
    run(Command::new(efimera)
        .args(["setup", "--yes"])
        .env("EFIMERA_HOME", data))
}

fn is_installed(package: &str) -> bool {
    output(Command::new("dpkg-query").args([
        "--show",
        "--showformat",
        "${db:Status-Status}",
        package,
    ]))
    .is_ok_and(|status| status == "installed")
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
