//! What is written down about a sandbox and its result. Both are JSON documents with a `version`; unknown
//! fields of a newer version are an error, never guessed at.

use base::{Digest, Name, RelPath, Size};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a sandbox was asked to be; fixed once it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name, and that of its result.
    pub name: Name,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// The host directory that was given.
    pub workspace: PathBuf,
    /// Where in the workspace the command starts.
    pub cwd: RelPath,
    /// Program and arguments as printable text, for listings; what is run comes over the control socket.
    pub command: Vec<String>,
    /// Names of the variables that were given (never their values).
    pub variables: Vec<String>,
    /// The baseline's directory name below `baselines/`.
    pub baseline: String,
    /// The result that this machine continues from.
    pub from: Option<Name>,
    /// Base image.
    pub image: Digest,
    /// Kernel's directory name below `kernels/`.
    pub kernel: String,
    /// The template that its machine starts from; `None` for one that boots.
    pub template: Option<String>,
    /// Virtual processors.
    pub cpus: u32,
    /// Memory.
    pub memory: Size,
    /// Size limit of the scratch disk.
    pub disk: Size,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Stays after its command has ended.
    pub keep: bool,
    /// Has a terminal: a lost client doesn't end it before `linger` is over.
    pub tty: bool,
    /// Runs without a client from the start (`-d`).
    pub detached: bool,
    /// How long it goes on without a client, in seconds.
    pub linger: u64,
    /// When the command is ended, in seconds after its start; 0 for never.
    pub timeout: u64,
    /// Globs of ignored paths that come out all the same.
    pub artifacts: Vec<String>,
    /// The user in the machine.
    pub user: GuestUser,
    /// Whose fork or which attempt it is: sandboxes of one group tried the same, and their results are compared. The
    /// group has the name of its first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
}

impl Spec {
    /// The name of its group: of the sandbox that was forked, or of the first of several attempts.
    pub fn group_name(&self) -> &Name {
        self.group.as_ref().unwrap_or(&self.name)
    }
}

/// The user that owns the workspace inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestUser {
    /// Login name.
    pub name: String,
    /// User id, never 0.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Where in its life a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The record is there, the supervisor is not yet.
    Created,
    /// The machine starts.
    Booting,
    /// Its command runs.
    Running,
    /// Kept, and no command of its own runs.
    Idle,
    /// The result is being brought out.
    Saving,
    /// Kept and powered off; its scratch disk waits for `start`.
    Stopped,
    /// Its supervisor is gone without a farewell; healed by whoever sees it next.
    Crashed,
}

/// A sandbox's record: `sandboxes/NAME/record.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Format, [`VERSION`].
    pub version: u32,
    /// What it was asked to be.
    pub spec: Spec,
    /// Where it is.
    pub state: State,
    /// Process ids of the supervisor and of QEMU, for people and tests; liveness is told by the lock.
    pub supervisor_pid: Option<u32>,
    /// See above.
    pub vmm_pid: Option<u32>,
    /// Layers of the jail that are on, and those that could not be put on.
    pub jail: Vec<String>,
    /// See above.
    pub jail_missing: Vec<String>,
}

/// The version of both documents.
pub const VERSION: u32 = 1;

/// How the command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Its own exit code.
    Exited(u8),
    /// A signal.
    Signalled(u8),
    /// It could not be started: 126 or 127, and why.
    NotStarted(u8, String),
    /// `--timeout` was over.
    TimedOut,
    /// `stop`, `rm`, Ctrl-C twice, or the end of `linger`.
    Stopped,
    /// The machine or its supervisor died: what happened, for a person.
    Crashed(String),
}

/// How much of the work a result holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Completeness {
    /// The machine still runs; this is its last checkpoint.
    Running,
    /// Everything up to the end.
    Complete,
    /// Everything up to the last checkpoint, some seconds before the end.
    Checkpoint,
    /// The machine never came up, or died before the first checkpoint: nothing came out.
    Nothing,
}

/// A result's head: `results/NAME/result.json`. Its change set is in `changes.json` beside it, contents in
/// `blobs/`, output in `output/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultHead {
    /// Format, [`VERSION`].
    pub version: u32,
    /// What was asked.
    pub spec: Spec,
    /// How its command ended; `None` while it runs.
    pub ending: Option<Ending>,
    /// How much it holds.
    pub completeness: Completeness,
    /// When the last checkpoint was taken, in seconds since 1970; 0 before the first.
    pub saved: i64,
    /// When it ended, in seconds since 1970; 0 before.
    pub ended: i64,
    /// Ignored paths that changed inside and stay there.
    pub ignored: u64,
    /// Names that were refused (`.git` aliases, devices …), printable, a bounded list.
    pub refused: Vec<String>,
    /// How many were refused in all.
    pub refused_count: u64,
    /// Limits that were hit, as sentences.
    pub limits: Vec<String>,
    /// Commits made inside that are kept with the result.
    pub commits: Vec<Commit>,
    /// When it was applied to the host, in seconds since 1970.
    pub applied: Option<i64>,
}

/// A commit made in the machine, as the guest told it: inert text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Object id in hex.
    pub id: String,
    /// The first line of its message, printable.
    pub subject: String,
}
