use super::commit::Renames;
use super::{
    ApplyError, Conflict, ConflictKind, Contents, Landing, Operation, PlanError, plan, recover,
};
use crate::change::{Change, ChangeSet, Node};
use crate::testing::{Files, Item, Pair, any_pair, compare, dir, file, fingerprint, link, path};
use base::{Digest, RelPath};
use fs_err as fs;
use proptest::prelude::*;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A directory with a tree, and one for the journal.
struct Host {
    home: TempDir,
}

impl Host {
    fn new(files: &Files) -> Self {
        let host = Self {
            home: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(host.root()).unwrap();
        files.write(&host.root());
        host
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    fn journal(&self) -> PathBuf {
        self.home.path().join("journal")
    }

    fn files(&self) -> Files {
        Files::read(&self.root())
    }

    fn apply(&self, set: &ChangeSet, contents: &dyn Contents) -> Result<Operation, ApplyError> {
        let plan = plan(set, &self.root()).unwrap();
        let done = plan.apply(contents, &self.journal());
        assert!(!self.journal().exists());
        done
    }

    fn conflicts(&self, set: &ChangeSet) -> Vec<Conflict> {
        let before = fingerprint(&self.root());
        let found = match plan(set, &self.root()) {
            Err(PlanError::Conflicts(found)) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(before, fingerprint(&self.root()));
        found
    }
}

fn check_conflict(old: &Files, new: &Files, host: &Files, expected: &[(&str, ConflictKind)]) {
    let set = compare(old, new);
    let found = Host::new(host).conflicts(&set);
    let expected: Vec<_> = expected
        .iter()
        .map(|(at, kind)| Conflict {
            path: path(at),
            kind: kind.clone(),
        })
        .collect();
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// What the machine had is what the host has afterwards: bytes, modes, links, empty directories.
    #[test]
    fn gives_the_very_same_tree(pair in any_pair(), plain in any::<bool>()) {
        let Pair(old, new) = pair;
        let host = Host::new(&old);
        let set = compare(&old, &new);
        let renames = if plain { Renames::Plain } else { Renames::Exchange };
        let operation = plan(&set, &host.root()).unwrap()
            .apply_with(&new, &host.journal(), renames, &mut |_| true).unwrap();
        prop_assert_eq!(host.files(), new.clone());
        prop_assert_eq!(operation.changes.as_slice(), set.changes());
        prop_assert_eq!(operation.change_set, set.digest());
        // A second time there is nothing to do.
        let again = host.apply(&set, &new).unwrap();
        prop_assert!(again.changes.is_empty());
        prop_assert_eq!(again.already.len(), set.changes().len());
        prop_assert_eq!(host.files(), new);
    }

    /// A process that dies before any step leaves what `recover` puts right.
    #[test]
    fn a_crash_is_undone(pair in any_pair(), plain in any::<bool>(), at in any::<prop::sample::Index>()) {
        let Pair(old, new) = pair;
        let set = compare(&old, &new);
        prop_assume!(!set.is_empty());
        let host = Host::new(&old);
        let at = at.index(set.changes().len());
        let renames = if plain { Renames::Plain } else { Renames::Exchange };
        let plan = plan(&set, &host.root()).unwrap();
        plan.apply_with(&new, &host.journal(), renames, &mut |step| step < at).unwrap();
        prop_assert!(recover(&host.journal()).unwrap());
        prop_assert_eq!(host.files(), old);
        prop_assert!(!host.journal().exists());
        prop_assert!(!recover(&host.journal()).unwrap());
    }

    /// An edit of the host in the middle of the work, anywhere, stays, and all else is as before.
    #[test]
    fn an_edit_in_between_is_never_lost(pair in any_pair(), plain in any::<bool>(), at in any::<prop::sample::Index>()) {
        let Pair(old, new) = pair;
        let set = compare(&old, &new);
        let edited: Vec<_> = set.changes().iter()
            .filter(|change| change.old.as_ref().is_some_and(|node| node.kind == crate::Kind::File))
            .map(|change| change.path.clone())
            .collect();
        prop_assume!(!edited.is_empty());
        let victim = at.get(&edited).clone();
        let host = Host::new(&old);
        let renames = if plain { Renames::Plain } else { Renames::Exchange };
        let plan = plan(&set, &host.root()).unwrap();
        let full = host.root().join(victim.as_path());
        let mut wrote = false;
        let done = plan.apply_with(&new, &host.journal(), renames, &mut |_| {
            if !wrote {
                fs::set_permissions(&full, std::fs::Permissions::from_mode(0o600)).unwrap();
                fs::write(&full, "mine, written just now").unwrap();
                wrote = true;
            }
            true
        });
        prop_assert!(matches!(done, Err(ApplyError::MovedOn(at)) if at == victim));
        let mut expected = old;
        expected.0.insert(victim, Item::File(0o600, b"mine, written just now".to_vec()));
        prop_assert_eq!(host.files(), expected);
        prop_assert!(!host.journal().exists());
    }
}

/// Fails from a certain content on, as a full disk or a damaged store does.
struct Failing<'a>(&'a Files, std::cell::Cell<u32>, io::ErrorKind);

impl Contents for Failing<'_> {
    fn copy_to(&self, digest: &Digest, to: &mut dyn io::Write) -> io::Result<()> {
        if self.1.get() == 0 {
            to.write_all(b"half of i")?;
            return Err(self.2.into());
        }
        self.1.set(self.1.get() - 1);
        self.0.copy_to(digest, to)
    }
}

#[test]
fn a_content_that_fails_changes_nothing() {
    let old = Files::of([("a", file("1")), ("b", file("2")), ("d/x", file("3"))]);
    let new = Files::of([("a", file("one")), ("b", file("two")), ("c", file("new"))]);
    for good in 0..3 {
        let host = Host::new(&old);
        let failing = Failing(&new, good.into(), io::ErrorKind::StorageFull);
        let error = host.apply(&compare(&old, &new), &failing).unwrap_err();
        assert!(matches!(error, ApplyError::Content { .. }), "{error:?}");
        assert_eq!(host.files(), old);
    }
}

/// Gives other bytes than asked for, and says that all is well.
struct Lying;

impl Contents for Lying {
    fn copy_to(&self, _: &Digest, to: &mut dyn io::Write) -> io::Result<()> {
        to.write_all(b"not what was reviewed")
    }
}

#[test]
fn only_reviewed_bytes_are_applied() {
    let old = Files::of([("a", file("1"))]);
    let new = Files::of([("a", file("one"))]);
    let host = Host::new(&old);
    let error = host.apply(&compare(&old, &new), &Lying).unwrap_err();
    assert!(matches!(error, ApplyError::Content { path: at, .. } if at == path("a")));
    assert_eq!(host.files(), old);
}

#[test]
fn an_error_in_the_middle_rolls_everything_back() {
    let old = Files::of([
        ("a", file("1")),
        ("b", file("2")),
        ("gone/x", file("3")),
        ("gone/y/z", link("x")),
        ("m", Item::Dir(0o700)),
    ]);
    let new = Files::of([
        ("a", file("one")),
        ("b", dir()),
        ("b/new", file("4")),
        ("m", dir()),
        ("z", file("last")),
    ]);
    let host = Host::new(&old);
    let inode = |name: &str| fs::symlink_metadata(host.root().join(name)).unwrap().ino();
    let before = (inode("a"), inode("b"));
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    // Somebody takes the last place just before it is filled.
    let done = plan.apply_with(&new, &host.journal(), Renames::Exchange, &mut |_| {
        fs::write(host.root().join("z"), "somebody else's").unwrap();
        true
    });
    assert!(matches!(done, Err(ApplyError::MovedOn(at)) if at == path("z")));
    fs::remove_file(host.root().join("z")).unwrap();
    assert_eq!(host.files(), old);
    // Not copies: the very files.
    assert_eq!(before, (inode("a"), inode("b")));
}

#[test]
fn directories_made_by_somebody_else_meanwhile_stay() {
    let old = Files::default();
    let new = Files::of([("d/x", file("1"))]);
    let host = Host::new(&old);
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    let done = plan.apply_with(&new, &host.journal(), Renames::Exchange, &mut |_| {
        fs::create_dir_all(host.root().join("d")).unwrap();
        fs::set_permissions(
            host.root().join("d"),
            std::fs::Permissions::from_mode(0o750),
        )
        .unwrap();
        true
    });
    assert!(matches!(done, Err(ApplyError::MovedOn(at)) if at == path("d")));
    assert_eq!(host.files(), Files::of([("d", Item::Dir(0o750))]));
}

#[test]
fn every_conflict_is_listed() {
    let old = Files::of([
        ("edited", file("1")),
        ("gone", file("1")),
        ("mode", file("1")),
        ("kind", file("1")),
        ("same", file("1")),
        ("dir", dir()),
        ("both", file("1")),
    ]);
    let mut new = Files::of([
        ("edited", file("2")),
        ("gone", file("2")),
        ("mode", file("2")),
        ("kind", file("2")),
        ("same", file("2")),
        ("dir/added", file("2")),
        ("added", file("2")),
        ("both", file("2")),
    ]);
    new.put(&path("fresh/x"), file("3"));
    let host = Files::of([
        ("edited", file("mine")),
        ("mode", Item::File(0o755, b"1".to_vec())),
        ("kind/x", file("1")),
        ("same", file("1")),
        ("added", file("mine")),
        ("both", file("2")),
        ("fresh", link("elsewhere")),
    ]);
    check_conflict(
        &old,
        &new,
        &host,
        &[
            ("added", ConflictKind::Exists),
            ("dir/added", ConflictKind::NoParent),
            ("edited", ConflictKind::Edited),
            ("fresh", ConflictKind::Exists),
            ("gone", ConflictKind::Gone),
            ("kind", ConflictKind::OtherKind),
            ("mode", ConflictKind::OtherMode),
        ],
    );
}

#[test]
fn a_link_above_is_never_followed() {
    let old = Files::of([("d/a", file("1")), ("d/gone", file("1"))]);
    let new = Files::of([("d/a", file("2")), ("d/new", file("2"))]);
    let outside = tempfile::tempdir().unwrap();
    Files::of([("a", file("1")), ("gone", file("1"))]).write(outside.path());
    let host = Host::new(&Files::default());
    symlink(outside.path(), host.root().join("d")).unwrap();
    let before = fingerprint(outside.path());
    let found = host.conflicts(&compare(&old, &new));
    assert_eq!(found.len(), 3);
    assert!(
        found
            .iter()
            .all(|conflict| conflict.kind == ConflictKind::LinkAbove),
        "{found:?}"
    );
    assert_eq!(before, fingerprint(outside.path()));
}

#[test]
fn a_link_that_gives_way_to_a_directory_is_replaced() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "canary").unwrap();
    let old = Files::of([("d", link(outside.path().to_str().unwrap()))]);
    let new = Files::of([("d/x", file("mine")), ("d/deep/y", file("mine"))]);
    let host = Host::new(&old);
    host.apply(&compare(&old, &new), &new).unwrap();
    assert_eq!(host.files(), new);
    assert_eq!(fs::read(outside.path().join("x")).unwrap(), b"canary");
}

#[test]
fn a_crash_before_a_link_gave_way_is_undone() {
    let old = Files::of([("d", link("a"))]);
    let new = Files::of([("d/x", file("1"))]);
    for steps in 0..3 {
        let host = Host::new(&old);
        let plan = plan(&compare(&old, &new), &host.root()).unwrap();
        plan.apply_with(&new, &host.journal(), Renames::Exchange, &mut |step| {
            step < steps
        })
        .unwrap();
        assert!(recover(&host.journal()).unwrap());
        assert_eq!(host.files(), old);
    }
}

/// A file's directory is moved away between its replacement and the way back: the original is kept, and where it
/// is is said.
#[test]
fn an_original_that_has_no_place_to_go_is_kept() {
    let old = Files::of([("d/x", file("old")), ("e", file("1"))]);
    let new = Files::of([("d/x", file("new")), ("e", file("2"))]);
    let host = Host::new(&old);
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    let error = plan
        .apply_with(&new, &host.journal(), Renames::Exchange, &mut |step| {
            if step == 1 {
                fs::rename(host.root().join("d"), host.root().join("moved")).unwrap();
                fs::write(host.root().join("e"), "mine").unwrap();
            }
            true
        })
        .unwrap_err();
    let ApplyError::Rollback {
        path: at, staging, ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(at, path("d/x"));
    let kept = Files::read(&staging);
    assert!(kept.0.values().any(|item| *item == file("old")), "{kept:?}");
    // Once the directory is back, so is the file.
    fs::rename(host.root().join("moved"), host.root().join("d")).unwrap();
    assert!(recover(&host.journal()).unwrap());
    assert_eq!(
        host.files(),
        Files::of([("d/x", file("old")), ("e", file("mine"))])
    );
}

#[test]
fn a_directory_that_gave_way_to_a_link_is_done() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "canary").unwrap();
    let old = Files::of([("d/x", file("1")), ("d/e/y", file("1"))]);
    let new = Files::of([("d", link(outside.path().to_str().unwrap()))]);
    let host = Host::new(&old);
    for todo in [4, 0] {
        let operation = host.apply(&compare(&old, &new), &new).unwrap();
        assert_eq!(operation.changes.len(), todo);
        assert_eq!(host.files(), new);
    }
    // Another link than that of the set is a conflict.
    let host = Host::new(&Files::of([("d", link("elsewhere"))]));
    let found = host.conflicts(&compare(&old, &new));
    assert_eq!(
        found,
        [Conflict {
            path: path("d"),
            kind: ConflictKind::OtherKind
        }]
    );
}

#[test]
fn a_deleted_directory_keeps_what_the_machine_never_had() {
    let old = Files::of([("d/a", file("1")), ("d/e/b", file("1")), ("f/c", file("1"))]);
    let new = Files::default();
    let host = Host::new(&old);
    fs::write(host.root().join("d/e/.env"), "SECRET=1").unwrap();
    let operation = host.apply(&compare(&old, &new), &new).unwrap();
    assert_eq!(operation.kept, [path("d/e"), path("d")]);
    assert_eq!(host.files(), Files::of([("d/e/.env", file("SECRET=1"))]));
}

#[test]
fn a_directory_with_other_files_does_not_give_way_to_a_file() {
    for hidden in ["d/.env", "d/e/.env"] {
        let old = Files::of([("d/a", file("1")), ("d/e/b", file("1"))]);
        let new = Files::of([("d", file("now a file"))]);
        let mut host = old.clone();
        host.put(&path(hidden), file("SECRET=1"));
        check_conflict(&old, &new, &host, &[("d", ConflictKind::NotEmpty)]);
    }
}

#[test]
fn git_directories_by_any_name_are_not_written() {
    let bare = [
        ("x.git/HEAD", file("ref: refs/heads/main")),
        ("x.git/objects", dir()),
        ("x.git/refs", dir()),
    ];
    let old = Files::of(bare.clone());
    let mut new = old.clone();
    new.put(&path("x.git/config"), file("[core]\n\tfsmonitor = evil"));
    new.put(&path("x.git/hooks/post-checkout"), file("evil"));
    check_conflict(
        &old,
        &new,
        &old,
        &[
            ("x.git/config", ConflictKind::GitDirectory),
            ("x.git/hooks", ConflictKind::GitDirectory),
            ("x.git/hooks/post-checkout", ConflictKind::GitDirectory),
        ],
    );
    // It is the rule that counts, not what is there at the start.
    let found = Host::new(&Files::default()).conflicts(&compare(&Files::default(), &old));
    assert!(
        found
            .iter()
            .any(|conflict| conflict.path == path("x.git/HEAD")),
        "{found:?}"
    );
    // The missing piece from the machine, the rest on the host.
    let mut part = old.clone();
    part.remove(&path("x.git/HEAD"));
    check_conflict(
        &part,
        &old,
        &part,
        &[("x.git/HEAD", ConflictKind::GitDirectory)],
    );
    // A worktree's directory has neither objects nor references of its own.
    let old = Files::of([("w/HEAD", file("x")), ("w/commondir", file("../.."))]);
    let mut new = old.clone();
    new.put(&path("w/config.worktree"), file("evil"));
    check_conflict(
        &old,
        &new,
        &old,
        &[("w/config.worktree", ConflictKind::GitDirectory)],
    );
}

#[test]
fn a_fifo_or_device_in_the_way_does_not_hang() {
    let old = Files::of([("a", file("1"))]);
    let new = Files::of([("a", file("2")), ("b", file("2"))]);
    let host = Host::new(&Files::default());
    for name in ["a", "b"] {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            host.root().join(name),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
    }
    let found = match plan(&compare(&old, &new), &host.root()) {
        Err(PlanError::Conflicts(found)) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found[0].kind, ConflictKind::OtherKind);
    assert_eq!(found[1].kind, ConflictKind::Exists);
}

#[test]
fn read_only_directories_take_their_files_in() {
    let old = Files::of([("d", Item::Dir(0o755)), ("d/a", file("1"))]);
    let new = Files::of([
        ("d", Item::Dir(0o555)),
        ("d/a", file("2")),
        ("e", Item::Dir(0o500)),
        ("e/f", Item::Dir(0o555)),
        ("e/f/x", file("3")),
    ]);
    let host = Host::new(&old);
    host.apply(&compare(&old, &new), &new).unwrap();
    assert_eq!(host.files(), new);
    host.apply(&compare(&new, &old), &old)
        .unwrap_or_else(|error| {
            // Without root nothing can be removed from a directory that can't be written: nothing is, then.
            assert!(!rustix::process::geteuid().is_root(), "{error:?}");
            assert_eq!(host.files(), new);
            Operation {
                version: 1,
                change_set: Digest::of(b""),
                changes: vec![],
                already: vec![],
                kept: vec![],
            }
        });
}

#[test]
fn two_operations_at_once_are_refused() {
    let old = Files::default();
    let new = Files::of([("a", file("1"))]);
    let host = Host::new(&old);
    fs::write(host.journal(), "").unwrap();
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    let error = plan.apply(&new, &host.journal()).unwrap_err();
    assert!(matches!(error, ApplyError::Busy(_)));
    assert_eq!(host.files(), old);
    // A journal that was never written is of an operation that never began.
    assert!(!recover(&host.journal()).unwrap());
    assert!(!host.journal().exists());
}

#[test]
fn an_operation_at_work_is_not_recovered() {
    let old = Files::default();
    let new = Files::of([("a", file("1"))]);
    let host = Host::new(&old);
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    let mut seen = Vec::new();
    plan.apply_with(&new, &host.journal(), Renames::Exchange, &mut |_| {
        seen.push(recover(&host.journal()));
        true
    })
    .unwrap();
    assert!(
        matches!(seen.as_slice(), [Err(ApplyError::Busy(_))]),
        "{seen:?}"
    );
    assert_eq!(host.files(), new);
    // The lock went with the operation.
    host.apply(&compare(&new, &old), &old).unwrap();
}

#[test]
fn a_journal_of_a_directory_that_is_gone_is_forgotten() {
    let old = Files::default();
    let new = Files::of([("a", file("1"))]);
    let host = Host::new(&old);
    let plan = plan(&compare(&old, &new), &host.root()).unwrap();
    plan.apply_with(&new, &host.journal(), Renames::Exchange, &mut |_| false)
        .unwrap();
    fs::remove_dir_all(host.root()).unwrap();
    assert!(!recover(&host.journal()).unwrap());
    assert!(!host.journal().exists());
}

#[test]
fn a_mode_alone_needs_no_content() {
    let old = Files::of([("a", file("1"))]);
    let new = Files::of([("a", Item::File(0o755, b"1".to_vec()))]);
    let host = Host::new(&old);
    host.apply(&compare(&old, &new), &Files::default()).unwrap();
    assert_eq!(host.files(), new);
}

/// Somebody swaps a directory and a link to the outside as fast as it goes while results are applied: nothing
/// outside is ever written, and each operation is whole or did not happen.
#[test]
fn a_racing_renamer_gets_nothing_outside() {
    let outside = tempfile::tempdir().unwrap();
    let old = Files::of([("d/a", file("1")), ("d/b", file("1"))]);
    let new = Files::of([("d/a", file("2")), ("d/c", file("2"))]);
    old.write(outside.path());
    let before = fingerprint(outside.path());
    let set = compare(&old, &new);
    let mut applied = 0;
    for _ in 0..60 {
        let host = Host::new(&old);
        symlink(outside.path().join("d"), host.root().join("l")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&host.root(), &stop));
            for _ in 0..4 {
                if let Ok(plan) = plan(&set, &host.root()) {
                    match plan.apply(&new, &host.journal()) {
                        Ok(_) => applied += 1,
                        // What could not be put back under the renamer's hands is put back from the journal.
                        Err(ApplyError::Rollback { .. }) => break,
                        Err(_) => {}
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(before, fingerprint(outside.path()));
    }
    assert!(applied > 0, "the race was never won, so nothing was shown");
}

fn swap(root: &Path, stop: &AtomicBool) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let mut swapped = false;
    while !stop.load(Ordering::Relaxed) || swapped {
        let done = rustix::fs::renameat_with(
            rustix::fs::CWD,
            root.join("d"),
            rustix::fs::CWD,
            root.join("l"),
            flags,
        );
        swapped ^= done.is_ok();
    }
}

mod landing {
    use super::*;
    use crate::LandError;
    use std::io::Write as _;

    fn land(landing: &Landing, at: &str, text: &str) -> Result<(), LandError> {
        let mut file = landing.file(&path(at), 0o4755)?;
        file.write_all(text.as_bytes()).unwrap();
        file.finish()
    }

    #[test]
    fn files_and_links_land() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("old"), "old").unwrap();
        let landing = Landing::open(home.path()).unwrap();
        landing.dir(&RelPath::root(), 0o755).unwrap();
        landing.dir(&path("d/e"), 0o750).unwrap();
        land(&landing, "d/e/new", "new").unwrap();
        land(&landing, "old", "newer").unwrap();
        landing.symlink(&path("l"), b"/etc/passwd").unwrap();
        let expected = Files::of([
            ("d", dir()),
            ("d/e", Item::Dir(0o750)),
            ("d/e/new", Item::File(0o755, b"new".to_vec())),
            ("old", Item::File(0o755, b"newer".to_vec())),
            ("l", link("/etc/passwd")),
        ]);
        assert_eq!(Files::read(home.path()), expected);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let landing = Landing::open(home.path()).unwrap();
        let mut file = landing.file(&path("a"), 0o644).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(Files::read(home.path()), Files::default());
    }

    #[test]
    fn a_link_is_replaced_and_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("canary"), "canary").unwrap();
        let home = tempfile::tempdir().unwrap();
        symlink(outside.path(), home.path().join("d")).unwrap();
        symlink(outside.path().join("canary"), home.path().join("f")).unwrap();
        let landing = Landing::open(home.path()).unwrap();
        land(&landing, "d/canary", "evil").unwrap_err();
        landing.dir(&path("d"), 0o755).unwrap_err();
        landing.dir(&path("d/x"), 0o755).unwrap_err();
        landing.symlink(&path("d/x"), b"y").unwrap_err();
        land(&landing, "f", "mine").unwrap();
        assert_eq!(
            Files::read(outside.path()),
            Files::of([("canary", file("canary"))])
        );
        // A link that came from the machine is not followed either.
        landing
            .symlink(&path("m"), outside.path().to_str().unwrap().as_bytes())
            .unwrap();
        land(&landing, "m/canary", "evil").unwrap_err();
        assert_eq!(
            Files::read(outside.path()),
            Files::of([("canary", file("canary"))])
        );
    }

    #[test]
    fn nothing_goes_into_a_git_directory() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join(".git/hooks")).unwrap();
        Files::of([
            ("b/HEAD", file("x")),
            ("b/objects", dir()),
            ("b/refs/heads", dir()),
        ])
        .write(home.path());
        for name in [".git", ".git/hooks", "b", "b/refs/heads"] {
            let error = Landing::open(&home.path().join(name)).unwrap_err();
            assert!(
                matches!(error, LandError::GitDirectory(_)),
                "{name}: {error:?}"
            );
        }
        symlink(".git/hooks", home.path().join("innocent")).unwrap();
        assert!(matches!(
            Landing::open(&home.path().join("innocent")),
            Err(LandError::GitDirectory(_))
        ));
        let landing = Landing::open(home.path()).unwrap();
        for at in [".git/hooks/x", ".GIT/x", "a/git~1/x"] {
            assert!(
                matches!(land(&landing, at, "evil"), Err(LandError::Refused(_))),
                "{at}"
            );
            assert!(
                matches!(landing.dir(&path(at), 0o755), Err(LandError::Refused(_))),
                "{at}"
            );
            assert!(
                matches!(landing.symlink(&path(at), b"x"), Err(LandError::Refused(_))),
                "{at}"
            );
        }
    }
}

#[test]
fn a_type_change_of_every_kind_works() {
    let kinds = [
        file("1"),
        Item::File(0o755, b"x".to_vec()),
        link("t"),
        dir(),
    ];
    for old in &kinds {
        for new in &kinds {
            let (old, new) = (
                Files::of([("a", old.clone())]),
                Files::of([("a", new.clone())]),
            );
            let host = Host::new(&old);
            host.apply(&compare(&old, &new), &new).unwrap();
            assert_eq!(host.files(), new);
        }
    }
}

#[test]
fn a_stale_set_changes_nothing() {
    let set = ChangeSet::new(vec![Change {
        path: path("a"),
        old: Some(Node::file(0o644, 1, Digest::of(b"other"))),
        new: Some(file("2").node()),
        torn: false,
    }])
    .unwrap();
    let host = Host::new(&Files::of([("a", file("1"))]));
    assert_eq!(host.conflicts(&set)[0].kind, ConflictKind::Edited);
}
