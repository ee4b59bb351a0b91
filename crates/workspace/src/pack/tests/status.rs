//! What git says inside is what it says outside, at once, and without looking at files.

use super::Bench;
use super::shapes::{busy, status};
use std::os::unix::fs::MetadataExt as _;

#[test]
fn merge_that_waits_to_be_finished() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-q"]);
    bench.git("repo", &["checkout", "-q", "-b", "other"]);
    bench.write("repo/kept", "other side\n");
    bench.git("repo", &["commit", "-qam", "other"]);
    bench.git("repo", &["checkout", "-q", "main"]);
    bench.write("repo/kept", "our side\n");
    bench.git("repo", &["commit", "-qam", "ours"]);
    let (_, clean) = bench.try_git(&bench.path("repo"), &["merge", "-q", "other"]);
    assert!(!clean, "it conflicts");
    let round = bench.round("repo");
    assert_eq!(
        status(&bench, &round.out),
        status(&bench, &bench.path("repo"))
    );
    assert!(status(&bench, &round.out).contains("u UU"));
    fs_err::write(round.out.join("kept"), "both\n").unwrap();
    let (text, success) = bench.try_git(&round.out, &["commit", "-qam", "merged"]);
    assert!(success, "{text}");
    let (text, _) = bench.try_git(&round.out, &["rev-list", "--parents", "-1", "HEAD"]);
    assert_eq!(
        text.split_whitespace().count(),
        3,
        "a commit and two parents"
    );
}

#[test]
fn line_endings_and_lfs_pointers() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-qu"]);
    bench.git("repo", &["config", "core.autocrlf", "true"]);
    bench.write("repo/dos", "one\r\ntwo\r\n");
    bench.git("repo", &["add", "dos"]);
    // What `git lfs` leaves behind: a pointer in the index, and the content in the work tree.
    let content = b"large content\n";
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
        base::Digest::of(content).hex(),
        content.len()
    );
    bench.write("state/pointer", pointer);
    bench.git(
        "repo",
        &[
            "config",
            "filter.lfs.clean",
            &format!("cat {}", bench.path("state/pointer").display()),
        ],
    );
    bench.write("repo/.gitattributes", "large filter=lfs -text\n");
    bench.write("repo/large", content);
    bench.git("repo", &["add", "large", ".gitattributes"]);
    assert!(
        bench
            .git("repo", &["show", ":large"])
            .starts_with("version ")
    );
    bench.git("repo", &["commit", "-qm", "special files"]);
    let round = bench.round("repo");
    assert_eq!(status(&bench, &bench.path("repo")), "");
    assert_eq!(
        status(&bench, &round.out),
        "",
        "no filter is there, and none is needed"
    );
}

#[test]
fn first_status_reads_no_file() {
    let bench = Bench::new();
    busy(&bench, "repo", &[]);
    bench.git("repo", &["stash", "-q"]);
    // Fresh from a checkout every file is as new as the index, which proves nothing to git.
    bench.git("", &["clone", "-q", "repo", "clone"]);
    // Copied by other means, no time, inode or size that git kept is true.
    let copy = std::process::Command::new("cp")
        .args(["-r", "clone", "copy"])
        .current_dir(bench.path(""))
        .status();
    assert!(copy.unwrap().success());
    for name in ["clone", "copy"] {
        let round = bench.round(name);
        let list = bench.try_git(&round.out, &["ls-files", "--debug"]).0;
        let sizes: Vec<&str> = list
            .lines()
            .filter_map(|line| line.trim().strip_prefix("size: "))
            .collect();
        assert!(
            sizes.len() > 5 && sizes.iter().all(|size| !size.starts_with("0\t")),
            "{list}"
        );
        let index = fs_err::metadata(round.out.join(".git/index")).unwrap();
        for entry in round
            .baseline
            .entries
            .to_vec()
            .unwrap()
            .iter()
            .filter(|entry| entry.kind == crate::Kind::File)
        {
            assert!(entry.mtime.0 < index.mtime(), "{}", entry.path);
        }
        let before = fs_err::read(round.out.join(".git/index")).unwrap();
        assert_eq!(status(&bench, &round.out), "");
        bench.try_git(&round.out, &["status"]);
        assert_eq!(
            fs_err::read(round.out.join(".git/index")).unwrap(),
            before,
            "git finds nothing to refresh"
        );
    }
}
