use crate::client::Got;
use crate::{Guarded, start};
use std::time::Duration;
use wire::WINDOW;
use wire::message::{FileKind, MAX_BATCH, Reply, Request, Stat, Tree};

#[derive(Debug, PartialEq, Eq)]
struct File {
    before: Stat,
    bytes: Vec<u8>,
    after: Stat,
}

fn request(tree: Tree, paths: &[&str]) -> Request {
    let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    Request::Read { tree, paths }
}

/// Each file, or the failure's number.
#[track_caller]
fn read(guarded: &mut Guarded, tree: Tree, paths: &[&str]) -> Vec<Result<File, i32>> {
    let id = guarded.client.open(&request(tree, paths));
    let mut files = Vec::new();
    loop {
        let before = match guarded.client.next(id) {
            Got::Reply(Reply::File(stat)) => stat,
            Got::Reply(Reply::Failed(failure)) => {
                files.push(Err(failure.errno));
                continue;
            }
            Got::Closed => break,
            other => panic!("{other:?}"),
        };
        let mut bytes = Vec::new();
        let after = loop {
            match guarded.client.next(id) {
                Got::Data(1, data) => bytes.extend(data),
                Got::Reply(Reply::FileEnd(stat)) => break stat,
                other => panic!("{other:?}"),
            }
        };
        files.push(Ok(File {
            before,
            bytes,
            after,
        }));
    }
    assert_eq!(files.len(), paths.len());
    guarded.client.mux.close(id).unwrap();
    files
}

#[test]
fn files_come_with_their_state_before_and_after() {
    let mut guarded = start();
    guarded.sh("printf hello > a; chmod 640 a; : > empty");
    let files = read(&mut guarded, Tree::Workspace, &["a", "empty", "a"]);
    let a = files[0].as_ref().unwrap();
    assert_eq!(a.bytes, b"hello");
    assert_eq!(
        (a.before.kind, a.before.mode, a.before.size),
        (FileKind::File, 0o640, 5)
    );
    assert_eq!(a.before, a.after);
    let empty = files[1].as_ref().unwrap();
    assert_eq!((empty.bytes.len(), empty.before.size), (0, 0));
    assert_eq!(files[0], files[2]);
}

#[test]
fn only_regular_files_beneath_the_workspace_are_read() {
    let mut guarded = start();
    guarded.sh(
        "mkdir dir; echo x > dir/x; mkfifo fifo; ln -s dir/x link; ln -s dir via; ln -s /etc out; \
         ln -s / dir/root; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' || true",
    );
    let paths = [
        "none",
        "dir",
        "fifo",
        "link",
        "via/x",
        "out/passwd",
        "../shop/dir/x",
        "/etc/passwd",
        "dir/root/etc/passwd",
        "dir/x",
        "",
    ];
    let files = read(&mut guarded, Tree::Workspace, &paths);
    let failed: Vec<_> = files.iter().map(|file| file.as_ref().err()).collect();
    let expect = [
        Some(&2),
        Some(&22),
        Some(&22),
        Some(&40),
        Some(&40),
        Some(&40),
        Some(&18),
        Some(&18),
        Some(&40),
        None,
        Some(&22),
    ];
    assert_eq!(failed, expect);
}

/// Something that the guest's root mounted into the workspace is not part of it.
#[test]
fn mounts_in_the_workspace_are_not_entered() {
    let mut guarded = start();
    let mut exec = crate::client::shell("mkdir proc && mount -t proc proc proc && test -e proc/1");
    exec.user = wire::message::RunAs::Named(b"root".to_vec());
    assert_eq!(
        guarded.client.run(&exec).end,
        Ok(wire::message::Exit::Code(0))
    );
    let files = read(&mut guarded, Tree::Workspace, &["proc/version"]);
    assert_eq!(files, [Err(18)]);
}

#[test]
fn the_root_is_read_through_its_links() {
    let mut guarded = start();
    guarded.sh(
        "echo x > x; mkdir /tmp/d; ln -s /home/eva/code /tmp/d/way; ln -s way/shop/x /tmp/d/last",
    );
    let paths = [
        "/tmp/d/way/shop/x",
        "/tmp/d/last",
        "/../../tmp/../etc/hostname",
    ];
    let files = read(&mut guarded, Tree::Root, &paths);
    assert_eq!(files[0].as_ref().unwrap().bytes, b"x\n");
    assert_eq!(files[1], Err(40), "the last component is no way");
    assert_eq!(files[2].as_ref().unwrap().bytes, b"brisk-heron\n");
}

#[test]
fn large_files_come_as_fast_as_they_are_paid_for() {
    let mut guarded = start();
    guarded.sh("seq 1000000 > big");
    let size: usize = guarded.sh("stat -c %s big").trim().parse().unwrap();
    guarded.client.stingy = true;
    let id = guarded.client.open(&request(Tree::Workspace, &["big"]));
    let mut bytes = Vec::new();
    while let Some(got) = guarded.client.peek(id, Duration::from_secs(1)) {
        if let Got::Data(1, data) = got {
            bytes.extend(data);
        }
    }
    assert!(bytes.len() < WINDOW);
    assert!(guarded.guest.resident() < 16 << 20);
    guarded.client.pay();
    loop {
        match guarded.client.next(id) {
            Got::Data(1, data) => bytes.extend(data),
            Got::Reply(Reply::FileEnd(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes.len(), size);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.lines().zip(1..).all(|(line, n)| line.parse() == Ok(n)));
}

/// A file that grows while it is read ends where it ended at first, and one that shrinks ends early; the state
/// after it says so.
#[test]
fn a_file_that_changes_while_it_is_read() {
    let mut guarded = start();
    for (change, shown) in [
        ("printf more >> big", 3_000_004),
        ("truncate -s 10 big", 10),
    ] {
        guarded.sh("head -c 3000000 /dev/zero > big");
        guarded.client.stingy = true;
        let id = guarded.client.open(&request(Tree::Workspace, &["big"]));
        let mut length = 0;
        while let Some(got) = guarded.client.peek(id, Duration::from_secs(1)) {
            match got {
                Got::Data(1, data) => length += data.len(),
                Got::Reply(Reply::File(stat)) => assert_eq!(stat.size, 3_000_000),
                other => panic!("{other:?}"),
            }
        }
        guarded.sh(change);
        guarded.client.pay();
        let after = loop {
            match guarded.client.next(id) {
                Got::Data(1, data) => length += data.len(),
                Got::Reply(Reply::FileEnd(stat)) => break stat,
                other => panic!("{other:?}"),
            }
        };
        assert!(length <= 3_000_000);
        assert_eq!(after.size, shown);
        assert_eq!(guarded.client.next(id), Got::Closed);
    }
}

#[test]
fn at_most_a_batch() {
    let mut guarded = start();
    guarded.sh("echo x > x");
    assert_eq!(
        read(&mut guarded, Tree::Workspace, &["x"; MAX_BATCH]).len(),
        MAX_BATCH
    );
    let reply = guarded
        .client
        .ask(&request(Tree::Workspace, &["x"; MAX_BATCH + 1]));
    assert!(matches!(reply, Reply::Failed(_)));
}
