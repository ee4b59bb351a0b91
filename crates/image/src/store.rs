use crate::check::{self, CheckError};
use crate::kernel::{Kernel, KernelError, KernelRecord};
use crate::manifest::Manifest;
use crate::progress::Progress;
use base::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The data directory's images, kernels and scratch disks.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it holds.
    pub manifest: Manifest,
    directory: PathBuf,
}

/// The data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A directory can't be made or listed, or something in it not be written or removed. The source names the path.
    #[error("Can't use the data directory")]
    Io(#[from] io::Error),
    /// A record can't be understood: damaged, or of a later version.
    #[error("Can't read the record `{}`", path.display())]
    Record {
        /// The record's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// An image can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No image is called that.
    #[error("There is no image `{0}`")]
    Unknown(String),
    /// Several are.
    #[error("`{0}` is the beginning of several images' digests")]
    Ambiguous(String),
    /// Its file can't be read.
    #[error("Can't read the image {}", digest.short())]
    Read {
        /// The image.
        digest: Digest,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its file is not what was built.
    #[error("The image {} was cut off or altered since it was built; `efimera image build` builds it anew", digest.short())]
    Altered {
        /// The image.
        digest: Digest,
    },
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Opens the store in `data_directory`, which is made where it is missing. What an interrupted build left a day ago or
    /// earlier is removed.
    ///
    /// Fails when a directory can't be made.
    pub fn open(data_directory: &Path) -> Result<Self, StoreError> {
        let store = Self {
            root: data_directory.to_path_buf(),
        };
        for directory in [
            &store.root,
            &store.images_directory(),
            &store.kernels_directory(),
            &store.scratch_directory(),
        ] {
            private_directory(directory)?;
            sweep(directory)?;
        }
        Ok(store)
    }

    /// All images whose record can be read, the newest first.
    ///
    /// Fails when the directory can't be listed.
    pub fn images(&self) -> Result<Vec<Image>, StoreError> {
        let mut images: Vec<Image> = entries(&self.images_directory())?
            .into_iter()
            .filter_map(|directory| Self::read_image(directory).ok())
            .collect();
        images.sort_by_key(|image| {
            (
                std::cmp::Reverse(image.manifest.created),
                image.manifest.digest,
            )
        });
        Ok(images)
    }

    /// The image with this digest, or with one that begins so (at least four digits).
    pub fn image(&self, name: &str) -> Result<Image, ImageError> {
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let mut found: Vec<_> = self.images()?;
        found.retain(|image| hex.len() >= 4 && image.manifest.digest.hex().starts_with(hex));
        match (found.pop(), found.is_empty()) {
            (Some(image), true) => Ok(image),
            (Some(_), false) => Err(ImageError::Ambiguous(base::escape_line(
                name.as_bytes(),
                80,
            ))),
            (None, _) => Err(ImageError::Unknown(base::escape_line(name.as_bytes(), 80))),
        }
    }

    /// The newest image, if there is one.
    ///
    /// Fails when the directory can't be listed.
    pub fn newest_image(&self) -> Result<Option<Image>, StoreError> {
        Ok(self.images()?.into_iter().next())
    }

    /// Removes an image. Machines that run from it go on: they hold its file open.
    ///
    /// Fails when its files can't be removed.
    pub fn remove_image(&self, image: &Image) -> Result<(), StoreError> {
        Self::remove(&image.directory)
    }

    /// Entries that are no image or kernel that this version can use, with the reason.
    ///
    /// Fails when a directory can't be listed.
    pub fn faulty(&self) -> Result<Vec<(PathBuf, StoreError)>, StoreError> {
        let mut faulty = Vec::new();
        for directory in entries(&self.images_directory())? {
            if let Err(error) = Self::read_image(directory.clone()) {
                faulty.push((directory, error));
            }
        }
        for directory in entries(&self.kernels_directory())? {
            if let Err(error) = read_record::<KernelRecord>(&directory.join(KernelRecord::FILE)) {
                faulty.push((directory, error));
            }
        }
        Ok(faulty)
    }

    /// All kernels whose record can be read, the newest first.
    ///
    /// Fails when the directory can't be listed.
    pub fn kernels(&self) -> Result<Vec<Kernel>, StoreError> {
        let mut kernels: Vec<Kernel> = entries(&self.kernels_directory())?
            .into_iter()
            .filter_map(|directory| {
                let record = read_record(&directory.join(KernelRecord::FILE)).ok()?;
                Some(Kernel::new(record, directory))
            })
            .collect();
        kernels.sort_by_key(|kernel| {
            (
                std::cmp::Reverse(kernel.record().created),
                kernel.record().id.clone(),
            )
        });
        Ok(kernels)
    }

    /// The kernel with this id.
    pub fn kernel(&self, id: &str) -> Result<Kernel, KernelError> {
        let found = self
            .kernels()?
            .into_iter()
            .find(|kernel| kernel.record().id == id);
        found.ok_or_else(|| KernelError::Unknown(base::escape_line(id.as_bytes(), 80)))
    }

    /// The newest kernel, if there is one.
    ///
    /// Fails when the directory can't be listed.
    pub fn newest_kernel(&self) -> Result<Option<Kernel>, StoreError> {
        Ok(self.kernels()?.into_iter().next())
    }

    /// Removes a kernel.
    ///
    /// Fails when its files can't be removed.
    pub fn remove_kernel(&self, kernel: &Kernel) -> Result<(), StoreError> {
        Self::remove(kernel.directory())
    }

    pub(crate) fn images_directory(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(crate) fn kernels_directory(&self) -> PathBuf {
        self.root.join("kernels")
    }

    pub(crate) fn scratch_directory(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Puts a finished image into its place.
    pub(crate) fn keep_image(
        &self,
        new: tempfile::TempDir,
        manifest: &Manifest,
    ) -> Result<Image, StoreError> {
        write_record(&new.path().join(MANIFEST), manifest)?;
        let directory = self.images_directory().join(manifest.digest.hex());
        replace(new, &directory)?;
        Self::read_image(directory)
    }

    /// Puts a finished kernel into its place.
    pub(crate) fn keep_kernel(
        &self,
        new: tempfile::TempDir,
        record: KernelRecord,
    ) -> Result<Kernel, StoreError> {
        write_record(&new.path().join(KernelRecord::FILE), &record)?;
        let directory = self.kernels_directory().join(&record.id);
        replace(new, &directory)?;
        Ok(Kernel::new(record, directory))
    }

    fn read_image(directory: PathBuf) -> Result<Image, StoreError> {
        Ok(Image {
            manifest: read_record(&directory.join(MANIFEST))?,
            directory,
        })
    }

    fn remove(directory: &Path) -> Result<(), StoreError> {
        // First under another name, so that nobody takes what is half gone for an image.
        let parent = directory.parent().unwrap_or(directory);
        let grave = unfinished(parent)?;
        fs_err::rename(directory, grave.path().join("removed"))?;
        grave.close()?;
        Ok(())
    }
}

impl Image {
    /// The image's digest.
    pub fn digest(&self) -> Digest {
        self.manifest.digest
    }

    /// The image's file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(ROOT)
    }

    /// Opens the image's file for reading after making sure that it is what was built. That takes a second or so once
    /// per boot of the host, and nothing afterwards.
    ///
    /// Fails when the file can't be read or was altered.
    pub fn open(&self, progress: &mut dyn Progress) -> Result<fs_err::File, ImageError> {
        let digest = self.digest();
        let record = self.directory.join(CHECKED);
        check::open(
            &self.path(),
            digest,
            &record,
            "Checking the base image",
            progress,
        )
        .map_err(|error| match error {
            CheckError::Read(source) => ImageError::Read { digest, source },
            CheckError::Altered => ImageError::Altered { digest },
        })
    }

    /// Notes down that the digest has just been taken.
    pub(crate) fn note_checked(&self) {
        check::note(&self.path(), self.digest(), &self.directory.join(CHECKED));
    }
}

/// The root file system in an image's directory.
pub(crate) const ROOT: &str = "root.erofs";
/// The record of the last check, beside what was checked.
pub(crate) const CHECKED: &str = "checked.json";
const MANIFEST: &str = "manifest.json";
/// What is being built or removed has a name that begins so, and is never taken for anything.
pub(crate) const UNFINISHED: &str = ".new-";

pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// A directory beside `directory`'s entries to build something in; it goes away unless it is kept.
pub(crate) fn unfinished(directory: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(directory)
}

/// A file that only its owner can read, and that is not there yet.
pub(crate) fn private_file(path: &Path) -> io::Result<fs_err::File> {
    use fs_err::os::unix::fs::OpenOptionsExt as _;
    fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Removes what was being built when its builder was killed. A day is longer than any build.
fn sweep(directory: &Path) -> io::Result<()> {
    const DAY: Duration = Duration::from_hours(24);
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(UNFINISHED.as_bytes())
        {
            continue;
        }
        // Another process may have removed it meanwhile, or its owner may be someone else: then it stays.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let age = metadata.modified()?.elapsed().unwrap_or_default();
        if age > DAY {
            drop(if metadata.is_dir() {
                fs_err::remove_dir_all(entry.path())
            } else {
                fs_err::remove_file(entry.path())
            });
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            entries.push(entry.path());
        }
    }
    entries.sort();
    Ok(entries)
}

/// Renames a finished directory to its place. What is there already is replaced: it has the same name, so the same
/// contents, unless it was damaged.
fn replace(new: tempfile::TempDir, place: &Path) -> Result<(), StoreError> {
    if place.exists() {
        Store::remove(place)?;
    }
    let new = new.keep();
    sync(&new)?;
    if let Err(error) = fs_err::rename(&new, place) {
        // Nothing more can be done about what is left of it.
        drop(fs_err::remove_dir_all(&new));
        return Err(error.into());
    }
    Ok(())
}

/// Makes sure that the files are on disk before their name says that they are complete.
fn sync(directory: &Path) -> io::Result<()> {
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        } else {
            fs_err::File::open(entry.path())?.sync_all()?;
        }
    }
    fs_err::File::open(directory)?.sync_all()
}

fn read_record<T: DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let bytes = fs_err::read(path)?;
    serde_json::from_slice(&bytes).map_err(|source| StoreError::Record {
        path: path.to_path_buf(),
        source,
    })
}

fn write_record<T: Serialize>(path: &Path, record: &T) -> Result<(), StoreError> {
    use io::Write as _;
    let bytes = serde_json::to_vec_pretty(record).map_err(|source| StoreError::Record {
        path: path.to_path_buf(),
        source,
    })?;
    private_file(path)?.write_all(&bytes)?;
    Ok(())
}
