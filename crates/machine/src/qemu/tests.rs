use super::{FindError, Version, find, parse_version};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

#[test]
fn versions_of_the_distributions_are_read() {
    let check = |text: &str, expect: Option<(u32, u32, u32)>| {
        let expect = expect.map(|(major, minor, patch)| Version {
            major,
            minor,
            patch,
        });
        assert_eq!(parse_version(text), expect, "{text}");
    };
    check(
        "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright",
        Some((7, 2, 22)),
    );
    check("QEMU emulator version 9.0.1\n", Some((9, 0, 1)));
    check("QEMU emulator version 10.0.0-rc2 (v10)\n", Some((10, 0, 0)));
    check("QEMU emulator version 8.2\n", Some((8, 2, 0)));
    check("qemu-img version 7.2.22", None);
    check("QEMU emulator version unknown", None);
    check("", None);
}

fn script(directory: &TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("qemu");
    fs_err::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs_err::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn an_old_version_is_refused_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let path = script(&directory, "echo QEMU emulator version 6.2.0");
    let error = find(Some(&path)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "`{}` is version 6.2.0; at least 7.2.0 is needed",
            path.display()
        )
    );
}

#[test]
fn a_program_that_says_something_else_is_quoted() {
    let directory = tempfile::tempdir().unwrap();
    let path = script(&directory, r"echo 'no \033[1m QEMU' >&2");
    let error = find(Some(&path)).unwrap_err();
    assert!(matches!(error, FindError::Version { .. }), "{error:?}");
}

#[test]
fn a_program_that_others_can_change_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = script(&directory, "echo QEMU emulator version 9.0.0");
    fs_err::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(find(Some(&path)), Err(FindError::Unsafe(_))));
}

#[test]
fn what_was_found_is_current_until_it_changes() {
    // Any program will do for this; the host's shell has libraries like QEMU has.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qemu");
    fs_err::copy("/bin/sh", &path).unwrap();
    let stamp = super::stamp(&path).unwrap();
    let files = jail::program_files(&path).unwrap();
    let qemu = super::Qemu {
        path: path.clone(),
        version: super::MINIMUM,
        files,
        stamp,
    };
    assert!(qemu.is_current());
    fs_err::OpenOptions::new()
        .append(true)
        .open(&path)
        .map(drop)
        .unwrap();
    assert!(qemu.is_current());
    fs_err::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    assert!(!qemu.is_current());
}
