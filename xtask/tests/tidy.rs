//! What has to hold for the repository as a whole.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test of the repository reads its files"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which crate may know which: the table of ARCHITECTURE.md, and nothing that is not in it.
const ARROWS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("wire", &[]),
    ("erofs", &["base"]),
    ("jail", &["base"]),
    ("machine", &["base", "jail"]),
    ("guest", &["base", "wire"]),
    ("guest-bin", &["base"]),
    ("image", &["base", "erofs", "guest-bin"]),
    (
        "template",
        &["base", "guest-bin", "image", "machine", "wire"],
    ),
    ("workspace", &["base", "erofs", "wire"]),
    ("store", &["base", "workspace"]),
    (
        "supervisor",
        &[
            "base",
            "erofs",
            "guest-bin",
            "image",
            "jail",
            "machine",
            "store",
            "wire",
            "workspace",
        ],
    ),
    (
        "cli",
        &[
            "base",
            "erofs",
            "guest-bin",
            "image",
            "jail",
            "machine",
            "store",
            "supervisor",
            "template",
            "wire",
            "workspace",
        ],
    ),
    ("testkit", &["base", "wire"]),
    ("xtask", &[]),
];

/// Packages that the lock file may hold. Trim before raising it.
const MAX_PACKAGES: usize = 400;

/// Lines of a source file above which it asks for a split.
const MAX_LINES: usize = 800;
/// The same for tests, of which one reads a single case at a time.
const MAX_TEST_LINES: usize = 1200;

#[test]
fn arrows_point_downwards() {
    for (name, allowed) in ARROWS {
        let manifest = manifest(name);
        let ours: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
        let known = manifest["dependencies"].as_table().unwrap();
        for dependency in known
            .keys()
            .filter(|dependency| ours.contains(dependency.as_str()))
        {
            assert!(
                allowed.contains(&dependency.as_str()),
                "`{name}` may not depend on `{dependency}`"
            );
        }
    }
}

#[test]
fn every_crate_is_on_the_map() {
    let map = read("ARCHITECTURE.md");
    let mut found: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.insert("xtask".to_owned());
    let listed: BTreeSet<String> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, listed, "the table of arrows lists every crate");
    for name in listed {
        assert!(
            map.contains(&format!("| `{name}` |")),
            "ARCHITECTURE.md doesn't tell about `{name}`"
        );
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = read("docs/dependencies.md");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for name in manifest["workspace"]["dependencies"]
        .as_table()
        .unwrap()
        .keys()
    {
        if ARROWS.iter().any(|(ours, _)| ours == name) {
            continue;
        }
        assert!(
            reasons.contains(&format!("| `{name}` |")),
            "docs/dependencies.md gives no reason for `{name}`"
        );
    }
}

#[test]
fn the_lock_file_stays_small() {
    let packages = read("Cargo.lock")
        .lines()
        .filter(|line| line.starts_with("name = "))
        .count();
    assert!(
        packages <= MAX_PACKAGES,
        "{packages} packages are locked, and the ceiling is {MAX_PACKAGES}"
    );
}

#[test]
fn dependencies_come_from_the_registry() {
    for line in read("Cargo.lock")
        .lines()
        .filter(|line| line.starts_with("source = "))
    {
        assert!(line.starts_with("source = \"registry+"), "{line}");
    }
}

#[test]
fn files_can_be_held_in_mind() {
    let long: BTreeMap<_, _> = sources()
        .into_iter()
        .map(|path| {
            (
                path.clone(),
                fs::read_to_string(path).unwrap().lines().count(),
            )
        })
        .filter(|(path, lines)| {
            *lines
                > if path.ends_with("tests.rs") {
                    MAX_TEST_LINES
                } else {
                    MAX_LINES
                }
        })
        .collect();
    assert!(long.is_empty(), "these files ask for a split: {long:#?}");
}

#[test]
fn nothing_is_left_to_do_in_the_code() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        for word in [
            "TODO",
            "FIXME",
            "XXX",
            "todo!",
            "unimplemented!",
            "#[ignore",
        ] {
            let own = path.ends_with("tests/tidy.rs");
            assert!(
                own || !text.contains(word),
                "`{word}` in {}",
                path.display()
            );
        }
    }
}

#[test]
fn promises_name_tests_that_exist() {
    let code: String = sources()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let promises = read("docs/promises.md");
    let mut named = 0;
    for line in promises.lines().filter(|line| line.starts_with("  - `")) {
        let test = line.trim_start_matches("  - `").split('`').next().unwrap();
        let function = test.rsplit("::").next().unwrap();
        assert!(
            code.contains(&format!("fn {function}(")),
            "docs/promises.md names `{test}`, which is no test"
        );
        named += 1;
    }
    assert!(named > 0, "docs/promises.md names no test");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn manifest(name: &str) -> toml::Table {
    let path = if name == "xtask" {
        "xtask/Cargo.toml".to_owned()
    } else {
        format!("crates/{name}/Cargo.toml")
    };
    read(&path).parse().unwrap()
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![
        root().join("crates"),
        root().join("xtask"),
        root().join("fuzz/fuzz_targets"),
    ];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir()
                && path
                    .file_name()
                    .is_none_or(|name| !name.to_string_lossy().starts_with("target"))
            {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}
