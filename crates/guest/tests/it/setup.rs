use crate::client::{command, shell};
use crate::{Guarded, WORKSPACE, setup, start, start_bare};
use wire::message::{Exit, Reply, Request, RunAs};

/// Set up at `workspace` in a root that `prepare` has changed.
fn start_at(workspace: &str, prepare: &str) -> Guarded {
    let mut guarded = start_bare(None, prepare);
    guarded.set_up(setup(workspace));
    guarded
}

#[track_caller]
fn refused(workspace: &str, prepare: &str) -> String {
    let mut guarded = start_bare(None, prepare);
    match guarded.client.ask(&Request::Setup(setup(workspace))) {
        Reply::Failed(failure) => String::from_utf8(failure.what).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_user_is_known_to_the_image() {
    let mut guarded = start();
    assert_eq!(
        guarded.sh("getent passwd eva; getent group 1000"),
        "eva:x:1000:1000::/home/eva:/bin/bash\neva:x:1000:\n"
    );
    let mut exec = shell("grep ^eva: /etc/shadow");
    exec.user = RunAs::Named(b"root".to_vec());
    assert_eq!(
        guarded.client.run(&exec).stdout,
        b"eva:*:19000:0:99999:7:::\n"
    );
    assert_eq!(
        guarded.sh("stat -c '%n %U %a' ~ ~/.profile; cat ~/.profile"),
        "/home/eva eva 755\n/home/eva/.profile eva 644\nset -o vi\n"
    );
}

#[test]
fn the_host_is_named() {
    let mut guarded = start();
    assert_eq!(guarded.sh("cat /etc/hostname"), "brisk-heron\n");
    let hosts = guarded.sh("cat /etc/hosts");
    assert_eq!(
        hosts,
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbrisk-heron\n"
    );
    let old = "printf '127.0.0.1 localhost\\n127.0.1.1 builder\\n10.0.0.1 db' > root/etc/hosts";
    let hosts = start_at(WORKSPACE, old).sh("cat /etc/hosts");
    assert_eq!(
        hosts,
        "127.0.0.1 localhost\n10.0.0.1 db\n127.0.1.1\tbrisk-heron\n"
    );
}

#[test]
fn every_machine_has_an_id_of_its_own() {
    let ids: Vec<String> = (0..2).map(|_| start().sh("cat /etc/machine-id")).collect();
    for id in &ids {
        assert_eq!(id.len(), 33);
        assert!(id.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(&id[12..13], "4", "a version 4 UUID");
    }
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_kept_machine_keeps_its_id() {
    let kept = "echo 0123456789abcdef0123456789abcdef > scratch/machine-id";
    let id = start_at(WORKSPACE, kept).sh("cat /etc/machine-id");
    assert_eq!(id, "0123456789abcdef0123456789abcdef\n");
}

#[test]
fn the_zone_is_the_hosts_where_the_image_knows_it() {
    let zones = "mkdir -p zones/Europe; : > zones/Europe/Madrid; \
        mkdir -p root/usr/share; mount -t tmpfs tmpfs root/usr/share; \
        mkdir root/usr/share/zoneinfo; mount --bind zones root/usr/share/zoneinfo";
    let check = |zone: &str, expect: &str| {
        let mut guarded = start_bare(None, zones);
        let mut setup = setup(WORKSPACE);
        setup.timezone = zone.as_bytes().to_vec();
        guarded.set_up(setup);
        let link = guarded.sh("readlink /etc/localtime; cat /etc/timezone 2>/dev/null || true");
        assert_eq!(link, expect);
    };
    check(
        "Europe/Madrid",
        "/usr/share/zoneinfo/Europe/Madrid\nEurope/Madrid\n",
    );
    check("Mars/Olympus", "");
    let mut guarded = start_bare(None, zones);
    let mut bad = setup(WORKSPACE);
    bad.timezone = b"../../etc/passwd".to_vec();
    assert!(matches!(
        guarded.client.ask(&Request::Setup(bad)),
        Reply::Failed(_)
    ));
}

#[test]
fn the_workspace_belongs_to_the_user_and_so_does_the_way_from_home() {
    let mut guarded = start();
    let stat = "stat -c '%n %U %a' /home /home/eva/code /home/eva/code/shop";
    assert_eq!(
        guarded.sh(stat),
        "/home root 755\n/home/eva/code eva 755\n/home/eva/code/shop eva 755\n"
    );
    guarded.sh("echo x > file; mkdir dir; mv file dir; rm -r dir");
}

#[test]
fn the_way_leads_through_closed_directories() {
    let mut guarded = start_at(
        "/root/shut/code/shop",
        "mkdir -p root/root/shut/code; chmod 700 root/root root/root/shut/code; chmod 750 root/root/shut",
    );
    assert_eq!(
        guarded.sh("pwd; echo x > file; cat file"),
        "/root/shut/code/shop\nx\n"
    );
    // Through, and nothing more.
    assert_eq!(
        guarded.sh("stat -c %a /root /root/shut /root/shut/code"),
        "701\n751\n701\n"
    );
    let outcome = guarded.client.run(&command(&["ls", "/root"]));
    assert_ne!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn the_way_leads_through_links_of_the_image() {
    let link = "ln -s /run root/var/run";
    let mut guarded = start_at("/var/run/user/shop", link);
    assert_eq!(guarded.sh("echo x > /run/user/shop/file; cat file"), "x\n");

    let dangling = "ln -s ../far/away root/var/link";
    let mut guarded = start_at("/var/link/shop", dangling);
    assert_eq!(guarded.sh("echo x > /far/away/shop/file; cat file"), "x\n");

    let last = "mkdir root/real; ln -s real root/alias";
    let mut guarded = start_at("/alias", last);
    assert_eq!(guarded.sh("echo x > /real/file; cat /alias/file"), "x\n");
}

#[test]
fn a_workspace_lies_anywhere() {
    for workspace in [
        "/srv",
        "/tmp/shop",
        "/usr/local/src/shop",
        "/dev/shm/shop",
        "/home/eva",
    ] {
        let mut guarded = start_at(workspace, "mount -t tmpfs tmpfs root/usr/local");
        assert_eq!(
            guarded.sh("pwd; touch x && echo yes"),
            format!("{workspace}\nyes\n")
        );
    }
}

#[test]
fn paths_that_cannot_be_a_workspaces() {
    for path in ["", "relative/path", "/", "//", "/a/../b", "/a/.."] {
        let text = refused(path, "");
        assert_eq!(text, format!("`{path}` can't be a workspace's path"));
    }
    let text = refused("/srv/file/shop", "mkdir root/srv; : > root/srv/file");
    assert_eq!(text, "`/srv/file` is in the way of the workspace");
    assert!(refused("/proc/shop", "").starts_with("Making the directory `/proc/shop`"));
}

#[test]
fn a_user_that_would_break_the_files_is_refused() {
    for (name, home) in [
        ("a:b", "/home/a"),
        ("", "/home/a"),
        ("a", "/home/a\nroot2:x:0"),
        ("a\nb", "/"),
    ] {
        let mut guarded = start_bare(None, "");
        let mut bad = setup(WORKSPACE);
        bad.user.name = name.into();
        bad.user.home = home.into();
        assert!(matches!(
            guarded.client.ask(&Request::Setup(bad)),
            Reply::Failed(_)
        ));
    }
}

/// Puts something like sudo into the image.
const SUDO: &str = "mount -t tmpfs tmpfs root/usr/local; mkdir root/usr/local/bin; : > root/usr/local/bin/sudo; \
    echo 'root ALL=(ALL) ALL' > root/etc/sudoers";

#[test]
fn sudo_asks_for_no_password_where_it_is() {
    let mut guarded = start_at(WORKSPACE, SUDO);
    let mut exec = shell(
        "cat /etc/sudoers.d/efimera /etc/sudoers; stat -c %a:%U /etc/sudoers.d/* /etc/sudoers",
    );
    exec.user = RunAs::Named(b"root".to_vec());
    let outcome = guarded.client.run(&exec);
    assert_eq!(
        String::from_utf8(outcome.stdout).unwrap(),
        "#1000 ALL=(ALL:ALL) NOPASSWD: ALL\nroot ALL=(ALL) ALL\n@includedir /etc/sudoers.d\n440:root\n440:root\n"
    );
}

/// An image without any file in `/etc`, shell or user.
#[test]
fn a_bare_image_will_do() {
    let mut guarded = start_bare(None, "rm -r root/etc");
    guarded.set_up(setup(WORKSPACE));
    assert_eq!(guarded.sh("id -un"), "eva\n");
    let mut exec = command(&["id", "-u"]);
    exec.user = RunAs::Named(b"0".to_vec());
    assert_eq!(guarded.client.run(&exec).stdout, b"0\n");
}

/// What `root` sees of a machine's identity, but for what is another one each time.
const IDENTITY: &str = "cat /etc/passwd /etc/group /etc/shadow /etc/hostname /etc/hosts; wc -c < /etc/machine-id; \
    stat -c '%n %u %g %a' /etc/passwd /etc/group /etc/hostname /etc/hosts /etc/machine-id /home/* /home/eva/.*; \
    ls -A /home /etc/sudoers.d; cat /etc/sudoers.d/efimera; stat -c '%a' /etc/sudoers.d/efimera";

fn identity(guarded: &mut Guarded) -> String {
    let mut exec = shell(IDENTITY);
    exec.user = RunAs::Named(b"root".to_vec());
    let outcome = guarded.client.run(&exec);
    assert_eq!(outcome.stderr, b"");
    String::from_utf8(outcome.stdout).unwrap()
}

#[test]
fn a_machine_that_was_made_ready_is_as_any_other() {
    let mut plain = start_at(WORKSPACE, SUDO);
    let mut ready = start_at(WORKSPACE, &format!("{SUDO}; touch ready"));
    let found = identity(&mut ready);
    assert_eq!(found, identity(&mut plain));
    assert!(found.contains("NOPASSWD"), "{found}");
}

#[test]
fn a_home_that_was_made_ready_is_whoever_s_it_is() {
    let prepare =
        "mkdir -p root/home/.efimera; echo ready > root/home/.efimera/.profile; touch ready";
    let mut guarded = start_bare(None, prepare);
    let mut setup = setup("/home/eva/code");
    setup.user.uid = 1005;
    setup.user.gid = 1006;
    guarded.set_up(setup);
    assert_eq!(
        guarded
            .sh("id -u; id -g; stat -c '%u %g' ~ ~/.profile ~/code; ls -A /home; cat ~/.profile"),
        "1005\n1006\n1005 1006\n1005 1006\n1005 1006\neva\nready\n"
    );
}

#[test]
fn a_home_that_was_made_ready_leaves_no_trace_where_there_is_one() {
    let prepare = "mkdir -p root/home/eva; echo mine > root/home/eva/.profile; touch ready";
    let mut guarded = start_at(WORKSPACE, prepare);
    assert_eq!(guarded.sh("cat ~/.profile; ls -A /home"), "mine\neva\n");
}

#[test]
fn a_longer_name_leaves_nothing_behind_and_a_link_is_not_followed() {
    let long = "echo a-very-long-name-that-the-builder-of-the-image-had > root/etc/hostname";
    assert_eq!(
        start_at(WORKSPACE, long).sh("cat /etc/hostname"),
        "brisk-heron\n"
    );
    let link = "echo old > root/etc/elsewhere; ln -sf elsewhere root/etc/hostname; touch ready";
    let mut guarded = start_at(WORKSPACE, link);
    assert_eq!(
        guarded.sh("cat /etc/hostname /etc/elsewhere; test -L /etc/hostname || echo file"),
        "brisk-heron\nold\nfile\n"
    );
}
