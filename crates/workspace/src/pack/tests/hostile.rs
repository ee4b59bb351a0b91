//! Repositories that are broken, lie, or would have something run; and what git itself is given.

use super::shapes::busy;
use super::{Bench, chmod, git_program, leftovers};
use crate::{CollectError, CollectOptions, GitError, History, PackError, collect, pack};
use std::fmt::Write as _;

#[test]
fn broken_repositories_are_said_and_can_be_taken_as_directories() {
    let bench = Bench::new();
    busy(&bench, "head", &[]);
    bench.write("head/.git/HEAD", "what is this\n");
    bench.write("nowhere/.git", "gitdir: ../not/there\n");
    bench.write("nowhere/file", "file");
    bench.write("garbage/.git", [0_u8, 255, 10]);
    busy(&bench, "index", &[]);
    bench.write("index/.git/index", "DIRC but not an index");
    for name in ["head", "nowhere", "garbage", "index"] {
        let error = collect(&bench.options(name)).unwrap_err();
        assert!(
            matches!(error, CollectError::Git(GitError::Broken { .. })),
            "{name}: {error}"
        );
    }
    for name in ["head", "nowhere", "garbage"] {
        let options = CollectOptions {
            history: History::None,
            ..bench.options(name)
        };
        let round = bench.round_with(&options);
        assert_eq!(round.collected.root, bench.path(name));
        assert!(!round.out.join(".git").exists());
    }
}

#[test]
fn missing_objects_are_said() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    let tree = bench.git("repo", &["rev-parse", "HEAD~1^{tree}"]);
    let (two, rest) = tree.trim().split_at(2);
    fs_err::remove_file(bench.path(&format!("repo/.git/objects/{two}/{rest}"))).unwrap();
    let error = pack(&bench.collect("repo"), &bench.pack_options(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, PackError::Git { .. }), "{error}");
    assert_eq!(leftovers(&bench), 0, "nothing half-made stays");
}

#[test]
fn planted_git_file_brings_no_other_repository() {
    let bench = Bench::new();
    busy(&bench, "private", &[]);
    bench.write("download/.git", "gitdir: ../private/.git\n");
    bench.write("download/README", "hello");
    let error = collect(&bench.options("download")).unwrap_err();
    assert!(
        matches!(error, CollectError::Git(GitError::Foreign { .. })),
        "{error}"
    );
    let options = CollectOptions {
        allow_unusual: true,
        ..bench.options("download")
    };
    assert!(collect(&options).is_ok(), "whoever means it may");

    // The same one level down, and by a link.
    bench.write("outer/inner/.git", "gitdir: ../../private/.git\n");
    bench.write("outer/linked/file", "file");
    std::os::unix::fs::symlink("../../private/.git", bench.path("outer/linked/.git")).unwrap();
    let round = bench.round("outer");
    assert_eq!(round.baseline.nested, []);
    assert!(!round.out.join("inner/.git").exists() && !round.out.join("linked/.git").exists());
    std::os::unix::fs::symlink("../private/.git", bench.path("outer/.git")).unwrap();
    let error = collect(&bench.options("outer")).unwrap_err();
    assert!(
        matches!(error, CollectError::Git(GitError::Foreign { .. })),
        "{error}"
    );
}

#[test]
fn nothing_that_the_repository_names_is_run() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-q"]);
    let canary = bench.path("canary");
    let touch = format!("touch {}; cat", canary.display());
    let script = format!("#!/bin/sh\n{touch}\n");
    bench.write("repo/evil.sh", &script);
    chmod(&bench.path("repo/evil.sh"), 0o755);
    let evil = bench.path("repo/evil.sh");
    let evil = evil.to_str().unwrap();
    for hook in [
        "post-index-change",
        "pre-commit",
        "reference-transaction",
        "pre-auto-gc",
        "post-checkout",
    ] {
        bench.write(&format!("repo/.git/hooks/{hook}"), &script);
        let path = bench.path(&format!("repo/.git/hooks/{hook}"));
        chmod(&path, 0o755);
    }
    bench.write(
        "repo/.gitattributes",
        "* filter=evil diff=evil merge=evil\n",
    );
    let mut config = fs_err::read_to_string(bench.path("repo/.git/config")).unwrap();
    for (section, keys) in [
        (
            "core",
            &[
                "fsmonitor",
                "sshCommand",
                "pager",
                "editor",
                "askPass",
                "gitProxy",
                "alternateRefsCommand",
            ][..],
        ),
        ("filter \"evil\"", &["clean", "smudge", "process"]),
        ("diff \"evil\"", &["command", "textconv"]),
        ("diff", &["external"]),
        ("credential", &["helper"]),
        ("uploadpack", &["packObjectsHook"]),
        ("gpg", &["program"]),
    ] {
        writeln!(config, "[{section}]").unwrap();
        for key in keys {
            writeln!(config, "\t{key} = {evil}").unwrap();
        }
    }
    config.push_str("[alias]\n\tconfig = !touch canary\n\tpack-objects = !touch canary\n");
    bench.write("repo/.git/config", config);
    let round = bench.round("repo");
    assert!(!canary.exists(), "something of the repository's was run");
    let inside = fs_err::read_to_string(round.out.join(".git/config")).unwrap();
    assert!(!inside.contains("evil"), "{inside}");
    assert!(!round.out.join(".git/hooks").exists());
}

#[test]
fn environment_of_git_is_ours_to_the_last_variable() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    let log = bench.path("state/environments");
    let real = git_program();
    let script = format!(
        "#!/bin/sh\n/usr/bin/env >> {}\nexec {} \"$@\"\n",
        log.display(),
        real.display()
    );
    bench.write("state/git", script);
    chmod(&bench.path("state/git"), 0o755);
    let options = CollectOptions {
        git_program: Some(bench.path("state/git")),
        ..bench.options("repo")
    };
    bench.round_with(&options);
    let seen = fs_err::read_to_string(log).unwrap();
    let mut variables: Vec<&str> = seen
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    variables.sort_unstable();
    variables.dedup();
    let ours = [
        "GIT_ATTR_NOSYSTEM",
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NO_LAZY_FETCH",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OPTIONAL_LOCKS",
        "GIT_PAGER",
        "GIT_TERMINAL_PROMPT",
        "GIT_WORK_TREE",
        "HOME",
        "LC_ALL",
        "PATH",
        // The shell's own.
        "PWD",
        "_",
        "SHLVL",
        "OLDPWD",
    ];
    for variable in variables {
        assert!(ours.contains(&variable), "{variable}");
    }
}

#[test]
fn no_git_program() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    let options = CollectOptions {
        git_program: Some("/nonexistent/git".into()),
        ..bench.options("repo")
    };
    let error = collect(&options).unwrap_err();
    assert!(
        matches!(error, CollectError::Git(GitError::NoGit { .. })),
        "{error}"
    );
    bench.write("plain/file", "file");
    let options = CollectOptions {
        git_program: Some("/nonexistent/git".into()),
        ..bench.options("plain")
    };
    assert_eq!(bench.round_with(&options).paths(), ["file"]);
}
