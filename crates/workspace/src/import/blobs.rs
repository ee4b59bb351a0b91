//! Contents by digest: a directory `blobs` of files named by 64 hex digits.

use base::{Digest, Hasher};
use fs_err as fs;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Takes contents one after the other, digest last. Implemented over [`BlobDir`], and over memory in tests.
pub trait BlobSink {
    /// Starts a content; one that was not finished is thrown away.
    fn begin(&mut self) -> io::Result<()>;
    /// More of its bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Keeps it under `digest`, which is that of all bytes since `begin`.
    fn finish(&mut self, digest: &Digest) -> io::Result<()>;
    /// Throws it away.
    fn discard(&mut self);
    /// True when a content of this digest and size is kept already. (After a power cut a file may be there and
    /// empty, hence the size.)
    fn holds(&self, digest: &Digest, size: u64) -> bool;
    /// Starts to bring everything that was finished to the disk. Contents are checked when they are read, so that
    /// a power cut before it is done is noticed.
    fn sync(&mut self) -> io::Result<()>;
}

/// Contents in a directory. Files are 0600, come by rename, and are written once.
#[derive(Debug)]
pub struct BlobDir {
    dir: PathBuf,
    open: Option<BufWriter<fs::File>>,
    dirty: bool,
}

/// The name of the content that is being written. One writer at a time: the supervisor.
const PARTIAL: &str = "partial";

impl BlobDir {
    /// Opens `dir`, and makes it (0700) when it is not there.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, Permissions::from_mode(0o700))?;
        Ok(Self {
            dir,
            open: None,
            dirty: false,
        })
    }

    /// Where the contents lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that holds `digest`, whether or not it is there.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.hex())
    }

    /// The whole content, checked against its digest. Sources: not there; not what its name says
    /// (`InvalidData`).
    pub fn read(&self, digest: &Digest) -> io::Result<Vec<u8>> {
        let bytes = fs::read(self.path(digest))?;
        if Digest::of(&bytes) != *digest {
            return Err(damaged(&self.path(digest)));
        }
        Ok(bytes)
    }

    /// Copies the content to `to`, and fails after the last byte when it was not what its name says.
    pub fn copy(&self, digest: &Digest, to: &mut dyn io::Write) -> io::Result<u64> {
        copy_checked(&mut fs::File::open(self.path(digest))?, digest, to)
    }

    /// Keeps `bytes`.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        if !self.holds(&digest, bytes.len() as u64) {
            self.begin()?;
            self.write(bytes)?;
            self.finish(&digest)?;
        }
        Ok(digest)
    }

    /// Removes every content that is not in `wanted`: those of older checkpoints.
    pub fn retain(&mut self, wanted: &BTreeSet<Digest>) -> io::Result<()> {
        let names: BTreeSet<_> = wanted.iter().map(Digest::hex).collect();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !entry
                .file_name()
                .to_str()
                .is_some_and(|name| names.contains(name))
            {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Copies all of `from` to `to`; `InvalidData` when it did not have this digest.
pub(crate) fn copy_checked(
    from: &mut dyn io::Read,
    digest: &Digest,
    to: &mut dyn io::Write,
) -> io::Result<u64> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut total = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        total += count as u64;
    }
    if hasher.finish() != *digest {
        let text = format!("The content of {} is damaged", digest.short());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(total)
}

fn damaged(path: &Path) -> io::Error {
    let text = format!(
        "`{}` is damaged: its content is not what its name says",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl BlobSink for BlobDir {
    fn begin(&mut self) -> io::Result<()> {
        use fs::os::unix::fs::OpenOptionsExt as _;
        self.open = None;
        let path = self.dir.join(PARTIAL);
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        self.open = Some(BufWriter::with_capacity(128 * 1024, file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.open {
            Some(file) => file.write_all(bytes),
            None => Err(io::Error::other("no content was started")),
        }
    }

    fn finish(&mut self, digest: &Digest) -> io::Result<()> {
        let Some(mut file) = self.open.take() else {
            return Err(io::Error::other("no content was started"));
        };
        let partial = self.dir.join(PARTIAL);
        if let Err(error) = file.flush() {
            fs::remove_file(partial).ok();
            return Err(error);
        }
        self.dirty = true;
        fs::rename(partial, self.path(digest))
    }

    fn discard(&mut self) {
        if self.open.take().is_some() {
            // The next content overwrites it, so nothing depends on this.
            fs::remove_file(self.dir.join(PARTIAL)).ok();
        }
    }

    fn holds(&self, digest: &Digest, size: u64) -> bool {
        fs::symlink_metadata(self.path(digest))
            .is_ok_and(|found| found.is_file() && found.len() == size)
    }

    fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.dirty) {
            let dir = fs::File::open(&self.dir)?;
            // One call for all files: an fsync each would take seconds for a thousand small ones. It waits for
            // whatever else is written to the file system, and whoever calls us must not.
            std::thread::Builder::new()
                .name("sync".to_owned())
                .spawn(move || rustix::fs::syncfs(dir.file()).ok())?;
        }
        Ok(())
    }
}
