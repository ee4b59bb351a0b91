//! A second pack of the same workspace reads what changed, and nothing else.

use super::super::memory::Memory;
use super::{Bench, rel};
use crate::{Baseline, Collected, PackProgress, pack};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

fn repository(bench: &Bench) {
    for number in 0..40 {
        bench.write(
            &format!("repo/dir-{}/file-{number}", number % 4),
            format!("content of {number}\n").repeat(500),
        );
    }
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "-A"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    settle(&bench.path("repo"));
}

/// Gives everything below `dir` an age that no clock's tick can blur: waits until a file made now is younger than
/// the youngest there by the time that is needed.
fn settle(dir: &Path) {
    let youngest = super::tree(dir, &[])
        .into_keys()
        .map(|path| fs_err::symlink_metadata(path).unwrap())
        .map(|meta| (meta.ctime(), meta.ctime_nsec()))
        .max()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let age = (now.tv_sec - youngest.0) * 1_000_000_000 + now.tv_nsec - youngest.1;
        if age > 100_000_000 {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the clock stands still"
        );
        std::thread::yield_now();
    }
}

/// Where files are in the image tells what was read again: what was kept stays at its place.
fn moved(before: &Baseline, after: &Baseline) -> Vec<String> {
    let entries = after.entries.to_vec().unwrap();
    let moved = entries.iter().filter(|entry| {
        entry.digest.is_some()
            && before
                .entry(&entry.path)
                .unwrap()
                .is_none_or(|old| old.offset != entry.offset)
    });
    moved.map(|entry| entry.path.to_string()).collect()
}

fn git_packs(bench: &Bench, baseline: &Baseline) -> usize {
    let out = bench.extract(baseline);
    let list = fs_err::read_dir(out.join(".git/objects/pack")).unwrap();
    let (text, success) = bench.try_git(&out, &["fsck", "--strict"]);
    assert!(success, "{text}");
    let status = ["--no-optional-locks", "status", "--porcelain=v2"];
    assert_eq!(
        bench.try_git(&out, &status).0,
        bench.try_git(&bench.path("repo"), &status).0
    );
    list.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|name| name == "pack")
    })
    .count()
}

#[test]
fn unchanged_workspace_is_the_same_baseline() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.round("repo").baseline;
    let second = bench.round("repo").baseline;
    assert_eq!(second, first);
    // Seen from elsewhere it is another baseline with the same image.
    let third = bench.round("repo/dir-1").baseline;
    assert_ne!(third.dir, first.dir);
    assert_eq!(third.cwd, rel("dir-1"));
    assert_eq!(
        fs_err::metadata(third.image()).unwrap().ino(),
        fs_err::metadata(first.image()).unwrap().ino()
    );
    assert_eq!(bench.round("repo").baseline, first);
}

#[test]
fn changed_files_alone_are_read() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.round("repo").baseline;
    bench.write("repo/dir-1/file-1", "edited\n");
    bench.write("repo/dir-2/new", "new\n");
    fs_err::remove_file(bench.path("repo/dir-3/file-3")).unwrap();
    fs_err::rename(
        bench.path("repo/dir-0/file-0"),
        bench.path("repo/dir-0/renamed"),
    )
    .unwrap();
    let second = bench.round("repo").baseline;
    assert_eq!(
        moved(&first, &second),
        ["dir-0/renamed", "dir-1/file-1", "dir-2/new"]
    );
    assert_eq!(
        git_packs(&bench, &second),
        1,
        "the pack of history is taken over"
    );
    for entry in &second.entries.to_vec().unwrap() {
        let bytes = fs_err::read(bench.path("repo").join(entry.path.as_path()));
        if entry.kind == crate::Kind::File {
            assert_eq!(
                second.read(entry).unwrap(),
                bytes.unwrap(),
                "{}",
                entry.path
            );
        }
    }
    // The earlier one is what it was.
    assert_eq!(Baseline::load(&first.dir).unwrap(), first);
    assert_eq!(
        first
            .read(&first.entry(&rel("dir-3/file-3")).unwrap().unwrap())
            .unwrap()
            .len(),
        500 * 13
    );
}

#[test]
fn new_commits_add_a_pack_and_many_are_joined() {
    let bench = Bench::new();
    repository(&bench);
    bench.round("repo");
    let mut counts = Vec::new();
    for number in 0..10 {
        bench.write("repo/dir-1/file-1", format!("edit {number}\n"));
        bench.git("repo", &["commit", "-qam", &format!("edit {number}")]);
        counts.push(git_packs(&bench, &bench.round("repo").baseline));
    }
    assert_eq!(counts, [2, 3, 4, 5, 6, 7, 8, 1, 2, 3]);
}

#[test]
fn rewriting_most_of_it_packs_anew() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.round("repo").baseline;
    for number in 0..40 {
        bench.write(
            &format!("repo/dir-{}/file-{number}", number % 4),
            format!("new content of {number}\n").repeat(500),
        );
    }
    let second = bench.round("repo").baseline;
    assert!(
        second.data_end <= first.data_end + (1 << 20),
        "no garbage: {} and {}",
        first.data_end,
        second.data_end
    );
    assert_eq!(git_packs(&bench, &second), 1);
}

#[test]
fn garbage_is_bounded() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.round("repo").baseline;
    for round in 0..20 {
        for number in 0..8 {
            let text = format!("round {round} of {number}\n").repeat(500);
            bench.write(&format!("repo/dir-{}/file-{number}", number % 4), text);
        }
        settle(&bench.path("repo"));
        let baseline = bench.pack(&bench.collect("repo"));
        assert!(
            baseline.data_end * 2 < first.data_end * 3,
            "{} and {}",
            first.data_end,
            baseline.data_end
        );
    }
}

/// Two changes within one tick of the file system's clock leave the same times behind; the second must be seen.
#[test]
fn change_right_after_the_pack_is_seen() {
    let bench = Bench::new();
    bench.write("repo/other", "other");
    for round in 0..10 {
        for letter in ["a", "b", "c"] {
            let text = format!("{letter}{round:03}");
            bench.write("repo/file", &text);
            let baseline = bench.pack(&bench.collect("repo"));
            let entry = baseline.entry(&rel("file")).unwrap().unwrap();
            assert_eq!(baseline.read(&entry).unwrap(), text.as_bytes());
        }
    }
}

#[test]
fn file_in_doubt_is_read_again() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.pack(&bench.collect("repo"));
    let (cache, root) = (bench.path("state/cache"), bench.path("repo"));
    let mut memory = Memory::load(&cache, &root).unwrap();
    assert!(memory.marks.iter().all(|mark| mark.settled));
    let at = first
        .entries
        .to_vec()
        .unwrap()
        .iter()
        .position(|entry| entry.path == rel("dir-1/file-1"))
        .unwrap();
    memory.marks[at].settled = false;
    memory.save(&cache, &root).unwrap();
    let second = bench.pack(&bench.collect("repo"));
    assert_eq!(moved(&first, &second), ["dir-1/file-1"]);
}

#[test]
fn lost_or_damaged_memory_is_no_loss() {
    let bench = Bench::new();
    repository(&bench);
    let first = bench.round("repo").baseline;
    let memories = bench.path("state/cache/workspaces");
    for entry in fs_err::read_dir(&memories).unwrap() {
        fs_err::write(entry.unwrap().path(), "garbage").unwrap();
    }
    let second = bench.round("repo").baseline;
    assert_eq!(second.entries.len(), first.entries.len());
    // A baseline that lost half of its image is not built upon.
    let image = fs_err::OpenOptions::new()
        .write(true)
        .open(second.image())
        .unwrap();
    image.set_len(4096).unwrap();
    Baseline::load(&second.dir).unwrap_err();
    bench.write("repo/dir-2/new", "new\n");
    let third = bench.round("repo").baseline;
    assert_eq!(git_packs(&bench, &third), 1);
    fs_err::remove_dir_all(bench.path("state/baselines")).unwrap();
    let fourth = bench.round("repo").baseline;
    assert_eq!(fourth.entries, third.entries);
    crate::forget(&bench.path("state/cache"), &bench.path("repo")).unwrap();
    assert_eq!(fs_err::read_dir(memories).unwrap().count(), 0);
}

#[test]
fn baseline_that_was_changed_is_known_for_it() {
    let bench = Bench::new();
    repository(&bench);
    let baseline = bench.round("repo").baseline;
    let list = baseline.dir.join(crate::LIST_FILE);
    let bytes = fs_err::read(&list).unwrap();
    for at in [0, 8, bytes.len() / 2, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs_err::write(&list, &changed).unwrap();
        // What the change is in may be read no sooner than it is asked for.
        let read = Baseline::load(&baseline.dir).and_then(|baseline| baseline.entries.to_vec());
        assert!(read.is_err(), "byte {at}");
    }
    fs_err::write(&list, &bytes[..bytes.len() / 2]).unwrap();
    assert!(Baseline::load(&baseline.dir).is_err(), "half of it");
    fs_err::write(&list, &bytes).unwrap();
    let entry = baseline.entry(&rel("dir-1/file-1")).unwrap().unwrap();
    let image = fs_err::OpenOptions::new()
        .write(true)
        .open(baseline.image())
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(image.file(), b"X", entry.offset).unwrap();
    let error = Baseline::load(&baseline.dir)
        .unwrap()
        .read(&entry)
        .unwrap_err();
    assert!(error.to_string().contains("dir-1/file-1"), "{error}");
}

#[test]
fn progress_ends_where_it_said() {
    let bench = Bench::new();
    repository(&bench);
    let collected: Collected = bench.collect("repo");
    let mut seen: Vec<PackProgress> = Vec::new();
    pack(&collected, &bench.pack_options(), &mut |progress| {
        seen.push(progress);
    })
    .unwrap();
    assert!(seen.is_sorted_by_key(|progress| (progress.files, progress.bytes)));
    let last = seen.last().unwrap();
    assert_eq!(
        (last.files, last.bytes, last.waits_for_git),
        (last.files_total, last.bytes_total, true)
    );
    assert_eq!(last.files_total, 40);
}

#[test]
fn remembered_baselines_are_named_and_old_workspaces_forgotten() {
    let bench = Bench::new();
    repository(&bench);
    let cache = bench.path("state/cache");
    assert!(crate::remembered(&cache, 1).unwrap().is_empty());
    let baseline = bench.round("repo").baseline;
    let name = baseline.dir.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        crate::remembered(&cache, 1).unwrap(),
        [name.to_owned()].into()
    );
    let memory = fs_err::read_dir(cache.join("workspaces"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = fs_err::OpenOptions::new()
        .append(true)
        .open(memory.path())
        .unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(25);
    file.file().set_modified(long_ago).unwrap();
    assert!(crate::remembered(&cache, 1).unwrap().is_empty());
    assert!(!memory.path().exists(), "it is packed anew the next time");
}
