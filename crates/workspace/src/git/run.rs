//! The one place that starts git.
//!
//! Git runs with an environment that is written here to the last variable, never with the network, hooks, filters,
//! pagers or prompts, and almost always in a git directory of our own that borrows the host's objects
//! (see [`super::scratch`]), so that no configuration of the repository can say what git does.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where git is looked for when no program was named.
const USUAL_PLACES: [&str; 4] = [
    "/usr/local/bin/git",
    "/usr/bin/git",
    "/bin/git",
    "/opt/homebrew/bin/git",
];
/// The most of git's own words that is kept for a message.
const MAX_COMPLAINT: u64 = 64 << 10;
/// The most that a command may answer; the longest answer is a list of all objects of a partial clone.
const MAX_ANSWER: u64 = 4 << 30;

/// A git program, ready to be run.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    program: PathBuf,
}

/// A run of git that did not do what it was for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitFault {
    #[error("Can't start `{program}`")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("`git {command}` failed: {complaint}")]
    Failed {
        command: String,
        complaint: String,
        code: Option<i32>,
    },
    #[error("Can't talk to `git {command}`")]
    Talk {
        command: String,
        #[source]
        source: std::io::Error,
    },
}

/// Whose settings git may read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settings<'a> {
    /// None but those of the git directory itself.
    Own,
    /// The user's and the system's too, to ask what they say. The path is the user's home.
    User(Option<&'a Path>),
}

impl Git {
    /// The program that was named, or the first that stands in a usual place.
    pub(crate) fn find(named: Option<&Path>) -> Option<Self> {
        let is_program = |path: &Path| {
            path.is_absolute() && fs_err::metadata(path).is_ok_and(|meta| meta.is_file())
        };
        match named {
            Some(named) => is_program(named).then(|| named.to_path_buf()),
            None => USUAL_PLACES
                .iter()
                .map(PathBuf::from)
                .find(|path| is_program(path)),
        }
        .map(|program| Self { program })
    }

    /// A command on the git directory `git_dir`, without arguments so far.
    pub(crate) fn command(&self, git_dir: &Path, settings: Settings<'_>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", "/usr/bin:/bin");
        command
            .env("GIT_DIR", git_dir)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_LAZY_FETCH", "1");
        command
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_PAGER", "cat");
        match settings {
            Settings::Own => {
                command
                    .env("GIT_CONFIG_NOSYSTEM", "1")
                    .env("GIT_CONFIG_GLOBAL", "/dev/null");
                // Attributes can name filters; nothing that is run here looks at files, and still.
                command
                    .env("GIT_ATTR_NOSYSTEM", "1")
                    .env("HOME", "/nonexistent");
            }
            Settings::User(home) => {
                command.env("HOME", home.unwrap_or(Path::new("/nonexistent")));
            }
        }
        for setting in [
            "core.fsmonitor=false",
            "core.hooksPath=/dev/null",
            "protocol.allow=never",
            "gc.auto=0",
            // What git writes for us is copied a moment later, and thrown away.
            "core.fsync=none",
        ] {
            command.args(["-c", setting]);
        }
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Runs to the end and gives what was written to stdout. `input` goes to stdin.
pub(crate) fn output(mut command: Command, input: &[u8]) -> Result<Vec<u8>, GitFault> {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = start(&mut command)?;
    let talk = |source| GitFault::Talk {
        command: name(&command),
        source,
    };
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let mut answer = Vec::new();
    let complaint = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A child that ends early breaks the pipe; its exit code tells the story.
            stdin.map(|mut stdin| stdin.write_all(input).ok())
        });
        let complaint = scope.spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stderr) = stderr {
                stderr
                    .by_ref()
                    .take(MAX_COMPLAINT)
                    .read_to_end(&mut text)
                    .ok();
                // The rest is read too, so that the child is never stuck on a full pipe.
                std::io::copy(&mut stderr, &mut std::io::sink()).ok();
            }
            text
        });
        let read = stdout.map_or(Ok(0), |stdout| {
            stdout.take(MAX_ANSWER).read_to_end(&mut answer)
        });
        read.map(|_| complaint.join().unwrap_or_default())
    });
    let status = child.wait().map_err(talk)?;
    let complaint = complaint.map_err(talk)?;
    if status.success() {
        return Ok(answer);
    }
    Err(GitFault::Failed {
        command: name(&command),
        complaint: tidy(&complaint),
        code: status.code(),
    })
}

fn start(command: &mut Command) -> Result<Child, GitFault> {
    command.spawn().map_err(|source| GitFault::Start {
        program: base::escape(command.get_program().as_encoded_bytes()),
        source,
    })
}

/// The subcommand, for messages.
fn name(command: &Command) -> String {
    let mut arguments = command.get_args();
    while let Some(argument) = arguments.next() {
        if argument == "-c" {
            arguments.next();
        } else {
            return base::escape(argument.as_encoded_bytes());
        }
    }
    String::new()
}

/// The last line that git wrote, without its prefix.
fn tidy(complaint: &[u8]) -> String {
    let lines = complaint
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let fatal = lines
        .clone()
        .rfind(|line| line.starts_with(b"fatal: "))
        .or_else(|| lines.clone().next_back());
    let line = fatal.unwrap_or(b"it gave no reason");
    base::escape_line(line.strip_prefix(b"fatal: ").unwrap_or(line), 300)
}
