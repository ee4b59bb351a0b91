use crate::client::Got;
use crate::{Guarded, start, start_with};
use std::fs;
use wire::message::{FileKind, ListDir, ListEntry, MAX_BATCH, Reply, Request, Tree};

const ENOENT: i32 = 2;

fn dir(path: &str, whole: bool) -> ListDir {
    ListDir {
        path: path.as_bytes().to_vec(),
        whole,
    }
}

/// Everything that comes for a list of directories: entries by name, or the failure's number.
#[track_caller]
fn list(guarded: &mut Guarded, tree: Tree, dirs: Vec<ListDir>) -> Vec<Result<Vec<ListEntry>, i32>> {
    let count = dirs.len();
    let id = guarded.client.open(&Request::List { tree, dirs });
    let mut results = Vec::new();
    let mut current = Vec::new();
    loop {
        match guarded.client.next(id) {
            Got::Reply(Reply::Entries {
                index,
                entries,
                last,
            }) => {
                assert_eq!(usize::try_from(index).unwrap(), results.len());
                current.extend(entries);
                if last {
                    current.sort_by(|a: &ListEntry, b| a.name.cmp(&b.name));
                    results.push(Ok(std::mem::take(&mut current)));
                }
            }
            Got::Reply(Reply::Failed(failure)) => {
                current.clear();
                results.push(Err(failure.errno));
            }
            Got::Closed => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(results.len(), count);
    guarded.client.mux.close(id).unwrap();
    results
}

#[track_caller]
fn check(guarded: &mut Guarded, path: &str, whole: bool, expect: &[(&str, FileKind)]) {
    let listed = list(guarded, Tree::Workspace, vec![dir(path, whole)]);
    let entries = listed[0].as_ref().unwrap();
    let found: Vec<_> = entries
        .iter()
        .map(|entry| (String::from_utf8_lossy(&entry.name), entry.stat.kind))
        .collect();
    let expect: Vec<_> = expect
        .iter()
        .map(|(name, kind)| ((*name).into(), *kind))
        .collect();
    assert_eq!(found, expect);
}

/// A workspace as the host packs it.
fn packed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["src", "old", "old/deep", "keep"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["top", "src/a", "src/b", "old/x", "old/deep/y", "keep/k"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    dir
}

#[test]
fn an_untouched_workspace_has_an_empty_upper_layer() {
    use FileKind::{Dir, File};
    let mut guarded = start_with(Some(packed().path()));
    check(&mut guarded, "", false, &[]);
    check(
        &mut guarded,
        "",
        true,
        &[("keep", Dir), ("old", Dir), ("src", Dir), ("top", File)],
    );
    check(&mut guarded, "old", true, &[("deep", Dir), ("x", File)]);
    // What nobody touched isn't in the upper layer at all.
    let listed = list(&mut guarded, Tree::Workspace, vec![dir("src", false)]);
    assert_eq!(listed, [Err(ENOENT)]);
}

#[test]
fn changes_of_every_kind() {
    use FileKind::{Dir, File, Other, Symlink, Whiteout};
    let mut guarded = start_with(Some(packed().path()));
    guarded.sh("echo more >> src/a; rm src/b; ln -s ../top src/link; mkfifo fifo");
    check(&mut guarded, "", false, &[("fifo", Other), ("src", Dir)]);
    check(
        &mut guarded,
        "src",
        false,
        &[("a", File), ("b", Whiteout), ("link", Symlink)],
    );
    check(&mut guarded, "src", true, &[("a", File), ("link", Symlink)]);
}

/// Whether the overlay marks a directory that is new altogether is its own affair: both layers of it, and the
/// merged view, hold the same.
#[test]
fn a_new_directory_is_in_the_upper_layer_with_all_that_it_holds() {
    let mut guarded = start_with(Some(packed().path()));
    guarded.sh("mkdir -p src/new/sub; echo n > src/new/n");
    let dirs = vec![
        dir("src", false),
        dir("src/new", false),
        dir("src/new", true),
    ];
    let mut listed = list(&mut guarded, Tree::Workspace, dirs);
    let new = &listed[0].as_ref().unwrap()[0];
    assert_eq!(new.name, b"new");
    assert!(matches!(new.stat.kind, FileKind::Dir | FileKind::FreshDir));
    let mut names = listed.drain(1..).map(|entries| {
        let entries = entries.unwrap().into_iter();
        entries.map(|entry| entry.name).collect::<Vec<_>>()
    });
    let upper = names.next().unwrap();
    assert_eq!(upper, [b"n".as_slice(), b"sub"]);
    assert_eq!(names.next().unwrap(), upper);
}

/// A renamed directory of the lower layer has nothing in the upper one; a directory that was made in the place of
/// a deleted one hides what was there.
#[test]
fn renamed_and_replaced_directories_are_fresh() {
    use FileKind::{Dir, File, FreshDir, Whiteout};
    let mut guarded = start_with(Some(packed().path()));
    guarded.sh("mv src moved; rm -r old; mkdir old; echo n > old/n; rm -r keep; mv moved keep");
    check(
        &mut guarded,
        "",
        false,
        &[("keep", FreshDir), ("old", FreshDir), ("src", Whiteout)],
    );
    check(&mut guarded, "keep", true, &[("a", File), ("b", File)]);
    check(&mut guarded, "old", true, &[("n", File)]);
    // And there and back again.
    guarded.sh("mv keep src");
    check(
        &mut guarded,
        "",
        true,
        &[("old", Dir), ("src", Dir), ("top", File)],
    );
    check(&mut guarded, "src", true, &[("a", File), ("b", File)]);
}

#[test]
fn what_lstat_says() {
    let mut guarded = start();
    guarded.sh("printf 12345 > file; chmod 4751 file; touch -d @-1.25 file; ln file twin; ln -s 'to /where' link");
    let inode: u64 = guarded.sh("stat -c %i file").trim().parse().unwrap();
    let listed = list(&mut guarded, Tree::Workspace, vec![dir("", true)]);
    let entries = listed[0].as_ref().unwrap();
    let [file, link, twin] = entries.as_slice() else {
        panic!("{entries:?}")
    };
    assert_eq!(file.name, b"file");
    assert_eq!(
        (file.stat.mode, file.stat.size, file.stat.nlink),
        (0o4751, 5, 2)
    );
    assert_eq!(file.stat.ino, inode);
    assert_eq!(file.stat, twin.stat);
    // 1.25 seconds before 1970.
    assert_eq!(file.stat.mtime_ns, -1_250_000_000);
    assert!(file.stat.ctime_ns > 1_600_000_000_000_000_000);
    assert!(file.target.is_empty());
    assert_eq!(link.target, b"to /where");
    assert_eq!(link.stat.kind, FileKind::Symlink);
}

#[test]
fn odd_names_come_as_they_are() {
    let mut guarded = start();
    guarded.sh("touch -- 'a b' '-x' \"$(printf 'new\\nline')\" \"$(printf 'bad\\377')\"");
    let listed = list(&mut guarded, Tree::Workspace, vec![dir("", true)]);
    let names: Vec<_> = listed[0]
        .as_ref()
        .unwrap()
        .iter()
        .map(|entry| entry.name.as_slice())
        .collect();
    assert_eq!(names, [b"-x".as_slice(), b"a b", b"bad\xff", b"new\nline"]);
}

/// More than one message holds, with the longest names and targets that there are.
#[test]
fn large_directories_come_in_parts() {
    let mut guarded = start();
    guarded.sh(
        "mkdir many long; n=0; pad=$(printf '%0200d' 0); cd many; \
         seq -f \"$pad%05g\" 2000 | xargs touch; \
         cd ../long; target=$(printf '%04000d' 0); for i in 1 2 3 4 5 6 7 8 9; do ln -s $target $i; done",
    );
    let dirs = vec![dir("many", true), dir("long", false), dir("long/", true)];
    let listed = list(&mut guarded, Tree::Workspace, dirs);
    assert_eq!(listed[0].as_ref().unwrap().len(), 2000);
    assert_eq!(listed[1], listed[2]);
    assert_eq!(listed[1].as_ref().unwrap().len(), 9);
    assert!(
        listed[1]
            .as_ref()
            .unwrap()
            .iter()
            .all(|entry| entry.target.len() == 4000)
    );
}

#[test]
fn a_directory_that_fails_does_not_stop_the_others() {
    let mut guarded = start();
    guarded.sh("mkdir a; touch a/1 file; ln -s a link");
    let dirs = ["none", "a", "file", "link", "link/x", "..", "/", "a"];
    let dirs = dirs.iter().map(|path| dir(path, true)).collect();
    let listed = list(&mut guarded, Tree::Workspace, dirs);
    let failed: Vec<_> = listed.iter().map(|result| result.as_ref().err()).collect();
    // No such; -; not a directory; not one (a link isn't followed); a link on the way; beyond the workspace, twice.
    let expect = [
        Some(&2),
        None,
        Some(&20),
        Some(&20),
        Some(&40),
        Some(&18),
        Some(&18),
        None,
    ];
    assert_eq!(failed, expect);
}

#[test]
fn the_root_is_listed_by_absolute_paths() {
    let mut guarded = start();
    let listed = list(
        &mut guarded,
        Tree::Root,
        vec![dir("/home", true), dir("/home/eva/..", true)],
    );
    assert_eq!(listed[0], listed[1]);
    assert_eq!(listed[0].as_ref().unwrap()[0].name, b"eva");
}

#[test]
fn requests_that_are_too_much_or_make_no_sense() {
    let mut guarded = start();
    let dirs = vec![dir("", true); MAX_BATCH];
    assert_eq!(list(&mut guarded, Tree::Workspace, dirs).len(), MAX_BATCH);
    let dirs = vec![dir("", true); MAX_BATCH + 1];
    let tree = Tree::Workspace;
    let reply = guarded.client.ask(&Request::List { tree, dirs });
    assert!(matches!(reply, Reply::Failed(_)));
    let reply = guarded.client.ask(&Request::List {
        tree: Tree::Root,
        dirs: vec![dir("/", false)],
    });
    assert!(matches!(reply, Reply::Failed(_)));
}
