mod guest;
mod hostile;

use super::{
    Artifacts, Counts, Import, ImportError, KnownState, Limits, Listing as _, MAX_EXCESS, NoRules,
    Reason, Refusal,
};
use crate::change::{Change, ChangeSet, Node};
use crate::testing::{Files, Item, Memory, Pair, any_pair, compare, dir, file, link, path};
use crate::{Ignore, IgnoreFile};
use base::{Digest, RelPath, Size};
use guest::{Guest, run};
use proptest::prelude::*;
use wire::message::{FileKind, Request};

fn ignore(rules: &str) -> Ignore {
    let files = [IgnoreFile {
        dir: RelPath::root(),
        rules: rules.as_bytes().to_vec(),
    }];
    Ignore::new(&files, [])
}

fn left_out(counts: &Counts) -> Vec<(&str, Reason)> {
    assert_eq!(counts.left_out.len() as u64, counts.left_out_count);
    counts
        .left_out
        .iter()
        .map(|Refusal { path, reason }| (path.as_str(), *reason))
        .collect()
}

fn paths(set: &ChangeSet) -> Vec<String> {
    set.changes()
        .iter()
        .map(|change| change.path.to_string())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// What comes out is what differs, however the overlay tells it: touched files, whiteouts, directories made
    /// anew or moved, listings cut anywhere.
    #[test]
    fn finds_what_differs(pair in any_pair(), seed in any::<u64>()) {
        let Pair(old, new) = pair;
        // A bare repository's pieces come about by chance; they have a test of their own.
        prop_assume!(!compare(&old, &new).changes().iter().any(|change| change.path.file_name() == Some(b"HEAD")));
        let mut guest = Guest::new(old.clone(), new.clone(), seed);
        let mut memory = Memory::default();
        let (set, _, counts) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
        prop_assert_eq!(&set, &compare(&old, &new));
        prop_assert_eq!(counts.left_out_count, 0);
        for digest in set.contents() {
            prop_assert!(memory.kept.contains_key(&digest));
        }
        // Nothing is kept that the set doesn't need.
        prop_assert_eq!(memory.kept.len(), set.contents().len());
        prop_assert!(memory.synced);
    }

    /// A second pass after more edits sees the same as a first one would, and reads only what was touched.
    #[test]
    fn a_second_pass_is_cheap_and_right(first in any_pair(), seed in any::<u64>(), text in "[a-z]{0,9}") {
        let Pair(old, middle) = first;
        let plain = seed.is_multiple_of(2);
        let mut guest = if plain { Guest::plain(old.clone(), middle.clone()) } else { Guest::new(old.clone(), middle.clone(), seed) };
        let mut memory = Memory::default();
        let (_, known, _) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
        // Two passes, so that nothing is too fresh to be trusted.
        let (set, known, _) = run(&mut guest, known, &mut memory).unwrap();
        let (again, known, counts) = run(&mut guest, known, &mut memory).unwrap();
        prop_assert_eq!(&again, &set);
        prop_assert_eq!(counts.files_read, 0);
        let mut new = middle;
        prop_assume!(new.put(&path("src/edited"), file(&text)));
        guest.edit(new.clone());
        let (set, _, counts) = run(&mut guest, known, &mut memory).unwrap();
        let expected = compare(&old, &new);
        prop_assert_eq!(set.get(&path("src/edited")), expected.get(&path("src/edited")));
        // By chance a directory that is listed for the first time holds files that were touched.
        prop_assert!(counts.files_read <= 1 || !plain);
    }
}

#[test]
fn a_write_in_the_same_tick_is_not_missed() {
    let old = Files::of([("a", file("one"))]);
    let mut guest = Guest::new(old.clone(), Files::of([("a", file("two"))]), 1);
    let mut memory = Memory::default();
    let (_, known, _) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
    // Same size, same times, same inode.
    let new = Files::of([("a", file("six"))]);
    guest.edit_within_a_tick(new.clone());
    let (set, _, _) = run(&mut guest, known, &mut memory).unwrap();
    assert_eq!(set, compare(&old, &new));
}

#[test]
fn the_cost_is_that_of_the_upper_layer() {
    let tree = |count: usize| {
        let mut files = Files::default();
        for at in 0..count {
            files.put(&path(format!("d{}/f{at}", at % 50)), file("x"));
        }
        files
    };
    let cost = |count| {
        let old = tree(count);
        let mut new = old.clone();
        for at in 0..10 {
            new.put(&path(format!("d{at}/f{at}")), file("changed"));
        }
        let mut guest = Guest::plain(old, new);
        let (set, _, counts) =
            run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
        assert_eq!(set.changes().len(), 10);
        (guest.requests, counts.entries, counts.files_read)
    };
    assert_eq!(cost(100), cost(3000));
    assert_eq!(cost(100), (3, 20, 10));
}

#[test]
fn what_the_baseline_never_had_is_no_deletion() {
    let old = Files::of([("a/x", file("1"))]);
    let mut guest = Guest::plain(old.clone(), Files::of([("a/x", file("1"))]));
    // The guest claims to have deleted what was never given to it.
    guest.extra(b"", b".env", FileKind::Whiteout);
    guest.extra(b"", b"node_modules", FileKind::Whiteout);
    let (set, _, _) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    assert!(set.is_empty());
}

#[test]
fn ignored_paths_are_counted_and_stay() {
    let old = Files::of([
        (".gitignore", file("target/\n*.o\n")),
        ("tracked.o", file("1")),
        ("vendor/target/kept", file("1")),
    ]);
    let mut new = old.clone();
    for at in [
        "target/debug/x",
        "target/y",
        "a.o",
        "src/b.o",
        "src/c.c",
        "tracked.o",
        "vendor/target/kept",
        "vendor/target/new",
    ] {
        new.put(&path(at), file("2"));
    }
    // The guest's own rules count nothing.
    new.put(&path(".gitignore"), file("!target/\n*.c\n"));
    let mut guest = Guest::plain(old, new);
    let import = guest.import(KnownState::default(), ignore("target/\n*.o\n"), &[]);
    let mut memory = Memory::default();
    let (set, _, counts) = guest.drive(import(&mut memory)).unwrap();
    assert_eq!(
        paths(&set),
        [
            ".gitignore",
            "src",
            "src/c.c",
            "tracked.o",
            "vendor/target/kept"
        ]
    );
    // `target`, `a.o`, `src/b.o`, `vendor/target/new`: each by its topmost path.
    assert_eq!(counts.ignored, 4);
    assert!(
        !guest.listed.contains(&path("target")),
        "{:?}",
        guest.listed
    );
}

#[test]
fn artifacts_come_out_of_ignored_places() {
    let check = |globs: &[&str], expected: &[&str]| {
        let mut new = Files::default();
        for at in [
            "dist/app.whl",
            "dist/log",
            "out/deep/x.bin",
            "out/y",
            "lib.whl",
            "big/a",
        ] {
            new.put(&path(at), file(at));
        }
        let mut guest = Guest::plain(Files::default(), new);
        let import = guest.import(KnownState::default(), ignore("*\n"), globs);
        let mut memory = Memory::default();
        let (set, _, _) = guest.drive(import(&mut memory)).unwrap();
        assert_eq!(paths(&set), expected, "{globs:?}");
        if globs
            .iter()
            .all(|glob| glob.contains('/') && !glob.starts_with("**"))
        {
            assert!(!guest.listed.contains(&path("big")), "{globs:?}");
        }
    };
    check(&["dist/*.whl"], &["dist", "dist/app.whl"]);
    check(&["/dist/"], &["dist", "dist/app.whl", "dist/log"]);
    check(&["*.whl"], &["dist", "dist/app.whl", "lib.whl"]);
    check(&["out/deep/"], &["out", "out/deep", "out/deep/x.bin"]);
    check(
        &["**/*.bin", "./dist/log"],
        &["dist", "dist/log", "out", "out/deep", "out/deep/x.bin"],
    );
    check(&["nothing/here"], &[]);
    Artifacts::new(&["../x"]).unwrap_err();
    Artifacts::new(&["a["]).unwrap_err();
    Artifacts::new(&["/"]).unwrap_err();
}

#[test]
fn git_directories_stay() {
    let old = Files::of([("a", file("1"))]);
    let mut new = old.clone();
    for at in [
        ".git/hooks/pre-commit",
        "sub/.git/config",
        "sub/code",
        "x/.GIT/y",
        "z/git~1/y",
        "w/.g\u{200c}it",
    ] {
        new.put(&path(at), file("evil"));
    }
    let (set, _, counts) = run(
        &mut Guest::plain(old, new),
        KnownState::default(),
        &mut Memory::default(),
    )
    .unwrap();
    assert_eq!(paths(&set), ["sub", "sub/code", "w", "x", "z"]);
    assert_eq!(
        left_out(&counts),
        [
            ("sub/.git", Reason::GitStore),
            ("w/.g\\u{200c}it", Reason::GitStore),
            ("x/.GIT", Reason::GitStore),
            ("z/git~1", Reason::GitStore),
        ]
    );
}

#[test]
fn bare_repositories_stay() {
    let bare = |files: &mut Files, at: &str| {
        for name in [
            "HEAD",
            "config",
            "objects/x",
            "refs/heads/main",
            "hooks/post-update",
        ] {
            files.put(&path(format!("{at}{name}")), file(name));
        }
    };
    let old = Files::of([
        ("fixture.git/HEAD", file("1")),
        ("fixture.git/objects", dir()),
        ("fixture.git/refs", dir()),
    ]);
    let mut new = old.clone();
    bare(&mut new, "evil/");
    bare(&mut new, "");
    new.put(&path("fixture.git/config"), file("evil"));
    new.put(&path("other/HEAD"), file("only a name"));
    let (set, _, counts) = run(
        &mut Guest::plain(old, new),
        KnownState::default(),
        &mut Memory::default(),
    )
    .unwrap();
    let came = paths(&set);
    assert!(
        !came.iter().any(|at| at.starts_with("evil") && at != "evil"
            || at.starts_with("fixture")
            || at == "HEAD"),
        "{came:?}"
    );
    assert!(came.contains(&"other/HEAD".to_owned()));
    let mut named = left_out(&counts);
    named.sort();
    assert_eq!(
        named,
        [
            ("HEAD", Reason::GitStore),
            ("evil", Reason::GitStore),
            ("fixture.git", Reason::GitStore),
        ]
    );
}

#[test]
fn special_files_and_bits_do_not_come_out() {
    let old = Files::of([("was-file", file("1")), ("was-dir/x", file("1"))]);
    let mut guest = Guest::plain(
        old,
        Files::of([("suid", Item::File(0o6755, b"1".to_vec()))]),
    );
    for name in ["was-file", "was-dir", "fifo"] {
        guest.extra(b"", name.as_bytes(), FileKind::Other);
    }
    let (set, _, counts) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    let fate = |at: &str| {
        set.get(&path(at)).map(|change| {
            (
                change.old.is_some(),
                change.new.as_ref().map(|new| new.mode),
            )
        })
    };
    assert_eq!(fate("suid"), Some((false, Some(0o755))));
    assert_eq!(fate("was-file"), Some((true, None)));
    assert_eq!(fate("was-dir/x"), Some((true, None)));
    assert_eq!(fate("fifo"), None);
    assert_eq!(counts.special_bits, 1);
    assert_eq!(counts.left_out_count, 3);
}

#[test]
fn limits_are_hit_with_a_name() {
    let big = |size| Item::File(0o644, vec![b'x'; size]);
    let new = Files::of([
        ("a", big(100)),
        ("b", big(101)),
        ("c", big(60)),
        ("d", big(10)),
    ]);
    let mut guest = Guest::plain(Files::default(), new);
    let mut memory = Memory::default();
    let limits = Limits {
        file: Size(100),
        total: Size(120),
        ..Limits::default()
    };
    let import = Import::new(
        Vec::new(),
        KnownState::default(),
        limits,
        NoRules,
        Artifacts::default(),
        &mut memory,
    );
    let (set, _, counts) = guest.drive(import).unwrap();
    assert_eq!(paths(&set), ["a", "d"]);
    assert_eq!(
        left_out(&counts),
        [("b", Reason::TooLarge), ("c", Reason::OverTotal)]
    );
}

#[test]
fn too_many_names_end_it() {
    let mut new = Files::default();
    for at in 0..50 {
        new.put(&path(format!("f{at}")), file(""));
    }
    let fails = |limits| {
        let mut guest = Guest::plain(Files::default(), new.clone());
        let mut memory = Memory::default();
        let import = Import::new(
            Vec::new(),
            KnownState::default(),
            limits,
            NoRules,
            Artifacts::default(),
            &mut memory,
        );
        guest.drive(import).map(|_| ())
    };
    fails(Limits {
        entries: 50,
        ..Limits::default()
    })
    .unwrap();
    assert!(matches!(
        fails(Limits {
            entries: 49,
            ..Limits::default()
        }),
        Err(ImportError::TooManyEntries(49))
    ));
    assert!(matches!(
        fails(Limits {
            path_bytes: 100,
            ..Limits::default()
        }),
        Err(ImportError::TooManyPathBytes(100))
    ));
}

#[test]
fn what_waits_for_the_next_pass_keeps_its_last_state() {
    let text = |byte: u8| Item::File(0o644, vec![byte; 100]);
    let old = Files::of([("a", text(b'0')), ("b", text(b'0')), ("c", text(b'0'))]);
    let first = Files::of([("a", text(b'1')), ("b", text(b'1')), ("c", text(b'0'))]);
    let second = Files::of([("a", text(b'2')), ("b", text(b'2')), ("c", text(b'2'))]);
    let mut guest = Guest::plain(old.clone(), first);
    let mut memory = Memory::default();
    let (_, known, _) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
    guest.edit(second.clone());
    let limits = Limits {
        read: Size(150),
        ..Limits::default()
    };
    let import = Import::new(
        old.entries(),
        known,
        limits,
        NoRules,
        Artifacts::default(),
        &mut memory,
    );
    let (set, known, counts) = guest.drive(import).unwrap();
    assert_eq!(counts.deferred, 2);
    // One of them is new, one stands as it was, and the one that was never read as the baseline has it.
    let expected = Files::of([("a", text(b'2')), ("b", text(b'1')), ("c", text(b'0'))]);
    assert_eq!(set, compare(&old, &expected));
    let (set, _, counts) = run(&mut guest, known, &mut memory).unwrap();
    assert_eq!(counts.deferred, 0);
    assert_eq!(set, compare(&old, &second));
}

#[test]
fn a_file_that_never_rests_is_marked() {
    let mut guest = Guest::plain(
        Files::default(),
        Files::of([("log", file("line\n")), ("calm", file("x"))]),
    );
    guest.restless = Some(path("log"));
    let (set, known, counts) =
        run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    assert!(set.get(&path("log")).unwrap().torn);
    assert!(!set.get(&path("calm")).unwrap().torn);
    assert_eq!(counts.files_read, 1 + 3);
    // Once it rests it is whole.
    guest.restless = None;
    let (set, _, _) = run(&mut guest, known, &mut Memory::default()).unwrap();
    assert!(!set.get(&path("log")).unwrap().torn);
}

#[test]
fn what_cannot_be_read_stays_as_the_baseline_has_it() {
    let old = Files::of([("a", file("1")), ("d/x", file("1")), ("e/x", file("1"))]);
    let mut new = old.clone();
    for at in ["a", "d/y", "e/y", "gone", "b"] {
        new.put(&path(at), file("2"));
    }
    let mut guest = Guest::plain(old, new);
    for (at, errno) in [("a", 5), ("d", 13), ("e", 2), ("gone", 2)] {
        guest.failing.insert(path(at), errno);
    }
    let (set, _, counts) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    assert_eq!(paths(&set), ["b"]);
    assert_eq!(
        left_out(&counts),
        [("d", Reason::Unreadable), ("a", Reason::Unreadable)]
    );
    assert_eq!(counts.vanished, 2);
}

#[test]
fn a_guest_that_hangs_up_is_asked_again_and_then_given_up() {
    let new = Files::of([("a/b", file("1")), ("c", file("1"))]);
    for after in 0..8 {
        let mut guest = Guest::plain(Files::default(), new.clone());
        guest.hang_up = vec![after];
        let (set, _, _) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
        assert_eq!(set, compare(&Files::default(), &new));
    }
    let mut guest = Guest::plain(Files::default(), new);
    guest.hang_up = vec![0; 9];
    let error = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap_err();
    assert!(matches!(error, ImportError::Unanswered(3)));
}

#[test]
fn large_files_come_last_and_are_spooled() {
    let large = Item::File(
        0o644,
        (0..3_000_000_u32).map(|at| at.to_le_bytes()[1]).collect(),
    );
    let new = Files::of([("a", large), ("b", file("1")), ("c/d", file("2"))]);
    let mut guest = Guest::plain(Files::default(), new.clone());
    let mut memory = Memory::default();
    let (set, _, _) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
    assert_eq!(set, compare(&Files::default(), &new));
    assert_eq!(guest.read.last(), Some(&path("a")));
    assert_eq!(memory.kept.len(), 3);
}

#[test]
fn requests_fit_a_frame() {
    let long = "n".repeat(255);
    let deep = vec![long.as_str(); 15].join("/");
    let mut new = Files::default();
    for at in 0..100 {
        new.put(&path(format!("{deep}/f{at}")), file("1"));
    }
    let mut guest = Guest::plain(Files::default(), new.clone());
    let (set, _, _) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    assert_eq!(set.stat().added, 100);
    assert!(
        guest.longest_request <= wire::MAX_MESSAGE,
        "{}",
        guest.longest_request
    );
}

#[test]
fn what_an_abandoned_pass_read_is_not_read_again() {
    let new = Files::of([("a", file("1")), ("b", file("2"))]);
    let mut guest = Guest::plain(Files::default(), new.clone());
    let mut memory = Memory::default();
    let (_, known, _) = run(&mut guest, KnownState::default(), &mut memory).unwrap();
    let (_, known, _) = run(&mut guest, known, &mut memory).unwrap();
    let import = guest.import(known, NoRules, &[]);
    let known = import(&mut memory).abandon();
    let (set, _, counts) = run(&mut guest, known, &mut memory).unwrap();
    assert_eq!(set, compare(&Files::default(), &new));
    assert_eq!(counts.files_read, 0);
}

#[test]
fn a_sparse_giant_is_never_asked_for() {
    let mut guest = Guest::plain(Files::default(), Files::of([("ok", file("1"))]));
    guest.extra(b"", b"giant", FileKind::File);
    guest
        .sizes
        .insert(b"giant".to_vec(), i64::MAX.cast_unsigned());
    let (set, _, counts) = run(&mut guest, KnownState::default(), &mut Memory::default()).unwrap();
    assert_eq!(paths(&set), ["ok"]);
    assert_eq!(left_out(&counts), [("giant", Reason::TooLarge)]);
    assert_eq!(guest.read, [path("ok")]);
}

#[test]
fn children_of_a_directory_are_its_own() {
    let files = Files::of([
        ("a/b", file("")),
        ("a-b", file("")),
        ("a/c/d", file("")),
        ("a.x/y", file("")),
        ("a/c-d", file("")),
    ]);
    let entries = files.entries();
    let names = |at: &str| {
        let at = if at.is_empty() {
            RelPath::root()
        } else {
            path(at)
        };
        entries
            .children(&at)
            .unwrap()
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("a"), ["b", "c", "c-d"]);
    assert_eq!(names(""), ["a", "a-b", "a.x"]);
    assert_eq!(names("a/b"), [] as [String; 0]);
    assert_eq!(entries.below(&path("a")).unwrap().len(), 4);
}
