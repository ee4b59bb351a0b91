//! Every shape of a git repository, made by git itself; the image is taken apart again, and git is asked there.

use super::{Bench, Round};
use crate::{GitNote, History, HistoryUsed, Shape};
use std::path::Path;

/// A repository with some history and every kind of change in its work tree.
fn busy(bench: &Bench, name: &str, init: &[&str]) {
    fs_err::create_dir_all(bench.path(name)).unwrap();
    bench.git(name, &[&["init", "-q"], init].concat());
    for file in [
        "kept",
        "edited",
        "staged",
        "both",
        "gone",
        "gone-staged",
        "moved",
        "dir/inner",
        "tool",
    ] {
        bench.write(&format!("{name}/{file}"), format!("{file}\nline\n"));
    }
    bench.write(&format!("{name}/.gitignore"), "ignored\n*.o\n");
    bench.write(&format!("{name}/tracked.o"), "tracked although ignored");
    std::os::unix::fs::symlink("dir/inner", bench.path(&format!("{name}/link"))).unwrap();
    bench.git(name, &["add", "-A"]);
    bench.git(name, &["add", "-f", "tracked.o"]);
    bench.git(name, &["commit", "-qm", "first"]);
    bench.write(&format!("{name}/kept"), "kept\nline\nmore\n");
    bench.git(name, &["commit", "-qam", "second"]);
    mess(bench, name);
}

fn mess(bench: &Bench, name: &str) {
    bench.write(&format!("{name}/edited"), "edited\nline\nagain\n");
    bench.write(&format!("{name}/staged"), "staged anew\n");
    bench.write(&format!("{name}/both"), "both, staged\n");
    bench.git(name, &["add", "staged", "both"]);
    bench.write(&format!("{name}/both"), "both, and then edited\n");
    fs_err::remove_file(bench.path(&format!("{name}/gone"))).unwrap();
    bench.git(name, &["rm", "-q", "gone-staged"]);
    bench.git(name, &["mv", "moved", "moved-on"]);
    bench.write(&format!("{name}/untracked"), "untracked\n");
    bench.write(&format!("{name}/odd dir/with\nnewline"), "odd\n");
    bench.write(&format!("{name}/ignored"), "ignored\n");
    bench.write(&format!("{name}/object.o"), "ignored\n");
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::set_permissions(
        bench.path(&format!("{name}/tool")),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
}

const STATUS: [&str; 6] = [
    "--no-optional-locks",
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    "--renames",
];

fn status(bench: &Bench, dir: &Path) -> String {
    let (text, success) = bench.try_git(dir, &STATUS);
    assert!(success, "{text}");
    text.replace('\0', "\n")
}

/// What must hold of any copy: the same status, history, blame and objects, and room for a commit.
fn check(bench: &Bench, name: &str, round: &Round) {
    check_at(bench, &bench.path(name), &round.out, round);
}

fn check_at(bench: &Bench, host: &Path, inside: &Path, round: &Round) {
    let ask = |arguments: &[&str]| {
        let (expected, _) = bench.try_git(host, arguments);
        let (found, success) = bench.try_git(inside, arguments);
        assert!(success, "{arguments:?}: {found}");
        assert_eq!(found, expected, "{arguments:?}");
    };
    assert_eq!(status(bench, inside), status(bench, host));
    if round
        .baseline
        .git
        .as_ref()
        .is_some_and(|git| git.history == HistoryUsed::Full)
    {
        ask(&["log", "--format=%H %an %s"]);
        ask(&["blame", "kept"]);
    }
    ask(&["branch", "--show-current"]);
    ask(&["rev-parse", "HEAD"]);
    ask(&["diff"]);
    ask(&["diff", "--cached"]);
    ask(&["ls-files", "--stage"]);
    let (text, success) = bench.try_git(inside, &["fsck", "--strict", "--no-dangling"]);
    assert!(success, "fsck: {text}");
    let (text, success) = bench.try_git(inside, &["commit", "-qam", "inside"]);
    assert!(success, "commit: {text}");
    let (text, _) = bench.try_git(inside, &["log", "-1", "--format=%an <%ae> %s"]);
    assert_eq!(text, "Ada \"L\" Byron <ada@example.org> inside\n");
}

#[test]
fn plain_repository() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    let round = bench.round("repo/dir");
    assert_eq!(round.collected.root, bench.path("repo"));
    assert_eq!(round.collected.cwd.to_string(), "dir");
    let git = round.baseline.git.as_ref().unwrap();
    assert_eq!(
        (git.shape, git.branch.as_deref(), git.history),
        (Shape::Plain, Some("main"), HistoryUsed::Full)
    );
    assert_eq!(git.user_name.as_deref(), Some("Ada \"L\" Byron"));
    assert_eq!(git.notes, []);
    let paths = round.paths();
    assert!(
        paths.contains(&"tracked.o".to_owned())
            && paths.contains(&"odd dir/with\\nnewline".to_owned())
    );
    assert!(!paths.iter().any(|path| path.starts_with(".git/")
        || path == "ignored"
        || path == "object.o"
        || path == "gone"));
    assert_eq!(round.baseline.left_out.ignored, 2);
    check(&bench, "repo", &round);
}
