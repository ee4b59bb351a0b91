//! Commits that a guest tells of.

use super::*;

#[test]
fn commits_come_out_as_inert_data() {
    const ONE: &str = "1111111111111111111111111111111111111111";
    let git = |exec: &Exec| {
        let words: Vec<&str> = exec
            .argv
            .iter()
            .map(|word| std::str::from_utf8(word).unwrap())
            .collect();
        match words[..] {
            ["git", "--no-pager", "log", ..] => {
                let log = format!("{ONE} Fix \u{202e}it\x1b[2J\0not-an-id evil\0");
                ends(log.as_bytes(), vec![], Exit::Code(0))
            }
            ["git", "--no-pager", "for-each-ref", ..] => {
                let refs = format!("{ONE} refs/heads/main\n../../x refs/heads/y\n");
                ends(refs.as_bytes(), vec![], Exit::Code(0))
            }
            ["git", "--no-pager", "pack-objects", ..] => ends(b"PACK data", vec![], Exit::Code(0)),
            _ => ends(b"", vec![(".git", vec![])], Exit::Code(0)),
        }
    };
    let (bed, mut client) = Bed::start(|_| {}, move |files| honest(files, git));
    let stream = client.open(&run("x")).unwrap();
    drain(&mut client, stream);
    let head = bed.finish_clean();
    assert_eq!(head.commits.len(), 1);
    assert_eq!(head.commits[0].id, ONE);
    assert_eq!(head.commits[0].subject, "Fix \\u{202e}it\\x1b[2J");
    let dir = bed.result_dir().join("commits");
    assert_eq!(fs_err::read(dir.join(crate::PACK)).unwrap(), b"PACK data");
    let refs: crate::CommitRefs =
        serde_json::from_slice(&fs_err::read(dir.join(crate::REFS)).unwrap()).unwrap();
    assert_eq!(refs.refs.len(), 1);
    assert_eq!((refs.pack, refs.pack_length), (Digest::of(b"PACK data"), 9));
}

#[test]
fn a_lying_git_harms_nothing() {
    let git = |exec: &Exec| match exec.argv[0].as_slice() {
        b"git" => ends(&vec![b'x'; 2 << 20], vec![], Exit::Code(0)),
        _ => ends(
            b"",
            vec![("a", b"1".to_vec()), (".git", vec![])],
            Exit::Code(0),
        ),
    };
    let (bed, mut client) = Bed::start(|_| {}, move |files| honest(files, git));
    let stream = client.open(&run("x")).unwrap();
    drain(&mut client, stream);
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Complete);
    assert_eq!(head.commits, []);
    assert_eq!(
        entries(&bed.result_dir().join("commits")),
        Vec::<String>::new()
    );
    assert!(bed.changes().contains_key("a"));
}

fn entries(dir: &Path) -> Vec<String> {
    fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}
