//! What the command line and a supervisor say to each other: the same frames as between host and guest
//! ([`wire::Mux`], the command line being the opener), with these requests and notes on them.

use serde::{Deserialize, Serialize};
use store::Label;
use wire::message::{Exec, Exit, Request};

/// Opens a stream from the command line to a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Runs the sandbox's own command, once; the machine may still be starting. Answers: [`Note::Booting`],
    /// [`Note::Started`], data on channels 1 and 2, [`Note::Exited`], and (unless the sandbox is kept)
    /// [`Note::Saved`] when the result is written and the machine gone; then close. Takes data on channel 0
    /// and encoded [`wire::message::Control`] messages. When this stream's connection is lost, the sandbox's
    /// `tty`, `detached` and `linger` decide what happens.
    Run {
        /// The command.
        exec: Exec,
        /// Output goes to the result's log only, and the stream ends after [`Note::Started`].
        detach: bool,
    },
    /// Runs one more command in the machine. Answers as for `Run`, without `Saved`.
    Exec(Exec),
    /// A `List`, `Read` or `Write` for the guest (for `cp`), or a `Spin`. Messages are passed on as [`Note::Reply`], data
    /// and ends as they are.
    Files(Request),
    /// Waits for the end of the sandbox's own command. Answer: [`Note::Exited`], then close.
    Wait,
    /// Takes a checkpoint now. Answer: [`Note::Saved`] or [`Note::Failed`].
    Checkpoint,
    /// Ends the command, saves the result, and powers the machine off. Answer: [`Note::Saved`].
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u32,
        /// A kept sandbox goes away too, scratch disk and all (`rm`).
        remove: bool,
    },
    /// Freezes the machine with all that runs in it, and lets it go on. Answer: [`Note::Saved`] or [`Note::Failed`].
    Snapshot(Label),
    /// Puts a frozen machine in the place of the running one; sessions that were there then go on with their clients,
    /// others end. Answer: [`Note::Saved`] or [`Note::Failed`], after which the running one goes on.
    Restore(Label),
    /// What the supervisor knows. Answer: [`Note::Status`].
    Status,
    /// Waits until the machine is set up (for `start`). Answers: [`Note::Booting`] while it isn't,
    /// [`Note::Started`], then close; or [`Note::Failed`].
    Ready,
}

/// From a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// The machine is starting.
    Booting,
    /// The command runs.
    Started,
    /// The command is done; all of its output came before this.
    Exited(End),
    /// The result holds everything up to now.
    Saved,
    /// It could not be done: a sentence, and what to type next.
    Failed {
        /// What happened.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    /// An encoded [`wire::message::Reply`] of the guest, passed on unread.
    Reply(Vec<u8>),
    /// See [`Status`].
    Status(Status),
}

/// How a command ended, as its client is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// By itself.
    Exit(Exit),
    /// It could not be started: 126 (not executable) or 127 (not found), and a sentence.
    NotStarted(u8, String),
    /// `--timeout` was over.
    TimedOut,
    /// The machine was stopped under it.
    Stopped,
    /// The machine died: a sentence.
    Crashed(String),
}

/// A running sandbox in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process id of QEMU.
    pub vmm_pid: Option<u32>,
    /// Milliseconds from the supervisor's start to the guest's `Ready`; 0 before.
    pub boot_ms: u64,
    /// Clients connected, this one included.
    pub clients: u32,
    /// Sessions running in the machine.
    pub sessions: u32,
    /// Seconds since the last checkpoint; `None` before the first.
    pub checkpoint_age: Option<u64>,
    /// The end of the console's ring buffer.
    pub console: Vec<u8>,
}
