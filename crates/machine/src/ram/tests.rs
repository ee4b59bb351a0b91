use super::{copy_ram, is_sealed, new_ram, sealed_ram, share_of};
use base::Size;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

const SIZE: Size = Size::mib(8);

/// A memory file with something at its begin, in its middle and at its end.
fn used() -> std::fs::File {
    let file = std::fs::File::from(new_ram("used", SIZE).unwrap());
    for at in [0, 3 << 20, (8 << 20) - 4096] {
        file.write_all_at(&[7; 4096], at).unwrap();
    }
    file
}

fn content(file: &std::fs::File) -> Vec<u8> {
    let mut bytes = vec![0; 8 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn what_is_used_is_copied_and_the_holes_stay() {
    use std::os::unix::fs::MetadataExt as _;
    let from = used();
    let to = tempfile::tempfile().unwrap();
    assert_eq!(copy_ram(&from, &to).unwrap(), 3 * 4096);
    assert_eq!(content(&to), content(&from));
    assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    let back = std::fs::File::from(sealed_ram("back", &to, SIZE).unwrap());
    assert_eq!(content(&back), content(&from));
    assert!(back.metadata().unwrap().blocks() * 512 < 1 << 20);
}

#[test]
fn pages_of_zeros_become_holes() {
    let from = used();
    // Used pages beside them, and a run across the border between two pieces.
    from.write_all_at(&vec![0; 1 << 20], 4096).unwrap();
    from.write_all_at(&[1], (1 << 20) + 5).unwrap();
    let to = tempfile::tempfile().unwrap();
    assert_eq!(copy_ram(&from, &to).unwrap(), 4 * 4096);
    assert_eq!(content(&to), content(&from));
}

#[test]
fn an_odd_length_is_copied_to_its_end() {
    // A length that isn't a whole page, as no memory has: the end is copied, too.
    let from = tempfile::tempfile().unwrap();
    from.write_all_at(&[9; 5000], 0).unwrap();
    let to = tempfile::tempfile().unwrap();
    assert_eq!(copy_ram(&from, &to).unwrap(), 5000);
    assert_eq!(to.metadata().unwrap().len(), 5000);
}

#[test]
fn an_empty_memory_can_be_copied() {
    let from = new_ram("none", SIZE).unwrap();
    let to = tempfile::tempfile().unwrap();
    assert_eq!(copy_ram(&from, &to).unwrap(), 0);
    assert_eq!(to.metadata().unwrap().len(), SIZE.bytes());
}

#[test]
fn what_is_sealed_is_told_from_what_is_not() {
    assert!(is_sealed(sealed_ram("sealed", used(), SIZE).unwrap()).unwrap());
    assert!(!is_sealed(used()).unwrap());
    assert!(!is_sealed(tempfile::tempfile().unwrap()).unwrap());
}

#[test]
fn another_size_is_refused() {
    let error = sealed_ram("sealed", used(), Size::mib(9)).unwrap_err();
    assert_eq!(error.to_string(), "it has 8388608 bytes instead of 9437184");
}

#[test]
fn only_the_file_that_was_meant_is_shared() {
    let own = std::process::id();
    let file = sealed_ram("template-1", used(), SIZE).unwrap();
    let share = |name, size| share_of(own, file.as_raw_fd(), name, size);
    let shared = share("template-1", SIZE).unwrap();
    assert_eq!(content(&shared.into()), content(&used()));
    let refused = |name, size| share(name, size).unwrap_err().to_string();
    assert_eq!(refused("template-2", SIZE), "it has another name");
    assert_eq!(refused("template-1", Size::mib(9)), "it has another size");

    let refused = |fd: i32| share_of(own, fd, "used", SIZE).unwrap_err().to_string();
    // No process has as many.
    assert_eq!(refused(1 << 30), "No such file or directory (os error 2)");
    let unsealed = used();
    assert_eq!(
        refused(unsealed.as_raw_fd()),
        "it isn't a sealed memory file"
    );
    let plain = tempfile::tempfile().unwrap();
    assert_eq!(refused(plain.as_raw_fd()), "it isn't a sealed memory file");
}
