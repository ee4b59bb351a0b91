use super::*;

fn check(action: Action, paths: &[&str]) {
    for path in paths {
        assert_eq!(decide(path.as_bytes(), Kind::File), action, "{path}");
    }
}

#[test]
fn programs_libraries_and_licences_stay() {
    check(
        Action::Keep,
        &[
            "usr/bin/git",
            "etc/passwd",
            "etc/apt/apt.conf.d/01autoremove",
            "etc/apt/trusted.gpg.d/debian.asc",
            "usr/share/doc/git/copyright",
            "usr/share/zoneinfo/UTC",
            "usr/lib/locale/C.utf8/LC_CTYPE",
            "var/lib/dpkg/info/git.list",
            "etc/ssl/certs/ca-certificates.crt",
            "usr/share/doc-base/x",
            "runner",
        ],
    );
}

#[test]
fn traces_of_the_build_and_of_the_host_go() {
    check(
        Action::Skip,
        &[
            "etc/hostname",
            "etc/resolv.conf",
            "etc/passwd-",
            "etc/apt/sources.list",
            "etc/apt/sources.list.d/0000debian.sources",
            "etc/apt/auth.conf.d/secret.conf",
            "etc/apt/apt.conf.d/99mmdebstrap",
            "var/cache/apt/pkgcache.bin",
            "var/cache/debconf/config.dat-old",
            "var/cache/ldconfig/aux-cache",
            "var/lib/apt/lists/lock",
            "var/lib/dpkg/status-old",
            "var/log/dpkg.log",
            "var/log/apt/history.log",
            "tmp/x",
            "dev/null",
        ],
    );
}

#[test]
fn documentation_goes() {
    check(
        Action::Skip,
        &[
            "usr/share/man/man1/git.1.gz",
            "usr/share/doc/git/README",
            "usr/share/locale/de/LC_MESSAGES/git.mo",
        ],
    );
}

#[test]
fn directories_stay_but_those_of_devices() {
    for path in [
        "tmp",
        "var/log/apt",
        "usr/share/man/man1",
        "dev",
        "run/lock",
        "",
    ] {
        assert_eq!(
            decide(path.as_bytes(), Kind::Directory),
            Action::Keep,
            "{path}"
        );
    }
    assert_eq!(decide(b"dev/pts", Kind::Directory), Action::Skip);
}

#[test]
fn the_machine_id_is_emptied_and_the_package_list_is_captured() {
    check(Action::Empty, &["etc/machine-id"]);
    check(Action::Capture, &["var/lib/dpkg/status"]);
}

#[test]
fn times_after_the_epoch_become_the_epoch() {
    let mut cleaner = Cleaner::default();
    let mut time_of = |mtime| {
        let mut meta = Meta {
            mode: 0,
            uid: 0,
            gid: 0,
            mtime,
        };
        cleaner.decide(&RelPath::root(), Kind::Directory, &mut meta);
        meta.mtime
    };
    assert_eq!(time_of((EPOCH + 100, 5)), (EPOCH, 0));
    assert_eq!(time_of((EPOCH, 5)), (EPOCH, 0));
    assert_eq!(time_of((EPOCH - 1, 5)), (EPOCH - 1, 5));
}
