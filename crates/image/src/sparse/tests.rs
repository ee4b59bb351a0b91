use super::*;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

/// A large file with a few bytes here and there.
fn spotted() -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(20 << 30).unwrap();
    for at in [0, 1 << 20, (5 << 30) + 77, (20 << 30) - 1] {
        file.write_all_at(b"x", at).unwrap();
    }
    file
}

fn check(target: &std::fs::File) {
    assert_eq!(target.metadata().unwrap().len(), 20 << 30);
    assert!(
        target.metadata().unwrap().blocks() * 512 < 1 << 20,
        "it is sparse"
    );
    for at in [0, 1 << 20, (5 << 30) + 77, (20 << 30) - 1] {
        let mut byte = [0];
        target.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, *b"x");
    }
    let mut byte = [1];
    target.read_exact_at(&mut byte, 5 << 30).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn a_sparse_file_stays_sparse() {
    let target = tempfile::tempfile().unwrap();
    copy_sparse(spotted(), &target).unwrap();
    check(&target);
}

#[test]
fn a_copy_into_memory_goes_across_file_systems() {
    let memory = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let target = std::fs::File::from(memory);
    copy_sparse(spotted(), &target).unwrap();
    check(&target);
}

#[test]
fn files_without_data_or_without_anything_are_copied() {
    for size in [0, 1 << 30] {
        let source = tempfile::tempfile().unwrap();
        source.set_len(size).unwrap();
        let target = tempfile::tempfile().unwrap();
        copy_sparse(&source, &target).unwrap();
        assert_eq!(target.metadata().unwrap().len(), size);
    }
}
