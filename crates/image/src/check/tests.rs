use super::*;
use crate::progress::Silent;

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new(contents: &[u8]) -> Self {
        let bench = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        fs_err::write(bench.directory.path().join("file"), contents).unwrap();
        bench
    }

    fn open(&self, digest: Digest) -> Result<Vec<u8>, CheckError> {
        let directory = self.directory.path();
        let record = directory.join("checked.json");
        let mut file = open(
            &directory.join("file"),
            digest,
            &record,
            "Checking",
            &mut Silent,
        )?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }
}

#[test]
fn a_file_with_its_digest_opens_at_its_start() {
    let bench = Bench::new(b"contents");
    assert_eq!(bench.open(Digest::of(b"contents")).unwrap(), b"contents");
    assert_eq!(bench.open(Digest::of(b"contents")).unwrap(), b"contents");
}

#[test]
fn another_digest_is_refused_even_after_a_good_check() {
    let bench = Bench::new(b"contents");
    bench.open(Digest::of(b"contents")).unwrap();
    assert!(matches!(
        bench.open(Digest::of(b"other")),
        Err(CheckError::Altered)
    ));
}

#[test]
fn a_change_of_size_time_or_inode_is_found() {
    let bench = Bench::new(b"contents");
    let digest = Digest::of(b"contents");
    bench.open(digest).unwrap();
    let path = bench.directory.path().join("file");
    fs_err::write(&path, b"CONTENTS").unwrap();
    assert!(matches!(bench.open(digest), Err(CheckError::Altered)));
    fs_err::write(&path, b"content").unwrap();
    assert!(matches!(bench.open(digest), Err(CheckError::Altered)));
    fs_err::write(&path, b"contents").unwrap();
    bench.open(digest).unwrap();
    let other = bench.directory.path().join("other");
    fs_err::write(&other, b"contentS").unwrap();
    fs_err::rename(&other, &path).unwrap();
    assert!(matches!(bench.open(digest), Err(CheckError::Altered)));
}

#[test]
fn a_remembered_check_is_used_and_one_of_another_boot_is_not() {
    let bench = Bench::new(b"contents");
    let path = bench.directory.path().join("file");
    let record = bench.directory.path().join("checked.json");
    // A record for a digest that the file doesn't have shows whether the file was read.
    let wrong = Digest::of(b"other");
    let mut checked = checked(&fs_err::File::open(&path).unwrap(), wrong).unwrap();
    remember(&record, &checked);
    assert_eq!(bench.open(wrong).unwrap(), b"contents");
    "another boot".clone_into(&mut checked.boot);
    remember(&record, &checked);
    assert!(matches!(bench.open(wrong), Err(CheckError::Altered)));
}

#[test]
fn a_broken_record_costs_a_check_only() {
    let bench = Bench::new(b"contents");
    fs_err::write(bench.directory.path().join("checked.json"), b"{").unwrap();
    bench.open(Digest::of(b"contents")).unwrap();
    assert!(matches!(
        bench.open(Digest::of(b"other")),
        Err(CheckError::Altered)
    ));
}

#[test]
fn a_missing_file_is_an_error_of_its_own() {
    let bench = Bench::new(b"");
    fs_err::remove_file(bench.directory.path().join("file")).unwrap();
    assert!(matches!(
        bench.open(Digest::of(b"")),
        Err(CheckError::Read(_))
    ));
}
