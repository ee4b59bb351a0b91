//! Machines that start from a template.

use crate::{bare, env};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::Env;

/// A home whose templates are its own.
fn fresh() -> Env {
    let env = env();
    fs::remove_file(env.data().join("templates")).unwrap();
    env
}

fn templates(env: &Env) -> Vec<PathBuf> {
    fs::read_dir(env.data().join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect()
}

fn template_of(env: &Env, root: &Path, name: &str) -> serde_json::Value {
    let text = env.efimera(root, &["inspect", name]).ok();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["template"].clone()
}

#[test]
fn clones_have_nothing_secret_in_common() {
    let env = env();
    let root = env.repository("shop");
    let script = "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/uuid; cat /proc/sys/kernel/random/boot_id
        head -c 16 /dev/urandom | od -An -tx1; python3 -c 'import os, uuid; print(os.getrandom(16).hex(), uuid.uuid4())'
        sh -c 'mktemp -u'; python3 -c 'print(hash(\"a\"))'; date +%s >&2";
    let children: Vec<_> = (0..8)
        .map(|_| env.start(&root, &["run", "--", "bash", "-c", script]))
        .collect();
    let mut lines = Vec::new();
    for child in children {
        let ran = env.ran(&child.wait_with_output().unwrap());
        let now = jiff_seconds();
        let clock: u64 = ran
            .stderr
            .lines()
            .find_map(|line| line.parse().ok())
            .expect("a clock");
        assert!(now - 120 <= clock && clock <= now + 1, "{clock} at {now}");
        let values: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
        assert_eq!(values.len(), 8, "{}", ran.stderr);
        lines.push(values);
    }
    for at in 0..8 {
        let distinct: BTreeSet<&str> = lines.iter().map(|values| values[at].as_str()).collect();
        assert_eq!(distinct.len(), 8, "line {at}: {lines:?}");
    }
}

fn jiff_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

#[test]
fn a_template_is_made_once_and_knows_nothing_of_a_task() {
    let env = fresh();
    let root = env.repository("shop");
    let marker = "marker-0f3a9c-of-a-task";
    fs::write(root.join("note"), marker).unwrap();
    let script = format!("cat note >/tmp/{marker}; echo {marker}");
    let words = [
        "run",
        "-e",
        &format!("M={marker}"),
        "--",
        "sh",
        "-c",
        &script,
    ];
    // However many come at the same time: the others wait for the one that makes it.
    let children: Vec<_> = (0..3).map(|_| env.start(&root, &words)).collect();
    let mut made = 0;
    for child in children {
        let ran = env.ran(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        made += usize::from(ran.stderr.contains("template was made"));
    }
    assert_eq!(made, 1, "one made it");
    let templates = templates(&env);
    assert_eq!(templates.len(), 1, "{templates:?}");
    let ran = env.efimera(&root, &words);
    assert!(!ran.stderr.contains("template was made"), "{}", ran.stderr);
    for file in ["ram", "state", "scratch", "template.json"] {
        // A memory's file is mostly a hole, which a search of our own would take minutes for.
        let mut search = Command::new("grep");
        search.args(["--text", "--fixed-strings", "--quiet", marker]);
        let found = search.arg(templates[0].join(file)).status().unwrap();
        let found = found.code() != Some(1);
        assert!(!found, "{file} holds what only a task knew");
    }
    assert_eq!(
        fs::read_dir(templates[0].join("holders")).unwrap().count(),
        0,
        "nobody holds it any more"
    );
}

#[test]
fn a_damaged_template_is_made_anew_and_said() {
    let env = fresh();
    let root = env.repository("shop");
    env.efimera(&root, &["run", "--", "true"]).ok();
    let template = templates(&env).remove(0);
    for file in ["ram", "state", "scratch"] {
        let path = template.join(file);
        let length = fs::metadata(&path).unwrap().len();
        let opened = fs::OpenOptions::new().write(true).open(&path).unwrap();
        opened.set_len(length / 2).unwrap();
        let ran = env.efimera(&root, &["run", "--", "echo", "up"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "up\n"));
        assert!(ran.stderr.contains("made anew"), "{file}: {}", ran.stderr);
        assert!(ran.stderr.contains("cut off or altered"), "{}", ran.stderr);
    }
    fs::write(template.join("template.json"), "{}").unwrap();
    let ran = env.efimera(&root, &["run", "--", "true"]);
    assert!(ran.stderr.contains("made anew"), "{}", ran.stderr);
    assert_eq!(ran.code, 0);
    // As by a removal that was cut short: the next run makes one, and the one after that finds it.
    fs::remove_file(template.join("template.json")).unwrap();
    let ran = env.efimera(&root, &["run", "--", "true"]);
    assert!(ran.stderr.contains("template was made"), "{}", ran.stderr);
    let ran = env.efimera(&root, &["run", "--", "true"]);
    assert!(!ran.stderr.contains("template was made"), "{}", ran.stderr);
}

#[test]
fn a_template_that_does_not_fit_means_a_boot_and_one_line() {
    let env = fresh();
    let root = env.repository("shop");
    env.efimera(
        &root,
        &["run", "--name", "small", "-m", "512m", "--", "true"],
    )
    .ok();
    let small = templates(&env).remove(0);
    env.efimera(&root, &["run", "--name", "usual", "--", "true"])
        .ok();
    let usual = templates(&env)
        .into_iter()
        .find(|path| *path != small)
        .unwrap();
    // Another machine's state under this one's name.
    fs::remove_dir_all(&usual).unwrap();
    fs::rename(&small, &usual).unwrap();
    let ran = env.efimera(&root, &["run", "--", "echo", "up"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (0, "up\n"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("the machine booted"), "{}", ran.stderr);
    let ran = env.efimera(&root, &["run", "--", "echo", "up"]);
    assert!(ran.stderr.contains("template was made"), "{}", ran.stderr);
}

#[test]
fn a_machine_boots_when_that_is_asked_for() {
    let env = env();
    let root = env.repository("shop");
    let ran = env.efimera(
        &root,
        &[
            "run",
            "--no-template",
            "--name",
            "cold",
            "--",
            "cat",
            "src/paint.py",
        ],
    );
    assert_eq!(ran.stdout, "colour = 'red'\n", "{}", ran.stderr);
    assert!(template_of(&env, &root, "cold").is_null());
    env.efimera(&root, &["run", "--name", "warm", "--", "true"])
        .ok();
    assert!(template_of(&env, &root, "warm").is_string());
}

#[test]
fn a_template_is_of_use_to_no_one_without_its_parts() {
    // A computer with kernel and image, but a directory of templates that can't be written.
    let env = bare();
    for part in ["images", "kernels", "scratch"] {
        let data = crate::data().join(part);
        symlink(data, env.data().join(part)).unwrap();
    }
    fs::write(env.data().join("templates"), "in the way").unwrap();
    let root = env.repository("shop");
    let ran = env.efimera(&root, &["run", "--", "echo", "up"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (0, "up\n"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("so the machine boots"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_row_of_machines_leaves_nothing() {
    let env = env();
    let root = env.repository("shop");
    env.efimera(&root, &["run", "--", "true"]).ok();
    let left = |parent: &str| -> Vec<String> {
        let entries = fs::read_dir(env.data().join(parent)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    };
    for _ in 0..10 {
        env.efimera(&root, &["run", "--name", "one", "--", "true"])
            .ok();
        env.efimera(&root, &["discard", "one"]).ok();
    }
    assert_eq!(env.processes(), Vec::<u32>::new());
    assert_eq!(left("sandboxes"), Vec::<String>::new());
    assert_eq!(left("results").len(), 1);
    assert_eq!(left("baselines").len(), 1);
}
