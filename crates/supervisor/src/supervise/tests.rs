//! The real loop against machines that are threads.

mod fake;
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

#[test]
fn a_command_runs_and_its_work_comes_out() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| {
            honest(
                files,
                only(Does::Ends {
                    stdout: b"made\n".to_vec(),
                    stderr: b"careful\n".to_vec(),
                    writes: vec![("report.txt", b"fine".to_vec())],
                    exit: Exit::Code(3),
                }),
            )
        },
    );
    let stream = client.open(&run("make")).unwrap();
    let (notes, stdout, stderr) = drain(&mut client, stream);
    let notes: Vec<_> = notes
        .into_iter()
        .filter(|note| *note != Note::Booting)
        .collect();
    assert_eq!(notes, [Note::Started, exited(3), Note::Saved]);
    assert_eq!(
        (stdout.as_slice(), stderr.as_slice()),
        (b"made\n".as_slice(), b"careful\n".as_slice())
    );

    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Exited(3)));
    assert_eq!(head.completeness, Completeness::Complete);
    assert!(head.saved > 0 && head.ended >= head.saved);
    assert_eq!(head.limits, Vec::<String>::new());
    assert_eq!(
        bed.changes(),
        BTreeMap::from([("report.txt".to_owned(), Some(b"fine".to_vec()))])
    );
    assert_eq!(bed.output(), b"made\ncareful\n");
}

#[test]
fn endings_are_told_as_they_are() {
    for (does, end, ending) in [
        (
            ends(b"", vec![], Exit::Code(0)),
            End::Exit(Exit::Code(0)),
            Ending::Exited(0),
        ),
        (
            ends(b"", vec![], Exit::Signal(9)),
            End::Exit(Exit::Signal(9)),
            Ending::Signalled(9),
        ),
        // A signal's number that would make an exit code above 255.
        (
            ends(b"", vec![], Exit::Signal(250)),
            End::Exit(Exit::Signal(127)),
            Ending::Signalled(127),
        ),
    ] {
        let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(does)));
        let stream = client.open(&run("x")).unwrap();
        let (notes, _, _) = drain(&mut client, stream);
        assert!(notes.contains(&Note::Exited(end)), "{notes:?}");
        assert_eq!(bed.finish_clean().ending, Some(ending));
    }
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Missing)));
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    let sentence = "Starting `git`: No such file or directory (os error 2)".to_owned();
    assert!(
        notes.contains(&Note::Exited(End::NotStarted(127, sentence.clone()))),
        "{notes:?}"
    );
    assert_eq!(
        bed.finish_clean().ending,
        Some(Ending::NotStarted(127, sentence))
    );
}

/// Keeps all output and notes.
struct Collect(Vec<u8>, Vec<Note>);
impl Handler for Collect {
    fn output(&mut self, _channel: u8, bytes: &[u8]) -> std::io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    fn note(&mut self, note: Note) -> Next {
        self.1.push(note);
        Next::Go
    }
    fn woken(&mut self) -> Vec<Order> {
        Vec::new()
    }
}

#[test]
fn input_reaches_the_command_and_its_echo_comes_back() {
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Cat)));
    let stream = client.open(&run("cat")).unwrap();
    // More than the windows of both ways together, so credit has to go round.
    let input: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7 % 251) as u8).collect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let sent = input.clone();
    let feeder = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut collect = Collect(Vec::new(), Vec::new());
    let pumped = client
        .pump(stream, Some(reader.as_fd()), None, &mut collect)
        .unwrap();
    feeder.join().unwrap();
    assert_eq!(pumped, Pumped::Closed);
    assert!(
        collect.0 == input,
        "{} of {} bytes",
        collect.0.len(),
        input.len()
    );
    assert!(collect.1.contains(&exited(0)));
    assert_eq!(bed.finish_clean().completeness, Completeness::Complete);
    assert!(bed.output() == input);
}

#[test]
fn a_lost_client_ends_a_run_without_a_terminal() {
    let writes = vec![("a", b"1".to_vec())];
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Runs { writes })));
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Stopped));
    assert_eq!(head.completeness, Completeness::Complete);
    assert_eq!(bed.changes().len(), 1);
}

#[test]
fn a_lost_terminal_does_not_end_the_work() {
    let (bed, mut client) = Bed::start(
        |spec| spec.tty = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    // It is still there, and can be talked to by name.
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let wait = other.open(&Command::Wait).unwrap();
    bed.files
        .lock()
        .unwrap()
        .insert("late".to_owned(), b"x".to_vec());
    bed.until(&mut other, |head| head.saved > 0);
    assert_eq!(bed.head().completeness, Completeness::Running);
    let stop = Command::Stop {
        grace_ms: 1000,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(
        other.next_note(wait, soon()).unwrap(),
        Some(Note::Exited(End::Stopped))
    );
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Stopped), Completeness::Complete)
    );
    assert!(bed.changes().contains_key("late"));
}

#[test]
fn linger_is_as_long_as_was_asked_for() {
    let (bed, mut client) = Bed::start(
        |spec| {
            spec.tty = true;
            spec.linger = 0;
        },
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    assert_eq!(bed.finish_clean().ending, Some(Ending::Stopped));
}

#[test]
fn a_detached_run_needs_nobody() {
    let (bed, mut client) = Bed::start(
        |spec| spec.detached = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client
        .open(&Command::Run {
            exec: exec("serve"),
            detach: true,
        })
        .unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&Note::Started));
    drop(client);
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let wait = other.open(&Command::Wait).unwrap();
    let Note::Status(status) = other.ask(&Command::Status, soon()).unwrap() else {
        panic!("a status is wanted");
    };
    assert_eq!((status.sessions, status.vmm_pid), (1, Some(4711)));
    let stop = Command::Stop {
        grace_ms: 1000,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(
        other.next_note(wait, soon()).unwrap(),
        Some(Note::Exited(End::Stopped))
    );
    assert_eq!(bed.finish_clean().ending, Some(Ending::Stopped));
}

#[test]
fn a_timeout_ends_the_command() {
    let writes = vec![("half", b"done".to_vec())];
    let (bed, mut client) = Bed::start(
        |spec| spec.timeout = 1,
        |files| honest(files, only(Does::Runs { writes })),
    );
    let stream = client.open(&run("slow")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&Note::Exited(End::TimedOut)), "{notes:?}");
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::TimedOut), Completeness::Complete)
    );
    assert!(bed.changes().contains_key("half"));
}

#[test]
fn sigterm_saves_and_goes() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    bed.terminate.as_ref().unwrap().write_all(b"x").unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes, [Note::Exited(End::Stopped), Note::Saved]);
    assert_eq!(bed.finish_clean().completeness, Completeness::Complete);
}

#[test]
fn a_signal_passes_through() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    client.control(stream, Control::Signal(2)).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes[0], Note::Exited(End::Exit(Exit::Signal(2))));
    assert_eq!(bed.finish_clean().ending, Some(Ending::Signalled(2)));
}

#[test]
fn a_kept_sandbox_stays_and_starts_again() {
    let files_of = |exec: &Exec| match exec.argv[0].as_slice() {
        b"git" => Does::Missing,
        b"cat" => Does::Cat,
        word => ends(word, vec![], Exit::Code(0)),
    };
    let (mut bed, mut client) =
        Bed::start(|spec| spec.keep = true, |files| honest(files, files_of));
    let stream = client.open(&run("make")).unwrap();
    let (notes, stdout, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&exited(0)));
    assert_eq!(stdout, b"make");
    drop(client);

    let mut other = connect(&bed.store, &bed.name).unwrap();
    assert_eq!(bed.state(), State::Idle);
    assert_eq!(other.ask(&Command::Wait, soon()).unwrap(), exited(0));
    let again = other.open(&run("make")).unwrap();
    assert!(matches!(
        drain(&mut other, again).0[..],
        [Note::Failed { .. }]
    ));
    let stream = other.open(&Command::Exec(exec("hello"))).unwrap();
    let (notes, stdout, _) = drain(&mut other, stream);
    assert_eq!(
        (notes, stdout),
        (vec![Note::Started, exited(0)], b"hello".to_vec())
    );
    bed.files
        .lock()
        .unwrap()
        .insert("new".to_owned(), b"1".to_vec());
    assert_eq!(
        other.ask(&Command::Checkpoint, soon()).unwrap(),
        Note::Saved
    );
    assert!(bed.changes().contains_key("new"));
    assert_eq!(bed.head().ending, Some(Ending::Exited(0)));
    assert_eq!(bed.head().completeness, Completeness::Running);

    let stop = Command::Stop {
        grace_ms: 0,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    bed.finish().unwrap();
    assert_eq!(bed.state(), State::Stopped);
    assert_eq!(bed.head().completeness, Completeness::Complete);
    assert!(bed.store.scratch_path(&bed.name).exists());
    assert!(matches!(
        connect(&bed.store, &bed.name),
        Err(ClientError::NotRunning(_))
    ));
    assert_eq!(bed.store.heal(&bed.name).unwrap(), Healed::AtRest);

    let lock = bed.store.lock(&bed.name).unwrap();
    let script = honest(Arc::clone(&bed.files), files_of);
    let mut client = bed.supervise(lock, vec![script]);
    assert_eq!(client.ask(&Command::Ready, soon()).unwrap(), Note::Started);
    assert_eq!(bed.state(), State::Idle);
    drop(client);
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let stop = Command::Stop {
        grace_ms: 0,
        remove: true,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Exited(0)), Completeness::Complete)
    );
}

#[test]
fn a_timeout_in_a_kept_sandbox_ends_the_command_alone() {
    let (bed, mut client) = Bed::start(
        |spec| {
            spec.keep = true;
            spec.timeout = 1;
        },
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("slow")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&Note::Exited(End::TimedOut)));
    assert_eq!(bed.state(), State::Idle);
    let stop = Command::Stop {
        grace_ms: 0,
        remove: true,
    };
    assert_eq!(client.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(bed.finish_clean().ending, Some(Ending::TimedOut));
}

#[test]
fn a_client_that_does_not_read_makes_the_command_wait() {
    const TOTAL: usize = 24 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (stalled, stall) = UnixStream::pair().unwrap();
    let script = move |_: Files| -> Script {
        Box::new(move |guest: &mut Guest| {
            let id = reach_exec(guest);
            let chunk = [b'y'; 16 * 1024];
            guest
                .stream
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let mut told = false;
            while counter.load(Ordering::SeqCst) < TOTAL {
                let room = guest.mux.room(id);
                if room == 0 {
                    guest.flush().unwrap();
                    let mut buffer = [0; 4096];
                    match std::io::Read::read(&mut guest.stream, &mut buffer) {
                        Ok(count) => guest.mux.receive(&buffer[..count]).unwrap(),
                        // Two seconds without credit: everything between here and the client is full.
                        Err(_) if !told => {
                            told = true;
                            (&stall).write_all(b"x").unwrap();
                        }
                        Err(_) => {}
                    }
                    continue;
                }
                let count = guest
                    .mux
                    .send_data(id, 1, &chunk[..room.min(chunk.len())])
                    .unwrap();
                counter.fetch_add(count, Ordering::SeqCst);
                guest.flush().unwrap();
            }
            guest.answer(id, &Reply::Exited(Exit::Code(0)));
            serve_end(guest);
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("yes")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    let mut fds = [PollFd::new(&stalled, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap(),
        1,
        "the guest was never made to wait"
    );
    let before = sent.load(Ordering::SeqCst);
    // Windows of both ways, and what the sockets hold.
    assert!(before < 3 << 20, "{before} bytes were taken from the guest");
    let (notes, stdout, _) = drain(&mut client, stream);
    assert_eq!(stdout.len(), sent.load(Ordering::SeqCst));
    assert!(notes.contains(&exited(0)));
    bed.finish_clean();
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

/// A guest that does `attack` once a first checkpoint of one file is out.
fn attacker(
    attack: impl FnOnce(&mut Guest, StreamId) + Send + 'static,
) -> impl FnOnce(Files) -> Script {
    move |_| {
        Box::new(move |guest| {
            let main = reach_exec(guest);
            let bytes = b"precious".to_vec();
            let mut read = false;
            while let Some(event) = guest.next() {
                let Event::Opened { id, payload } = event else {
                    continue;
                };
                match decode::<Request>(&payload).unwrap() {
                    Request::List { .. } if read => return attack(guest, main),
                    Request::List { .. } => {
                        let entry = wire::message::ListEntry {
                            name: b"work".to_vec(),
                            stat: stat_of(&bytes),
                            target: Vec::new(),
                        };
                        let entries = vec![entry];
                        guest.answer(
                            id,
                            &Reply::Entries {
                                index: 0,
                                entries,
                                last: true,
                            },
                        );
                    }
                    Request::Read { .. } => {
                        read = true;
                        guest.reply(id, &Reply::File(stat_of(&bytes)));
                        guest.send(id, 1, &bytes).unwrap();
                        guest.answer(id, &Reply::FileEnd(stat_of(&bytes)));
                    }
                    _ => guest.answer(id, &failed("No", 2)),
                }
            }
        })
    }
}

/// The end of a machine that broke off after its first checkpoint: the work up to there is kept.
fn check_broken_off(bed: &Bed, client: &mut Connection, stream: StreamId, why: &str) {
    let (notes, _, _) = drain(client, stream);
    let crash = notes.iter().find_map(|note| match note {
        Note::Exited(End::Crashed(why)) => Some(why.clone()),
        _ => None,
    });
    assert!(
        crash.as_ref().is_some_and(|text| text.contains(why)),
        "{notes:?}"
    );
    assert_eq!(notes.last(), Some(&Note::Saved));
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Checkpoint);
    assert!(matches!(head.ending, Some(Ending::Crashed(_))));
    assert_eq!(
        bed.changes(),
        BTreeMap::from([("work".to_owned(), Some(b"precious".to_vec()))])
    );
}

#[test]
fn a_killed_machine_keeps_its_last_checkpoint() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            guest
                .console
                .write_all(b"Kernel panic - \x1b[31mnot syncing\n")
                .unwrap();
            guest.console.write_all(&b"  frame\n".repeat(40)).unwrap();
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "the fake machine ended");
    // The console's last words are told, and can do nothing to a terminal.
    let Some(Ending::Crashed(text)) = bed.head().ending else {
        panic!("it crashed");
    };
    assert!(
        text.contains("Kernel panic - \\x1b[31mnot syncing"),
        "{text}"
    );
}

#[test]
fn garbage_from_the_guest_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            // The host may be quicker to hang up than we are to write it all.
            guest.stream.write_all(&[0xff; 4096]).ok();
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "broke the protocol");
}

#[test]
fn a_message_out_of_order_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, main| {
            guest.reply(main, &Reply::Done);
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "does not belong there");
}

#[test]
fn a_flood_without_credit_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, main| {
            let mut frame = Vec::new();
            frame.extend_from_slice(&16_384u32.to_le_bytes());
            frame.extend_from_slice(&main.0.to_le_bytes());
            frame.extend_from_slice(&[3, 1, 0, 0]);
            frame.extend_from_slice(&[b'y'; 16_384]);
            while guest.stream.write_all(&frame).is_ok() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "more than it had credit for");
}

#[test]
fn a_port_that_is_closed_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            guest.stream.shutdown(std::net::Shutdown::Write).unwrap();
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "closed its control port");
}

#[test]
fn an_endless_or_lying_listing_costs_the_checkpoint_and_nothing_else() {
    let script = |_: Files| -> Script {
        Box::new(|guest: &mut Guest| {
            let main = reach_exec(guest);
            let mut number = 0u64;
            while let Some(event) = guest.next() {
                let Event::Opened { id, payload } = event else {
                    continue;
                };
                match decode::<Request>(&payload).unwrap() {
                    Request::List { .. } if number > 0 => {
                        let (index, entries) = (5, Vec::new());
                        guest.answer(
                            id,
                            &Reply::Entries {
                                index,
                                entries,
                                last: true,
                            },
                        );
                    }
                    Request::EndSessions { .. } => guest.answer(id, &Reply::Done),
                    Request::PowerOff => return,
                    Request::List { .. } => {
                        // Names without end: the host has to stop this.
                        loop {
                            let entries = (0..100)
                                .map(|_| {
                                    number += 1;
                                    wire::message::ListEntry {
                                        name: format!("{number}").into_bytes(),
                                        stat: stat_of(b""),
                                        target: Vec::new(),
                                    }
                                })
                                .collect();
                            let part = Reply::Entries {
                                index: 0,
                                entries,
                                last: false,
                            };
                            let part = wire::message::encode(&part);
                            while guest.mux.is_open(id) && guest.mux.room(id) < part.len() {
                                if guest.next_ignored().is_none() {
                                    return;
                                }
                            }
                            if guest.mux.send_message(id, &part).is_err() {
                                break;
                            }
                            guest.flush().unwrap();
                        }
                        // It was stopped, and nothing else.
                        guest.answer(main, &Reply::Exited(Exit::Code(0)));
                    }
                    _ => guest.answer(id, &failed("No", 2)),
                }
            }
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)), "{notes:?}");
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Nothing);
    assert_eq!(head.ending, Some(Ending::Exited(0)));
    assert_eq!(head.limits, ["The guest answered a listing out of order"]);
}

#[test]
fn a_machine_that_cannot_be_started_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = Store::open(Dirs {
        data: at("d"),
        cache: at("c"),
        run: at("r"),
    })
    .unwrap();
    let name: Name = "calm-owl".parse().unwrap();
    let lock = store.create(spec(&name)).unwrap().lock;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut client = Connection::new(ours).unwrap();
    let stream = client.open(&run("x")).unwrap();
    let (done, finished) = mpsc::channel();
    let start = Start {
        store: store.clone(),
        name: name.clone(),
        lock,
        first_client: Some(theirs),
        timezone: String::new(),
        resume: None,
    };
    let given = Given::nothing(store.result_dir(&name).blobs());
    thread::spawn(move || {
        let mut launcher = FakeLauncher {
            scripts: Vec::new(),
            freeze: Arc::new(|_| Ok(())),
        };
        done.send(supervise(start, given, &mut launcher, None)).ok();
    });
    let (notes, _, _) = drain(&mut client, stream);
    assert!(
        notes.contains(&Note::Exited(End::Crashed("QEMU is not there".to_owned()))),
        "{notes:?}"
    );
    finished.recv_timeout(PATIENCE).unwrap().unwrap();
    let head = store.result(&name).unwrap();
    assert_eq!(head.completeness, Completeness::Nothing);
}

#[test]
fn a_guest_that_cannot_set_up_is_told() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |_| {
            Box::new(|guest: &mut Guest| {
                while let Some(event) = guest.next() {
                    if let Event::Opened { id, .. } = event {
                        guest.answer(id, &failed("Mounting `/dev/vda`", 5));
                    }
                }
            })
        },
    );
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    let told = format!("{notes:?}");
    assert!(
        told.contains("could not be set up: Mounting `/dev/vda`: Input/output error"),
        "{told}"
    );
    assert_eq!(bed.finish_clean().completeness, Completeness::Nothing);
}

#[test]
fn a_client_that_leaves_before_its_command_leaves_nothing() {
    let (bed, client) = Bed::start(
        |spec| spec.keep = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    drop(client);
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Stopped), Completeness::Nothing)
    );
}

#[test]
fn a_result_that_cannot_be_written_is_not_called_complete() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| {
            honest(
                files,
                only(ends(b"", vec![("a", b"1".to_vec())], Exit::Code(0))),
            )
        },
    );
    // No file can be renamed over a directory that holds something.
    fs_err::create_dir_all(bed.result_dir().join("changes.json/in-the-way")).unwrap();
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)));
    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Exited(0)));
    assert_eq!(head.completeness, Completeness::Nothing);
    assert!(
        head.limits
            .iter()
            .any(|limit| limit.contains("changes.json")),
        "{head:?}"
    );
}

#[test]
fn commits_come_out_as_inert_data() {
    const ONE: &str = "1111111111111111111111111111111111111111";
    let git = |exec: &Exec| {
        let words: Vec<&str> = exec
            .argv
            .iter()
            .map(|word| std::str::from_utf8(word).unwrap())
            .collect();
        match words[..] {
            ["git", "--no-pager", "log", ..] => {
                let log = format!("{ONE} Fix \u{202e}it\x1b[2J\0not-an-id evil\0");
                ends(log.as_bytes(), vec![], Exit::Code(0))
            }
            ["git", "--no-pager", "for-each-ref", ..] => {
                let refs = format!("{ONE} refs/heads/main\n../../x refs/heads/y\n");
                ends(refs.as_bytes(), vec![], Exit::Code(0))
            }
            ["git", "--no-pager", "pack-objects", ..] => ends(b"PACK data", vec![], Exit::Code(0)),
            _ => ends(b"", vec![(".git", vec![])], Exit::Code(0)),
        }
    };
    let (bed, mut client) = Bed::start(|_| {}, move |files| honest(files, git));
    let stream = client.open(&run("x")).unwrap();
    drain(&mut client, stream);
    let head = bed.finish_clean();
    assert_eq!(head.commits.len(), 1);
    assert_eq!(head.commits[0].id, ONE);
    assert_eq!(head.commits[0].subject, "Fix \\u{202e}it\\x1b[2J");
    let dir = bed.result_dir().join("commits");
    assert_eq!(fs_err::read(dir.join(crate::PACK)).unwrap(), b"PACK data");
    let refs: crate::CommitRefs =
        serde_json::from_slice(&fs_err::read(dir.join(crate::REFS)).unwrap()).unwrap();
    assert_eq!(refs.refs.len(), 1);
    assert_eq!((refs.pack, refs.pack_length), (Digest::of(b"PACK data"), 9));
}

#[test]
fn a_lying_git_harms_nothing() {
    let git = |exec: &Exec| match exec.argv[0].as_slice() {
        b"git" => ends(&vec![b'x'; 2 << 20], vec![], Exit::Code(0)),
        _ => ends(
            b"",
            vec![("a", b"1".to_vec()), (".git", vec![])],
            Exit::Code(0),
        ),
    };
    let (bed, mut client) = Bed::start(|_| {}, move |files| honest(files, git));
    let stream = client.open(&run("x")).unwrap();
    drain(&mut client, stream);
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Complete);
    assert_eq!(head.commits, []);
    assert_eq!(
        entries(&bed.result_dir().join("commits")),
        Vec::<String>::new()
    );
    assert!(bed.changes().contains_key("a"));
}

fn entries(dir: &Path) -> Vec<String> {
    fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_session_of_a_lost_client_is_hung_up() {
    let (hung, hang) = UnixStream::pair().unwrap();
    let script = move |_: Files| -> Script {
        Box::new(move |guest: &mut Guest| {
            let main = reach_exec(guest);
            let mut second = None;
            while let Some(event) = guest.next() {
                match event {
                    Event::Opened { id, payload } => match decode::<Request>(&payload).unwrap() {
                        Request::Exec(exec) if exec.argv[0] == b"git" => {
                            guest.answer(id, &failed("No", 2));
                        }
                        Request::Exec(_) => {
                            second = Some(id);
                            guest.reply(id, &Reply::Started { pid: 3 });
                        }
                        Request::List { .. } => {
                            guest.answer(
                                id,
                                &Reply::Entries {
                                    index: 0,
                                    entries: Vec::new(),
                                    last: true,
                                },
                            );
                        }
                        Request::EndSessions { .. } => guest.answer(id, &Reply::Done),
                        Request::PowerOff => return,
                        other => panic!("{other:?}"),
                    },
                    Event::Reset { id } if Some(id) == second => {
                        (&hang).write_all(b"x").unwrap();
                        guest.answer(main, &Reply::Exited(Exit::Code(0)));
                    }
                    _ => {}
                }
            }
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("x")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let second = other.open(&Command::Exec(exec("shell"))).unwrap();
    assert_eq!(
        other.next_note(second, soon()).unwrap(),
        Some(Note::Started)
    );
    drop(other);
    let mut fds = [PollFd::new(&hung, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1);
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)));
    bed.finish_clean();
}
