//! Sandboxes that stay: detached, kept, stopped and started.

use crate::env;
use std::fs;

#[test]
fn a_kept_sandbox_is_used_stopped_started_and_removed() {
    let env = env();
    let root = env.repository("shop");
    env.efimera(
        &root,
        &[
            "run",
            "--keep",
            "--name",
            "box",
            "--",
            "sh",
            "-c",
            "echo one > one",
        ],
    )
    .ok();
    let listed = env.efimera(&root, &["ls", "--json"]).ok();
    assert!(listed.contains("\"idle\""), "{listed}");
    env.efimera(
        &root,
        &[
            "exec",
            "box",
            "sh",
            "-c",
            "echo two > two; echo kept > /var/tmp/kept",
        ],
    )
    .ok();
    env.efimera(&root, &["stop", "box"]).ok();
    assert!(env.efimera(&root, &["ls", "--json"]).ok().contains("[]"));
    assert!(env.efimera(&root, &["ls", "-a"]).ok().contains("stopped"));
    let diff = env.efimera(&root, &["diff", "box", "--name-only"]).ok();
    assert_eq!(diff, "one\ntwo\n");
    env.efimera(&root, &["start", "box"]).ok();
    let kept = env
        .efimera(
            &root,
            &[
                "exec",
                "box",
                "sh",
                "-c",
                "cat /var/tmp/kept one two; echo three > three",
            ],
        )
        .ok();
    assert_eq!(kept, "kept\none\ntwo\n", "the disk is the one that it had");
    env.efimera(&root, &["rm", "--force", "box"]).ok();
    assert!(!env.data().join("sandboxes/box").exists());
    assert_eq!(
        env.efimera(&root, &["diff", "box", "--name-only"]).ok(),
        "one\nthree\ntwo\n"
    );
}

#[test]
fn a_detached_command_is_waited_for_and_its_output_kept() {
    let env = env();
    let root = env.repository("shop");
    let name = env
        .efimera(
            &root,
            &[
                "run",
                "-d",
                "--",
                "sh",
                "-c",
                "echo out; echo err >&2; echo x > made; exit 3",
            ],
        )
        .ok();
    let name = name.trim();
    assert_eq!(env.efimera(&root, &["wait", name]).code, 3);
    assert_eq!(
        env.efimera(&root, &["diff", name, "--name-only"]).ok(),
        "made\n",
        "whoever waited sees the whole result"
    );
    env.efimera(&root, &["apply", name]).ok();
    let logs = env.efimera(&root, &["logs", name]);
    assert_eq!(
        (logs.stdout.as_str(), logs.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(
        env.efimera(&root, &["wait", name]).code,
        3,
        "also once it is gone"
    );
}

#[test]
fn two_runs_in_one_directory_do_not_meet() {
    let env = env();
    let root = env.repository("shop");
    let runs: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|name| {
            env.start(
                &root,
                &[
                    "run",
                    "--name",
                    name,
                    "--",
                    "sh",
                    "-c",
                    &format!("test ! -e one && test ! -e two && echo {name} > {name}"),
                ],
            )
        })
        .collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(
        env.efimera(&root, &["diff", "one", "--name-only"]).ok(),
        "one\n"
    );
    assert_eq!(
        env.efimera(&root, &["diff", "two", "--name-only"]).ok(),
        "two\n"
    );
    let ran = env.efimera(&root, &["apply"]);
    assert_eq!(ran.code, 2, "two wait, so one has to be named");
    assert!(
        ran.stderr.contains("one") && ran.stderr.contains("two"),
        "{}",
        ran.stderr
    );
    env.efimera(&root, &["apply", "one"]).ok();
    env.efimera(&root, &["apply", "two"]).ok();
    assert!(root.join("one").exists() && root.join("two").exists());
}

#[test]
fn a_host_that_moved_on_is_a_conflict_and_nothing_is_applied() {
    let env = env();
    let root = env.repository("shop");
    env.efimera(
        &root,
        &[
            "run",
            "--name",
            "late",
            "--",
            "sh",
            "-c",
            "echo theirs > src/paint.py; echo new > added; echo other > src/brush.py",
        ],
    )
    .ok();
    fs::write(root.join("src/paint.py"), "mine\n").unwrap();
    fs::write(root.join("added"), "mine too\n").unwrap();
    let ran = env.efimera(&root, &["apply", "late"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("src/paint.py") && ran.stderr.contains("added"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        fs::read_to_string(root.join("src/paint.py")).unwrap(),
        "mine\n"
    );
    assert_eq!(
        fs::read_to_string(root.join("src/brush.py")).unwrap(),
        "width = 3\n",
        "all or nothing"
    );
}

#[test]
fn files_are_copied_in_and_out_of_machines_and_results() {
    let env = env();
    let root = env.repository("shop");
    let work = env.work();
    fs::create_dir_all(work.join("in/deep")).unwrap();
    fs::write(work.join("in/deep/file"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("deep/file", work.join("in/link")).unwrap();
    env.efimera(
        &root,
        &[
            "run",
            "--keep",
            "--name",
            "box",
            "--",
            "sh",
            "-c",
            "echo made > made; ln -s /etc/passwd leak",
        ],
    )
    .ok();
    env.efimera(&work, &["cp", "in", "box:/opt"]).ok();
    let seen = env
        .efimera(
            &root,
            &[
                "exec",
                "box",
                "sh",
                "-c",
                "wc -c < /opt/in/deep/file; readlink /opt/in/link",
            ],
        )
        .ok();
    assert_eq!(seen, "300000\ndeep/file\n");
    env.efimera(&work, &["cp", "box:/opt/in", "back"]).ok();
    assert_eq!(
        crate::tree::list(&work.join("back"), true),
        crate::tree::list(&work.join("in"), true)
    );
    let ran = env.efimera(&work, &["cp", "box:nothing", "."]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("nothing"), "{}", ran.stderr);
    env.efimera(&root, &["rm", "--force", "box"]).ok();
    env.efimera(&work, &["cp", "box:src", "source"]).ok();
    assert_eq!(
        fs::read_to_string(work.join("source/paint.py")).unwrap(),
        "colour = 'red'\n"
    );
    env.efimera(&work, &["cp", "box:made", "."]).ok();
    assert_eq!(fs::read_to_string(work.join("made")).unwrap(), "made\n");
    let ran = env.efimera(&root, &["cp", "box:made", ".git/hooks/post-commit"]);
    assert_eq!(
        ran.code, 1,
        "nothing from a machine goes into a git directory"
    );
}

#[test]
fn a_result_is_gone_on_with_and_rerun() {
    let env = env();
    let root = env.repository("shop");
    let script = "echo more >> src/paint.py; rm src/brush.py; mkdir -p new && echo x > new/file; chmod 755 .gitignore; rm latest && mkdir latest && echo y > latest/z";
    env.efimera(&root, &["run", "--name", "first", "--", "sh", "-c", script])
        .ok();
    let ran = env.efimera(&root, &["run", "--from", "first", "--name", "second", "--", "sh", "-c", "cat src/paint.py latest/z; test ! -e src/brush.py && test -x .gitignore && echo again >> new/file"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, "colour = 'red'\nmore\ny\n");
    let names = |name: &str| env.efimera(&root, &["diff", name, "--name-only"]).ok();
    assert_eq!(
        names("second"),
        names("first"),
        "against the original baseline"
    );
    let clean = env.efimera(
        &root,
        &[
            "run",
            "-q",
            "--from",
            "first",
            "--clean",
            "--name",
            "third",
            "--",
            "cat",
            "src/brush.py",
        ],
    );
    assert_eq!(clean.ok(), "width = 3\n");
    env.efimera(&root, &["apply", "second"]).ok();
    assert_eq!(
        fs::read_to_string(root.join("new/file")).unwrap(),
        "x\nagain\n"
    );
}

#[test]
fn the_machines_clock_follows_a_jump_of_the_hosts() {
    use rustix::time::{ClockId, clock_gettime, clock_settime};
    let env = env();
    let root = env.repository("shop");
    env.efimera(&root, &["run", "-q", "-d", "--keep", "--name", "box"])
        .ok();
    let date = || -> i64 {
        let said = env.efimera(&root, &["exec", "box", "date", "+%s"]).ok();
        said.trim().parse().unwrap()
    };
    let host = || clock_gettime(ClockId::Realtime).tv_sec;
    assert!((host() - date()).abs() <= 60, "it begins with the host's");
    let wrong = ["exec", "-u", "root", "box", "date", "-s", "2001-02-03"];
    env.efimera(&root, &wrong).ok();
    assert!(date() < 1_000_000_000);
    // Only root may set the host's clock. To the time that it is already: whoever watches it is told all the same.
    match clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)) {
        Ok(()) => {
            super::crash::until("the machine's clock", || (host() - date()).abs() <= 60);
        }
        Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
    }
    env.efimera(&root, &["rm", "--force", "box"]).ok();
}
