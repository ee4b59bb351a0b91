use crate::bench::Bench;
use base::{Digest, Size};
use image::{Environment, ScratchError};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

#[test]
fn a_blank_disk_is_sparse_sound_and_made_once() {
    let bench = Bench::new();
    let size = Size::gib(20);
    let path = bench.store.scratch(size, &Environment::default()).unwrap();
    let metadata = fs_err::metadata(&path).unwrap();
    assert_eq!(metadata.len(), size.bytes());
    assert!(
        metadata.blocks() * 512 < 64 << 20,
        "{} blocks",
        metadata.blocks()
    );
    let check = Command::new("/sbin/e2fsck")
        .args(["-f", "-n"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
    let again = bench
        .store
        .scratch(Size(size.bytes() + 5), &Environment::default())
        .unwrap();
    assert_eq!(again, path);
    assert_eq!(fs_err::metadata(&path).unwrap().ino(), metadata.ino());
    assert!(bench.unfinished().is_empty());
}

#[test]
fn two_blank_disks_of_a_size_are_the_same() {
    let digest = || {
        let bench = Bench::new();
        let path = bench
            .store
            .scratch(Size::mib(64), &Environment::default())
            .unwrap();
        Digest::of(&fs_err::read(path).unwrap())
    };
    assert_eq!(digest(), digest());
}

#[test]
fn sizes_out_of_range_are_refused() {
    let bench = Bench::new();
    for size in [
        Size(0),
        Size(Size::mib(64).bytes() - 1),
        Size::gib((16 << 10) + 1),
    ] {
        let error = bench
            .store
            .scratch(size, &Environment::default())
            .unwrap_err();
        assert!(matches!(error, ScratchError::Size(_)), "{error}");
    }
}
