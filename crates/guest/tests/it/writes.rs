use crate::client::Got;
use crate::{Guarded, start};
use wire::StreamId;
use wire::message::{FileKind, Reply, Request, Tree};

fn request(tree: Tree, path: &str, kind: FileKind, mode: u32, target: &str) -> Request {
    Request::Write {
        tree,
        path: path.as_bytes().to_vec(),
        kind,
        mode,
        target: target.as_bytes().to_vec(),
    }
}

fn begin(guarded: &mut Guarded, tree: Tree, path: &str, mode: u32) -> StreamId {
    guarded
        .client
        .open(&request(tree, path, FileKind::File, mode, ""))
}

#[track_caller]
fn write(guarded: &mut Guarded, tree: Tree, path: &str, mode: u32, bytes: &[u8]) -> Reply {
    let id = begin(guarded, tree, path, mode);
    guarded.client.send(id, bytes);
    guarded.client.mux.finish(id, 0).unwrap();
    let reply = guarded.client.reply(id);
    assert_eq!(guarded.client.next(id), Got::Closed);
    guarded.client.mux.close(id).unwrap();
    reply
}

#[track_caller]
fn fails(reply: &Reply, errno: i32) {
    match reply {
        Reply::Failed(failure) => assert_eq!(failure.errno, errno, "{failure:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_links_and_directories_belong_to_the_user() {
    let mut guarded = start();
    let bytes = vec![b'z'; 1_000_000];
    let tree = Tree::Workspace;
    let dir = request(tree, "dir", FileKind::Dir, 0o750, "");
    assert_eq!(guarded.client.ask(&dir), Reply::Done);
    assert_eq!(
        write(&mut guarded, tree, "dir/file", 0o6751, &bytes),
        Reply::Done
    );
    assert_eq!(write(&mut guarded, tree, "empty", 0o600, b""), Reply::Done);
    let link = request(tree, "link", FileKind::Symlink, 0o777, "dir/file");
    assert_eq!(guarded.client.ask(&link), Reply::Done);
    assert_eq!(
        guarded.sh("stat -c '%n %F %U %G %a %s' dir dir/* empty link | sed 's/directory.*750 .*/directory/'"),
        "dir directory\n\
         dir/file regular file eva eva 6751 1000000\n\
         empty regular empty file eva eva 600 0\n\
         link symbolic link eva eva 777 8\n"
    );
    assert_eq!(
        guarded.sh("stat -c '%U %G %a' dir; cmp dir/file link && ls -A dir"),
        "eva eva 750\nfile\n"
    );
}

#[test]
fn what_is_there_is_replaced_and_never_followed() {
    let mut guarded = start();
    guarded.sh("echo old > target; ln -s target link; echo old > file; ln file twin; mkdir dir");
    let tree = Tree::Workspace;
    assert_eq!(
        write(&mut guarded, tree, "link", 0o644, b"new"),
        Reply::Done
    );
    assert_eq!(
        write(&mut guarded, tree, "file", 0o644, b"new"),
        Reply::Done
    );
    assert_eq!(
        guarded.sh("cat target link file twin; test ! -L link && echo plain"),
        "old\nnewnewold\nplain\n"
    );
    let link = request(tree, "file", FileKind::Symlink, 0o777, "elsewhere");
    assert_eq!(guarded.client.ask(&link), Reply::Done);
    assert_eq!(guarded.sh("readlink file"), "elsewhere\n");
    let again = request(tree, "dir", FileKind::Dir, 0o700, "");
    assert_eq!(guarded.client.ask(&again), Reply::Done);
    assert_eq!(guarded.sh("stat -c %a dir"), "700\n");
    fails(&write(&mut guarded, tree, "dir", 0o644, b"x"), 21);
    let over = request(tree, "target", FileKind::Dir, 0o700, "");
    fails(&guarded.client.ask(&over), 20);
    assert_eq!(guarded.sh("ls -A"), "dir\nfile\nlink\ntarget\ntwin\n");
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let mut guarded = start();
    guarded.sh("mkdir dir; ln -s dir via; ln -s /tmp out");
    let mut check = |path: &str, errno: i32| {
        let dir = request(Tree::Workspace, path, FileKind::Dir, 0o755, "");
        fails(&guarded.client.ask(&dir), errno);
    };
    check("", 22);
    check(".", 22);
    check("..", 22);
    check("dir/", 22);
    check("dir/..", 22);
    check("../x", 18);
    check("/tmp/x", 18);
    check("via/x", 40);
    check("out/x", 40);
    check("none/x", 2);
    let odd = request(Tree::Workspace, "x", FileKind::Other, 0o755, "");
    fails(&guarded.client.ask(&odd), 22);
    assert_eq!(
        guarded.sh("ls -A . dir /tmp"),
        ".:\ndir\nout\nvia\n\n/tmp:\n\ndir:\n"
    );
}

#[test]
fn a_whiteout_removes_one_thing() {
    let mut guarded = start();
    guarded.sh("mkdir empty full; echo x > full/x; ln -s full link");
    let mut remove = |path: &str| {
        let whiteout = request(Tree::Workspace, path, FileKind::Whiteout, 0, "");
        guarded.client.ask(&whiteout)
    };
    fails(&remove("full"), 39);
    fails(&remove("none"), 2);
    fails(&remove("link/x"), 40);
    for path in ["empty", "link", "full/x", "full"] {
        assert_eq!(remove(path), Reply::Done, "{path}");
    }
    assert_eq!(guarded.sh("ls -A"), "");
}

#[test]
fn half_a_file_is_no_file() {
    let mut guarded = start();
    guarded.sh("echo old > file");
    let id = begin(&mut guarded, Tree::Workspace, "file", 0o644);
    guarded.client.send(id, b"half");
    guarded.client.mux.close(id).unwrap();
    fails(&guarded.client.reply(id), 32);
    let id = begin(&mut guarded, Tree::Workspace, "other", 0o644);
    guarded.client.send(id, b"half");
    guarded.client.mux.reset(id);
    assert_eq!(guarded.sh("cat file; ls -A"), "old\nfile\n");
}

#[test]
fn the_root_is_written_by_absolute_paths() {
    let mut guarded = start();
    guarded.sh("ln -s /tmp /tmp/here");
    let reply = write(&mut guarded, Tree::Root, "/tmp/here/file", 0o644, b"x");
    assert_eq!(reply, Reply::Done);
    assert_eq!(guarded.sh("cat /tmp/file; stat -c %U /tmp/file"), "xeva\n");
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let mut guarded = start();
    let mut exec = crate::client::shell("mkdir /small && mount -t tmpfs -o size=64k tmpfs /small");
    exec.user = wire::message::RunAs::Named(b"root".to_vec());
    guarded.client.run(&exec);
    let id = begin(&mut guarded, Tree::Root, "/small/file", 0o644);
    // More than fits, more than a window: the rest is taken and dropped, so that the host's loop ends.
    guarded.client.send(id, &vec![0; 2_000_000]);
    fails(&guarded.client.reply(id), 28);
    assert_eq!(guarded.sh("ls -A /small"), "");
}
