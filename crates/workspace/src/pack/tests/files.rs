//! Directories without git, odd files, and what is left out.

use super::{Bench, chmod, names, rel};
use crate::{CollectError, CollectOptions, Kind, collect};
use base::Size;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

#[test]
fn everything_comes_out_as_it_is() {
    let bench = Bench::new();
    bench.write("dir/sp ace/new\nline", "odd");
    bench.write("dir/empty-file", "");
    bench.write("dir/script", "#!/bin/sh\n");
    bench.write("dir/large", vec![7; 3 << 20]);
    bench.write("dir/block", vec![8; 4096]);
    fs_err::create_dir_all(bench.path("dir/empty/inner")).unwrap();
    let raw = bench
        .path("dir")
        .join(std::ffi::OsStr::from_bytes(b"raw-\xff\xfe"));
    fs_err::write(&raw, "not utf-8").unwrap();
    for (target, name) in [
        ("nowhere/at/all", "broken"),
        ("/etc/passwd", "absolute"),
        ("sp ace", "inside"),
    ] {
        std::os::unix::fs::symlink(target, bench.path(&format!("dir/{name}"))).unwrap();
    }
    chmod(&bench.path("dir/script"), 0o6751);
    chmod(&bench.path("dir/empty/inner"), 0o700);
    chmod(&bench.path("dir/empty-file"), 0o600);
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1_234_567_890,
            tv_nsec: 123_456_789,
        },
    };
    rustix::fs::utimensat(
        rustix::fs::CWD,
        bench.path("dir/script"),
        &times,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();

    let round = bench.round("dir");
    assert_eq!(round.baseline.git, None);
    let mut count = 0;
    for entry in &round.baseline.entries.to_vec().unwrap() {
        let host = bench.path("dir").join(entry.path.as_path());
        let inside = round.out.join(entry.path.as_path());
        let (expected, found) = (
            fs_err::symlink_metadata(&host).unwrap(),
            fs_err::symlink_metadata(&inside).unwrap(),
        );
        assert_eq!(found.file_type(), expected.file_type(), "{}", entry.path);
        assert_eq!(
            (found.mtime(), found.mtime_nsec()),
            (expected.mtime(), expected.mtime_nsec()),
            "{}",
            entry.path
        );
        if entry.kind != Kind::Symlink {
            assert_eq!(
                found.mode() & 0o7777,
                expected.mode() & 0o777,
                "{}",
                entry.path
            );
        }
        match entry.kind {
            Kind::File => {
                let bytes = fs_err::read(&host).unwrap();
                assert_eq!(fs_err::read(&inside).unwrap(), bytes, "{}", entry.path);
                assert_eq!(round.baseline.read(entry).unwrap(), bytes, "{}", entry.path);
                assert_eq!(entry.digest, Some(base::Digest::of(&bytes)));
            }
            Kind::Symlink => {
                let target = fs_err::read_link(&host).unwrap();
                assert_eq!(fs_err::read_link(&inside).unwrap(), target);
                assert_eq!(entry.target, target.as_os_str().as_bytes());
            }
            Kind::Dir => {}
        }
        count += 1;
    }
    assert_eq!(count, 12);
    assert_eq!(
        round.baseline.entry(&rel("script")).unwrap().unwrap().mtime,
        (1_234_567_890, 123_456_789)
    );
    let below: Vec<String> = round
        .baseline
        .below(&rel("empty"))
        .unwrap()
        .iter()
        .map(|entry| entry.path.to_string())
        .collect();
    assert_eq!(below, ["empty/inner"]);
}

#[test]
fn secrets_stay_out_unless_tracked_or_included_by_name() {
    let bench = Bench::new();
    for file in [
        ".env",
        ".env.example",
        "keys/id_rsa",
        "app.py",
        ".npmrc",
        "web/.npmrc",
        "tracked.pem",
    ] {
        bench.write(&format!("repo/{file}"), "text\n");
    }
    bench.write("repo/web/.npmrc", "//registry/:_authToken=abc\n");
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "tracked.pem", "app.py"]);
    let round = bench.round("repo");
    assert_eq!(
        names(&round.baseline.left_out.secrets),
        [".env", "keys/id_rsa", "web/.npmrc"]
    );
    assert_eq!(names(&round.baseline.tracked_secrets), ["tracked.pem"]);
    assert_eq!(
        round.paths(),
        [
            ".env.example",
            ".npmrc",
            "app.py",
            "keys",
            "tracked.pem",
            "web"
        ]
    );
    for path in [".env", "keys/id_rsa", "web/.npmrc"] {
        assert!(!round.out.join(path).exists(), "{path}");
    }

    let options = CollectOptions {
        include: vec![".env".into(), "keys/*".into()],
        ..bench.options("repo")
    };
    let round = bench.round_with(&options);
    assert_eq!(names(&round.baseline.left_out.secrets), ["web/.npmrc"]);
    assert!(round.paths().contains(&"keys/id_rsa".to_owned()));
}

#[test]
fn ignored_paths_come_along_by_name() {
    let bench = Bench::new();
    bench.write("repo/.gitignore", "/target/\nnode_modules/\n*.log\n");
    for file in [
        "target/debug/app",
        "target/debug/other",
        "node_modules/a/index.js",
        "x.log",
        "src/y.log",
        "src/a.c",
    ] {
        bench.write(&format!("repo/{file}"), "text\n");
    }
    bench.git("repo", &["init", "-q"]);
    let round = bench.round("repo");
    assert_eq!(round.paths(), [".gitignore", "src", "src/a.c"]);
    assert_eq!(
        round.baseline.left_out.ignored, 4,
        "directories count as one"
    );

    let options = CollectOptions {
        include: vec![
            "target/debug/app".into(),
            "node_modules/".into(),
            "y.log".into(),
        ],
        ..bench.options("repo")
    };
    let round = bench.round_with(&options);
    assert_eq!(
        round.paths(),
        [
            ".gitignore",
            "node_modules",
            "node_modules/a",
            "node_modules/a/index.js",
            "src",
            "src/a.c",
            "src/y.log",
            "target",
            "target/debug",
            "target/debug/app",
        ]
    );
}

#[test]
fn excluded_files_leave_the_status_true() {
    let bench = Bench::new();
    for file in ["kept", "big/data.bin", "big/more/data.bin", "untracked.bin"] {
        bench.write(&format!("repo/{file}"), "text\n");
    }
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "kept", "big"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    let options = CollectOptions {
        exclude: vec!["big/".into(), "*.bin".into()],
        ..bench.options("repo")
    };
    let round = bench.round_with(&options);
    assert_eq!(round.paths(), ["kept"]);
    assert_eq!(
        names(&round.baseline.left_out.excluded),
        ["big", "untracked.bin"]
    );
    let (text, success) = bench.try_git(&round.out, &["status", "--porcelain"]);
    assert_eq!(
        (text.as_str(), success),
        ("", true),
        "what is left out is no deletion"
    );
    fs_err::write(round.out.join("kept"), "edited\n").unwrap();
    bench.try_git(&round.out, &["commit", "-qam", "inside"]);
    let (text, _) = bench.try_git(&round.out, &["diff", "--stat", "--name-only", "HEAD~1"]);
    assert_eq!(text, "kept\n");
}

#[test]
fn only_one_path() {
    let bench = Bench::new();
    for file in ["a/one", "a/deep/two", "b/three", "ab", "build/out/x"] {
        bench.write(&format!("repo/{file}"), "text\n");
    }
    bench.write("repo/.gitignore", "build/\n");
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "-A"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    bench.write("repo/a/one", "edited\n");
    let options = CollectOptions {
        only: Some(rel("a")),
        ..bench.options("repo/b")
    };
    let round = bench.round_with(&options);
    assert_eq!(
        round.paths(),
        ["a", "a/deep", "a/deep/two", "a/one", "b"],
        "and where the command was given"
    );
    let (text, _) = bench.try_git(&round.out, &["status", "--porcelain"]);
    assert_eq!(text, " M a/one\n");

    let options = CollectOptions {
        only: Some(rel("build/out")),
        ..bench.options("repo")
    };
    assert_eq!(
        bench.round_with(&options).paths(),
        ["build", "build/out", "build/out/x"],
        "asked for by name"
    );
    let options = CollectOptions {
        only: Some(rel("a/none")),
        ..bench.options("repo")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::NoSuchPath { .. }
    ));
}

#[test]
fn directory_of_the_command_is_always_there() {
    let bench = Bench::new();
    bench.write("repo/.gitignore", "build/\n");
    bench.write("repo/build/deep/x", "x");
    bench.write("repo/a", "a");
    bench.git("repo", &["init", "-q"]);
    let round = bench.round("repo/build/deep");
    assert_eq!(round.paths(), [".gitignore", "a", "build", "build/deep"]);
    assert_eq!(round.baseline.left_out.ignored, 1);
    let options = CollectOptions {
        only: Some(rel("a")),
        ..bench.options("repo/build")
    };
    assert_eq!(bench.round_with(&options).paths(), ["a", "build"]);
}

#[test]
fn excluded_submodule_is_no_deletion() {
    let bench = Bench::new();
    bench.write("origin/file", "file");
    bench.git("origin", &["init", "-q"]);
    bench.git("origin", &["add", "file"]);
    bench.git("origin", &["commit", "-qm", "first"]);
    bench.write("repo/kept", "kept");
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["submodule", "add", "-q", "../origin", "sub"]);
    bench.git("repo", &["add", "kept"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    let options = CollectOptions {
        exclude: vec!["sub".into()],
        ..bench.options("repo")
    };
    let round = bench.round_with(&options);
    assert_eq!(round.paths(), [".gitmodules", "kept"]);
    assert_eq!(bench.try_git(&round.out, &["status", "--porcelain"]).0, "");
}

#[test]
fn special_files_are_skipped_and_said() {
    let bench = Bench::new();
    bench.write("dir/file", "file");
    for name in ["fifo", "deep/fifo"] {
        fs_err::create_dir_all(bench.path("dir/deep")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            bench.path(&format!("dir/{name}")),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(bench.path("dir/socket")).unwrap();
    let round = bench.round("dir");
    assert_eq!(round.paths(), ["deep", "file"]);
    assert_eq!(
        names(&round.baseline.left_out.special),
        ["deep/fifo", "fifo", "socket"]
    );
}

#[test]
fn too_large_too_many_too_much() {
    let bench = Bench::new();
    bench.write("dir/small", "small");
    let sparse = fs_err::File::create(bench.path("dir/huge")).unwrap();
    sparse.set_len(5 << 30).unwrap();
    let error = collect(&bench.options("dir")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "One file is larger than 2 GiB: `huge` (5 GiB)"
    );
    let options = CollectOptions {
        exclude: vec!["huge".into()],
        ..bench.options("dir")
    };
    assert_eq!(collect(&options).unwrap().entries.len(), 1);

    for number in 0..20 {
        bench.write(&format!("many/sub/{number}"), "x");
    }
    let options = CollectOptions {
        max_files: 15,
        ..bench.options("many")
    };
    let error = collect(&options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "The workspace holds more than 15 files and directories; `sub` alone holds 16"
    );
    let options = CollectOptions {
        max_files: 21,
        ..bench.options("many")
    };
    assert_eq!(
        collect(&options).unwrap().entries.len(),
        21,
        "the limit itself is allowed"
    );
    let options = CollectOptions {
        max_total_size: Size(19),
        ..bench.options("many")
    };
    let error = collect(&options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "The files of the workspace take 20 B, more than 19 B"
    );
}

#[test]
fn unusual_places_are_refused() {
    let bench = Bench::new();
    bench.write("home/.ssh/config", "x");
    bench.write("home/code/file", "x");
    for (place, name) in [
        ("home", "your home"),
        ("", "a directory that holds"),
        ("home/.ssh", "credentials"),
    ] {
        let error = collect(&bench.options(place)).unwrap_err();
        assert!(error.to_string().contains(name), "{place}: {error}");
    }
    collect(&bench.options("home/code")).unwrap();
    let options = CollectOptions {
        directory: "/".into(),
        ..bench.options("home")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::Unusual { .. }
    ));
    let options = CollectOptions {
        directory: bench.path("home/code/file"),
        ..bench.options("home")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::NotADirectory { .. }
    ));
    let options = CollectOptions {
        directory: bench.path("absent"),
        ..bench.options("home")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::Look { .. }
    ));
    let options = CollectOptions {
        exclude: vec!["/".into()],
        ..bench.options("home/code")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::BadPattern { .. }
    ));
    // Somebody else's directory: root's for an ordinary account, and an ordinary account's for root.
    let foreign = if rustix::process::geteuid().is_root() {
        fs_err::create_dir_all(bench.path("foreign")).unwrap();
        std::os::unix::fs::chown(bench.path("foreign"), Some(4242), None).unwrap();
        bench.path("foreign")
    } else {
        "/usr/share".into()
    };
    let options = CollectOptions {
        directory: foreign,
        ..bench.options("home")
    };
    assert!(matches!(
        collect(&options).unwrap_err(),
        CollectError::NotYours { .. }
    ));
    let options = CollectOptions {
        allow_unusual: true,
        ..bench.options("home")
    };
    collect(&options).unwrap();
}

#[test]
fn rules_of_the_user_count() {
    let bench = Bench::new();
    bench.write("home/.config/git/ignore", "*.mine\n");
    bench.write("home/my-attributes", "*.txt eol=crlf\n");
    let settings = fs_err::read_to_string(bench.path("home/.gitconfig")).unwrap();
    bench.write(
        "home/.gitconfig",
        format!("{settings}[core]\n\tattributesFile = ~/my-attributes\n"),
    );
    bench.write("repo/a.mine", "x");
    bench.write("repo/a.txt", "x\r\n");
    bench.git("repo", &["init", "-q"]);
    bench.git("repo", &["add", "a.txt"]);
    bench.git("repo", &["commit", "-qm", "first"]);
    let round = bench.round("repo");
    assert_eq!(round.paths(), ["a.txt"]);
    fs_err::write(round.out.join("b.mine"), "x").unwrap();
    fs_err::write(round.out.join("a.txt"), "x\r\n").unwrap();
    let status = std::process::Command::new(super::git_program())
        .args(["status", "--porcelain"])
        .env_clear()
        .env("HOME", "/nonexistent")
        .current_dir(&round.out)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&status.stdout),
        "",
        "the machine knows them too"
    );
}
