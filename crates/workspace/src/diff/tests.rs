use super::{ObjectFormat, Status, Style, display, summarize, write_patch};
use crate::testing::{Files, Item, Pair, any_pair, compare, dir, file, link};
use proptest::prelude::*;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

fn patch(pair: &Pair) -> Vec<u8> {
    let mut out = Vec::new();
    write_patch(
        &compare(&pair.0, &pair.1),
        pair,
        ObjectFormat::Sha1,
        &mut out,
    )
    .unwrap();
    out
}

fn check(old: &[(&str, Item)], new: &[(&str, Item)], expected: &str) {
    let files = |items: &[(&str, Item)]| {
        let mut files = Files::default();
        for (at, item) in items {
            files.put(&crate::testing::path(at), item.clone());
        }
        files
    };
    let text = patch(&Pair(files(old), files(new)));
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", dir);
    command.env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap());
    command
}

/// What git makes of the patch on the baseline; `Err` is what it said.
fn git_apply(old: &Files, patch: &[u8], init: &[&str]) -> Result<Files, String> {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("tree");
    fs_err::create_dir(&root).unwrap();
    old.write(&root);
    if !init.is_empty() {
        assert!(git(&root).args(init).status().unwrap().success());
    }
    for check in [&["apply", "--check", "-"][..], &["apply", "-"][..]] {
        let mut child = git(&root)
            .args(check)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(patch).unwrap();
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    let mut files = Files::read(&root);
    files
        .0
        .retain(|at, _| !at.as_bytes().starts_with(b".git/") && at.as_bytes() != b".git");
    Ok(files)
}

/// What git's format can say of a tree: files and links, and of modes the owner's right to execute.
fn as_git_sees(files: &Files) -> Files {
    let seen = |item: &Item| match item {
        Item::File(mode, bytes) => Some(Item::File(mode & 0o100, bytes.clone())),
        Item::Link(target) => Some(Item::Link(target.clone())),
        Item::Dir(_) => None,
    };
    Files(
        files
            .0
            .iter()
            .filter_map(|(at, item)| Some((at.clone(), seen(item)?)))
            .collect(),
    )
}

fn without_empty_dirs(files: &Files) -> Files {
    let holds = |at: &base::RelPath| files.subtree(at).values().any(|item| !item.is_dir());
    Files(
        files
            .0
            .iter()
            .filter(|(at, _)| holds(at))
            .map(|(at, item)| (at.clone(), item.clone()))
            .collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// git takes the patch on the baseline and arrives where the machine was. (Its format doesn't carry empty
    /// directories, so the baseline has none here: git can't put a file in the place of one.)
    #[test]
    fn git_applies_it(pair in any_pair()) {
        let pair = Pair(without_empty_dirs(&pair.0), pair.1);
        let patch = patch(&pair);
        prop_assume!(!patch.is_empty());
        let applied = git_apply(&pair.0, &patch, &[]);
        prop_assert_eq!(applied.as_ref().map(as_git_sees), Ok(as_git_sees(&pair.1)), "{}", base::escape(&patch));
    }

    /// On a terminal nothing but newlines and tabs acts, whatever files and names hold.
    #[test]
    fn a_terminal_sees_only_text(pair in any_pair()) {
        let mut shown = String::new();
        display(&compare(&pair.0, &pair.1), &pair, &mut |_, text| {
            shown.push_str(text);
            Ok(())
        }).unwrap();
        prop_assert!(shown.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{shown:?}");
    }

    /// The numbers are those of the patch.
    #[test]
    fn numbers_agree_with_the_patch(pair in any_pair()) {
        let set = compare(&pair.0, &pair.1);
        let summary = summarize(&set, &pair).unwrap();
        let stat = set.stat();
        prop_assert_eq!(summary.stat, stat);
        prop_assert_eq!(summary.files.len() as u64, stat.changed + stat.added + stat.deleted + stat.dirs);
        prop_assert_eq!(summary.files.len() + set.renames().len(), set.changes().len());
        prop_assert!(serde_json::to_string(&summary).is_ok());
    }
}

#[test]
fn a_binary_patch_works_in_repositories_of_both_formats() {
    let bytes = |seed: u32, count: u32| {
        let bytes = (0..count)
            .map(|at| (at.wrapping_mul(seed) >> 7).to_le_bytes()[0])
            .collect();
        Item::File(0o644, bytes)
    };
    let old = Files::of([
        ("a", bytes(77, 5000)),
        ("gone", bytes(5, 53)),
        ("text", file("x\n")),
    ]);
    let new = Files::of([
        ("a", bytes(78, 100_000)),
        ("new", bytes(3, 52)),
        ("text", bytes(9, 1)),
    ]);
    let pair = Pair(old.clone(), new.clone());
    for (format, init) in [
        (ObjectFormat::Sha1, &["init", "-q"][..]),
        (
            ObjectFormat::Sha256,
            &["init", "-q", "--object-format=sha256"][..],
        ),
    ] {
        let mut out = Vec::new();
        write_patch(&compare(&old, &new), &pair, format, &mut out).unwrap();
        let applied = git_apply(&old, &out, init).map(|files| as_git_sees(&files));
        assert_eq!(applied, Ok(as_git_sees(&new)), "{format:?}");
    }
}

#[test]
fn text_is_as_git_writes_it() {
    check(
        &[("src/main.c", file("one\ntwo\nthree\n"))],
        &[("src/main.c", file("one\n2\nthree\n"))],
        "diff --git a/src/main.c b/src/main.c
index 4cb29ea38f70d7c61b2a3a25b02e3bdf44905402..f04eb265ebd74fba2cddf0a6adf2a6a7f81c87aa 100644
--- a/src/main.c
+++ b/src/main.c
@@ -1,3 +1,3 @@
 one
-two
+2
 three
",
    );
}

#[test]
fn modes_links_and_odd_names() {
    check(
        &[("run.sh", file("x"))],
        &[("run.sh", Item::File(0o755, b"x".to_vec()))],
        "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n",
    );
    check(
        &[("a", file("x"))],
        &[("a", Item::File(0o600, b"x".to_vec()))],
        "",
    );
    check(&[], &[("empty dir", dir())], "");
    check(
        &[],
        &[("e\u{e9} \t\"", file(""))],
        "diff --git \"a/e\\303\\251 \\t\\\"\" \"b/e\\303\\251 \\t\\\"\"
new file mode 100644
index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391
",
    );
    check(
        &[("l", file("x\n"))],
        &[("l", link("to"))],
        "diff --git a/l b/l
deleted file mode 100644
index 587be6b4c3f93f93c489c0111bba5596147a26cb..0000000000000000000000000000000000000000
--- a/l
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/l b/l
new file mode 120000
index 0000000000000000000000000000000000000000..788636ffba34694361f7d7ee1970d96fb92c3168
--- /dev/null
+++ b/l
@@ -0,0 +1 @@
+to
\\ No newline at end of file
",
    );
}

#[test]
fn attributes_hide_nothing() {
    let attributes = ".gitattributes";
    let old = Files::of([(attributes, file("")), ("policy", file("strict\n"))]);
    let new = Files::of([
        (
            attributes,
            file("* -diff\n* binary\n* linguist-generated\n"),
        ),
        ("policy", file("lax\n")),
    ]);
    let shown = String::from_utf8(patch(&Pair(old, new))).unwrap();
    assert!(shown.contains("-strict\n+lax\n"), "{shown}");
    assert!(shown.contains("+* -diff\n"), "{shown}");
}

fn shown(pair: &Pair) -> Vec<(Style, String)> {
    let mut pieces: Vec<(Style, String)> = Vec::new();
    display(&compare(&pair.0, &pair.1), pair, &mut |style, text| {
        pieces.push((style, text.to_owned()));
        Ok(())
    })
    .unwrap();
    pieces
}

#[test]
fn what_would_not_show_is_shown() {
    let old = Files::of([("a", file("x\n")), ("moved", file("same"))]);
    let new = Files::of([
        ("a", file("if a\u{202e} { \u{1b}[31m\t\\\n")),
        ("b\u{202e}", Item::File(0o755, b"\xff\n".to_vec())),
        ("bin", Item::File(0o644, b"\0\x1b".to_vec())),
        ("new place", file("same")),
    ]);
    let pieces = shown(&Pair(old, new));
    let text: String = pieces.iter().map(|piece| piece.1.as_str()).collect();
    assert_eq!(
        text,
        "changed file a\n@@ -1 +1 @@\n-x\n+if a\\u{202e} { \\x1b[31m\t\\\n\
         new file bin\nbinary, 0 B => 2 B\n\
         new file b\\u{202e} (executable, mode 755)\n@@ -0,0 +1 @@\n+\\xff\nrenamed moved => new place\n"
    );
    let escaped: Vec<&str> = pieces
        .iter()
        .filter(|piece| piece.0 == Style::Escaped)
        .map(|piece| piece.1.as_str())
        .collect();
    assert_eq!(escaped, ["\\u{202e}", "\\x1b", "\\xff"]);
}

#[test]
fn long_lines_are_cut_on_a_terminal() {
    let new = Files::of([("a", file(&"y".repeat(10_000)))]);
    let text: String = shown(&Pair(Files::default(), new))
        .into_iter()
        .map(|piece| piece.1)
        .collect();
    assert!(text.contains("… (5904 more bytes)"));
    assert!(text.len() < 5000);
}

#[test]
fn numbers_of_a_small_change() {
    let old = Files::of([
        ("a", file("1\n2\n3\n")),
        ("gone", file("1\n2\n")),
        ("m", file("x")),
        ("from", file("z\n")),
    ]);
    let new = Files::of([
        ("a", file("1\nzwei\n3\n4\n")),
        ("bin", Item::File(0o644, vec![0])),
        ("m", Item::File(0o755, b"x".to_vec())),
        ("to", file("z\n")),
        ("d", dir()),
    ]);
    let pair = Pair(old, new);
    let summary = summarize(&compare(&pair.0, &pair.1), &pair).unwrap();
    let lines = |at: usize| {
        let file = &summary.files[at];
        (file.path.to_string(), file.status, file.added, file.removed)
    };
    let expected = [
        ("a", Status::Modified, Some(2), Some(1)),
        ("bin", Status::Added, None, None),
        ("d", Status::Added, None, None),
        ("gone", Status::Deleted, Some(0), Some(2)),
        ("m", Status::ModeChanged, Some(0), Some(0)),
        ("to", Status::Renamed, Some(0), Some(0)),
    ];
    for (at, (path, status, added, removed)) in expected.into_iter().enumerate() {
        assert_eq!(lines(at), (path.to_owned(), status, added, removed));
    }
    let stat = summary.stat;
    assert_eq!((stat.changed, stat.added, stat.deleted), (3, 1, 1));
    assert_eq!((summary.lines_added, summary.lines_removed), (2, 3));
}

/// A hundred thousand lines that share nothing, and as many that share nearly all: an answer all the same, and a
/// patch that git takes.
#[test]
fn many_lines_end_in_time() {
    let lines = |salt: u64, step: u64| {
        let line = |at: u64| {
            format!(
                "{:x}\n",
                if at.is_multiple_of(step) {
                    at ^ salt
                } else {
                    at
                }
            )
        };
        file(&(0..100_000).map(line).collect::<String>())
    };
    let old = Files::of([("alike", lines(0, 1)), ("other", lines(0, 1))]);
    let new = Files::of([
        ("alike", lines(1 << 40, 1000)),
        ("other", lines(1 << 40, 1)),
    ]);
    let patch = patch(&Pair(old.clone(), new.clone()));
    assert_eq!(git_apply(&old, &patch, &[]), Ok(new));
}
