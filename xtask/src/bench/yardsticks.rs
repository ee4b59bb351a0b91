//! A run from a template, against what else there is to run one command apart from the computer: all by turns, on the
//! same repository.
//!
//! None of it is part of efimera. What is not there is listed with how to get it, and is never taken for passed.

use super::clone;
use super::lab::{Lab, time};
use super::report::{QEMU, Row};
use super::sample;
use crate::host::{data_dir, install, target_dir};
use crate::shell::run;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A whole machine for at most twice what a sandbox of processes costs.
const SANDBOX_RUNTIME_LIMIT: f64 = 2.0;

/// Programs that the yardsticks are, or need, with their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("bwrap", "bubblewrap"),
    ("socat", "socat"),
    ("rg", "ripgrep"),
    ("node", "nodejs"),
    ("npm", "npm"),
];

/// Something to compare with.
struct Yardstick {
    what: &'static str,
    limit: f64,
    /// What runs `true`; or why it can't.
    command: fn(&Lab, &Path) -> Result<Command, String>,
}

const YARDSTICKS: [Yardstick; 4] = [
    Yardstick {
        what: "sandbox-runtime",
        limit: SANDBOX_RUNTIME_LIMIT,
        command: sandbox_runtime,
    },
    Yardstick {
        what: "bwrap",
        limit: f64::INFINITY,
        command: bubblewrap,
    },
    Yardstick {
        what: "plain qemu boot of the same kernel",
        limit: f64::INFINITY,
        command: plain_boot,
    },
    Yardstick {
        what: "virtme-ng",
        limit: f64::INFINITY,
        command: virtme,
    },
];

pub(crate) fn measure(lab: &Lab) -> Result<Vec<Row>> {
    let repository = sample::large(lab)?;
    // Packs the repository, and makes the template.
    clone::run(lab, &repository, &[])?;
    let mut rows = Vec::new();
    let mut there: Vec<(&Yardstick, Vec<Duration>)> = Vec::new();
    for yardstick in &YARDSTICKS {
        // Once before it counts: a tool that is there may still not work here.
        let tried = (yardstick.command)(lab, &repository)
            .and_then(|mut command| time(&mut command).map_err(|error| format!("{error:#}")));
        match tried {
            Ok(_) => there.push((yardstick, Vec::new())),
            Err(why) => rows.push(Row::not_run(title(yardstick), one_line(&why))),
        }
    }
    let mut ours = Vec::new();
    for _ in 0..lab.rounds {
        ours.push(clone::run(lab, &repository, &[])?);
        for (yardstick, times) in &mut there {
            let mut command = (yardstick.command)(lab, &repository).map_err(anyhow::Error::msg)?;
            times.push(time(&mut command).context(yardstick.what)?);
        }
    }
    let measured = there
        .iter()
        .map(|(yardstick, times)| Row::ratio(title(yardstick), &ours, times, yardstick.limit));
    Ok(measured.chain(rows).collect())
}

fn title(yardstick: &Yardstick) -> String {
    format!("run from a template / {}", yardstick.what)
}

/// The end of what a tool complained of, fit for a table.
fn one_line(text: &str) -> String {
    const MOST: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = line.chars().count().saturating_sub(MOST);
    if skipped == 0 {
        return line;
    }
    let end: String = line.chars().skip(skipped).collect();
    format!("…{end}")
}

/// Where the tools are that no distribution has.
fn tools() -> PathBuf {
    target_dir().join("efimera-yardsticks")
}

/// Installs what is missing, all but a generic kernel for virtme-ng: a kernel is the owner's choice.
pub(crate) fn install_tools() -> Result<()> {
    // Node is often there from elsewhere, and Debian's npm brings hundreds of packages.
    let mut packages = vec!["python3-venv"];
    let missing = PROGRAMS.iter().filter(|(name, _)| find(name).is_none());
    packages.extend(missing.map(|(_, package)| package));
    install(&packages)?;
    let tools = tools();
    super::lab::make_dir(&tools)?;
    let npm = ["install", "--no-audit", "--no-fund", "--prefix"];
    run(Command::new("npm")
        .args(npm)
        .arg(&tools)
        .arg("@anthropic-ai/sandbox-runtime"))?;
    let venv = tools.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", "virtme-ng"]))
}

/// A program of a fixed place, or how to get it.
fn program(path: PathBuf, how: &str) -> Result<PathBuf, String> {
    if path.is_file() {
        Ok(path)
    } else {
        Err(how.to_owned())
    }
}

/// A program of the distribution.
fn installed(name: &str, how: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| how.to_owned())
}

fn find(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

fn sandbox_runtime(lab: &Lab, repository: &Path) -> Result<Command, String> {
    let path = tools().join("node_modules/.bin/srt");
    let program = program(
        path,
        "get it by `cargo xtask bench --yardsticks`, which runs `npm install @anthropic-ai/sandbox-runtime`",
    )?;
    for (name, package) in PROGRAMS {
        installed(name, &format!("it needs the package {package}"))?;
    }
    let mut command = lab.command(program);
    command.arg("true").current_dir(repository);
    Ok(command)
}

fn bubblewrap(lab: &Lab, repository: &Path) -> Result<Command, String> {
    let program = installed("bwrap", "get it by `apt-get install bubblewrap`")?;
    let mut command = lab.command(program);
    command
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"])
        .args(["--unshare-all", "true"])
        .current_dir(repository);
    Ok(command)
}

/// QEMU as anyone starts it, with the kernel that efimera uses and nothing else: it ends where the kernel finds no
/// first program, so a whole system takes longer.
fn plain_boot(lab: &Lab, _: &Path) -> Result<Command, String> {
    let program = installed(QEMU, "it is part of `cargo xtask test`'s packages")?;
    if !cfg!(target_arch = "x86_64") {
        return Err("it is written for x86-64 only".to_owned());
    }
    let kernels = data_dir().join("kernels");
    let kernel = newest(&kernels, |path| path.join("vmlinuz").is_file())
        .ok_or("efimera has set up no kernel")?;
    let accel = if has_kvm(lab)? { "kvm" } else { "tcg" };
    let mut command = lab.command(program);
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio", "-cpu", "max"])
        .args(["-smp", "2", "-m", "2G"])
        .args(["-machine", &format!("q35,accel={accel}")])
        .arg("-kernel")
        .arg(kernel.join("vmlinuz"))
        // Without a root file system the kernel panics, and by `panic=-1` that is a restart, which ends QEMU.
        .args(["-append", "console=ttyS0 quiet panic=-1"]);
    Ok(command)
}

fn virtme(lab: &Lab, repository: &Path) -> Result<Command, String> {
    let program = program(
        tools().join("venv/bin/vng"),
        "get it by `cargo xtask bench --yardsticks`, which runs `pip install virtme-ng`",
    )?;
    // The kernels of clouds have no 9p, by which it sees the computer's files.
    let is_generic = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("vmlinuz-") && !name.contains("-cloud-")
    };
    let kernel = newest(Path::new("/boot"), is_generic)
        .ok_or("it needs a generic kernel in `/boot`: `apt-get install linux-image-amd64`")?;
    let mut command = lab.command(program);
    command.arg("--run").arg(kernel);
    if !has_kvm(lab)? {
        command.arg("--disable-kvm");
    }
    command.args(["--exec", "true"]).current_dir(repository);
    Ok(command)
}

/// Asked for each machine, outside of what is timed.
fn has_kvm(lab: &Lab) -> Result<bool, String> {
    let why_not = lab.why_no_kvm().map_err(|error| format!("{error:#}"))?;
    Ok(why_not.is_none())
}

/// The one of these in `directory` that was changed last.
fn newest(directory: &Path, is_one: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    std::fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_one(path))
        .max_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok())
}
