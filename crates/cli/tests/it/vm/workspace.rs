//! What goes in and what comes out: odd names, kinds, renames, ignored paths, hostile names.

use crate::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn odd_names_go_in_and_come_out() {
    let env = env();
    let root = env.repository("odd place");
    let names: [&[u8]; 7] = [
        b"with space",
        b"new\nline",
        b"\xff\xfe",
        b"-rf",
        b"$(touch x)",
        b"tab\there",
        "ü\u{202e}".as_bytes(),
    ];
    for name in names {
        fs::write(root.join(OsStr::from_bytes(name)), "before\n").unwrap();
    }
    let ran = env.efimera(&root, &["run", "-q", "--name", "odd", "--", "bash", "-c", "for f in *; do test -f \"./$f\" && test ! -L \"./$f\" && echo after >> \"./$f\"; done; git status --short | wc -l"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    env.efimera(&root, &["apply", "odd"]).ok();
    for name in names {
        assert_eq!(
            fs::read_to_string(root.join(OsStr::from_bytes(name))).unwrap(),
            "before\nafter\n",
            "{name:?}"
        );
    }
}

#[test]
fn renames_and_replacements_come_out_right() {
    let env = env();
    let root = env.repository("shop");
    for n in 0..20 {
        fs::create_dir_all(root.join("lib/deep")).unwrap();
        fs::write(root.join(format!("lib/deep/{n}")), format!("{n}\n")).unwrap();
    }
    env.git(&root, &["add", "."]);
    env.git(&root, &["commit", "--quiet", "--message", "More"]);
    let script = "set -e
git mv lib library && mv library third && mv third lib2
rm src/brush.py && mv src/paint.py src/brush.py
rm -r src2 2>/dev/null || true
mv lib2/deep/3 lib2/three
rm -rf out && mkdir out && echo x > out/ignored.py
rm latest && mkdir latest && echo inside > latest/file";
    env.efimera(
        &root,
        &["run", "-q", "--name", "moves", "--", "sh", "-c", script],
    )
    .ok();
    let copy = env.work().join("copy");
    let status = env
        .command("cp")
        .arg("-a")
        .arg(&root)
        .arg(&copy)
        .status()
        .unwrap();
    assert!(status.success());
    let patch = env
        .efimera_command(&root, &["diff", "moves"])
        .output()
        .unwrap()
        .stdout;
    env.efimera(&root, &["apply", "moves"]).ok();
    assert!(
        !root.join("lib").exists()
            && root.join("lib2/three").exists()
            && !root.join("lib2/deep/3").exists()
    );
    assert_eq!(
        fs::read_to_string(root.join("src/brush.py")).unwrap(),
        "colour = 'red'\n"
    );
    assert!(
        !root.join("out").exists(),
        "what the baseline ignores stays in"
    );
    assert_eq!(
        fs::read_to_string(root.join("latest/file")).unwrap(),
        "inside\n"
    );
    // The patch says the same.
    let file = env.work().join("patch");
    fs::write(&file, patch).unwrap();
    env.git(&copy, &["apply", "--check", file.to_str().unwrap()]);
    env.git(&copy, &["apply", file.to_str().unwrap()]);
    assert_eq!(
        crate::tree::list(&copy, false),
        crate::tree::list(&root, false)
    );
}

#[test]
fn a_hostile_root_plants_nothing() {
    let env = env();
    let root = env.repository("shop");
    let before = crate::tree::list(&root.join(".git"), true);
    let script = "cd \"$PWD\"
mkdir -p .git/hooks && printf '#!/bin/sh\\ntouch /tmp/owned' > .git/hooks/post-checkout && chmod +x .git/hooks/post-checkout
git config core.fsmonitor 'touch owned' || true
mkdir -p sub/.GIT/hooks sub/.git/hooks 'git~1' && echo x > sub/.GIT/hooks/pre-commit && echo x > sub/.git/config && echo x > 'git~1/config'
mkfifo pipe; mknod device c 1 3; ln -s /etc/passwd leak; ln -s ../../../../etc up
cp /bin/true suid && chmod 6755 suid
truncate -s 8E bomb 2>/dev/null || truncate -s 8T bomb || true
echo '* -diff' > .gitattributes
echo fine > fine";
    let ran = env.efimera(
        &root,
        &[
            "run", "--name", "evil", "-u", "root", "--", "sh", "-c", script,
        ],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let changed = env.efimera(&root, &["diff", "evil", "--name-only"]).ok();
    assert!(
        changed.contains("fine\n") && changed.contains("suid\n"),
        "{changed}"
    );
    for line in changed.lines() {
        let refused = line
            .to_lowercase()
            .split('/')
            .any(|part| part == ".git" || part == "git~1");
        assert!(
            !refused && line != "pipe" && line != "device" && line != "bomb",
            "{line}"
        );
    }
    env.efimera(&root, &["apply", "evil"]).ok();
    assert_eq!(
        crate::tree::list(&root.join(".git"), true),
        before,
        "no byte of it is in a git directory"
    );
    assert!(
        !root.join("sub/.GIT").exists()
            && !root.join("git~1").exists()
            && !root.join("pipe").exists()
    );
    assert_eq!(
        fs::metadata(root.join("suid"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o755
    );
    assert!(
        fs::symlink_metadata(root.join("leak"))
            .unwrap()
            .is_symlink(),
        "a link is a link, and was not followed"
    );
}

#[test]
fn secrets_and_ignored_files_stay_out_unless_named() {
    let env = env();
    let root = env.repository("shop");
    fs::write(root.join(".env"), "TOKEN=1\n").unwrap();
    fs::write(root.join(".env.example"), "TOKEN=\n").unwrap();
    fs::write(root.join("id_rsa"), "key\n").unwrap();
    fs::write(root.join("notes.log"), "log\n").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    let list = |more: &[&str]| {
        let words = [
            &["run", "--"][..1],
            more,
            &["--", "sh", "-c", "ls -A; git status --short"],
        ]
        .concat();
        let ran = env.efimera(&root, &words);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        (ran.stdout, ran.stderr)
    };
    let (seen, said) = list(&[]);
    assert!(
        seen.contains(".env.example") && seen.contains("empty"),
        "{seen}"
    );
    assert!(
        !seen.contains(".env\n") && !seen.contains("id_rsa") && !seen.contains("notes.log"),
        "{seen}"
    );
    assert!(
        said.contains("2 secret files (.env, id_rsa)") && said.contains("1 ignored path"),
        "{said}"
    );
    let (seen, _) = list(&[
        "--include",
        "notes.log",
        "--include",
        ".env",
        "--exclude",
        "build.sh",
    ]);
    assert!(
        seen.contains(".env\n") && seen.contains("notes.log") && !seen.contains("build.sh"),
        "{seen}"
    );
    assert!(
        !seen.contains(" D build.sh"),
        "git status stays true: {seen}"
    );
}

#[test]
fn a_file_that_was_left_out_is_never_deleted_or_overwritten() {
    let env = env();
    let root = env.repository("shop");
    fs::write(root.join(".env"), "TOKEN=1\n").unwrap();
    fs::create_dir(root.join("out")).unwrap();
    fs::write(root.join("out/kept"), "mine\n").unwrap();
    env.efimera(
        &root,
        &[
            "run",
            "-q",
            "--name",
            "wipe",
            "--",
            "sh",
            "-c",
            "rm -rf ./* && echo SECRET=2 > .env",
        ],
    )
    .ok();
    let ran = env.efimera(&root, &["apply", "wipe"]);
    assert_eq!(ran.code, 1, "another .env is here: {}", ran.stderr);
    assert!(ran.stderr.contains(".env"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(root.join(".env")).unwrap(), "TOKEN=1\n");
    assert_eq!(fs::read_to_string(root.join("out/kept")).unwrap(), "mine\n");
    assert!(root.join("build.sh").exists(), "all or nothing");
}

#[test]
fn artifacts_come_out_by_name() {
    let env = env();
    let root = env.repository("shop");
    let ran = env.efimera(
        &root,
        &[
            "run",
            "--name",
            "built",
            "--artifact",
            "out/paint.py",
            "--",
            "./build.sh",
        ],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("ignored path"), "{}", ran.stderr);
    let changed = env.efimera(&root, &["diff", "built", "--name-only"]).ok();
    assert!(
        changed.contains("out/paint.py") && !changed.contains("brush"),
        "{changed}"
    );
}

#[test]
fn commits_made_inside_are_kept_with_the_result() {
    let env = env();
    let root = env.repository("shop");
    let script = "set -e; echo 1 > a; git add a; git commit -qm 'First inside'; git rm -q build.sh; git commit -qm 'Second inside'; git log --format='%an %s'";
    let ran = env.efimera(
        &root,
        &["run", "--name", "commits", "--", "sh", "-c", script],
    );
    assert!(ran.stderr.contains("commits     2"), "{}", ran.stderr);
    assert!(ran.ok().contains("Tester First inside"));
    let pack = fs::read_dir(env.data().join("results/commits/commits"))
        .unwrap()
        .count();
    assert!(pack > 0);
}

#[test]
fn what_a_patch_does_not_hold_is_told() {
    let env = env();
    let root = env.repository("shop");
    fs::create_dir(root.join("hollow")).unwrap();
    let ran = env.efimera(
        &root,
        &[
            "run",
            "--name",
            "odd",
            "--",
            "sh",
            "-c",
            "mkdir -p new/deep; rmdir hollow; chmod 600 src/brush.py; echo x > s; chmod 4755 s; \
             mkdir -m 700 own; echo y > own/y; git mv build.sh make.sh",
        ],
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let counts = "2 files changed, 2 added, 4 directories";
    assert!(ran.stderr.contains(counts), "{ran:?}");
    assert!(
        ran.stderr
            .contains("don't come out; files that have one: 1"),
        "{ran:?}"
    );
    let diff = env.efimera(&root, &["diff", "odd"]);
    let told: Vec<&str> = diff
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("Not in the patch: "))
        .collect();
    assert_eq!(
        told,
        [
            "the directory hollow is gone, which held no file",
            "the new directory new, which holds no file",
            "the new directory new/deep, which holds no file",
            "the new directory own has mode 700",
            "src/brush.py has mode 600 in the result, and had 644",
        ]
    );
    let stat = env.efimera(&root, &["diff", "odd", "--stat"]).ok();
    assert!(stat.contains(counts), "{stat}");
    assert!(stat.contains(" new/deep/ "), "{stat}");
    let applied = env.efimera(&root, &["apply", "odd"]);
    assert!(applied.stderr.contains(counts), "{applied:?}");
    assert!(root.join("new/deep").is_dir() && !root.join("hollow").exists());
}
