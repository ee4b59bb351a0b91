//! An image from a tar stream: of a builder, or one that is given.

use crate::clean::EPOCH;
use crate::manifest::{Manifest, Origin, Package};
use crate::progress::{Progress, Step};
use crate::store::{Image, ROOT, Store, StoreError, private_file, unfinished};
use crate::{check, dpkg};
use base::{RelPath, Size};
use erofs::tar::{Action, Filter, Kind, Limits};
use erofs::{Meta, Writer};
use std::io::{self, Read};
use std::time::{Instant, SystemTime};

/// A root file system can't be made into an image.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The stream is damaged, too large, or has an entry that an image can't hold.
    #[error("Can't take the root file system")]
    Tar(#[source] erofs::tar::TarError),
    /// The stream holds no root file system.
    #[error("The tar stream is no root file system: it has no `{0}`")]
    NotARoot(&'static str),
    /// The image can't be written.
    #[error("Can't write the image")]
    Image(#[from] erofs::Error),
    /// The store can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the store can't be written or read.
    #[error("Can't write the image")]
    Io(#[from] io::Error),
}

/// The largest root file system: a base image is half a GiB, a distribution with everything a few tens.
pub(crate) const LIMITS: Limits = Limits {
    entries: 4_000_000,
    bytes: 64 << 30,
};

/// Makes an image from a tar of a root file system and stores it. `name` is what the manifest calls it.
///
/// Fails when the stream is damaged, holds what an image can't, or no root file system, or the store can't be written.
pub fn import_tar(
    store: &Store,
    stream: impl Read,
    name: &str,
    efimera: &str,
    progress: &mut dyn Progress,
) -> Result<Image, ImportError> {
    let mut image = Building::start(store)?;
    let mut taker = Taker::default();
    let mut metered = Metered::new(stream, "Packing the image", progress);
    erofs::tar::append(&mut image.writer, &mut metered, LIMITS, &mut taker)
        .map_err(ImportError::Tar)?;
    drop(metered);
    // What no machine could run a command without.
    if !["bin/sh", "usr/bin/sh"].iter().any(|path| image.has(path)) {
        return Err(ImportError::NotARoot("bin/sh"));
    }
    let release = crate::os_release::OsRelease::parse(&String::from_utf8_lossy(&taker.os_release));
    let shown = if release.name.is_empty() {
        name.to_owned()
    } else {
        release.name
    };
    let packages = dpkg::installed(&taker.status);
    image.finish(
        shown,
        Origin::Tar {
            name: name.to_owned(),
        },
        packages,
        efimera,
        progress,
    )
}

/// Keeps everything, and looks at what says what it is.
#[derive(Default)]
struct Taker {
    status: Vec<u8>,
    os_release: Vec<u8>,
}

impl Filter for Taker {
    fn decide(&mut self, path: &RelPath, kind: Kind, _: &mut Meta) -> Action {
        match (kind, path.as_bytes()) {
            (Kind::File, b"var/lib/dpkg/status" | b"usr/lib/os-release" | b"etc/os-release") => {
                Action::Capture
            }
            _ => Action::Keep,
        }
    }

    fn captured(&mut self, path: &RelPath, bytes: &[u8]) {
        let target = if path.as_bytes().ends_with(b"status") {
            &mut self.status
        } else {
            &mut self.os_release
        };
        *target = bytes.to_vec();
    }
}

/// An image that is not in its place yet; dropped, nothing of it is left.
pub(crate) struct Building {
    store: Store,
    directory: tempfile::TempDir,
    pub(crate) writer: Writer,
}

impl Building {
    pub(crate) fn start(store: &Store) -> Result<Self, ImportError> {
        let directory = unfinished(&store.images_directory())?;
        let file = private_file(&directory.path().join(ROOT))?;
        let implied = Meta {
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: (EPOCH, 0),
        };
        Ok(Self {
            store: store.clone(),
            directory,
            writer: Writer::create(file, implied)?,
        })
    }

    /// True when something has this path, links of directories (`bin` to `usr/bin`) not followed.
    fn has(&self, path: &str) -> bool {
        RelPath::new(path).is_ok_and(|path| self.writer.contains(&path))
    }

    pub(crate) fn finish(
        self,
        name: String,
        origin: Origin,
        packages: Vec<Package>,
        efimera: &str,
        progress: &mut dyn Progress,
    ) -> Result<Image, ImportError> {
        let finished = self.writer.finish()?;
        let mut file = finished.file;
        let digest = check::digest_of(
            &mut file,
            finished.size,
            "Taking the image's digest",
            progress,
        )?;
        drop(file);
        let manifest = Manifest {
            form: Manifest::FORM,
            digest,
            size: Size(finished.size),
            architecture: std::env::consts::ARCH.to_owned(),
            name,
            origin,
            efimera: efimera.to_owned(),
            created: now(),
            packages,
        };
        let image = self.store.keep_image(self.directory, &manifest)?;
        image.note_checked();
        Ok(image)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Tells how much went by, a few times a second.
pub(crate) struct Metered<'a, R> {
    reader: R,
    what: &'a str,
    progress: &'a mut dyn Progress,
    done: u64,
    told: Instant,
}

/// Time between two reports of progress, in milliseconds.
const REPORT_EVERY: u128 = 200;

impl<'a, R> Metered<'a, R> {
    pub(crate) fn new(reader: R, what: &'a str, progress: &'a mut dyn Progress) -> Self {
        Self {
            reader,
            what,
            progress,
            done: 0,
            told: Instant::now(),
        }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.done += count as u64;
        if self.told.elapsed().as_millis() >= REPORT_EVERY {
            self.told = Instant::now();
            self.progress.step(Step::bytes(self.what, self.done, None));
        }
        Ok(count)
    }
}
