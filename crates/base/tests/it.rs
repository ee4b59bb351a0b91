//! The small types, by what they promise.

use base::{Digest, Hasher, Name, RelPath, Size, escape, escape_line};
use proptest::prelude::*;

#[test]
fn digests_are_sha256_and_read_back() {
    let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(Digest::of(b"").to_string(), empty);
    assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
    for bad in [
        "",
        "sha256:",
        "sha256:../../etc",
        "sha512:00",
        &empty.to_uppercase(),
        &empty[..70],
    ] {
        assert!(bad.parse::<Digest>().is_err(), "{bad}");
    }
    let mut hasher = Hasher::new();
    hasher.update(b"ab");
    hasher.update(b"c");
    assert_eq!(hasher.finish(), Digest::of(b"abc"));
}

#[test]
fn names_fit_files_hosts_and_arguments() {
    for good in ["a", "brisk-heron", "x1", "box"] {
        assert!(good.parse::<Name>().is_ok(), "{good}");
    }
    let long = "a".repeat(Name::MAX + 1);
    for bad in [
        "",
        "-a",
        "a-",
        "a--b",
        "A",
        "1a",
        "a.b",
        "a/b",
        "a b",
        "ä",
        "..",
        "$(x)",
        long.as_str(),
    ] {
        assert!(bad.parse::<Name>().is_err(), "{bad}");
    }
}

#[test]
fn paths_stay_below_their_root() {
    for good in ["a", "a/b", "...", "a b", "-rf", ".git"] {
        assert!(RelPath::new(good).is_ok(), "{good}");
    }
    let deep = "a/".repeat(256) + "a";
    let long = "a".repeat(256);
    for bad in [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/..",
        "a/./b",
        "../a",
        "a\0b",
        deep.as_str(),
        long.as_str(),
    ] {
        assert!(RelPath::new(bad).is_err(), "{bad:?}");
    }
    let path = |text: &str| RelPath::new(text).unwrap();
    assert!(path("a/b").is_within(&path("a")) && !path("ab").is_within(&path("a")));
    assert_eq!(path("a/b/c").below(&path("a")), Some(path("b/c")));
    assert_eq!(path("a").below(&path("a")), Some(RelPath::root()));
    assert_eq!(path("a-b").below(&path("a")), None);
    assert_eq!(path("a/b").parent(), Some(path("a")));
    assert_eq!(path("a").parent(), Some(RelPath::root()));
    path("a").join(b"b/c").unwrap_err();
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("10485760", 10 << 20),
        ("512m", 512 << 20),
        ("2g", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("64KB", 64 << 10),
        ("1 t", 1 << 40),
    ] {
        assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
    }
    for bad in [
        "",
        "g",
        "-1",
        "1.g",
        "1.2345g",
        "1x",
        "99999999999999999999",
        "16777216t",
        "1e3",
    ] {
        assert!(bad.parse::<Size>().is_err(), "{bad}");
    }
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (230 << 20, "230 MiB"),
        (3 << 29, "1.5 GiB"),
    ] {
        assert_eq!(Size(bytes).to_string(), text);
    }
}

#[test]
fn nothing_that_acts_on_a_terminal_is_printed() {
    assert_eq!(escape(b"a\x1b[2J\r\n\t\\"), "a\\x1b[2J\\r\\n\\t\\\\");
    assert_eq!(
        escape("\u{202e}\u{200b}\u{e0041}é".as_bytes()),
        "\\u{202e}\\u{200b}\\u{e0041}é"
    );
    assert_eq!(escape(b"\xff\xc3"), "\\xff\\xc3");
    assert_eq!(escape("\u{9b}2J".as_bytes()), "\\x9b2J");
    assert_eq!(escape_line(b"abcdef", 3), "abc…");
}

proptest! {
    #[test]
    fn any_bytes_are_escaped_to_visible_text(bytes: Vec<u8>) {
        let text = escape(&bytes);
        prop_assert!(text.chars().all(|character| !character.is_control()));
        let hidden = text.contains('\u{202e}');
        prop_assert!(!hidden);
    }

    #[test]
    fn a_path_of_any_bytes_keeps_its_promise(bytes: Vec<u8>) {
        if let Ok(path) = RelPath::new(bytes.clone()) {
            prop_assert_eq!(path.as_bytes(), bytes.as_slice());
            prop_assert!(path.components().all(|part| !matches!(part, b"" | b"." | b"..") && !part.contains(&0)));
            let json = serde_json::to_string(&path).unwrap();
            prop_assert_eq!(serde_json::from_str::<RelPath>(&json).unwrap(), path);
        }
    }

    #[test]
    fn every_seed_gives_a_name(seed: u64) {
        let name = Name::from_seed(seed);
        prop_assert_eq!(name.as_str().parse::<Name>().unwrap(), name.clone());
    }
}
