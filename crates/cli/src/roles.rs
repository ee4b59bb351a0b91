//! The hidden roles: the same binary as supervisor, as QEMU's jailer, and as the probe of KVM. They are started
//! by efimera only, never typed.

use crate::accel;
use crate::error::CommandError;
use crate::launcher::QemuLauncher;
use crate::ui::Ui;
use base::Name;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store::{Dirs, Lock, Store};
use supervisor::{Resume, Start};

/// A role and the words that came with it.
#[derive(Debug)]
pub(crate) enum Role<'a> {
    /// `__supervise DATA CACHE RUN NAME TIMEZONE [restore|fork SNAPSHOT]`, with the first client's socket as standard input and the
    /// sandbox's lock as standard output.
    Supervise(&'a [OsString]),
    /// `__vmm DESCRIPTOR`, as `machine` starts it.
    Vmm(&'a [OsString]),
    /// `__probe-kvm`
    ProbeKvm,
}

impl<'a> Role<'a> {
    /// The role that these words (the program's name first) ask for, if any.
    pub(crate) fn of(words: &'a [OsString]) -> Option<Self> {
        match words.get(1)?.to_str()? {
            "__supervise" => Some(Self::Supervise(&words[2..])),
            "__vmm" => Some(Self::Vmm(&words[2..])),
            "__probe-kvm" => Some(Self::ProbeKvm),
            _ => None,
        }
    }
}

/// The program and first word that play a role: always this very binary, whatever has become of its path.
pub(crate) fn command(role: &str) -> Vec<OsString> {
    vec![OsString::from("/proc/self/exe"), OsString::from(role)]
}

fn path(words: &[OsString], at: usize) -> PathBuf {
    words
        .get(at)
        .map(|word| Path::new(word).to_owned())
        .unwrap_or_default()
}

fn text(words: &[OsString], at: usize) -> String {
    words
        .get(at)
        .map(|word: &OsString| OsStr::to_string_lossy(word).into_owned())
        .unwrap_or_default()
}

fn code(ok: bool) -> ExitCode {
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl Role<'_> {
    /// Plays it to its end.
    pub(crate) fn play(self) -> ExitCode {
        match self {
            Self::Supervise(words) => code(supervise(words).is_ok()),
            Self::Vmm(words) => {
                // Returns only if it failed, and then its starter has been told.
                drop(jail::enter(&words.first().cloned().unwrap_or_default()));
                ExitCode::FAILURE
            }
            Self::ProbeKvm => code(
                Ui::new(true, true)
                    .line(machine::probe::kvm_child())
                    .is_ok(),
            ),
        }
    }
}

fn supervise(words: &[OsString]) -> Result<(), CommandError> {
    // In a session of its own, so that neither Ctrl-C nor the end of the terminal reaches it.
    rustix::process::setsid()?;
    let client = inherited(std::io::stdin())?;
    let lock = inherited(std::io::stdout())?;
    let nothing = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    let dirs = Dirs {
        data: path(words, 0),
        cache: path(words, 1),
        run: path(words, 2),
    };
    let name: Name = text(words, 3).parse()?;
    let qemu = accel::kept_qemu(&dirs.cache)?;
    let mut launcher = QemuLauncher::new(dirs.data.clone(), qemu, command("__vmm"));
    let start = Start {
        store: Store::open(dirs)?,
        name,
        lock: Lock::inherited(lock)?,
        first_client: Some(UnixStream::from(client)),
        timezone: text(words, 4),
        resume: words.get(6).map(|directory| Resume {
            directory: PathBuf::from(directory),
            fork: text(words, 5) == FORK,
        }),
    };
    supervisor::run(start, &mut launcher)?;
    Ok(())
}

/// The word for a machine that becomes another one than it was.
pub(crate) const FORK: &str = "fork";
/// The word for one that stays who it is.
pub(crate) const RESTORE: &str = "restore";

/// An inherited descriptor, moved away from the standard ones.
fn inherited(fd: impl AsFd) -> std::io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
}
