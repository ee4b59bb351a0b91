use crate::confinement::Confinement;
use crate::posture::Posture;
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that runs inside its confinement.
#[derive(Debug)]
pub struct Confined {
    /// The process. Dropping it neither ends nor reaps it.
    pub child: Child,
    /// Which layers are on.
    pub posture: Posture,
}

/// The confined process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The role itself could not be started.
    #[error("Can't start `{role}`")]
    Start {
        /// The command.
        role: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The conversation with the role broke.
    #[error("Lost the process that should confine `{program}`")]
    Channel {
        /// The program that should run.
        program: String,
        /// What happened.
        source: io::Error,
    },
    /// The role says why it didn't execute the program.
    #[error("Can't run `{program}` confined: {reason}")]
    Refused {
        /// The program that should run.
        program: String,
        /// The role's words.
        reason: String,
    },
}

/// What the role is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) confinement: Confinement,
    /// Descriptors that stay open, by the numbers that they have in the starter and the role alike.
    pub(crate) descriptors: Vec<RawFd>,
    /// The starter, which must still live when the death signal is set.
    pub(crate) parent: u32,
}

/// What the role answers: at most one of each, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Confined(Posture),
    Failed(String),
}

/// How long the role may take. It is a few dozen system calls: on a host that can't do them in this time,
/// nothing else works either.
const LONGEST_START: Duration = Duration::from_secs(20);

/// The longest report: a posture or one line of error.
const MAX_REPORT: u64 = 64 * 1024;

/// Starts `role` (a command whose last argument, added here, is handed to [`crate::enter`]), has it confine
/// itself, and returns when the program has been executed or could not be.
///
/// The program inherits `descriptors` under the numbers that they have here, standard input and output are empty,
/// and `stderr` takes its complaints. The calling thread must live as long as the program: the kernel counts the
/// end of that thread as the parent's death.
pub fn spawn(
    role: &[OsString],
    confinement: Confinement,
    descriptors: &[BorrowedFd<'_>],
    stderr: Stdio,
) -> Result<Confined, SpawnError> {
    let program = confinement.program.display().to_string();
    let channel_error = |source| SpawnError::Channel {
        program: program.clone(),
        source,
    };
    let (mut ours, theirs) = UnixStream::pair().map_err(channel_error)?;
    let kept: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();

    let mut child = start(role, &kept, theirs, stderr)?;
    let order = Order {
        confinement,
        descriptors: kept,
        parent: std::process::id(),
    };
    let outcome = converse(&mut ours, &order).map_err(channel_error);
    let failure = match outcome {
        Ok(Outcome {
            posture: Some(posture),
            failed: None,
        }) => return Ok(Confined { child, posture }),
        Ok(Outcome {
            failed: Some(reason),
            ..
        }) => SpawnError::Refused { program, reason },
        Ok(Outcome {
            posture: None,
            failed: None,
        }) => channel_error(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended without a word",
        )),
        Err(error) => error,
    };
    // Neither can fail for a child that was not waited for yet, and the first failure is the one to tell.
    drop(child.kill());
    drop(child.wait());
    Err(failure)
}

#[expect(
    unsafe_code,
    reason = "descriptors must be made inheritable after the fork, in the child alone"
)]
fn start(
    role: &[OsString],
    kept: &[RawFd],
    channel: UnixStream,
    stderr: Stdio,
) -> Result<Child, SpawnError> {
    let mut inherited = kept.to_vec();
    inherited.push(channel.as_raw_fd());
    let failed = |source| SpawnError::Start {
        role: role
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" "),
        source,
    };
    let (program, arguments) = role.split_first().ok_or_else(|| {
        failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no command is given",
        ))
    })?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(channel.as_raw_fd().to_string())
        .env_clear();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let make_inheritable = move || {
        for &number in &inherited {
            // SAFETY: the numbers are those of open descriptors that the caller of `spawn` and `start` hold
            // until the child has been started.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and execute the closure makes one system call for each number and neither allocates,
    // locks nor panics.
    unsafe { command.pre_exec(make_inheritable) };
    let child = command.spawn().map_err(failed)?;
    drop(channel);
    Ok(child)
}

struct Outcome {
    posture: Option<Posture>,
    failed: Option<String>,
}

fn converse(channel: &mut UnixStream, order: &Order) -> io::Result<Outcome> {
    channel.set_write_timeout(Some(LONGEST_START))?;
    channel.set_read_timeout(Some(LONGEST_START))?;
    channel.write_all(&serde_json::to_vec(order)?)?;
    channel.shutdown(Shutdown::Write)?;
    let mut text = String::new();
    channel.take(MAX_REPORT).read_to_string(&mut text)?;
    let mut outcome = Outcome {
        posture: None,
        failed: None,
    };
    for line in text.lines() {
        match serde_json::from_str(line)? {
            Report::Confined(posture) => outcome.posture = Some(posture),
            Report::Failed(reason) => outcome.failed = Some(reason),
        }
    }
    Ok(outcome)
}
