//! What is said on a stream: the request that opens it, and the messages both ways.
//!
//! Everything is encoded with postcard. Strings that come from or go to a file system or a command are byte
//! vectors, since neither has to be UTF-8. Decoding checks nothing but the form: paths, counts and texts from a
//! guest are checked by whoever uses them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Opens a stream from the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who the machine is and where the workspace goes. The first request, once. Answer: [`Reply::Ready`] or
    /// [`Reply::Failed`].
    Setup(Setup),
    /// Runs a command. Answers: [`Reply::Started`], data on channels 1 and 2 (1 alone with a terminal), then
    /// [`Reply::Exited`]; or [`Reply::Failed`]. Takes data on channel 0 and [`Control`] messages.
    Exec(Exec),
    /// Lists directories. Answers: [`Reply::Entries`], one or more for each directory in the order asked, the
    /// last of each with `last` set, or [`Reply::Failed`], which takes the place of the rest of a directory; then
    /// close. A directory that nobody changed is not in the upper layer: listed there it fails with ENOENT.
    List {
        /// Where the paths start.
        tree: Tree,
        /// At most [`MAX_BATCH`] directories.
        dirs: Vec<ListDir>,
    },
    /// Reads regular files. Answers for each in the order asked: [`Reply::File`], data on channel 1 up to the size
    /// in it, [`Reply::FileEnd`]; or [`Reply::Failed`], which takes the place of what was still to come of the
    /// file; then close. Both states are those of the merged tree, whose inode numbers are not the upper layer's.
    Read {
        /// Where the paths start.
        tree: Tree,
        /// At most [`MAX_BATCH`] paths.
        paths: Vec<Vec<u8>>,
    },
    /// Writes one file, link or directory, owned by the workspace's user, into a directory that is there; or
    /// removes what is there (an empty directory at most), when the kind is [`FileKind::Whiteout`]. Takes a
    /// file's bytes on channel 0 up to its end; only then the file appears, in place of what had its name.
    /// Answer: [`Reply::Done`] or [`Reply::Failed`].
    Write {
        /// Where the path starts.
        tree: Tree,
        /// What to write.
        path: Vec<u8>,
        /// Its kind.
        kind: FileKind,
        /// Permission bits.
        mode: u32,
        /// A link's target.
        target: Vec<u8>,
    },
    /// Ends every session: SIGTERM, and SIGKILL `grace_ms` milliseconds later. Answer: [`Reply::Done`] once no
    /// process but PID 1 (and kernel threads) is left.
    EndSessions {
        /// Milliseconds between the two signals.
        grace_ms: u32,
    },
    /// Flushes file systems and powers off. No answer: the machine goes.
    PowerOff,
    /// Runs programs one after the other as root, for what they leave in memory: their code, libraries and
    /// directories. Before [`Request::Setup`] only. What they print is dropped, how they end makes no difference, and
    /// one that doesn't end is killed. Answer: [`Reply::Done`].
    Warm {
        /// At most [`MAX_BATCH`] commands, each a program's name and its arguments.
        commands: Vec<Vec<Vec<u8>>>,
    },
    /// The machine is about to be frozen into a template. Before [`Request::Setup`] only. Answer: [`Reply::Done`];
    /// after it the guest forgets the connection, and says nothing until a host speaks to it: a clone's host, which
    /// begins with its own preamble.
    Freeze,
    /// The machine is about to be saved with all that runs in it, and goes on here, in a clone, or in both. Answer:
    /// [`Reply::Held`]; after it the guest sends nothing and hears nothing but [`Wake`] on this stream, which is
    /// answered with [`Reply::Done`] or [`Reply::Failed`]. All streams go on then, as they were.
    Hold,
    /// Sets the machine's clock: the host's has jumped, or the host slept. Answer: [`Reply::Done`] or
    /// [`Reply::Failed`].
    SetClock {
        /// Nanoseconds since 1970.
        clock_ns: u64,
    },
    /// Runs a fixed amount of plain arithmetic, and says how long it took: compared with the same on the host
    /// it gives the emulator's factor. Answer: [`Reply::Spun`].
    Spin {
        /// Rounds.
        rounds: u64,
    },
}

/// Directories or files in one request.
pub const MAX_BATCH: usize = 64;

/// A part of the guest's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tree {
    /// The workspace, as its overlay shows it. Paths are relative to it.
    Workspace,
    /// The whole root. Paths are absolute.
    Root,
}

/// One directory to list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDir {
    /// Relative to the tree; empty for its root.
    pub path: Vec<u8>,
    /// True: everything that the merged directory holds. False (workspace only): only what the upper layer
    /// holds of it, that is what was created, changed, opened for writing, or deleted ([`FileKind::Whiteout`]).
    pub whole: bool,
}

/// Tells a machine who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Host name.
    pub hostname: Vec<u8>,
    /// The user that owns the workspace and runs commands.
    pub user: User,
    /// Absolute path of the workspace, the same as on the host.
    pub workspace: Vec<u8>,
    /// Nanoseconds since 1970.
    pub clock_ns: u64,
    /// Fresh random bytes for the kernel's pool.
    pub seed: Vec<u8>,
    /// The host's zone as a name below `/usr/share/zoneinfo`; empty for UTC.
    pub timezone: Vec<u8>,
    /// The host takes back memory that is free: it is the machine's own.
    pub give_back: bool,
    /// There is a network card, and everything at its other end is refused unless it is allowed.
    pub network: bool,
}

/// An ordinary user of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Login name.
    pub name: Vec<u8>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Home directory.
    pub home: Vec<u8>,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments; empty for the user's login shell. A program without a slash is looked for in
    /// the environment's `PATH`.
    pub argv: Vec<Vec<u8>>,
    /// Variables set on top of the guest's defaults.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; empty for the workspace.
    pub cwd: Vec<u8>,
    /// Who runs it.
    pub user: RunAs,
    /// With a terminal of this size.
    pub tty: Option<TtySize>,
    /// Whether channel 0 is connected; without it standard input is empty.
    pub stdin: bool,
}

/// Who runs a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunAs {
    /// The user of [`Setup`].
    User,
    /// A name or number, `:group` allowed, as docker's `-u` takes it; looked up in the image.
    Named(Vec<u8>),
}

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// From the host on an open [`Request::Exec`] stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// The terminal has a new size.
    Resize(TtySize),
    /// Sends a signal (Linux x86-64 numbers) to the session's foreground process group.
    Signal(u8),
}

/// From the host on an open [`Request::Hold`] stream: time has passed, and the machine may be another one now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// Nanoseconds since 1970.
    pub clock_ns: u64,
    /// Fresh random bytes for the kernel's pool.
    pub seed: Vec<u8>,
    /// The host name of a clone, which gets a machine-id of its own, too. `None` for a machine that stays who it is.
    pub hostname: Option<Vec<u8>>,
    /// As in [`Setup`].
    pub give_back: bool,
}

/// What a path in the guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Directory that the upper layer made anew or moved here: nothing (or something else) of the lower layer
    /// shows through, so it has to be listed whole.
    FreshDir,
    /// Symbolic link.
    Symlink,
    /// The lower layer's entry of this name is deleted.
    Whiteout,
    /// Device, FIFO or socket.
    Other,
}

/// What `lstat` says of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, `0o7777`.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Inode number on its file system.
    pub ino: u64,
    /// Names of this inode.
    pub nlink: u32,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Change time in nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// One name of a listed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// A single component.
    pub name: Vec<u8>,
    /// What it is.
    pub stat: Stat,
    /// A link's target; empty for others.
    pub target: Vec<u8>,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The machine is set up.
    Ready(Ready),
    /// It could not be done.
    Failed(Failure),
    /// The command runs.
    Started {
        /// Its process id in the guest.
        pid: u32,
    },
    /// The command is done; all of its output came before this.
    Exited(Exit),
    /// A part of a listing.
    Entries {
        /// Which of the request's directories.
        index: u32,
        /// Its entries, in no order.
        entries: Vec<ListEntry>,
        /// Nothing more follows for this directory.
        last: bool,
    },
    /// A file's bytes follow; its state when it was opened.
    File(Stat),
    /// All bytes came; its state after the last of them.
    FileEnd(Stat),
    /// It is done.
    Done,
    /// Nothing more comes before [`Wake`].
    Held,
    /// [`Request::Spin`] took so long.
    Spun {
        /// Nanoseconds by the guest's monotonic clock.
        nanos: u64,
        /// The result of the arithmetic, so that it can't be left out.
        value: u64,
    },
}

/// What a machine says of itself when it is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The kernel's release.
    pub kernel: Vec<u8>,
    /// Milliseconds from power-on to this answer, by the guest's clock.
    pub uptime_ms: u64,
}

/// Something failed in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was being done, for a person.
    pub what: Vec<u8>,
    /// The system's error number (Linux), or 0.
    pub errno: i32,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// Bytes that are not the wanted message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("A message can't be decoded")]
pub struct DecodeError;

/// The bytes of a request or message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Writing plain data to a growing vector can't fail.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// The request or message that `bytes` hold, all of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(DecodeError),
    }
}
