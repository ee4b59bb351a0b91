//! The real loop against machines that are threads.

mod attacks;
mod commits;
mod fake;
mod runs;
mod snapshots;

use super::supervise;
use crate::client::{ClientError, Connection, Handler, Item, Next, Order, Pumped, connect};
use crate::control::{Command, End, Note};
use crate::given::Given;
use crate::{RunError, Start};
use base::{Digest, Name, RelPath, Size};
use fake::{Does, FakeLauncher, Files, Freeze, Guest, Script, failed, honest, ready, stat_of};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use store::{
    Completeness, Dirs, Ending, GuestUser, Healed, LogPiece, LogReader, ResultHead, Spec, State,
    Store,
};
use wire::message::{Control, Exec, Exit, Reply, Request, RunAs, decode};
use wire::{Event, StreamId};

/// No single step of a test takes longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// One test's directories and sandbox.
struct Bed {
    _dir: tempfile::TempDir,
    store: Store,
    name: Name,
    files: Files,
    terminate: Option<UnixStream>,
    finished: mpsc::Receiver<Result<(), RunError>>,
    freeze: Freeze,
}

impl Bed {
    /// A sandbox whose supervisor runs; the connection is that of its first client.
    fn start(
        change: impl FnOnce(&mut Spec),
        script: impl FnOnce(Files) -> Script,
    ) -> (Self, Connection) {
        Self::start_with(change, script, Arc::new(|_| Ok(())))
    }

    /// The same with something else to become of freezing it.
    fn start_with(
        change: impl FnOnce(&mut Spec),
        script: impl FnOnce(Files) -> Script,
        freeze: Freeze,
    ) -> (Self, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let store = Store::open(Dirs {
            data: at("data"),
            cache: at("cache"),
            run: at("run"),
        })
        .unwrap();
        let name: Name = "brisk-heron".parse().unwrap();
        let mut spec = spec(&name);
        change(&mut spec);
        let lock = store.create(spec).unwrap().lock;
        let files = Files::default();
        let (_, finished) = mpsc::channel();
        let mut bed = Self {
            _dir: dir,
            store,
            name,
            files: Arc::clone(&files),
            terminate: None,
            finished,
            freeze,
        };
        let connection = bed.supervise(lock, vec![script(files)]);
        (bed, connection)
    }

    fn supervise(&mut self, lock: store::Lock, scripts: Vec<Script>) -> Connection {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (terminate, terminated) = UnixStream::pair().unwrap();
        let (done, finished) = mpsc::channel();
        let start = Start {
            store: self.store.clone(),
            name: self.name.clone(),
            lock,
            first_client: Some(theirs),
            timezone: "Europe/Berlin".to_owned(),
            resume: None,
        };
        let freeze = Arc::clone(&self.freeze);
        let given = Given::nothing(self.result_dir().join("blobs"));
        thread::spawn(move || {
            let mut launcher = FakeLauncher { scripts, freeze };
            done.send(supervise(
                start,
                given,
                &mut launcher,
                Some(terminated.as_fd()),
            ))
            .ok();
        });
        self.terminate = Some(terminate);
        self.finished = finished;
        Connection::new(ours).unwrap()
    }

    fn result_dir(&self) -> PathBuf {
        self.store.result_dir(&self.name).path().to_owned()
    }

    fn head(&self) -> ResultHead {
        self.store.result(&self.name).unwrap()
    }

    fn state(&self) -> State {
        self.store.record(&self.name).unwrap().state
    }

    /// Waits for the supervisor's end.
    fn finish(&self) -> Result<(), RunError> {
        self.finished
            .recv_timeout(PATIENCE)
            .expect("the supervisor ends in time")
    }

    /// Waits for the supervisor's end, which has to leave nothing but the result.
    fn finish_clean(&self) -> ResultHead {
        self.finish().unwrap();
        assert!(!self.store.sandbox_dir(&self.name).exists());
        assert!(!self.store.socket_path(&self.name).exists());
        assert!(!self.store.is_alive(&self.name).unwrap());
        self.head()
    }

    /// Contents of the result by path.
    fn changes(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let text = fs_err::read(self.result_dir().join("changes.json")).unwrap();
        let set: workspace::ChangeSet = serde_json::from_slice(&text).unwrap();
        set.changes()
            .iter()
            .map(|change| {
                let digest = change.new.as_ref().and_then(|node| node.digest);
                let blob = digest.map(|digest: Digest| {
                    fs_err::read(self.result_dir().join("blobs").join(digest.hex())).unwrap()
                });
                (change.path.to_string(), blob)
            })
            .collect()
    }

    fn output(&self) -> Vec<u8> {
        let mut reader = LogReader::open(&self.result_dir().join("output"));
        let mut all = Vec::new();
        while let Some(piece) = reader.next_piece().unwrap() {
            if let LogPiece::Bytes { bytes, .. } = piece {
                all.extend(bytes);
            }
        }
        all
    }

    /// Waits until `done` holds of the result's head, looking again whenever a checkpoint was asked for.
    fn until(&self, connection: &mut Connection, done: impl Fn(&ResultHead) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.head()) {
            assert!(Instant::now() < deadline, "{:?}", self.head());
            assert_eq!(
                connection.ask(&Command::Checkpoint, soon()).unwrap(),
                Note::Saved
            );
        }
    }
}

fn spec(name: &Name) -> Spec {
    Spec {
        name: name.clone(),
        created: 1_700_000_000,
        workspace: PathBuf::from("/home/ada/shop"),
        cwd: RelPath::root(),
        command: vec!["make".to_owned()],
        variables: Vec::new(),
        baseline: "0000".to_owned(),
        from: None,
        image: Digest::of(b"image"),
        kernel: "6.1".to_owned(),
        cpus: 1,
        memory: Size::mib(512),
        disk: Size::gib(1),
        accel: "tcg".to_owned(),
        keep: false,
        tty: false,
        detached: false,
        linger: 3600,
        timeout: 0,
        template: None,
        artifacts: Vec::new(),
        user: GuestUser {
            name: "ada".to_owned(),
            uid: 1000,
            gid: 1000,
        },
        group: None,
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is handed to what takes a deadline or none"
)]
fn soon() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

fn exec(word: &str) -> Exec {
    Exec {
        argv: vec![word.as_bytes().to_vec()],
        env: Vec::new(),
        cwd: Vec::new(),
        user: RunAs::User,
        tty: None,
        stdin: true,
    }
}

fn run(word: &str) -> Command {
    Command::Run {
        exec: exec(word),
        detach: false,
    }
}

fn ends(stdout: &[u8], writes: Vec<(&'static str, Vec<u8>)>, exit: Exit) -> Does {
    Does::Ends {
        stdout: stdout.to_vec(),
        stderr: Vec::new(),
        writes,
        exit,
    }
}

/// `git` is not there; everything else does `what`.
fn only(what: Does) -> impl Fn(&Exec) -> Does + Send + 'static {
    move |exec| match exec.argv[0].as_slice() {
        b"git" => Does::Missing,
        _ => what.clone(),
    }
}

/// All that comes on a stream until its end: notes, and the bytes of channels 1 and 2.
fn drain(connection: &mut Connection, stream: StreamId) -> (Vec<Note>, Vec<u8>, Vec<u8>) {
    let (mut notes, mut stdout, mut stderr) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match connection.next(stream, soon()).unwrap() {
            Item::Note(note) => notes.push(note),
            Item::Data { channel: 1, bytes } => stdout.extend(bytes),
            Item::Data { bytes, .. } => stderr.extend(bytes),
            Item::Finished(_) => {}
            Item::Closed => return (notes, stdout, stderr),
        }
    }
}

fn exited(code: u8) -> Note {
    Note::Exited(End::Exit(Exit::Code(code)))
}

/// Answers `Setup`, and gives the stream of the first command, which it starts.
fn reach_exec(guest: &mut Guest) -> StreamId {
    loop {
        if let Event::Opened { id, payload } = guest.next().expect("the host asks") {
            match decode::<Request>(&payload).unwrap() {
                Request::Setup(_) => guest.answer(id, &ready()),
                Request::Exec(_) => {
                    guest.reply(id, &Reply::Started { pid: 2 });
                    guest.flush().unwrap();
                    return id;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Plays along to the end, with nothing to bring out.
fn serve_end(guest: &mut Guest) {
    while let Some(event) = guest.next() {
        let Event::Opened { id, payload } = event else {
            continue;
        };
        match decode::<Request>(&payload).unwrap() {
            Request::List { dirs, .. } => {
                for index in 0..dirs.len() {
                    let index = u32::try_from(index).unwrap();
                    guest.reply(
                        id,
                        &Reply::Entries {
                            index,
                            entries: Vec::new(),
                            last: true,
                        },
                    );
                }
                guest.mux.close(id).ok();
            }
            Request::EndSessions { .. } => guest.answer(id, &Reply::Done),
            Request::PowerOff => return,
            _ => guest.answer(id, &failed("No", 2)),
        }
    }
}
