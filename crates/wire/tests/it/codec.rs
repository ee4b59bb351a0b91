use proptest::prelude::*;
use wire::message::{
    Control, DecodeError, Exec, Exit, Failure, FileKind, ListDir, ListEntry, Ready, Reply, Request,
    RunAs, Setup, Stat, Tree, TtySize, User, decode, encode,
};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn tree() -> impl Strategy<Value = Tree> {
    prop_oneof![Just(Tree::Workspace), Just(Tree::Root)]
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        Just(FileKind::File),
        Just(FileKind::Dir),
        Just(FileKind::FreshDir),
        Just(FileKind::Symlink),
        Just(FileKind::Whiteout),
        Just(FileKind::Other),
    ]
}

fn size() -> impl Strategy<Value = TtySize> {
    any::<(u16, u16)>().prop_map(|(rows, cols)| TtySize { rows, cols })
}

fn request() -> impl Strategy<Value = Request> {
    let user = (bytes(), any::<(u32, u32)>(), bytes()).prop_map(|(name, (uid, gid), home)| User {
        name,
        uid,
        gid,
        home,
    });
    let setup = (bytes(), user, bytes(), any::<u64>(), bytes(), bytes()).prop_map(
        |(hostname, user, workspace, clock_ns, seed, timezone)| Setup {
            hostname,
            user,
            workspace,
            clock_ns,
            seed,
            timezone,
            give_back: false,
            network: false,
        },
    );
    let run_as = prop_oneof![Just(RunAs::User), bytes().prop_map(RunAs::Named)];
    let exec = (
        prop::collection::vec(bytes(), 0..4),
        prop::collection::vec((bytes(), bytes()), 0..4),
        bytes(),
        run_as,
        prop::option::of(size()),
        any::<bool>(),
    )
        .prop_map(|(argv, env, cwd, user, tty, stdin)| Exec {
            argv,
            env,
            cwd,
            user,
            tty,
            stdin,
        });
    let dirs = prop::collection::vec(
        (bytes(), any::<bool>()).prop_map(|(path, whole)| ListDir { path, whole }),
        0..4,
    );
    prop_oneof![
        setup.prop_map(Request::Setup),
        exec.prop_map(Request::Exec),
        (tree(), dirs).prop_map(|(tree, dirs)| Request::List { tree, dirs }),
        (tree(), prop::collection::vec(bytes(), 0..4))
            .prop_map(|(tree, paths)| Request::Read { tree, paths }),
        (tree(), bytes(), kind(), any::<u32>(), bytes()).prop_map(
            |(tree, path, kind, mode, target)| Request::Write {
                tree,
                path,
                kind,
                mode,
                target,
            }
        ),
        prop::collection::vec(prop::collection::vec(bytes(), 0..3), 0..3)
            .prop_map(|commands| Request::Warm { commands }),
        Just(Request::Freeze),
        Just(Request::Hold),
        any::<u32>().prop_map(|grace_ms| Request::EndSessions { grace_ms }),
        Just(Request::PowerOff),
        any::<u64>().prop_map(|rounds| Request::Spin { rounds }),
    ]
}

fn stat() -> impl Strategy<Value = Stat> {
    (kind(), any::<(u32, u64, u64, u32, i64, i64)>()).prop_map(
        |(kind, (mode, size, ino, nlink, mtime_ns, ctime_ns))| Stat {
            kind,
            mode,
            size,
            ino,
            nlink,
            mtime_ns,
            ctime_ns,
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let entries = prop::collection::vec(
        (bytes(), stat(), bytes()).prop_map(|(name, stat, target)| ListEntry {
            name,
            stat,
            target,
        }),
        0..4,
    );
    let exit = prop_oneof![
        any::<u8>().prop_map(Exit::Code),
        any::<u8>().prop_map(Exit::Signal)
    ];
    prop_oneof![
        (bytes(), any::<u64>())
            .prop_map(|(kernel, uptime_ms)| Reply::Ready(Ready { kernel, uptime_ms })),
        (bytes(), any::<i32>()).prop_map(|(what, errno)| Reply::Failed(Failure { what, errno })),
        any::<u32>().prop_map(|pid| Reply::Started { pid }),
        exit.prop_map(Reply::Exited),
        (any::<u32>(), entries, any::<bool>()).prop_map(|(index, entries, last)| {
            Reply::Entries {
                index,
                entries,
                last,
            }
        }),
        stat().prop_map(Reply::File),
        stat().prop_map(Reply::FileEnd),
        Just(Reply::Done),
        Just(Reply::Held),
        any::<(u64, u64)>().prop_map(|(nanos, value)| Reply::Spun { nanos, value }),
    ]
}

proptest! {
    #[test]
    fn requests_come_back_as_they_went(request in request()) {
        prop_assert_eq!(decode::<Request>(&encode(&request)), Ok(request));
    }

    #[test]
    fn replies_come_back_as_they_went(reply in reply()) {
        prop_assert_eq!(decode::<Reply>(&encode(&reply)), Ok(reply));
    }

    #[test]
    fn a_message_with_a_byte_too_many_or_too_few_is_none(reply in reply(), extra: u8) {
        let mut bytes = encode(&reply);
        bytes.push(extra);
        prop_assert_eq!(decode::<Reply>(&bytes), Err(DecodeError));
        bytes.truncate(bytes.len() - 2);
        prop_assert_eq!(decode::<Reply>(&bytes), Err(DecodeError));
    }

    #[test]
    fn whatever_decodes_means_the_same_after_another_round(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(request) = decode::<Request>(&bytes) {
            prop_assert_eq!(decode(&encode(&request)), Ok(request));
        }
        if let Ok(reply) = decode::<Reply>(&bytes) {
            prop_assert_eq!(decode(&encode(&reply)), Ok(reply));
        }
    }
}

#[test]
fn controls_come_back_as_they_went() {
    for control in [
        Control::Resize(TtySize {
            rows: 0,
            cols: 65535,
        }),
        Control::Signal(15),
    ] {
        assert_eq!(decode::<Control>(&encode(&control)), Ok(control));
    }
}

/// A few bytes that announce a huge list must not set memory aside for it: this would be 2^60 entries.
#[test]
fn a_forged_count_is_an_error_and_costs_nothing() {
    // Reply::Entries, index 0, then the count.
    let mut bytes = vec![4, 0];
    bytes.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    assert_eq!(decode::<Reply>(&bytes), Err(DecodeError));
    // Request::Read, the workspace, then the count.
    let mut bytes = vec![3, 0];
    bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    assert_eq!(decode::<Request>(&bytes), Err(DecodeError));
}

#[test]
fn arithmetic_is_the_same_everywhere_and_cannot_be_left_out() {
    assert_eq!(wire::spin(0), 0x9e37_79b9_7f4a_7c15);
    assert_ne!(wire::spin(1000), wire::spin(1001));
    assert_eq!(wire::spin(1_000_000), wire::spin(1_000_000));
}
