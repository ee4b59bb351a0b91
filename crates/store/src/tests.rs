use crate::{
    Completeness, Dirs, Ending, GuestUser, Healed, Listed, Lock, LogPiece, LogReader, OutputLog,
    Purge, Spec, State, Store, StoreError, bind, connect,
};
use base::{Digest, Name, RelPath, Size};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

struct Bed {
    dir: tempfile::TempDir,
    store: Store,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        Self { dir, store }
    }
}

fn open(dir: &Path) -> Store {
    let at = |name: &str| dir.join(name);
    Store::open(Dirs {
        data: at("data"),
        cache: at("cache"),
        run: at("run"),
    })
    .unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn spec(text: &str) -> Spec {
    Spec {
        name: name(text),
        created: 100,
        workspace: PathBuf::from("/home/ada/shop"),
        cwd: RelPath::root(),
        command: vec!["make".to_owned()],
        variables: Vec::new(),
        baseline: "aa".to_owned(),
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
        linger: 0,
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

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn directories_are_private() {
    let bed = Bed::new();
    for dir in [
        &bed.store.dirs().data,
        &bed.store.dirs().run,
        &bed.store.results_dir(),
    ] {
        assert_eq!(
            fs_err::metadata(dir).unwrap().mode() & 0o777,
            0o700,
            "{dir:?}"
        );
    }
    // One that was made too wide is narrowed.
    let data = bed.store.dirs().data.clone();
    fs_err::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    open(bed.dir.path());
    assert_eq!(fs_err::metadata(&data).unwrap().mode() & 0o777, 0o700);
    let created = bed.store.create(spec("brisk-heron")).unwrap();
    let record = bed
        .store
        .sandbox_dir(&created.record.spec.name)
        .join("record.json");
    assert_eq!(fs_err::metadata(record).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_sandbox_is_alive_while_its_lock_is_held() {
    let bed = Bed::new();
    let created = bed.store.create(spec("brisk-heron")).unwrap();
    let name = name("brisk-heron");
    assert!(bed.store.is_alive(&name).unwrap());
    assert_eq!(bed.store.heal(&name).unwrap(), Healed::Alive);
    assert!(matches!(bed.store.lock(&name), Err(StoreError::Running(_))));
    assert!(matches!(
        bed.store.discard(&name),
        Err(StoreError::Running(_))
    ));
    let listing = bed.store.list().unwrap();
    assert_eq!(
        listing.sandboxes,
        [Listed {
            record: created.record.clone(),
            alive: true
        }]
    );
    assert_eq!(
        bed.store.result(&name).unwrap().completeness,
        Completeness::Running
    );
    drop(created.lock);
    assert!(!bed.store.is_alive(&name).unwrap());
}

#[test]
fn a_lock_passes_on_with_its_descriptor() {
    let bed = Bed::new();
    let lock = bed.store.create(spec("brisk-heron")).unwrap().lock;
    // As a child inherits it.
    let copy = lock.as_fd().try_clone_to_owned().unwrap();
    drop(lock);
    assert!(bed.store.is_alive(&name("brisk-heron")).unwrap());
    let lock = Lock::inherited(copy).unwrap();
    drop(OwnedFd::from(lock));
    assert!(!bed.store.is_alive(&name("brisk-heron")).unwrap());
    // A descriptor of the file that does not hold the lock is none.
    let _held = bed.store.create(spec("calm-owl")).unwrap();
    let other = fs_err::File::open(bed.store.sandbox_dir(&name("calm-owl")).join("lock")).unwrap();
    Lock::inherited(other.into_file().into()).unwrap_err();
}

#[test]
fn names_are_taken_once() {
    let bed = Bed::new();
    let created = bed.store.create(spec("brisk-heron")).unwrap();
    assert!(matches!(
        bed.store.create(spec("brisk-heron")),
        Err(StoreError::NameTaken(_))
    ));
    // A result alone takes the name, too.
    bed.store
        .remove(&name("brisk-heron"), &created.lock)
        .unwrap();
    assert!(matches!(
        bed.store.create(spec("brisk-heron")),
        Err(StoreError::NameTaken(_))
    ));
    assert!(matches!(
        bed.store.record(&name("brisk-heron")),
        Err(StoreError::NoSandbox(_))
    ));
    bed.store.discard(&name("brisk-heron")).unwrap();
    bed.store.create(spec("brisk-heron")).unwrap();
    // Nothing half-made is left of those that failed.
    assert_eq!(entries(&bed.store.sandboxes_dir()), ["brisk-heron"]);
    assert_eq!(entries(&bed.store.results_dir()), ["brisk-heron"]);
}

#[test]
fn free_names_are_free() {
    let bed = Bed::new();
    let first = bed.store.free_name(0..1).unwrap();
    let _lock = bed
        .store
        .create(Spec {
            name: first.clone(),
            ..spec("x")
        })
        .unwrap();
    assert!(matches!(
        bed.store.free_name(0..1),
        Err(StoreError::NoFreeName)
    ));
    assert_ne!(bed.store.free_name(0..100).unwrap(), first);
}

#[test]
fn many_at_once_get_one_name_each() {
    let bed = Bed::new();
    let winners: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let store = bed.store.clone();
                scope.spawn(move || {
                    let mut locks = Vec::new();
                    for at in 0..20 {
                        match store.create(spec(&format!("n{at}"))) {
                            Ok(created) => locks.push(created.lock),
                            Err(StoreError::NameTaken(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                        // Lookers in between disturb nobody.
                        let listing = store.list().unwrap();
                        assert!(listing.broken.is_empty(), "{:?}", listing.broken);
                        assert!(listing.sandboxes.iter().all(|one| one.alive));
                    }
                    locks
                })
            })
            .collect();
        let locks: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        assert_eq!(bed.store.list().unwrap().sandboxes.len(), 20);
        locks.iter().map(Vec::len).sum()
    });
    assert_eq!(winners, 20);
}

/// A process that holds the lock that is its standard input until it is killed: what a supervisor is to others.
fn holder(lock: Lock) -> std::process::Child {
    Command::new("cat")
        .stdin(Stdio::from(OwnedFd::from(lock)))
        .stdout(Stdio::piped())
        .arg("/dev/zero")
        .spawn()
        .unwrap()
}

#[test]
fn what_a_killed_process_left_is_healed() {
    let bed = Bed::new();
    for (text, saved, ending, keep, healed, completeness) in [
        (
            "never-saved",
            0,
            None,
            false,
            Healed::Removed,
            Completeness::Nothing,
        ),
        (
            "saved-once",
            7,
            None,
            false,
            Healed::Removed,
            Completeness::Checkpoint,
        ),
        (
            "kept-idle",
            7,
            Some(Ending::Exited(3)),
            true,
            Healed::Kept,
            Completeness::Checkpoint,
        ),
    ] {
        let mut created = bed.store.create(Spec { keep, ..spec(text) }).unwrap();
        let name = name(text);
        created.record.state = State::Running;
        created.record.supervisor_pid = Some(1);
        bed.store.update(&created.record).unwrap();
        bed.store
            .update_result(&name, |head| {
                head.saved = saved;
                head.ending = ending.clone();
            })
            .unwrap();
        let _listener = bind(&bed.store.socket_path(&name)).unwrap();
        let mut child = holder(created.lock);
        assert_eq!(bed.store.heal(&name).unwrap(), Healed::Alive);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bed.store.heal(&name).unwrap(), healed, "{text}");
        assert!(!bed.store.socket_path(&name).exists());
        let head = bed.store.result(&name).unwrap();
        assert_eq!(head.completeness, completeness);
        assert!(head.ended > 0);
        match ending {
            Some(ending) => assert_eq!(head.ending, Some(ending)),
            None => assert!(matches!(head.ending, Some(Ending::Crashed(_)))),
        }
        assert_eq!(bed.store.sandbox_dir(&name).exists(), keep);
        if keep {
            let record = bed.store.record(&name).unwrap();
            assert_eq!(
                (record.state, record.supervisor_pid),
                (State::Crashed, None)
            );
            assert_eq!(bed.store.heal(&name).unwrap(), Healed::AtRest);
            bed.store.lock(&name).unwrap();
        }
    }
    assert_eq!(bed.store.list().unwrap().sandboxes.len(), 1);
}

#[test]
fn many_heal_one_at_once() {
    for round in 0..10 {
        let bed = Bed::new();
        let created = bed.store.create(spec("brisk-heron")).unwrap();
        let mut record = created.record;
        record.state = State::Running;
        bed.store.update(&record).unwrap();
        drop(created.lock);
        thread::scope(|scope| {
            for _ in 0..4 {
                let store = bed.store.clone();
                scope.spawn(move || {
                    let listing = store.list().unwrap();
                    assert!(
                        listing.broken.is_empty(),
                        "round {round}: {:?}",
                        listing.broken
                    );
                    let head = store.settled_result(&name("brisk-heron")).unwrap();
                    assert!(matches!(head.ending, Some(Ending::Crashed(_)) | None));
                });
            }
        });
        let head = bed.store.settled_result(&name("brisk-heron")).unwrap();
        assert_eq!(head.completeness, Completeness::Nothing);
        assert_eq!(entries(&bed.store.sandboxes_dir()), Vec::<String>::new());
    }
}

#[test]
fn a_result_without_a_sandbox_is_healed() {
    let bed = Bed::new();
    let created = bed.store.create(spec("brisk-heron")).unwrap();
    bed.store
        .update_result(&name("brisk-heron"), |head| head.saved = 5)
        .unwrap();
    bed.store
        .remove(&name("brisk-heron"), &created.lock)
        .unwrap();
    let results = bed.store.results().unwrap();
    assert_eq!(results.heads[0].completeness, Completeness::Checkpoint);
}

#[test]
fn results_are_listed_by_workspace_newest_first() {
    let bed = Bed::new();
    for (text, created, workspace) in [
        ("a", 1, "/w"),
        ("b", 3, "/w"),
        ("c", 2, "/w"),
        ("d", 9, "/other"),
    ] {
        let workspace = PathBuf::from(workspace);
        drop(
            bed.store
                .create(Spec {
                    created,
                    workspace,
                    ..spec(text)
                })
                .unwrap(),
        );
    }
    let names: Vec<String> = bed
        .store
        .results_of(Path::new("/w"))
        .unwrap()
        .into_iter()
        .map(|head| head.spec.name.to_string())
        .collect();
    assert_eq!(names, ["b", "c", "a"]);
    bed.store.mark_applied(&name("b"), 77).unwrap();
    assert_eq!(bed.store.result(&name("b")).unwrap().applied, Some(77));
}

#[test]
fn two_writers_of_one_head_lose_nothing() {
    let bed = Bed::new();
    let _lock = bed.store.create(spec("brisk-heron")).unwrap();
    let name = name("brisk-heron");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    bed.store
                        .update_result(&name, |head| head.ignored += 1)
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(bed.store.result(&name).unwrap().ignored, 100);
    assert_eq!(
        entries(bed.store.result_dir(&name).path()),
        ["blobs", "commits", "output", "result.json"]
    );
}

#[test]
fn damaged_documents_are_named_and_hide_nothing() {
    let bed = Bed::new();
    let _one = bed.store.create(spec("good")).unwrap();
    let _two = bed.store.create(spec("torn")).unwrap();
    let record = bed.store.sandbox_dir(&name("torn")).join("record.json");
    let text = fs_err::read_to_string(&record).unwrap();
    let check = |text: &str, want: &str| {
        fs_err::write(&record, text).unwrap();
        let listing = bed.store.list().unwrap();
        assert_eq!(listing.sandboxes.len(), 1);
        let told = listing.broken[0].1.to_string();
        assert!(
            told.contains(want) && told.contains("record.json"),
            "{told}"
        );
    };
    check(&text[..text.len() / 2], "damaged");
    check(
        &text.replace("\"version\": 1", "\"version\": 2"),
        "format version 2",
    );
    // A field that we don't know may change what the others mean.
    check(&text.replacen('{', "{\"secret\": 1,", 1), "damaged");
    let head = bed
        .store
        .result_dir(&name("torn"))
        .path()
        .join("result.json");
    fs_err::write(head, "{}").unwrap();
    let results = bed.store.results().unwrap();
    assert_eq!((results.heads.len(), results.broken.len()), (1, 1));
}

#[test]
fn garbage_is_what_nothing_names() {
    let bed = Bed::new();
    for key in ["aa", "bb", "cc", ".new-1"] {
        let dir = bed.store.baseline_dir(key);
        fs_err::create_dir(&dir).unwrap();
        fs_err::write(dir.join("image.erofs"), vec![1; 10_000]).unwrap();
    }
    // `aa` is named by a result, `bb` by a cache.
    drop(bed.store.create(spec("brisk-heron")).unwrap());
    let keep = BTreeSet::from(["bb".to_owned()]);
    let hold = bed.store.hold_baselines().unwrap();
    assert_eq!(
        bed.store.collect_garbage(&keep).unwrap().baselines,
        Vec::<String>::new()
    );
    drop(hold);
    let collected = bed.store.collect_garbage(&keep).unwrap();
    assert_eq!(collected.baselines, ["cc"]);
    assert!(collected.bytes >= 10_000);
    assert_eq!(entries(&bed.store.baselines_dir()), [".new-1", "aa", "bb"]);
    // A result that can't be read may name anything.
    let head = bed
        .store
        .result_dir(&name("brisk-heron"))
        .path()
        .join("result.json");
    fs_err::write(head, "{}").unwrap();
    assert_eq!(
        bed.store
            .collect_garbage(&BTreeSet::new())
            .unwrap()
            .baselines,
        Vec::<String>::new()
    );
}

#[test]
fn purge_takes_all_that_does_not_run() {
    let bed = Bed::new();
    let image = bed.store.images_dir().join("0000/root.erofs");
    fs_err::create_dir_all(image.parent().unwrap()).unwrap();
    fs_err::write(&image, "x").unwrap();
    fs_err::create_dir_all(bed.store.baseline_dir("aa")).unwrap();
    let running = bed.store.create(spec("running")).unwrap();
    let mut kept = bed
        .store
        .create(Spec {
            keep: true,
            ..spec("kept")
        })
        .unwrap();
    kept.record.state = State::Stopped;
    bed.store.update(&kept.record).unwrap();
    drop(kept.lock);
    assert!(matches!(
        bed.store.purge(Purge::All),
        Err(StoreError::InTheWay(names)) if names == [name("running")]
    ));
    assert_eq!(entries(&bed.store.sandboxes_dir()), ["kept", "running"]);
    drop(running.lock);
    let purged = bed.store.purge(Purge::Work).unwrap();
    assert_eq!(purged.sandboxes, [name("kept")]);
    assert_eq!(purged.results, [name("kept"), name("running")]);
    for dir in [
        bed.store.sandboxes_dir(),
        bed.store.results_dir(),
        bed.store.baselines_dir(),
    ] {
        assert_eq!(entries(&dir), Vec::<String>::new());
    }
    assert!(image.exists());
    bed.store.purge(Purge::All).unwrap();
    assert_eq!(entries(&bed.store.images_dir()), Vec::<String>::new());
}

#[test]
fn sockets_work_at_paths_of_any_length() {
    let bed = Bed::new();
    for dir in ["short".to_owned(), "long".repeat(40)] {
        let dir = bed.dir.path().join(dir);
        fs_err::create_dir(&dir).unwrap();
        let path = dir.join("brisk-heron.sock");
        // Twice: a socket that a dead supervisor left is in nobody's way.
        for _ in 0..2 {
            let listener = bind(&path).unwrap();
            assert_eq!(fs_err::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let mut client = connect(&path).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
        connect(&path).unwrap_err();
    }
}

/// The log's bytes, with `[n]` for what was dropped.
fn logged(dir: &Path) -> Vec<u8> {
    let mut reader = LogReader::open(dir);
    let mut all = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        match piece {
            LogPiece::Bytes { bytes, .. } => all.extend(bytes),
            LogPiece::Dropped(count) => all.extend(format!("[{count}]").into_bytes()),
        }
    }
    all
}

#[test]
fn a_short_log_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = OutputLog::open(dir.path()).unwrap();
    assert_eq!(logged(dir.path()), b"");
    log.write(1, 5, b"out").unwrap();
    log.write(2, 6, b"err").unwrap();
    let mut reader = LogReader::open(dir.path());
    let piece = |channel, time_ms, bytes: &[u8]| LogPiece::Bytes {
        channel,
        time_ms,
        bytes: bytes.to_vec(),
    };
    assert_eq!(reader.next_piece().unwrap(), Some(piece(1, 5, b"out")));
    assert_eq!(reader.next_piece().unwrap(), Some(piece(2, 6, b"err")));
    assert_eq!(reader.next_piece().unwrap(), None);
    // A reader follows.
    log.write(1, 7, b"more").unwrap();
    assert_eq!(reader.next_piece().unwrap(), Some(piece(1, 7, b"more")));
    // One that is opened again goes on.
    drop(log);
    let mut log = OutputLog::open(dir.path()).unwrap();
    assert_eq!(log.total(), 10);
    log.write(1, 8, b"!").unwrap();
    assert_eq!(reader.next_piece().unwrap(), Some(piece(1, 8, b"!")));
    assert_eq!(logged(dir.path()), b"outerrmore!");
}

#[test]
fn a_long_log_keeps_its_ends_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = OutputLog::with_limit(dir.path(), 1000).unwrap();
    let mut whole = Vec::new();
    let mut follower = LogReader::open(dir.path());
    let mut followed = Vec::new();
    for number in 0..2000u32 {
        let line = format!("line {number}\n").into_bytes();
        log.write(1, 0, &line).unwrap();
        whole.extend(line);
        while let Some(LogPiece::Bytes { bytes, .. }) = follower.next_piece().unwrap() {
            followed.extend(bytes);
        }
    }
    // Who follows closely misses nothing.
    assert!(followed == whole);
    let on_disk: u64 = entries(dir.path())
        .iter()
        .map(|file| fs_err::metadata(dir.path().join(file)).unwrap().len())
        .sum();
    assert!(on_disk <= 3000, "{on_disk}");
    let text = logged(dir.path());
    let mark = text.iter().position(|byte| *byte == b'[').unwrap();
    let close = text.iter().position(|byte| *byte == b']').unwrap();
    let dropped: usize = std::str::from_utf8(&text[mark + 1..close])
        .unwrap()
        .parse()
        .unwrap();
    let (head, tail) = (&text[..mark], &text[close + 1..]);
    assert!(whole.starts_with(head) && whole.ends_with(tail));
    assert_eq!(head.len() + dropped + tail.len(), whole.len());
    assert_eq!(log.total(), whole.len() as u64);
    // A crash in the middle of a piece costs that piece.
    let numbers = entries(dir.path())
        .into_iter()
        .map(|file| file.parse::<u64>().unwrap());
    let last = dir.path().join(numbers.max().unwrap().to_string());
    let length = fs_err::metadata(&last).unwrap().len();
    drop(log);
    fs_err::OpenOptions::new()
        .write(true)
        .open(&last)
        .unwrap()
        .set_len(length - 3)
        .unwrap();
    let mut log = OutputLog::with_limit(dir.path(), 1000).unwrap();
    log.write(1, 0, b"after").unwrap();
    assert!(logged(dir.path()).ends_with(b"line 1998\nafter"));
}

#[test]
fn a_full_disk_is_a_sentence() {
    for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
        let error = StoreError::io("write", Path::new("/x/record.json"), errno.into());
        assert!(error.is_disk_full());
        assert!(
            error
                .to_string()
                .starts_with("The disk is full: can't write `/x/record.json`")
        );
    }
    let error = StoreError::io("write", Path::new("/x"), rustix::io::Errno::ACCESS.into());
    assert!(!error.is_disk_full());
    assert_eq!(error.to_string(), "Can't write `/x`");
}
