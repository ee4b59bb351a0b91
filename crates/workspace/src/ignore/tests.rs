use super::{Ignore, RuleList};
use crate::pack_tests::{Bench, git_program};
use crate::{IgnoreFile, IgnoreRules as _};
use base::RelPath;
use proptest::prelude::*;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Paths and rules made of few pieces, so that they meet often.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "a", "b", "ab", "foo", "bar", ".x", "o", "foo.o", "a b", "[a]", "x\\y", "!a", "#a", "é",
        "b*", "tail ", "-", "z?",
    ]);
    prop_oneof![9 => pieces.prop_map(|piece| piece.as_bytes().to_vec()), 1 => Just(b"\xff\xfe".to_vec())]
}

fn rule() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => name(),
        6 => prop::sample::select(vec![
            "*", "**", "?", "[ab]", "[!a]", "[a-f]", "[[:alpha:]]", "[^[:digit:]]", "\\a", "\\*", "\\", "[", "[]a]", "[a",
            "***", ".*", "*.o", "a*", "*b", "f*o", "\\#a", "\\!a", "\\ ", " ", "[a/b]", "[\\a]", "[[:nope:]]", "[a-]",
            "[--a]", "**a", "a**", "\u{e9}",
        ])
        .prop_map(|piece| piece.as_bytes().to_vec()),
    ];
    let part = prop::collection::vec(piece, 1..3).prop_map(|pieces| pieces.concat());
    let body = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join(&b'/'));
    let before = prop::sample::select(vec!["", "", "", "!", "!", "/", "**/", "!/"]);
    let after = prop::sample::select(vec!["", "", "", "/", "/**", "/*", " ", "\r", "//"]);
    (before, body, after)
        .prop_map(|(before, body, after)| [before.as_bytes(), &body, after.as_bytes()].concat())
}

fn rules() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(rule(), 0..5).prop_map(|rules| rules.join(&b'\n'))
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(name(), 1..5).prop_map(|names| names.join(&b'/'))
}

/// What git says of each path, asked about all of them at once, whether tracked or not.
fn ask_git(bench: &Bench, paths: &[Vec<u8>]) -> Vec<bool> {
    let mut command = Command::new(git_program());
    command
        .env_clear()
        .env("HOME", bench.path("home"))
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command.args([
        "check-ignore",
        "--no-index",
        "--stdin",
        "-z",
        "--verbose",
        "--non-matching",
    ]);
    let mut child = command
        .current_dir(bench.path("repo"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = paths.join(&0);
    input.push(0);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let fields: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    let answers: Vec<bool> = fields
        .chunks_exact(4)
        .zip(paths)
        .map(|(answer, path)| {
            assert_eq!(answer[3], path, "git answers in the order of the questions");
            !answer[0].is_empty() && !answer[2].starts_with(b"!")
        })
        .collect();
    assert_eq!(answers.len(), paths.len());
    answers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Trees and rules by chance: git and we ignore the same, whatever the rules are made of.
    #[test]
    fn ignores_what_git_ignores(
        top in rules(),
        exclude in rules(),
        user in rules(),
        inner in prop::collection::vec((path(), rules()), 0..3),
        files in prop::collection::vec(path(), 1..25),
    ) {
        use std::os::unix::ffi::OsStrExt as _;
        let bench = Bench::new();
        fs_err::create_dir_all(bench.path("repo")).unwrap();
        bench.git("repo", &["init", "-q"]);
        let root = bench.path("repo");
        let at = |path: &[u8]| root.join(std::ffi::OsStr::from_bytes(path));
        let mut made = std::collections::BTreeMap::new();
        for file in &files {
            // A path that needs a directory where a file is can't be; so be it.
            let parent = at(file);
            if fs_err::create_dir_all(parent.parent().unwrap()).is_ok() && fs_err::write(at(file), "").is_ok() {
                let whole = RelPath::new(file.clone()).unwrap();
                let mut above = whole.parent();
                while let Some(dir) = above.filter(|dir| !dir.is_root()) {
                    above = dir.parent();
                    made.insert(dir, true);
                }
                made.insert(whole, false);
            }
        }
        let mut rule_files = Vec::new();
        let mut add = |dir: RelPath, rules: &[u8], path: std::path::PathBuf| {
            if fs_err::create_dir_all(path.parent().unwrap()).is_ok() && fs_err::write(path, rules).is_ok() {
                rule_files.push(IgnoreFile { dir, rules: rules.to_vec() });
            }
        };
        add(RelPath::root(), &user, bench.path("home/.config/git/ignore"));
        add(RelPath::root(), &exclude, root.join(".git/info/exclude"));
        add(RelPath::root(), &top, root.join(".gitignore"));
        let mut inner = inner;
        inner.sort();
        inner.dedup_by(|a, b| a.0 == b.0);
        for (dir, rules) in &inner {
            let dir = RelPath::new(dir.clone()).unwrap();
            if made.get(&dir) == Some(&true) {
                add(dir.clone(), rules, root.join(dir.as_path()).join(".gitignore"));
            }
        }
        let ignore = Ignore::new(&rule_files, []);
        let paths: Vec<Vec<u8>> = made.keys().map(|path| path.as_bytes().to_vec()).collect();
        let expected = ask_git(&bench, &paths);
        for ((path, is_dir), expected) in made.iter().zip(&expected) {
            let found = ignore.is_ignored_within(path, *is_dir);
            prop_assert_eq!(found, *expected, "{:?} (directory: {})", path, is_dir);
        }
        // A walk must come to what `git ls-files` comes to.
        let collected = bench.collect("repo");
        let walked: Vec<String> = collected
            .entries
            .iter()
            .filter(|found| found.kind == crate::Kind::File)
            .map(|found| found.path.to_string())
            .collect();
        let (list, _) = bench.try_git(&root, &["ls-files", "-o", "--exclude-standard", "-z"]);
        let mut listed: Vec<&str> = list.split('\0').filter(|path| !path.is_empty()).collect();
        listed.sort_unstable();
        if list.is_ascii() && walked.iter().all(|path| !path.contains('\\')) {
            let mut walked: Vec<&str> = walked.iter().map(String::as_str).collect();
            walked.sort_unstable();
            prop_assert_eq!(walked, listed);
        }
    }
}

fn check(rules: &str, path: &str, is_dir: bool, expected: Option<bool>) {
    let list = RuleList::parse(&RelPath::root(), rules.as_bytes());
    assert_eq!(
        list.verdict(path.as_bytes(), is_dir),
        expected,
        "{rules:?} on {path:?}"
    );
}

#[test]
fn rules_by_example() {
    check("foo", "a/b/foo", false, Some(true));
    check("/foo", "a/foo", false, None);
    check("foo/", "foo", false, None);
    check("foo/", "foo", true, Some(true));
    check("a/*", "a/b", false, Some(true));
    check("a/*", "a/b/c", false, None);
    check("a/**", "a/b/c", false, Some(true));
    check("**/b", "b", false, Some(true));
    check("a/**/b", "a/b", false, Some(true));
    check("*.o\n!keep.o", "keep.o", false, Some(false));
    check("# comment\n\\#x", "#x", false, Some(true));
    check("trailing  ", "trailing", false, Some(true));
    check("space\\ ", "space ", false, Some(true));
    check("\u{feff}bom", "bom", false, Some(true));
    check("", "anything", false, None);
}

#[test]
fn many_stars_take_no_exponential_time() {
    let start = std::time::Instant::now();
    let deep = format!("x/{}", "a/".repeat(200));
    for (rule, path) in [
        (format!("{}b", "*a".repeat(40)), "a".repeat(200)),
        (format!("x/{}b", "**/a*/".repeat(40)), deep.clone()),
        (
            format!("x/{}b", "**/*a*a*a/".repeat(20)),
            format!("x/{}", "aaaaaaaa/".repeat(100)),
        ),
        (format!("x/{}b", "**/".repeat(60)), deep.clone()),
        (format!("x/{}b", "*/**/".repeat(40)), deep.clone()),
        (format!("{}/b", "**/**".repeat(40)), deep),
    ] {
        check(&rule, path.trim_end_matches('/'), false, None);
    }
    // Exponential time would be hours; this is thousandths of a second on any machine.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

#[test]
fn what_may_match_below_is_never_denied() {
    for (rules, dir, expected) in [
        ("name", "any/dir", true),
        ("target/debug/app", "target", true),
        ("target/debug/app", "target/release", false),
        ("target/debug/app", "targe", false),
        ("tar*/app", "target/x", true),
        ("other/**", "target", false),
        ("**/x", "target", true),
        ("a/b", "a/b", false),
    ] {
        let list = RuleList::parse(&RelPath::root(), rules.as_bytes());
        assert_eq!(
            list.may_match_below(dir.as_bytes()),
            expected,
            "{rules} below {dir}"
        );
    }
}

#[test]
fn rules_end_where_a_nested_repository_begins() {
    let rel = |path: &str| RelPath::new(path).unwrap();
    let files = [
        IgnoreFile {
            dir: RelPath::root(),
            rules: b"*.o\nsub/x\n".to_vec(),
        },
        IgnoreFile {
            dir: rel("sub"),
            rules: b"*.tmp\n".to_vec(),
        },
    ];
    let ignore = Ignore::new(&files, [rel("sub")]);
    assert!(ignore.is_ignored_within(&rel("a.o"), false) && ignore.is_ignored(&rel("a.o"), false));
    assert!(
        !ignore.is_ignored_within(&rel("sub/a.o"), false)
            && !ignore.is_ignored(&rel("sub/a.o"), false)
    );
    assert!(!ignore.is_ignored_within(&rel("sub/x"), false));
    assert!(
        ignore.is_ignored_within(&rel("sub/deep/a.tmp"), false)
            && ignore.is_ignored(&rel("sub/deep/a.tmp"), false)
    );
}
