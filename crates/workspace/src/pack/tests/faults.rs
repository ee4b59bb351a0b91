//! Full disks, files that can't be read or don't stand still, and packs at the same time.

use super::{Bench, leftovers, names, rel};
use crate::{CollectError, CollectOptions, PackError, PackOptions, collect, pack};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

#[test]
fn unreadable_files_are_named_or_skipped() {
    if as_ordinary_user("unreadable_files_are_named_or_skipped") {
        return;
    }
    let bench = Bench::new();
    for number in 0..5 {
        bench.write(&format!("repo/closed-{number}"), "secret");
    }
    bench.write("repo/closed-dir/inner", "x");
    bench.write("repo/open", "x");
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "-A"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    let chmod = |name: &str, mode| {
        let path = bench.path(&format!("repo/{name}"));
        fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for number in 0..5 {
        chmod(&format!("closed-{number}"), 0o200);
    }
    chmod("closed-dir", 0o100);
    let error = collect(&bench.options("repo")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "6 paths can't be read: `closed-0`, `closed-1`, `closed-2` and 3 more",
    );
    assert!(matches!(error, CollectError::Unreadable { count: 6, .. }));
    let options = CollectOptions {
        skip_unreadable: true,
        ..bench.options("repo")
    };
    let baseline = bench.pack(&collect(&options).unwrap());
    assert_eq!(baseline.left_out.unreadable.len(), 6);
    assert_eq!(
        baseline
            .entries
            .to_vec()
            .unwrap()
            .iter()
            .map(|entry| entry.path.to_string())
            .collect::<Vec<_>>(),
        ["open"]
    );
    let out = bench.extract(&baseline);
    assert_eq!(
        bench.try_git(&out, &["status", "--porcelain"]).0,
        "",
        "what was skipped is no deletion"
    );

    // A file that closes between the two steps.
    bench.write("repo/late", "x");
    let collected = collect(&options).unwrap();
    chmod("late", 0);
    let baseline = bench.pack(&collected);
    assert!(names(&baseline.left_out.unreadable).contains(&"late".to_owned()));
    let strict = collect(&CollectOptions {
        exclude: vec!["closed-*".into()],
        ..bench.options("repo")
    });
    assert!(matches!(
        strict.unwrap_err(),
        CollectError::Unreadable { count: 1, .. }
    ));
    chmod("closed-dir", 0o700);
}

#[test]
fn what_changes_between_the_steps() {
    let bench = Bench::new();
    for name in [
        "gone",
        "replaced",
        "grown",
        "steady",
        "now-a-fifo",
        "dir/inner",
    ] {
        bench.write(&format!("dir/{name}"), "before");
    }
    bench.write("elsewhere/inner", "must not come in");
    let collected = bench.collect("dir");
    fs_err::remove_file(bench.path("dir/gone")).unwrap();
    fs_err::remove_file(bench.path("dir/replaced")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", bench.path("dir/replaced")).unwrap();
    bench.write("dir/grown", "before and after");
    fs_err::remove_file(bench.path("dir/now-a-fifo")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.path("dir/now-a-fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    fs_err::rename(bench.path("dir/dir"), bench.path("dir/moved")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", bench.path("dir/dir")).unwrap();
    let baseline = bench.pack(&collected);
    let paths: Vec<String> = baseline
        .entries
        .to_vec()
        .unwrap()
        .iter()
        .map(|entry| entry.path.to_string())
        .collect();
    assert_eq!(
        paths,
        ["dir", "grown", "steady"],
        "no link is followed, nothing hangs"
    );
    assert_eq!(
        baseline
            .read(&baseline.entry(&rel("grown")).unwrap().unwrap())
            .unwrap(),
        b"before and after"
    );
}

/// Sizes around every limit of how files travel to the image, and files that change sides between the two steps.
#[test]
fn files_of_all_sizes() {
    let bench = Bench::new();
    let (batch, small) = (256 << 10, 1 << 20);
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        batch - 4096,
        batch - 1,
        batch,
        batch + 1,
        small - 1,
        small,
        small + 1,
        3 * small,
        5,
    ];
    let content = |at: usize, size: usize| -> Vec<u8> {
        (0..size)
            .map(|byte| (byte / 7 + at).to_le_bytes()[0])
            .collect()
    };
    for (at, size) in sizes.iter().enumerate() {
        bench.write(&format!("dir/{at:02}"), content(at, *size));
        bench.write(&format!("dir/{at:02}-gone"), content(at, *size));
    }
    bench.write("dir/grows", "little");
    bench.write("dir/shrinks", content(1, 2 * small));
    bench.write("dir/zeros", vec![0; 2 * batch]);
    let collected = bench.collect("dir");
    for at in 0..sizes.len() {
        fs_err::remove_file(bench.path(&format!("dir/{at:02}-gone"))).unwrap();
    }
    bench.write("dir/grows", content(2, 2 * small));
    bench.write("dir/shrinks", "little");
    let baseline = bench.pack(&collected);
    let entries = baseline.entries.to_vec().unwrap();
    assert_eq!(entries.len(), sizes.len() + 3);
    let mut end = 4096;
    for entry in &entries {
        let bytes = fs_err::read(bench.path("dir").join(entry.path.as_path())).unwrap();
        assert_eq!(entry.size, bytes.len() as u64, "{}", entry.path);
        assert!(baseline.read(entry).unwrap() == bytes, "{}", entry.path);
        // One behind the other, whatever travelled with what and whatever was gone.
        if entry.size > 0 {
            assert_eq!(entry.offset, end, "{}", entry.path);
            end += entry.size.next_multiple_of(4096);
        }
    }
    assert_eq!(baseline.data_end, end);
    let out = bench.extract(&baseline);
    assert!(fs_err::read(out.join("zeros")).unwrap() == vec![0; 2 * batch]);
    // The limit holds for what is there when it is read.
    for (limit, text) in [
        (1000, vec![b'x'; 1001]),
        (3 << 20, vec![b'x'; (3 << 20) + 1]),
    ] {
        let options = CollectOptions {
            max_file_size: base::Size(limit),
            ..bench.options("limited")
        };
        bench.write("limited/file", "little");
        let collected = collect(&options).unwrap();
        bench.write("limited/file", text);
        let error = pack(&collected, &bench.pack_options(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, PackError::Grown { .. }), "{error}");
    }
}

/// A file that never stands still comes out as bytes that were there, and is named.
#[test]
fn file_that_is_written_all_the_time() {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    let bench = Bench::new();
    bench.write("dir/log", vec![b'x'; 24 << 20]);
    bench.write("dir/quiet", "quiet");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs_err::OpenOptions::new()
                .append(true)
                .open(bench.path("dir/log"))
                .unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"another line\n").unwrap();
            }
        });
        let mut torn = 0;
        for _ in 0..3 {
            let baseline = pack(&bench.collect("dir"), &bench.pack_options(), &mut |_| {}).unwrap();
            let entry = baseline.entry(&rel("log")).unwrap().unwrap();
            let bytes = baseline.read(&entry).unwrap();
            assert!(bytes.len() >= 24 << 20 && bytes[..24 << 20].iter().all(|byte| *byte == b'x'));
            torn += baseline.unsettled.len();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(torn > 0, "a writer that never rests is noticed");
    });
    let baseline = bench.pack(&bench.collect("dir"));
    assert_eq!(baseline.unsettled, [], "once it rests, it is read whole");
    assert_eq!(
        baseline
            .read(&baseline.entry(&rel("log")).unwrap().unwrap())
            .unwrap(),
        fs_err::read(bench.path("dir/log")).unwrap()
    );
}

#[test]
fn full_disk_leaves_nothing_behind() {
    let Some(small) = on_small_disk("full_disk_leaves_nothing_behind") else {
        return;
    };
    let bench = Bench::new();
    bench.write("repo/file", vec![1; 3 << 20]);
    bench.write(
        "repo/noise",
        (0..1_u32 << 19)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect::<Vec<_>>(),
    );
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "noise"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    // Room for the history and not for the files, for both and no list, for nothing at all.
    for taken in [0_usize, 2 << 20, 3 << 20, 4096 << 10] {
        let options = PackOptions {
            baselines: small.join("baselines"),
            cache: small.join("cache"),
            owner: (0, 0),
        };
        fs_err::create_dir_all(&options.baselines).unwrap();
        fs_err::write(small.join("ballast"), vec![0; taken.min(4000 << 10)]).unwrap();
        let error = pack(&bench.collect("repo"), &options, &mut |_| {}).unwrap_err();
        assert!(
            matches!(error, PackError::DiskFull { .. }),
            "{taken}: {error}"
        );
        let names: Vec<_> = fs_err::read_dir(&options.baselines)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(
            names.iter().all(|name| name == ".lock"),
            "{taken}: {names:?}"
        );
    }
    fs_err::remove_file(small.join("ballast")).unwrap();
    let options = CollectOptions {
        exclude: vec!["file".into(), "noise".into()],
        ..bench.options("repo")
    };
    let options = CollectOptions {
        history: crate::History::None,
        ..options
    };
    let place = PackOptions {
        baselines: small.join("baselines"),
        cache: small.join("cache"),
        owner: (0, 0),
    };
    assert!(
        pack(&collect(&options).unwrap(), &place, &mut |_| {}).is_ok(),
        "with room again it works again"
    );
}

#[test]
fn what_dead_packs_left_is_swept_and_live_ones_are_not() {
    let bench = Bench::new();
    bench.write("dir/file", "file");
    let baselines = bench.path("state/baselines");
    bench.write("state/baselines/.partial-dead/image.erofs", "half");
    let live = super::super::partial::Partial::new(&baselines).unwrap();
    assert!(!baselines.join(".partial-dead").exists());
    bench.round("dir");
    assert!(live.path().exists() && leftovers(&bench) == 1);
    drop(live);
    assert_eq!(leftovers(&bench), 0);
}

#[test]
fn two_packs_at_once() {
    let bench = Bench::new();
    for number in 0..200 {
        bench.write(&format!("dir/{number}"), format!("{number}\n"));
    }
    let collected = bench.collect("dir");
    let baselines: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| pack(&collected, &bench.pack_options(), &mut |_| {}).unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        baselines
            .iter()
            .all(|baseline| baseline.entries == baselines[0].entries)
    );
    assert_eq!(leftovers(&bench), 0);
    bench.pack(&collected);
}

/// True when the test was run by an ordinary account instead: root reads everything.
fn as_ordinary_user(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let dir = tempfile::tempdir().unwrap();
    fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // The program may lie where that account can't look.
    let program = dir.path().join("tests");
    fs_err::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args(["--exact", &format!("pack::tests::faults::{test}")])
        .env("TMPDIR", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    true
}

/// A disk of 4 MiB; `None` when the test was run again inside a namespace that may mount one.
fn on_small_disk(test: &str) -> Option<std::path::PathBuf> {
    const MARK: &str = "efimera-small-disk";
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
    if let Some(line) = mounts.lines().find(|line| line.starts_with(MARK)) {
        return Some(line.split(' ').nth(1).unwrap().into());
    }
    let dir = tempfile::tempdir().unwrap();
    let script =
        format!("mount -t tmpfs -o size=4m,mode=777 {MARK} \"$1\" && shift && exec \"$@\"");
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
        ])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("pack::tests::faults::{test}")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    None
}
