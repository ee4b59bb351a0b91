//! The place where things are measured: a directory of its own that is gone at the end, with a home for efimera
//! that borrows image and kernel.

use crate::shell;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Lab {
    dir: PathBuf,
    efimera: PathBuf,
    /// `workspace`'s example that packs a directory.
    pub(crate) pack: PathBuf,
    /// How often each thing is done.
    pub(crate) rounds: usize,
    names: Cell<u32>,
}

impl Lab {
    /// `release` is where cargo puts programs, `data` has image and kernel.
    pub(crate) fn open(release: &Path, data: &Path, rounds: usize) -> Result<Self> {
        let lab = Self {
            // Outside of any repository: cargo's target directory lies in one, which would be the workspace.
            dir: PathBuf::from("/var/tmp/efimera-bench"),
            efimera: release.join("efimera"),
            pack: release.join("examples/pack"),
            rounds,
            names: Cell::new(0),
        };
        lab.clear()?;
        for part in ["home", "data"] {
            make_dir(&lab.dir.join(part))?;
        }
        for part in ["images", "kernels", "scratch", "templates"] {
            let borrowed = data.join(part);
            make_dir(&borrowed)?;
            let link = lab.dir.join("data").join(part);
            symlink(&borrowed, &link).with_context(|| link.display().to_string())?;
        }
        Ok(lab)
    }

    /// Removes everything, with the machines that a run which was killed has left.
    fn clear(&self) -> Result<()> {
        if self.dir.join("data").exists() {
            for name in self.ask(&self.dir, &["ls", "--all", "--quiet"])?.lines() {
                self.ask(&self.dir, &["rm", "--force", name])?;
            }
        }
        remove(&self.dir)
    }

    /// A place for something of that name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A program with the lab's environment and no other.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.dir.join("home"))
            .env("EFIMERA_HOME", self.dir.join("data"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LC_ALL", "C.UTF-8")
            .env("USER", "bench")
            .stdin(Stdio::null());
        command
    }

    /// `efimera` with these words in `directory`.
    pub(crate) fn efimera(&self, directory: &Path, words: &[&str]) -> Command {
        let mut command = self.command(&self.efimera);
        command.args(words).current_dir(directory);
        command
    }

    /// What `efimera` prints; it has to succeed.
    pub(crate) fn ask(&self, directory: &Path, words: &[&str]) -> Result<String> {
        shell::output(&mut self.efimera(directory, words))
    }

    /// Starts `efimera` in the background.
    pub(crate) fn start(&self, directory: &Path, words: &[&str]) -> Result<Running> {
        let mut child = self
            .efimera(directory, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("can't start `efimera`")?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Running {
            child,
            output: BufReader::new(output),
        })
    }

    /// A sandbox that has run a command, and is kept until it is dropped.
    pub(crate) fn keep(&self, directory: &Path, command: &[&str]) -> Result<Kept<'_>> {
        self.keep_with(directory, &[], command)
    }

    /// The same, with options of `run`.
    pub(crate) fn keep_with(
        &self,
        directory: &Path,
        options: &[&str],
        command: &[&str],
    ) -> Result<Kept<'_>> {
        let kept = Kept {
            lab: self,
            name: self.name(),
            directory: directory.to_owned(),
        };
        let run = ["run", "--keep", "--name", &kept.name];
        let words = [&run, options, &["--"], command].concat();
        self.ask(directory, &words)?;
        Ok(kept)
    }

    /// A name that no sandbox here has had.
    pub(crate) fn name(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("bench-{}", self.names.get())
    }

    /// Forgets every result and all that was packed, as if no workspace had been seen.
    pub(crate) fn forget(&self) -> Result<()> {
        self.ask(&self.dir, &["purge", "--yes"])?;
        remove(&self.dir.join("data/cache/workspaces"))
    }

    /// Why efimera's machines are emulated; nothing where they run on KVM.
    pub(crate) fn why_no_kvm(&self) -> Result<Option<String>> {
        // Its exit code says whether machines can start, which they could a moment ago.
        let mut doctor = self.efimera(&self.dir.join("home"), &["doctor", "--json"]);
        let document: Value = serde_json::from_slice(&doctor.output()?.stdout)?;
        let findings = document["findings"].as_array();
        let mut findings = findings.into_iter().flatten();
        Ok(
            match findings.find(|finding| finding["what"] == "processor") {
                Some(finding) if finding["ok"] == true => None,
                Some(finding) => Some(finding["text"].as_str().unwrap_or_default().to_owned()),
                None => Some("`efimera doctor` says nothing of it".to_owned()),
            },
        )
    }

    /// How far we are, for whoever waits.
    #[expect(
        clippy::print_stderr,
        reason = "a command for developers, not the product"
    )]
    pub(crate) fn say(&self, line: &str) {
        eprintln!("# {line}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            self.say(&format!("not everything could be removed: {error:#}"));
        }
    }
}

/// An efimera that runs in the background.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Waits until it has printed this line.
    pub(crate) fn wait_for(&mut self, wanted: &str) -> Result<()> {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            if self.output.read_line(&mut line)? == 0 {
                bail!("`{wanted}` was not printed");
            }
        }
        Ok(())
    }

    /// Waits for its end; it has to succeed.
    pub(crate) fn end(self) -> Result<()> {
        let status = self.wait()?;
        if !status.success() {
            bail!("a run in the background ended with {status}");
        }
        Ok(())
    }

    /// Waits for its end, whatever that is.
    pub(crate) fn wait(mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

/// A machine that stays.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    lab: &'a Lab,
    name: String,
    directory: PathBuf,
}

impl Kept<'_> {
    /// What a command in it prints.
    pub(crate) fn exec(&self, words: &[&str]) -> Result<String> {
        let all = [&["exec", &self.name], words].concat();
        self.lab.ask(&self.directory, &all)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How long it took from its supervisor's start until the guest said that it was ready.
    pub(crate) fn boot(&self) -> Result<Duration> {
        let boot = self.inspect()?["sandbox"]["boot_ms"]
            .as_u64()
            .context("`efimera inspect` does not say how long the boot took")?;
        Ok(Duration::from_millis(boot))
    }

    /// Ends it, and says how long it took until nothing was left but the result.
    pub(crate) fn end(&self) -> Result<Duration> {
        time(
            &mut self
                .lab
                .efimera(&self.directory, &["rm", "--force", &self.name]),
        )
    }

    /// What is known about it.
    pub(crate) fn inspect(&self) -> Result<Value> {
        let text = self.lab.ask(&self.directory, &["inspect", &self.name])?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        // It may have been ended before.
        drop(self.end());
        if let Err(error) = self.lab.ask(&self.directory, &["discard", &self.name]) {
            self.lab.say(&format!("{error:#}"));
        }
    }
}

/// How long a program takes from its start to its end; it has to succeed. What it prints is thrown away.
pub(crate) fn time(command: &mut Command) -> Result<Duration> {
    timed_output(command).map(|(_, took)| took)
}

/// The same, with what it printed.
pub(crate) fn timed_output(command: &mut Command) -> Result<(String, Duration)> {
    let begun = Instant::now();
    let output = command
        .output()
        .with_context(|| format!("can't start `{}`", command.get_program().display()))?;
    let took = begun.elapsed();
    if !output.status.success() {
        bail!(
            "`{}` ended with {}: {}",
            command.get_program().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), took))
}

pub(crate) fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| path.display().to_string())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// How long a program goes on after it has printed the line `marker`; it has to print it, and to succeed.
pub(crate) fn run_to_marker(command: &mut Command, marker: &str) -> Result<Duration> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("can't start `{}`", command.get_program().display()))?;
    let stdout = child.stdout.take().context("no standard output")?;
    let mut marked = None;
    for line in BufReader::new(stdout).lines() {
        if line? == marker {
            marked = Some(Instant::now());
        }
    }
    let status = child.wait()?;
    let ended = Instant::now();
    if !status.success() {
        bail!("`{}` ended with {status}", command.get_program().display());
    }
    let marked = marked.with_context(|| format!("`{marker}` was not printed"))?;
    Ok(ended.duration_since(marked))
}
