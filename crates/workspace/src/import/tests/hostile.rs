//! Guests that lie, flood, contradict themselves and hang up.

use super::*;
use wire::message::{Failure, ListEntry, Reply, Stat};

fn stat(kind: FileKind, size: u64) -> Stat {
    Stat {
        kind,
        mode: 0o644,
        size,
        ino: 1,
        nlink: 1,
        mtime_ns: 1,
        ctime_ns: 1,
    }
}

fn entry(name: impl AsRef<[u8]>, kind: FileKind) -> ListEntry {
    ListEntry {
        name: name.as_ref().to_vec(),
        stat: stat(kind, 1),
        target: b"t".to_vec(),
    }
}

fn fresh(memory: &mut Memory) -> Import<Vec<crate::Entry>, NoRules, &mut Memory> {
    let entries = Files::of([("a", file("1")), ("d/x", file("1")), ("l", link("t"))]).entries();
    let limits = Limits {
        entries: 500,
        path_bytes: 100_000,
        file: Size(1000),
        total: Size(5000),
        ..Limits::default()
    };
    Import::new(
        entries,
        KnownState::default(),
        limits,
        NoRules,
        Artifacts::default(),
        memory,
    )
}

/// Answers the listing of the root with these entries, each directory below with nothing, each file with one byte.
fn list_root(entries: Vec<ListEntry>) -> Result<(ChangeSet, Counts), ImportError> {
    let mut memory = Memory::default();
    let mut import = fresh(&mut memory);
    let mut entries = Some(entries);
    while let Some(request) = import.next_request().unwrap() {
        match request {
            Request::List { dirs, .. } => {
                for (index, _) in (0..).zip(dirs) {
                    let entries = entries.take().unwrap_or_default();
                    import.message(Reply::Entries {
                        index,
                        entries,
                        last: true,
                    })?;
                }
            }
            Request::Read { paths, .. } => {
                for _ in paths {
                    import.message(Reply::File(stat(FileKind::File, 1)))?;
                    import.data(b"x")?;
                    import.message(Reply::FileEnd(stat(FileKind::File, 1)))?;
                }
            }
            other => panic!("{other:?}"),
        }
        import.closed()?;
    }
    import.finish().map(|(set, _, counts)| (set, counts))
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let names: [&[u8]; 12] = [
        b"..",
        b".",
        b"",
        b"../x",
        b"/etc/passwd",
        b"a/b",
        b"x\0y",
        b".git/hooks",
        b"..\\x",
        b".git\\x",
        b"a\\.git",
        &[b'n'; 256],
    ];
    let (set, counts) = list_root(
        names
            .iter()
            .map(|name| entry(name, FileKind::File))
            .collect(),
    )
    .unwrap();
    // On Linux a backslash is a letter, and no way up.
    assert_eq!(paths(&set), ["..\\\\x"]);
    assert_eq!(counts.left_out_count, 11);
    assert!(
        counts
            .left_out
            .iter()
            .all(|left| matches!(left.reason, Reason::BadName | Reason::GitStore))
    );
}

#[test]
fn the_list_of_what_was_refused_is_bounded() {
    let (_, counts) = list_root(
        (0..300)
            .map(|at| entry(format!("{at}/"), FileKind::File))
            .collect(),
    )
    .unwrap();
    assert_eq!(counts.left_out_count, 300);
    assert_eq!(counts.left_out.len(), crate::MAX_NAMED);
}

#[test]
fn of_two_entries_of_one_name_the_first_counts() {
    for second in [
        FileKind::Dir,
        FileKind::FreshDir,
        FileKind::File,
        FileKind::Whiteout,
    ] {
        let (set, counts) = list_root(vec![
            entry("n", FileKind::Symlink),
            entry("n", second),
            entry("n", FileKind::Dir),
        ])
        .unwrap();
        let change = Change {
            path: path("n"),
            old: None,
            new: Some(Node::symlink("t")),
            torn: false,
        };
        assert_eq!(set.changes(), [change]);
        assert_eq!(counts.duplicates, 2);
    }
}

#[test]
fn a_tree_without_end_ends() {
    let mut memory = Memory::default();
    let limits = Limits::default();
    let mut import = Import::new(
        Vec::new(),
        KnownState::default(),
        limits,
        NoRules,
        Artifacts::default(),
        &mut memory,
    );
    let mut requests = 0;
    let outcome = loop {
        let Some(Request::List { dirs, .. }) = import.next_request().unwrap() else {
            break import.finish().map(|_| ());
        };
        requests += 1;
        for (index, _) in (0..).zip(dirs) {
            let entries = vec![entry("again", FileKind::Dir)];
            import
                .message(Reply::Entries {
                    index,
                    entries,
                    last: true,
                })
                .unwrap();
        }
        import.closed().unwrap();
    };
    outcome.unwrap();
    assert!(requests <= base::MAX_DEPTH + 1);
}

#[test]
fn each_lie_is_an_error() {
    let file_stat = || stat(FileKind::File, 1);
    let listing = |index, last| Reply::Entries {
        index,
        entries: vec![entry("f", FileKind::File)],
        last,
    };
    let failure = || {
        Reply::Failed(Failure {
            what: b"no".to_vec(),
            errno: 5,
        })
    };
    let empty = || Reply::Entries {
        index: 0,
        entries: vec![],
        last: false,
    };
    let while_listing: Vec<Vec<Reply>> = vec![
        vec![listing(1, true)],
        vec![empty()],
        vec![listing(0, true), listing(0, true)],
        vec![Reply::File(file_stat())],
        vec![Reply::FileEnd(file_stat())],
        vec![Reply::Done],
        vec![failure(), failure()],
        vec![listing(0, false), listing(1, true)],
    ];
    for steps in while_listing {
        let mut memory = Memory::default();
        let mut import = fresh(&mut memory);
        import.next_request().unwrap().unwrap();
        let outcome = steps
            .clone()
            .into_iter()
            .try_for_each(|step| import.message(step));
        assert!(
            matches!(
                outcome,
                Err(ImportError::OutOfOrder(_) | ImportError::EmptyListing)
            ),
            "{steps:?} {outcome:?}"
        );
        // And dead it stays.
        assert!(import.next_request().unwrap().is_none());
        assert!(!import.is_done());
        assert!(matches!(import.finish(), Err(ImportError::Unfinished)));
    }
    let while_reading: Vec<Vec<Reply>> = vec![
        vec![listing(0, true)],
        vec![Reply::FileEnd(file_stat())],
        vec![Reply::File(file_stat()), Reply::File(file_stat())],
        vec![
            Reply::File(file_stat()),
            Reply::FileEnd(file_stat()),
            Reply::File(file_stat()),
        ],
        vec![failure(), failure()],
    ];
    for steps in while_reading {
        let mut memory = Memory::default();
        let mut import = fresh(&mut memory);
        import.next_request().unwrap().unwrap();
        import.message(listing(0, true)).unwrap();
        import.closed().unwrap();
        import.next_request().unwrap().unwrap();
        let outcome = steps
            .clone()
            .into_iter()
            .try_for_each(|step| import.message(step));
        assert!(
            matches!(outcome, Err(ImportError::OutOfOrder(_))),
            "{steps:?} {outcome:?}"
        );
    }
    let mut memory = Memory::default();
    let mut import = fresh(&mut memory);
    import.next_request().unwrap().unwrap();
    assert!(matches!(import.data(b"x"), Err(ImportError::OutOfOrder(_))));
}

#[test]
fn a_file_without_end_ends_it() {
    let mut memory = Memory::default();
    let mut import = fresh(&mut memory);
    import.next_request().unwrap().unwrap();
    import
        .message(Reply::Entries {
            index: 0,
            entries: vec![entry("f", FileKind::File)],
            last: true,
        })
        .unwrap();
    import.closed().unwrap();
    import.next_request().unwrap().unwrap();
    import
        .message(Reply::File(stat(FileKind::File, 1)))
        .unwrap();
    let chunk = vec![0; 32 * 1024];
    let mut sent = 0;
    let error = loop {
        sent += chunk.len() as u64;
        if let Err(error) = import.data(&chunk) {
            break error;
        }
    };
    assert!(matches!(error, ImportError::TooMuchData));
    assert!(sent <= 1 + MAX_EXCESS + chunk.len() as u64);
    drop(import);
    assert!(memory.kept.is_empty());
}

#[test]
fn a_file_that_outgrows_the_limit_while_it_is_read_stays() {
    let mut memory = Memory::default();
    let mut import = fresh(&mut memory);
    import.next_request().unwrap().unwrap();
    import
        .message(Reply::Entries {
            index: 0,
            entries: vec![entry("f", FileKind::File)],
            last: true,
        })
        .unwrap();
    import.closed().unwrap();
    import.next_request().unwrap().unwrap();
    import
        .message(Reply::File(stat(FileKind::File, 1)))
        .unwrap();
    for _ in 0..20 {
        import.data(&[b'x'; 100]).unwrap();
    }
    import
        .message(Reply::FileEnd(stat(FileKind::File, 2000)))
        .unwrap();
    import.closed().unwrap();
    let (set, _, counts) = import.finish().unwrap();
    assert!(set.is_empty());
    assert_eq!(left_out(&counts), [("f", Reason::TooLarge)]);
}

#[derive(Debug, Clone)]
enum Move {
    Message(Reply),
    Data(usize),
    Close,
    Ask,
}

fn any_stat() -> impl Strategy<Value = Stat> {
    let kinds = [
        FileKind::File,
        FileKind::Dir,
        FileKind::FreshDir,
        FileKind::Symlink,
        FileKind::Whiteout,
        FileKind::Other,
    ];
    let size = prop_oneof![Just(0), Just(1), 0..2000_u64, Just(u64::MAX)];
    (
        prop::sample::select(kinds.to_vec()),
        any::<u32>(),
        size,
        0..3_u64,
        any::<i64>(),
    )
        .prop_map(|(kind, mode, size, ino, time)| Stat {
            kind,
            mode,
            size,
            ino,
            nlink: 1,
            mtime_ns: time,
            ctime_ns: time,
        })
}

fn any_move() -> impl Strategy<Value = Move> {
    let name = prop_oneof![
        6 => prop::sample::select(vec!["a", "d", "x", "l", "n", "m", "HEAD", "objects", "refs"]).prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::sample::select(vec!["..", ".git", "", "a/b", ".GIT"]).prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let target = prop_oneof![
        Just(b"t".to_vec()),
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..5000)
    ];
    let entry = (name, any_stat(), target).prop_map(|(name, stat, target)| ListEntry {
        name,
        stat,
        target,
    });
    let listing = (0..3_u32, prop::collection::vec(entry, 0..6), any::<bool>()).prop_map(
        |(index, entries, last)| Reply::Entries {
            index,
            entries,
            last,
        },
    );
    let reply = prop_oneof![
        8 => listing,
        4 => any_stat().prop_map(Reply::File),
        4 => any_stat().prop_map(Reply::FileEnd),
        1 => any::<i32>().prop_map(|errno| Reply::Failed(Failure { what: Vec::new(), errno })),
        1 => Just(Reply::Done),
    ];
    prop_oneof![
        6 => reply.prop_map(Move::Message),
        2 => (0..1200_usize).prop_map(Move::Data),
        2 => Just(Move::Close),
        3 => Just(Move::Ask),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever comes in whatever order: no panic, and either a typed error or a set that holds its rules. Moves
    /// that are out of order are skipped most of the time, so that long lives are seen too.
    #[test]
    fn any_guest_is_survived(moves in prop::collection::vec(any_move(), 0..60), strict in prop::bool::weighted(0.2)) {
        let mut memory = Memory::default();
        let mut import = fresh(&mut memory);
        let mut asked = Vec::new();
        let mut index = 0;
        for step in moves {
            let fits = match (&step, asked.last()) {
                (Move::Message(Reply::Entries { .. }), Some(Request::List { dirs, .. })) => index < dirs.len(),
                (Move::Message(_) | Move::Data(_), Some(Request::Read { .. })) | (Move::Close | Move::Ask, _) => true,
                _ => false,
            };
            if !fits && !strict {
                continue;
            }
            let outcome = match step {
                Move::Message(Reply::Entries { entries, last, index: at }) => {
                    let at = if strict { at } else { u32::try_from(index).unwrap() };
                    index += usize::from(last);
                    import.message(Reply::Entries { index: at, entries, last })
                }
                Move::Message(reply) => import.message(reply),
                Move::Data(count) => import.data(&vec![b'x'; count]),
                Move::Close => import.closed(),
                Move::Ask => {
                    if let Some(request) = import.next_request().unwrap() {
                        index = 0;
                        asked.push(request);
                    }
                    Ok(())
                }
            };
            if outcome.is_err() {
                prop_assert!(import.next_request().unwrap().is_none());
            }
        }
        // No directory and no file is asked for by a path that leads elsewhere.
        for request in &asked {
            let paths: Vec<&[u8]> = match request {
                Request::List { dirs, .. } => dirs.iter().map(|dir| dir.path.as_slice()).filter(|at| !at.is_empty()).collect(),
                Request::Read { paths, .. } => paths.iter().map(Vec::as_slice).collect(),
                other => panic!("{other:?}"),
            };
            for at in paths {
                let at = RelPath::new(at);
                prop_assert!(at.is_ok_and(|at| crate::check_exported(&at).is_ok()));
            }
        }
        if import.is_done() {
            let (set, _, _) = import.finish().unwrap();
            let total: u64 = set.changes().iter().filter_map(|change| change.new.as_ref())
                .filter(|node| node.kind == crate::Kind::File).map(|node| node.size).sum();
            prop_assert!(total <= 5000);
            for digest in set.contents() {
                prop_assert!(memory.kept.contains_key(&digest));
            }
        }
    }
}

#[test]
fn digests_are_of_what_came() {
    let (set, _) = list_root(vec![entry("f", FileKind::File)]).unwrap();
    assert_eq!(
        set.changes()[0].new.as_ref().unwrap().digest,
        Some(Digest::of(b"x"))
    );
}
