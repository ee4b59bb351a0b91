use super::*;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

fn sparse(dir: &Path, name: &str) -> (PathBuf, File) {
    let path = dir.join(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(50 << 20).unwrap();
    file.write_all_at(b"in the middle", (20 << 20) + 5000)
        .unwrap();
    file.write_all_at(b"at the end", (50 << 20) - 10).unwrap();
    (path, file)
}

#[test]
fn a_file_is_known_again_and_so_is_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut file) = sparse(dir.path(), "ram");
    let known = Known::of(&mut file).unwrap();
    known.open(&path).unwrap();
    // A copy has other holes, or none, and is the same.
    let copy = dir.path().join("copy");
    fs_err::write(&copy, fs_err::read(&path).unwrap()).unwrap();
    known.open(&copy).unwrap();
}

#[test]
fn any_difference_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut file) = sparse(dir.path(), "ram");
    let known = Known::of(&mut file).unwrap();
    let altered = |error: FileError| assert!(matches!(error, FileError::Altered(_)), "{error}");

    file.write_all_at(b"I", (20 << 20) + 5000).unwrap();
    altered(known.open(&path).unwrap_err());
    file.write_all_at(b"i", (20 << 20) + 5000).unwrap();
    known.open(&path).unwrap();
    // The same bytes elsewhere.
    file.write_all_at(&[0; 13], (20 << 20) + 5000).unwrap();
    file.write_all_at(b"in the middle", (21 << 20) + 5000)
        .unwrap();
    altered(known.open(&path).unwrap_err());

    let (path, mut file) = sparse(dir.path(), "cut");
    let known = Known::of(&mut file).unwrap();
    file.set_len((50 << 20) - 1).unwrap();
    altered(known.open(&path).unwrap_err());
    fs_err::remove_file(&path).unwrap();
    assert!(matches!(known.open(&path), Err(FileError::Read { .. })));
}

#[test]
fn a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut file) = sparse(dir.path(), "ram");
    let known = Known::of(&mut file).unwrap();
    file.flush().unwrap();
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    assert!(matches!(
        known.open(&dir.path().join("link")),
        Err(FileError::Read { .. })
    ));
}
