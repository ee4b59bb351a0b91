//! `fsck.erofs` as the judge: it checks an image and extracts it.

use erofs::{Finished, Meta, Writer};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with an image in it.
pub(crate) struct Bench {
    directory: tempfile::TempDir,
}

pub(crate) const PLAIN: Meta = Meta {
    mode: 0o755,
    uid: 0,
    gid: 0,
    mtime: (1_700_000_000, 123_456_789),
};

impl Bench {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image.erofs")
    }

    pub(crate) fn file(&self) -> fs_err::File {
        fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.image())
            .unwrap()
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::create(self.file(), PLAIN).unwrap()
    }

    /// Checks the image and returns the root of its extracted tree.
    pub(crate) fn extract(&self) -> PathBuf {
        let target = self.directory.path().join("extracted");
        if target.exists() {
            fs_err::remove_dir_all(&target).unwrap();
        }
        let extract = format!("--extract={}", target.display());
        let output = Command::new("fsck.erofs")
            .arg(extract)
            .arg(self.image())
            .output();
        let output = output.expect("fsck.erofs runs (package erofs-utils)");
        assert!(
            output.status.success(),
            "fsck.erofs: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        target
    }

    /// Writes an image, checks it and lists its tree.
    pub(crate) fn list(&self, fill: impl FnOnce(&mut Writer)) -> Vec<Line> {
        let mut writer = self.writer();
        fill(&mut writer);
        self.listed(writer.finish().unwrap())
    }

    pub(crate) fn listed(&self, finished: Finished) -> Vec<Line> {
        assert_eq!(finished.file.metadata().unwrap().len(), finished.size);
        drop(finished);
        list(&self.extract())
    }
}

/// One thing in an extracted tree, as text that is easy to compare: path, kind, time, and contents or target.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: &'static str,
    pub(crate) mtime: (i64, i64),
    pub(crate) contents: Vec<u8>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            kind,
            mtime,
            contents,
        } = self;
        let (path, start) = (base::escape(path), base::escape_line(contents, 40));
        write!(
            f,
            "{kind} {path} {mtime:?} {} bytes: {start}",
            contents.len()
        )
    }
}

pub(crate) fn list(root: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in fs_err::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs_err::symlink_metadata(&path).unwrap();
            let kind = metadata.file_type();
            let (name, contents) = if kind.is_dir() {
                pending.push(path.clone());
                ("directory", Vec::new())
            } else if kind.is_symlink() {
                (
                    "symlink",
                    fs_err::read_link(&path)
                        .unwrap()
                        .as_os_str()
                        .as_bytes()
                        .to_vec(),
                )
            } else if kind.is_file() {
                ("file", fs_err::read(&path).unwrap())
            } else if kind.is_fifo() {
                ("fifo", Vec::new())
            } else {
                ("other", Vec::new())
            };
            lines.push(Line {
                path: path
                    .strip_prefix(root)
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec(),
                kind: name,
                mtime: (metadata.mtime(), metadata.mtime_nsec()),
                contents,
            });
        }
    }
    lines.sort();
    lines
}
