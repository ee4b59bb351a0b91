//! A clean home with efimera in it: an empty environment, own directories, the images that the whole test run
//! shares.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A home of its own, thrown away at the end of the test.
#[derive(Debug)]
pub struct Env {
    dir: TempDir,
    program: PathBuf,
}

/// What a command gave.
#[derive(Debug)]
#[must_use = "look at it, or call `ok`"]
pub struct Ran {
    /// Exit code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error, with the directory of the test replaced by `$ENV`.
    pub stderr: String,
}

/// Where the shared image and kernel are, prepared by `cargo xtask test`.
pub const DATA: &str = "EFIMERA_TEST_DATA";
/// Another efimera than the one that was built with the test, for running as another user.
pub const PROGRAM: &str = "EFIMERA_TEST_PROGRAM";

impl Env {
    /// A clean home for the efimera that was built at `program` (`env!("CARGO_BIN_EXE_efimera")`).
    ///
    /// # Panics
    /// When the test data is missing: these tests are never skipped.
    pub fn new(program: &str) -> Self {
        let env = Self::without_data(program);
        let data = variable(DATA).unwrap_or_else(|| {
            panic!(
                "these tests boot real machines: run them by `cargo xtask test`, which sets {DATA}"
            )
        });
        for part in ["images", "kernels", "scratch", "templates"] {
            fs::create_dir_all(data.join(part)).ok();
            symlink(data.join(part), env.data().join(part)).unwrap();
        }
        env
    }

    /// A clean home without image and kernel, as on a computer that was never set up.
    ///
    /// # Panics
    /// When the directory can't be made.
    pub fn without_data(program: &str) -> Self {
        // Short, since the sockets of a sandbox lie below it.
        let dir = tempfile::Builder::new().prefix("efi-").tempdir().unwrap();
        for part in ["home", "data", "work"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        let identity = "[user]\n\tname = Tester\n\temail = tester@localhost\n";
        fs::write(dir.path().join("home/.gitconfig"), identity).unwrap();
        Self {
            dir,
            program: variable(PROGRAM).unwrap_or_else(|| PathBuf::from(program)),
        }
    }

    /// Everything of this test lies below it.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// efimera's data directory.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The user's home.
    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// A directory to work in.
    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// A program with the environment of this home and nothing else.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.home())
            .env("EFIMERA_HOME", self.data())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LC_ALL", "C.UTF-8")
            .env("USER", "tester")
            .stdin(Stdio::null());
        command
    }

    /// `efimera` with these words, to be started in `directory`.
    pub fn efimera_command<S: AsRef<OsStr>>(&self, directory: &Path, words: &[S]) -> Command {
        let mut command = self.command(&self.program);
        command.args(words).current_dir(directory);
        command
    }

    /// Runs `efimera` with these words in `directory` to its end.
    pub fn efimera<S: AsRef<OsStr>>(&self, directory: &Path, words: &[S]) -> Ran {
        self.ran(&self.efimera_command(directory, words).output().unwrap())
    }

    /// Starts `efimera` with these words in `directory`, its output in pipes.
    pub fn start<S: AsRef<OsStr>>(&self, directory: &Path, words: &[S]) -> Child {
        self.efimera_command(directory, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Makes output readable.
    pub fn ran(&self, output: &Output) -> Ran {
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes).replace(&*self.path().to_string_lossy(), "$ENV")
        };
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Runs git in `directory`; it has to succeed.
    pub fn git(&self, directory: &Path, words: &[&str]) -> String {
        let output = self
            .command("git")
            .args(["-c", "init.defaultBranch=main"])
            .args(words)
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "git {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A git repository of that name with one commit: a script, two sources, a link, an ignore file.
    pub fn repository(&self, name: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let root = self.work().join(name);
        fs::create_dir_all(root.join("src")).unwrap();
        fs::write(root.join("src/paint.py"), "colour = 'red'\n").unwrap();
        fs::write(root.join("src/brush.py"), "width = 3\n").unwrap();
        fs::write(
            root.join("build.sh"),
            "#!/bin/sh\nmkdir -p out && cp src/*.py out/\n",
        )
        .unwrap();
        fs::set_permissions(root.join("build.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join(".gitignore"), "out/\n*.log\n").unwrap();
        symlink("src/paint.py", root.join("latest")).unwrap();
        self.git(&root, &["init", "--quiet"]);
        self.git(&root, &["add", "."]);
        self.git(&root, &["commit", "--quiet", "--message", "Begin"]);
        root
    }

    /// Process ids of everything that still runs efimera or a machine out of this home.
    pub fn processes(&self) -> Vec<u32> {
        let mark = self.path().to_string_lossy().into_owned();
        let own = std::process::id();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let Ok(words) = fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            if pid != own && String::from_utf8_lossy(&words).contains(&mark) {
                found.push(pid);
            }
        }
        found
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // A test that failed in the middle may leave a machine that would go on for hours.
        if std::thread::panicking() {
            for pid in self.processes() {
                let pid = i32::try_from(pid)
                    .ok()
                    .and_then(rustix::process::Pid::from_raw);
                if let Some(pid) = pid {
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
                }
            }
        }
    }
}

impl Ran {
    /// It has to have succeeded; gives its standard output.
    ///
    /// # Panics
    /// When it hasn't.
    pub fn ok(self) -> String {
        assert_eq!(
            self.code, 0,
            "stdout: {}\nstderr: {}",
            self.stdout, self.stderr
        );
        self.stdout
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests' own settings")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
