//! Every shape of a git repository, made by git itself; the image is taken apart again, and git is asked there.

use super::{Bench, Round, chmod, names, rel};
use crate::{
    CollectError, CollectOptions, GitError, GitNote, History, HistoryUsed, Shape, collect,
};
use std::path::Path;

/// A repository with some history and every kind of change in its work tree.
pub(super) fn busy(bench: &Bench, name: &str, init: &[&str]) {
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
    chmod(&bench.path(&format!("{name}/tool")), 0o755);
}

const STATUS: [&str; 6] = [
    "--no-optional-locks",
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    "--renames",
];

pub(super) fn status(bench: &Bench, dir: &Path) -> String {
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
        // Without times: a line that is not committed yet has the time of the question.
        ask(&["blame", "-s", "kept"]);
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

#[test]
fn linked_worktree_and_bare_repository() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    bench.git("", &["clone", "-q", "--bare", "first", "bare.git"]);
    bench.git(
        "bare.git",
        &["worktree", "add", "-q", "-b", "topic", "../tree"],
    );
    mess(&bench, "tree");
    let round = bench.round("tree");
    let git = round.baseline.git.as_ref().unwrap();
    assert_eq!(
        (git.shape, git.branch.as_deref()),
        (Shape::Worktree, Some("topic"))
    );
    assert!(
        round.out.join(".git").is_dir(),
        "a machine gets a plain git directory"
    );
    check(&bench, "tree", &round);

    for inside in ["bare.git", "first/.git", "first/.git/objects"] {
        let error = collect(&bench.options(inside)).unwrap_err();
        assert!(
            matches!(error, CollectError::Git(GitError::NoWorkTree { .. })),
            "{inside}: {error}"
        );
    }
}

#[test]
fn git_directory_beside_its_worktrees() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    bench.git("", &["clone", "-q", "--bare", "first", "project/.bare"]);
    bench.write("project/.git", "gitdir: ./.bare\n");
    bench.git("project", &["worktree", "add", "-q", "topic"]);
    mess(&bench, "project/topic");
    let round = bench.round("project/topic");
    assert_eq!(round.collected.root, bench.path("project/topic"));
    check(&bench, "project/topic", &round);
    let error = collect(&bench.options("project")).unwrap_err();
    assert!(
        matches!(error, CollectError::Git(GitError::NoWorkTree { .. })),
        "{error}"
    );
}

#[test]
fn submodules_within_submodules() {
    let bench = Bench::new();
    busy(&bench, "inner-origin", &[]);
    bench.git("inner-origin", &["reset", "-q", "--hard"]);
    busy(&bench, "middle-origin", &[]);
    bench.git("middle-origin", &["reset", "-q", "--hard"]);
    bench.git(
        "middle-origin",
        &[
            "submodule",
            "add",
            "-q",
            "--name",
            "deep",
            "../inner-origin",
            "sub dir/inner",
        ],
    );
    bench.git("middle-origin", &["commit", "-qm", "with a submodule"]);
    busy(&bench, "repo", &[]);
    bench.git(
        "repo",
        &["submodule", "add", "-q", "../middle-origin", "middle"],
    );
    bench.git(
        "repo",
        &["submodule", "add", "-q", "../inner-origin", "unused"],
    );
    bench.git("repo", &["commit", "-qam", "with submodules"]);
    bench.git("repo", &["submodule", "deinit", "-q", "unused"]);
    bench.git(
        "repo",
        &[
            "submodule",
            "update",
            "-q",
            "--init",
            "--recursive",
            "middle",
        ],
    );
    bench.write("repo/middle/edited", "in the submodule\n");
    bench.write("repo/middle/new", "in the submodule\n");
    bench.write("repo/middle/sub dir/inner/edited", "in the inner one\n");
    mess_clone(&bench, "repo");
    // The outer rules ignore `*.o` and so do the inner ones; this one is only outside.
    bench.write("repo/.git/info/exclude", "outer-only\n");
    bench.write("repo/middle/outer-only", "not ignored here\n");

    let round = bench.round("repo");
    assert_eq!(
        names(&round.baseline.nested),
        ["middle", "middle/sub dir/inner"]
    );
    assert!(round.paths().contains(&"middle/outer-only".to_owned()));
    assert!(round.out.join("unused").is_dir());
    assert!(round.out.join(".git/modules/middle/modules/deep").is_dir());
    assert_eq!(
        fs_err::read_to_string(round.out.join("middle/sub dir/inner/.git")).unwrap(),
        "gitdir: ../../../.git/modules/middle/modules/deep\n"
    );
    let ask = |dir: &std::path::Path| {
        bench
            .try_git(dir, &["submodule", "status", "--recursive"])
            .0
    };
    // What stands in brackets comes from tags and other branches, which don't go along.
    let plain = |text: String| {
        text.lines()
            .map(|line| line.split(" (").next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(plain(ask(&round.out)), plain(ask(&bench.path("repo"))));
    for sub in ["middle", "middle/sub dir/inner"] {
        check_at(
            &bench,
            &bench.path("repo").join(sub),
            &round.out.join(sub),
            &round,
        );
    }
    // The commits inside are in the way of the outer comparison, so it starts afresh.
    let round = Round {
        out: bench.extract(&round.baseline),
        ..round
    };
    check(&bench, "repo", &round);
    let rules = round.baseline.ignore_rules();
    assert!(!rules.is_ignored_within(&rel("middle/outer-only"), false));
    assert!(rules.is_ignored_within(&rel("outer-only"), false));
    assert!(rules.is_ignored_within(&rel("middle/sub dir/inner/x.o"), false));

    // A submodule alone is a workspace too.
    let round = bench.round("repo/middle");
    assert_eq!(round.baseline.git.as_ref().unwrap().shape, Shape::Apart);
    check(&bench, "repo/middle", &round);
}

#[test]
fn repositories_that_just_lie_there() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    busy(&bench, "repo/lib/embedded", &[]);
    // An empty git directory is nothing to git, and a broken one below is no reason to refuse.
    fs_err::create_dir_all(bench.path("repo/empty/.git")).unwrap();
    bench.write("repo/empty/file", "file");
    let round = bench.round("repo");
    assert_eq!(names(&round.baseline.nested), ["lib/embedded"]);
    check_at(
        &bench,
        &bench.path("repo/lib/embedded"),
        &round.out.join("lib/embedded"),
        &round,
    );
    let round = Round {
        out: bench.extract(&round.baseline),
        ..round
    };
    check(&bench, "repo", &round);

    bench.write("repo/broken/.git", "gitdir: /nowhere\n");
    bench.write("repo/broken/file", "file");
    let collected = bench.collect("repo");
    assert_eq!(
        collected.git.as_ref().unwrap().notes,
        [GitNote::BrokenNested { dir: rel("broken") }]
    );
    assert!(
        collected
            .entries
            .iter()
            .any(|found| found.path == rel("broken/file"))
    );
}

#[test]
fn directory_of_repositories() {
    let bench = Bench::new();
    busy(&bench, "code/one", &[]);
    bench.write("code/note", "note");
    let round = bench.round("code");
    assert_eq!(round.baseline.git, None);
    assert_eq!(names(&round.baseline.nested), ["one"]);
    check_at(
        &bench,
        &bench.path("code/one"),
        &round.out.join("one"),
        &round,
    );
}

#[test]
fn shallow_clone_and_shallow_wish() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    bench.git("first", &["commit", "-qam", "third"]);
    let url = format!("file://{}", bench.path("first").display());
    bench.git("", &["clone", "-q", "--depth=1", &url, "clone"]);
    mess_clone(&bench, "clone");
    let round = bench.round("clone");
    assert_eq!(
        round.baseline.git.as_ref().unwrap().notes,
        [GitNote::Shallow]
    );
    check(&bench, "clone", &round);

    for number in 0..(crate::SHALLOW_COMMITS + 5) {
        bench.git(
            "first",
            &[
                "commit",
                "-q",
                "--allow-empty",
                "-m",
                &format!("number {number}"),
            ],
        );
    }
    mess_clone(&bench, "first");
    let options = CollectOptions {
        history: History::Shallow,
        ..bench.options("first")
    };
    let round = bench.round_with(&options);
    assert_eq!(
        round.baseline.git.as_ref().unwrap().history,
        HistoryUsed::Shallow
    );
    let (count, _) = bench.try_git(&round.out, &["rev-list", "--count", "HEAD"]);
    assert_eq!(count.trim(), crate::SHALLOW_COMMITS.to_string());
    check(&bench, "first", &round);
    let (objects, _) = bench.try_git(
        &round.out,
        &[
            "rev-list",
            "--objects",
            "--all",
            "--reflog",
            "--indexed-objects",
        ],
    );
    let (first, _) = bench.try_git(
        &bench.path("first"),
        &["rev-list", "--max-parents=0", "HEAD"],
    );
    assert!(!objects.contains(first.trim()), "what was cut is not there");
}

/// A few changes that any clone of [`busy`] can bear.
fn mess_clone(bench: &Bench, name: &str) {
    bench.write(&format!("{name}/kept"), "kept\nedited in the clone\n");
    bench.write(&format!("{name}/new file"), "new\n");
    bench.git(name, &["add", "new file"]);
}

#[test]
fn sparse_checkouts_with_plain_and_sparse_index() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    for index in ["--no-sparse-index", "--sparse-index"] {
        let name = format!("sparse{index}");
        bench.git("", &["clone", "-q", "first", &name]);
        bench.write(&format!("{name}/far/away"), "away\n");
        bench.git(&name, &["add", "far"]);
        bench.git(&name, &["commit", "-qm", "far"]);
        bench.git(&name, &["sparse-checkout", "set", "--cone", index, "dir"]);
        assert!(!bench.path(&format!("{name}/far")).exists());
        mess_clone(&bench, &name);
        let round = bench.round(&name);
        check(&bench, &name, &round);
        assert!(
            !round.out.join("far").exists(),
            "what is not checked out is no deletion"
        );
    }
}

#[test]
fn split_index() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["update-index", "--split-index"]);
    bench.write("repo/after", "after the split\n");
    bench.git("repo", &["add", "after"]);
    assert!(
        fs_err::read_dir(bench.path("repo/.git"))
            .unwrap()
            .any(|entry| {
                entry
                    .unwrap()
                    .file_name()
                    .as_encoded_bytes()
                    .starts_with(b"sharedindex.")
            }),
        "the index is split"
    );
    let round = bench.round("repo");
    check(&bench, "repo", &round);
}

#[test]
fn index_of_version_four_with_everything_on() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["config", "feature.manyFiles", "true"]);
    bench.git("repo", &["config", "core.fsmonitor", "false"]);
    bench.git(
        "repo",
        &["update-index", "--index-version=4", "--untracked-cache"],
    );
    bench.git("repo", &["add", "-N", "untracked"]);
    bench.git("repo", &["status"]);
    let round = bench.round("repo");
    check(&bench, "repo", &round);
}

#[test]
fn borrowed_and_replaced_objects() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    bench.git("", &["clone", "-q", "--shared", "first", "clone"]);
    mess_clone(&bench, "clone");
    let round = bench.round("clone");
    check(&bench, "clone", &round);
    let (text, success) = bench.try_git(&round.out, &["count-objects", "-v"]);
    assert!(
        success && !text.contains("alternate"),
        "the copy borrows nothing: {text}"
    );

    let original = bench.git("clone", &["log", "--format=%s"]);
    bench.git("clone", &["replace", "--graft", "HEAD"]);
    assert_ne!(bench.git("clone", &["log", "--format=%s"]), original);
    let round = bench.round("clone");
    assert_eq!(
        round.baseline.git.as_ref().unwrap().notes,
        [GitNote::Replaced]
    );
    assert_eq!(
        bench.try_git(&round.out, &["log", "--format=%s"]).0,
        original,
        "the originals show"
    );
}

#[test]
fn partial_clones_never_fetch() {
    let bench = Bench::new();
    busy(&bench, "first", &[]);
    bench.git("first", &["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", bench.path("first").display());
    bench.git("", &["clone", "-q", "--filter=blob:none", &url, "clone"]);
    mess_clone(&bench, "clone");
    // With its origin gone, a fetch would fail and not go unnoticed.
    fs_err::rename(bench.path("first"), bench.path("gone")).unwrap();
    let round = bench.round("clone");
    assert_eq!(
        round.baseline.git.as_ref().unwrap().notes,
        [GitNote::Partial]
    );
    assert_eq!(
        status(&bench, &round.out),
        status(&bench, &bench.path("clone"))
    );
    for arguments in [
        &["log", "--format=%H %s"][..],
        &["fsck"],
        &["commit", "-qam", "inside"],
        &["log", "-1", "-p"],
    ] {
        let (text, success) = bench.try_git(&round.out, arguments);
        assert!(success, "{arguments:?}: {text}");
    }
    let (text, _) = bench.try_git(&round.out, &["log", "--format=%s"]);
    assert_eq!(text, "inside\nsecond\nfirst\n");
}

#[test]
fn sha256_repository() {
    let bench = Bench::new();
    busy(&bench, "repo", &["--object-format=sha256"]);
    let round = bench.round("repo");
    assert_eq!(
        round
            .baseline
            .git
            .as_ref()
            .unwrap()
            .head
            .as_ref()
            .unwrap()
            .len(),
        64
    );
    check(&bench, "repo", &round);
}

#[test]
fn references_in_a_reftable() {
    let bench = Bench::new();
    if !bench
        .try_git(
            &bench.path(""),
            &["init", "-q", "--ref-format=reftable", "probe"],
        )
        .1
    {
        // A git that can't make one can't read one: it has to say so. The extension is enough for that.
        busy(&bench, "repo", &[]);
        bench.git("repo", &["config", "core.repositoryformatversion", "1"]);
        bench.git("repo", &["config", "extensions.refstorage", "reftable"]);
        let error = collect(&bench.options("repo")).unwrap_err();
        assert!(
            matches!(error, CollectError::Git(GitError::Unreadable { .. })),
            "{error}"
        );
        return;
    }
    busy(&bench, "repo", &["--ref-format=reftable"]);
    let round = bench.round("repo");
    assert_eq!(
        round.baseline.git.as_ref().unwrap().branch.as_deref(),
        Some("main")
    );
    check(&bench, "repo", &round);
    bench.git("repo", &["worktree", "add", "-q", "-b", "topic", "../tree"]);
    mess(&bench, "tree");
    let round = bench.round("tree");
    check(&bench, "tree", &round);
}

#[test]
fn before_the_first_commit_and_without_a_branch() {
    let bench = Bench::new();
    fs_err::create_dir_all(bench.path("new")).unwrap();
    bench.git("new", &["init", "-q", "-b", "trunk"]);
    bench.write("new/file", "file\n");
    let round = bench.round("new");
    assert_eq!(
        status(&bench, &round.out),
        status(&bench, &bench.path("new"))
    );
    bench.git("new", &["add", "file"]);
    bench.write("new/other", "other\n");
    let round = bench.round("new");
    let git = round.baseline.git.as_ref().unwrap();
    assert_eq!(
        (git.head.as_ref(), git.branch.as_deref()),
        (None, Some("trunk"))
    );
    assert_eq!(
        status(&bench, &round.out),
        status(&bench, &bench.path("new"))
    );
    let (text, success) = bench.try_git(&round.out, &["commit", "-qm", "first"]);
    assert!(success, "{text}");

    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-q"]);
    bench.git("repo", &["checkout", "-q", "--detach", "HEAD~1"]);
    bench.write("repo/kept", "elsewhere\n");
    let round = bench.round("repo");
    assert_eq!(round.baseline.git.as_ref().unwrap().branch, None);
    check(&bench, "repo", &round);
    let (text, _) = bench.try_git(&round.out, &["stash", "list"]);
    assert_eq!(text, "", "the stash stays here");
}

#[test]
fn packed_branch_with_an_odd_name_among_others() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["branch", "secret-plans"]);
    bench.git("repo", &["stash", "-q"]);
    bench.git("repo", &["checkout", "-q", "-b", "feature/ümläut#1"]);
    bench.git(
        "repo",
        &["commit", "-q", "--allow-empty", "-m", "on a branch"],
    );
    bench.git("repo", &["pack-refs", "--all"]);
    bench.git(
        "repo",
        &[
            "remote",
            "add",
            "origin",
            "https://user:hunter2@example.org/x.git",
        ],
    );
    bench.git(
        "repo",
        &[
            "config",
            "http.extraHeader",
            "Authorization: Bearer hunter2",
        ],
    );
    bench.git("repo", &["gc", "-q"]);
    mess_clone(&bench, "repo");
    let round = bench.round("repo");
    check(&bench, "repo", &round);
    let (text, _) = bench.try_git(&round.out, &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(text, "refs/heads/feature/ümläut#1\n");
    let config = fs_err::read_to_string(round.out.join(".git/config")).unwrap();
    assert!(
        !config.contains("hunter2") && !config.contains("remote"),
        "{config}"
    );
}

#[test]
fn objects_of_other_branches_stay_here() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-q"]);
    bench.git("repo", &["checkout", "-q", "-b", "other"]);
    bench.write("repo/secret-of-the-other-branch", "s3cret\n");
    bench.git("repo", &["add", "-A"]);
    bench.git("repo", &["commit", "-qm", "other"]);
    let blob = bench.git("repo", &["rev-parse", "HEAD:secret-of-the-other-branch"]);
    bench.git("repo", &["checkout", "-q", "main"]);
    for packed in [false, true] {
        if packed {
            bench.git("repo", &["repack", "-adq"]);
        }
        let round = bench.round("repo");
        let (text, success) = bench.try_git(&round.out, &["cat-file", "-e", blob.trim()]);
        assert!(!success, "packed {packed}: {text}");
        // An amended commit is gone inside too, although the last image had it.
        bench.write("repo/amended", format!("amended {packed}\n"));
        bench.git("repo", &["add", "amended"]);
        bench.git("repo", &["commit", "-qm", "to be amended"]);
        let lost = bench.git("repo", &["rev-parse", "HEAD"]);
        bench.round("repo");
        bench.write("repo/amended", format!("another {packed}\n"));
        bench.git("repo", &["commit", "-qa", "--amend", "-m", "amended"]);
        let round = bench.round("repo");
        assert!(
            !bench
                .try_git(&round.out, &["cat-file", "-e", lost.trim()])
                .1,
            "packed {packed}"
        );
        assert_eq!(
            status(&bench, &round.out),
            status(&bench, &bench.path("repo"))
        );
        let (text, success) = bench.try_git(&round.out, &["fsck", "--strict", "--no-dangling"]);
        assert!(success, "{text}");
    }
}

#[test]
fn history_none_is_a_directory_with_ignore_rules() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    let options = CollectOptions {
        history: History::None,
        ..bench.options("repo/dir")
    };
    let round = bench.round_with(&options);
    assert_eq!(round.collected.root, bench.path("repo"));
    assert!(!round.out.join(".git").exists());
    assert_eq!(round.baseline.left_out.ignored, 2);
    assert!(round.paths().contains(&"tracked.o".to_owned()));
    assert_eq!(
        round.baseline.git.as_ref().unwrap().history,
        HistoryUsed::None
    );
}

#[test]
fn git_directory_set_apart() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    fs_err::rename(bench.path("repo/.git"), bench.path("apart.git")).unwrap();
    bench.git(
        "",
        &[
            "--git-dir=apart.git",
            "config",
            "core.worktree",
            bench.path("repo").to_str().unwrap(),
        ],
    );
    bench.write("repo/.git", "gitdir: ../apart.git\n");
    let round = bench.round("repo");
    assert_eq!(round.baseline.git.as_ref().unwrap().shape, Shape::Apart);
    check(&bench, "repo", &round);
}
