use super::*;

const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\nada:x:7:7::/a:/bin/x";
const GROUP: &str = "root:x:0:\nnode:x:1000:\naudio:x:29:ada,bob\nusers:x:100:bob,ada\nstaff:x:50:";

fn accounts() -> Accounts {
    Accounts {
        passwd: PASSWD.as_bytes().to_vec(),
        group: GROUP.as_bytes().to_vec(),
    }
}

fn user(name: &str, uid: u32, gid: u32) -> User {
    User {
        name: name.into(),
        uid,
        gid,
        home: format!("/home/{name}").into(),
    }
}

#[track_caller]
fn check(wanted: &str, uid: u32, gid: u32, groups: &[u32], home: &str) {
    let found = accounts().look_up(wanted.as_bytes()).unwrap();
    assert_eq!((found.uid, found.gid), (uid, gid));
    assert_eq!(found.groups, groups);
    assert_eq!(found.home, home.as_bytes());
}

#[test]
fn looks_up_as_docker_does() {
    check("root", 0, 0, &[], "/root");
    check("ada", 7, 7, &[29, 100], "/a");
    check("7", 7, 7, &[29, 100], "/a");
    check("ada:audio", 7, 29, &[], "/a");
    check("ada:1234", 7, 1234, &[], "/a");
    check("1234", 1234, 0, &[], "/");
    check("1234:50", 1234, 50, &[], "/");
}

#[test]
fn refuses_names_that_the_image_does_not_have() {
    for wanted in ["nobody-here", "", "ada:no-group", "-1", "4294967296"] {
        let fault = accounts().look_up(wanted.as_bytes()).unwrap_err();
        assert_eq!(fault.errno, None, "{wanted}");
    }
}

#[test]
fn a_new_user_is_appended() {
    let mut accounts = accounts();
    accounts.add(&user("eva", 501, 20), "/bin/sh");
    assert!(
        accounts
            .passwd
            .ends_with(b"\neva:x:501:20::/home/eva:/bin/sh\n")
    );
    assert!(accounts.group.ends_with(b"\neva:x:20:\n"));
    assert_eq!(accounts.look_up(b"ada").unwrap().uid, 7);
}

#[test]
fn a_taken_name_gets_the_new_numbers() {
    let mut accounts = accounts();
    accounts.add(&user("ada", 1001, 1001), "/bin/bash");
    let found = accounts.look_up(b"ada").unwrap();
    assert_eq!(
        (found.uid, found.home.as_slice()),
        (1001, b"/home/ada".as_slice())
    );
    let names = accounts.entries().filter(|entry| entry.name == b"ada");
    assert_eq!(names.count(), 1);
}

#[test]
fn a_taken_uid_is_shown_by_our_name() {
    let mut accounts = accounts();
    accounts.add(&user("eva", 1000, 1000), "/bin/bash");
    assert_eq!(accounts.look_up(b"1000").unwrap().name, b"eva");
    assert_eq!(accounts.look_up(b"node").unwrap().uid, 1000);
    assert_eq!(
        accounts.groups().filter(|(_, gid, _)| *gid == 1000).count(),
        1
    );
}

#[test]
fn a_taken_group_name_is_not_taken_twice() {
    let mut accounts = accounts();
    accounts.add(&user("staff", 900, 900), "/bin/sh");
    let names: Vec<_> = accounts.groups().map(|(name, ..)| name).collect();
    assert_eq!(names.iter().filter(|name| **name == b"staff").count(), 1);
    assert!(names.contains(&b"group900".as_slice()));
}
