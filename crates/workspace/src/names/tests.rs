use super::{check_exported, is_git_store_alias};
use base::RelPath;
use proptest::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;

#[test]
fn aliases_of_every_file_system_are_refused() {
    for name in [
        ".git",
        ".GIT",
        ".gIt",
        ".git.",
        ".git ",
        ".git. . ",
        "git~1",
        "GIT~1",
        "git~2",
        "git~1.",
        ".git::$INDEX_ALLOCATION",
        ".git:stream",
        "GIT~1:x",
        ".g\u{200c}it",
        "\u{feff}.git",
        ".git\u{200d}",
        ".gi\u{ad}t",
        ".gi\u{fe0f}t",
        ".g\u{e0041}it",
        "a\\.git",
        ".git\\hooks",
        "x\\GIT~1\\y",
    ] {
        assert!(is_git_store_alias(name.as_bytes()), "{name:?}");
    }
    assert!(is_git_store_alias(b".git\xff"));
    assert!(is_git_store_alias(b".git\xe2\x80"));
}

#[test]
fn ordinary_names_are_not() {
    for name in [
        ".gitignore",
        ".gitattributes",
        ".gitmodules",
        ".github",
        "git",
        "git~",
        "git~10",
        "agit",
        ".git2",
        "..git",
        ".git-old",
        "git~a",
        ".gi t",
        "x:.git",
        "",
    ] {
        assert!(!is_git_store_alias(name.as_bytes()), "{name:?}");
    }
    assert!(!is_git_store_alias(b"\xff.git"));
}

#[test]
fn each_component_counts() {
    for (path, allowed) in [
        ("src/main.rs", true),
        (".git", false),
        ("a/.GIT/hooks/pre-commit", false),
        ("a/b/git~1", false),
        (".github/workflows/ci.yml", true),
    ] {
        let path = RelPath::new(path).unwrap();
        assert_eq!(check_exported(&path).is_ok(), allowed, "{path}");
    }
}

/// What git itself takes into an index with both protections on, asked in one go.
fn accepted_by_git(names: &[Vec<u8>]) -> Vec<bool> {
    let home = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(["-c", "core.protectHFS=true", "-c", "core.protectNTFS=true"])
            .args(args)
            .current_dir(home.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home.path());
        command
    };
    assert!(git(&["init", "-q"]).status().unwrap().success());
    names
        .iter()
        .map(|name| {
            let info = [
                b"100644,e69de29bb2d1d6434b8b29ae775ad8c2e48c5391,".as_slice(),
                name,
            ]
            .concat();
            git(&["update-index", "--add", "--cacheinfo"])
                .arg(OsString::from_vec(info))
                .output()
                .unwrap()
                .status
                .success()
        })
        .collect()
}

fn alias_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b".git".to_vec()),
        Just(b".GiT".to_vec()),
        Just(b"git~1".to_vec()),
        Just(b"g".to_vec()),
        Just(b"it".to_vec()),
        Just(b".".to_vec()),
        Just(b" ".to_vec()),
        Just(b":".to_vec()),
        Just(b"\\".to_vec()),
        Just("\u{200c}".as_bytes().to_vec()),
        Just("\u{206f}".as_bytes().to_vec()),
        Just("\u{feff}".as_bytes().to_vec()),
        Just(b"\xff".to_vec()),
        Just(b"x".to_vec()),
    ];
    proptest::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Whatever git refuses, we refuse. (`.` and `..` are no components of a path at all.)
    #[test]
    fn refuses_all_that_git_refuses(names in proptest::collection::vec(alias_like(), 24)) {
        for (name, accepted) in names.iter().zip(accepted_by_git(&names)) {
            let refused = RelPath::new(name.clone()).map_or(true, |path| check_exported(&path).is_err());
            prop_assert!(refused || accepted, "git refuses {}", base::escape(name));
        }
    }

    /// Ignorable code points and letter case, anywhere, change nothing.
    #[test]
    fn generated_aliases_are_refused(
        parts in proptest::collection::vec(prop_oneof![Just(""), Just("\u{200b}"), Just("\u{200e}"), Just("\u{ad}")], 5),
        upper in proptest::collection::vec(any::<bool>(), 4),
        tail in "[. ]{0,3}(:[a-z$]{0,9})?",
    ) {
        let mut name = String::new();
        for (at, letter) in ".git".chars().enumerate() {
            name.push_str(parts[at]);
            name.push(if upper[at] { letter.to_ascii_uppercase() } else { letter });
        }
        name.push_str(parts[4]);
        name.push_str(&tail);
        prop_assert!(is_git_store_alias(name.as_bytes()), "{name:?}");
    }
}
