//! A store of its own for each test, and small root file systems to put into it.

use image::{Image, ImportError, Silent, Store, import_tar};
use std::path::PathBuf;
use tar::{Builder, EntryType, Header};

pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: Store,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("data")).unwrap();
        Self { directory, store }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Makes an image of a tar with these files.
    pub(crate) fn import(&self, files: &[(&str, &[u8])]) -> Result<Image, ImportError> {
        import_tar(
            &self.store,
            root_tar(files).as_slice(),
            "test",
            "0.0",
            &mut Silent,
        )
    }

    /// An image with a shell and something to tell it from others.
    pub(crate) fn image(&self, mark: &str) -> Image {
        self.import(&[("bin/sh", b"shell"), ("mark", mark.as_bytes())])
            .unwrap()
    }

    /// Everything in the data directory that is not finished.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for name in ["images", "kernels", "scratch"] {
            for entry in fs_err::read_dir(self.data().join(name)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    found.push(entry.path());
                }
            }
        }
        found
    }
}

pub(crate) fn root_tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(contents.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *contents).unwrap();
    }
    builder.into_inner().unwrap()
}
