use super::{Change, ChangeSet, ChangeSetError, Node, Rename};
use crate::testing::{Files, any_pair, compare, dir, file, link, path};
use base::Digest;
use proptest::prelude::*;

fn change(at: &str, old: Option<Node>, new: Option<Node>) -> Change {
    Change {
        path: path(at),
        old,
        new,
        torn: false,
    }
}

fn text(content: &str) -> Node {
    file(content).node()
}

#[test]
fn each_path_has_one_fate() {
    let twice = vec![
        change("a", None, Some(text("1"))),
        change("a", None, Some(Node::symlink("/etc"))),
    ];
    assert_eq!(ChangeSet::new(twice), Err(ChangeSetError::Twice(path("a"))));
}

#[test]
fn nothing_lies_below_a_file_or_link() {
    for above in [text("1"), Node::symlink("/etc")] {
        for below in ["a/x", "a/b/c/x"] {
            let set = vec![
                change(below, None, Some(text("2"))),
                change("a", None, Some(above.clone())),
            ];
            let expected = ChangeSetError::BelowFile {
                path: path(below),
                above: path("a"),
            };
            assert_eq!(ChangeSet::new(set), Err(expected));
        }
    }
    // Nor in a directory that goes.
    let set = vec![
        change("a", Some(Node::dir(0o755)), None),
        change("a/x", None, Some(text("2"))),
    ];
    assert!(matches!(
        ChangeSet::new(set),
        Err(ChangeSetError::BelowFile { .. })
    ));
}

#[test]
fn git_directories_are_no_part_of_it() {
    for at in [
        ".git/hooks/pre-commit",
        "sub/.GIT/config",
        "a/git~1/x",
        ".git",
        "x/.git./y",
        "a/.g\u{200c}it",
    ] {
        for (old, new) in [(None, Some(text("x"))), (Some(text("x")), None)] {
            let set = ChangeSet::new(vec![change(at, old, new)]);
            assert_eq!(set, Err(ChangeSetError::Forbidden(path(at))), "{at}");
        }
    }
}

#[test]
fn contradictions_are_refused() {
    let mut wide = text("x");
    wide.mode = 0o4755;
    let mut dir_with_size = Node::dir(0o755);
    dir_with_size.size = 3;
    let mut wrong_target = Node::symlink("a");
    wrong_target.target = b"b".to_vec();
    let mut no_digest = text("x");
    no_digest.digest = None;
    for node in [
        wide,
        dir_with_size,
        wrong_target,
        no_digest,
        Node::symlink(""),
        Node::symlink("a\0b"),
    ] {
        let set = ChangeSet::new(vec![change("a", None, Some(node.clone()))]);
        assert_eq!(
            set,
            Err(ChangeSetError::Inconsistent(path("a"))),
            "{node:?}"
        );
    }
    for same in [None, Some(text("x"))] {
        let set = ChangeSet::new(vec![change("a", same.clone(), same)]);
        assert_eq!(set, Err(ChangeSetError::Inconsistent(path("a"))));
    }
}

#[test]
fn other_versions_are_not_guessed_at() {
    let error = serde_json::from_str::<ChangeSet>(r#"{"version":2,"changes":[]}"#).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
    serde_json::from_str::<ChangeSet>(r#"{"version":1,"changes":[],"more":1}"#).unwrap_err();
}

#[test]
fn json_is_what_documents_say() {
    let set = ChangeSet::new(vec![change("a", None, Some(Node::symlink("b")))]).unwrap();
    let json = serde_json::to_string(&set).unwrap();
    let digest = Digest::of(b"b");
    assert_eq!(
        json,
        format!(
            r#"{{"version":1,"changes":[{{"path":"a","old":null,"new":{{"kind":"symlink","mode":511,"size":1,"digest":"{digest}","target":"b"}}}}]}}"#
        )
    );
}

#[test]
fn renames_pair_equal_names_first() {
    let old = Files::of([
        ("x/a", file("same")),
        ("x/b", file("same")),
        ("gone", file("")),
        ("l", link("t")),
    ]);
    let new = Files::of([
        ("x", dir()),
        ("y/b", file("same")),
        ("y/c", file("same")),
        ("came", file("")),
        ("m", link("t")),
    ]);
    let renames = compare(&old, &new).renames();
    let pair = |from: &str, to: &str| Rename {
        from: path(from),
        to: path(to),
    };
    assert_eq!(renames, [pair("x/b", "y/b"), pair("x/a", "y/c")]);
}

proptest! {
    #[test]
    fn json_keeps_everything(pair in any_pair()) {
        let set = compare(&pair.0, &pair.1);
        let json = serde_json::to_vec(&set).unwrap();
        let back: ChangeSet = serde_json::from_slice(&json).unwrap();
        prop_assert_eq!(back.digest(), set.digest());
        prop_assert_eq!(back, set);
    }

    /// The order in which changes are found changes nothing, not even the digest.
    #[test]
    fn order_does_not_matter(pair in any_pair(), seed in any::<u64>()) {
        let set = compare(&pair.0, &pair.1);
        let mut changes = set.changes().to_vec();
        changes.sort_by_key(|change| Digest::of(&[&seed.to_le_bytes(), change.path.as_bytes()].concat()));
        let other = ChangeSet::new(changes).unwrap();
        prop_assert_eq!(other.digest(), set.digest());
    }

    /// Whatever differs between two sets, their digests differ.
    #[test]
    fn the_digest_tells_sets_apart(a in any_pair(), b in any_pair()) {
        let (a, b) = (compare(&a.0, &a.1), compare(&b.0, &b.1));
        prop_assert_eq!(a == b, a.digest() == b.digest());
    }
}
