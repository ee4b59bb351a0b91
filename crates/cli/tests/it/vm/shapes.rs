//! Repositories of every shape: what the machine sees is what the host has, and what it changed lands.

use crate::env;
use std::fs;
use std::path::Path;
use testkit::Env;

/// Runs in `root` (at `below`): `git status` must be the host's, a commit must work, an edit must land.
fn check(env: &Env, root: &Path, below: &str) {
    let place = if below.is_empty() {
        root.to_owned()
    } else {
        root.join(below)
    };
    let host = env.git(&place, &["status", "--porcelain=v2", "--branch"]);
    let host: Vec<&str> = host
        .lines()
        .filter(|line| !line.starts_with("# branch.upstream") && !line.starts_with("# branch.ab"))
        .collect();
    let script = "set -e; pwd; git status --porcelain=v2 --branch; git fsck --connectivity-only 2>&1 | grep -v notice >&2 || true
echo changed >> tracked; git -c core.editor=true commit -qam inside; git log --oneline | head -1 >&2";
    let ran = env.efimera(
        &place,
        &["run", "-q", "--name", "shape", "--", "sh", "-c", script],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut lines = ran.stdout.lines();
    assert_eq!(
        lines
            .next()
            .unwrap()
            .replace("$ENV", &env.path().to_string_lossy()),
        place.to_string_lossy()
    );
    let guest: Vec<&str> = lines.collect();
    assert_eq!(guest, host, "git status is the host's");
    let before = fs::read_to_string(place.join("tracked")).unwrap();
    env.efimera(&place, &["apply", "shape"]).ok();
    assert_eq!(
        fs::read_to_string(place.join("tracked")).unwrap(),
        format!("{before}changed\n")
    );
    env.efimera(&place, &["discard", "shape"]).ok();
}

/// A repository with staged, unstaged and untracked work.
fn busy(env: &Env, name: &str) -> std::path::PathBuf {
    let root = env.repository(name);
    fs::write(root.join("tracked"), "1\n").unwrap();
    env.git(&root, &["add", "."]);
    env.git(&root, &["commit", "--quiet", "--message", "Track"]);
    dirty(env, &root);
    root
}

fn dirty(env: &Env, root: &Path) {
    fs::write(root.join("staged"), "staged\n").unwrap();
    env.git(root, &["add", "staged"]);
    fs::write(root.join("tracked"), "1\n2\n").unwrap();
    fs::write(root.join("untracked"), "u\n").unwrap();
}

#[test]
fn plain_and_from_a_subdirectory() {
    let env = env();
    let root = busy(&env, "plain");
    check(&env, &root, "");
    fs::create_dir_all(root.join("src/inner")).unwrap();
    fs::write(root.join("src/inner/tracked"), "t\n").unwrap();
    env.git(&root, &["add", "."]);
    check(&env, &root, "src/inner");
}

#[test]
fn a_linked_worktree_and_a_bare_repository_with_worktrees() {
    let env = env();
    let root = busy(&env, "main");
    let linked = env.work().join("linked");
    env.git(
        &root,
        &[
            "worktree",
            "add",
            "--quiet",
            "-b",
            "other",
            linked.to_str().unwrap(),
        ],
    );
    dirty(&env, &linked);
    check(&env, &linked, "");
    let bare = env.work().join("bare.git");
    env.git(
        &env.work(),
        &["clone", "--quiet", "--bare", "main", "bare.git"],
    );
    let tree = env.work().join("tree");
    env.git(
        &bare,
        &["worktree", "add", "--quiet", tree.to_str().unwrap(), "main"],
    );
    dirty(&env, &tree);
    check(&env, &tree, "");
}

#[test]
fn submodules() {
    let env = env();
    let library = busy(&env, "library");
    let root = busy(&env, "with-sub");
    env.git(
        &root,
        &[
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            library.to_str().unwrap(),
            "vendor/library",
        ],
    );
    env.git(&root, &["commit", "--quiet", "-m", "Add a submodule"]);
    check(&env, &root, "");
    let ran = env.efimera(&root, &["run", "-q", "--", "sh", "-c", "git submodule status; git -C vendor/library log --oneline | wc -l; git -C vendor/library status --short"]);
    let said = ran.ok();
    assert!(said.starts_with(' ') && said.ends_with("2\n"), "{said}");
}

#[test]
fn shallow_sparse_and_detached() {
    let env = env();
    let source = busy(&env, "source");
    env.git(&source, &["commit", "--quiet", "-m", "Another"]);
    env.git(
        &env.work(),
        &[
            "clone",
            "--quiet",
            "--depth",
            "1",
            &format!("file://{}", source.display()),
            "shallow",
        ],
    );
    check(&env, &env.work().join("shallow"), "");
    env.git(&env.work(), &["clone", "--quiet", "source", "sparse"]);
    let sparse = env.work().join("sparse");
    env.git(
        &sparse,
        &["sparse-checkout", "set", "--no-cone", "/*", "!/src/"],
    );
    assert!(!sparse.join("src").exists());
    check(&env, &sparse, "");
    assert!(!sparse.join("src").exists());
    env.git(&env.work(), &["clone", "--quiet", "source", "detached"]);
    let detached = env.work().join("detached");
    env.git(&detached, &["checkout", "--quiet", "--detach"]);
    check(&env, &detached, "");
}

#[test]
fn without_git_at_all() {
    let env = env();
    let root = env.work().join("plain dir");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/file"), "x\n").unwrap();
    let ran = env.efimera(
        &root,
        &[
            "run",
            "-q",
            "--name",
            "nogit",
            "--",
            "sh",
            "-c",
            "echo y >> a/b/file; ls -A",
        ],
    );
    assert_eq!(ran.ok(), "a\n");
    env.efimera(&root, &["apply", "nogit"]).ok();
    assert_eq!(fs::read_to_string(root.join("a/b/file")).unwrap(), "x\ny\n");
}
