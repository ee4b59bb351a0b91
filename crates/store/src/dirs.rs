use crate::StoreError;
use base::Name;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where things lie. `cli` decides by the environment; nothing here reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// What is kept: sandboxes, results, baselines, images, kernels.
    pub data: PathBuf,
    /// What can be made again.
    pub cache: PathBuf,
    /// Sockets, gone with the host's boot.
    pub run: PathBuf,
}

/// The directories, made and private to their user.
#[derive(Debug, Clone)]
pub struct Store {
    dirs: Dirs,
}

impl Store {
    /// Makes the directories that are missing (mode 0700), and refuses those of somebody else.
    pub fn open(dirs: Dirs) -> Result<Self, StoreError> {
        let store = Self { dirs };
        let Dirs { data, cache, run } = &store.dirs;
        for dir in [
            data.clone(),
            cache.clone(),
            run.clone(),
            store.sandboxes_dir(),
            store.results_dir(),
            store.baselines_dir(),
            store.images_dir(),
            store.kernels_dir(),
        ] {
            make_private(&dir).map_err(|source| StoreError::io("make", &dir, source))?;
        }
        Ok(store)
    }

    /// What it was opened with.
    pub fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// `data/sandboxes`.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.dirs.data.join("sandboxes")
    }

    /// `data/results`.
    pub fn results_dir(&self) -> PathBuf {
        self.dirs.data.join("results")
    }

    /// `data/baselines`.
    pub fn baselines_dir(&self) -> PathBuf {
        self.dirs.data.join("baselines")
    }

    /// `data/images`.
    pub fn images_dir(&self) -> PathBuf {
        self.dirs.data.join("images")
    }

    /// `data/templates`.
    pub fn templates_dir(&self) -> PathBuf {
        self.dirs.data.join("templates")
    }

    /// `data/kernels`.
    pub fn kernels_dir(&self) -> PathBuf {
        self.dirs.data.join("kernels")
    }

    /// A sandbox's directory, there or not.
    pub fn sandbox_dir(&self, name: &Name) -> PathBuf {
        self.sandboxes_dir().join(name.as_str())
    }

    /// The scratch disk of a kept sandbox.
    pub fn scratch_path(&self, name: &Name) -> PathBuf {
        self.sandbox_dir(name).join("scratch.img")
    }

    /// A baseline's directory; `key` is [`crate::Spec::baseline`].
    pub fn baseline_dir(&self, key: &str) -> PathBuf {
        self.baselines_dir().join(key)
    }

    /// The socket of a sandbox's supervisor.
    pub fn socket_path(&self, name: &Name) -> PathBuf {
        self.dirs.run.join(format!("{name}.sock"))
    }
}

/// Makes `dir` and what is missing above it, 0700. One that is there already must be ours; too wide a mode is
/// narrowed.
fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = fs_err::metadata(dir)?;
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us {
        return Err(io::Error::other(format!(
            "it belongs to user {}, and we are user {us}",
            found.uid()
        )));
    }
    if found.mode() & 0o077 != 0 {
        use std::os::unix::fs::PermissionsExt as _;
        fs_err::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Renames `from` to `to` unless something with content is there: false then.
pub(crate) fn take_name(from: &Path, to: &Path) -> Result<bool, StoreError> {
    match fs_err::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::DirectoryNotEmpty
                    | io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(StoreError::io("name", to, error)),
    }
}

/// Makes a directory disappear at once, and then removes it. False when it was not there.
pub(crate) fn remove_tree(dir: &Path) -> Result<bool, StoreError> {
    let hidden = dir.with_file_name(format!("{GONE}{}", crate::document::unique()));
    match fs_err::rename(dir, &hidden) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(StoreError::io("remove", dir, error)),
    }
    fs_err::remove_dir_all(&hidden).map_err(|error| StoreError::io("remove", &hidden, error))?;
    Ok(true)
}

/// A new hidden directory in `parent`, for [`take_name`].
pub(crate) fn hidden_dir(parent: &Path) -> Result<PathBuf, StoreError> {
    let dir = parent.join(format!("{NEW}{}", crate::document::unique()));
    DirBuilder::new()
        .mode(0o700)
        .create(&dir)
        .map_err(|error| StoreError::io("make", &dir, error))?;
    Ok(dir)
}

/// The names that lie in a directory of ours; hidden and foreign ones are passed over.
pub(crate) fn names_in(dir: &Path) -> Result<Vec<Name>, StoreError> {
    let io = |error| StoreError::io("list", dir, error);
    let mut names = Vec::new();
    for entry in fs_err::read_dir(dir).map_err(io)? {
        let file_name = entry.map_err(io)?.file_name();
        if let Some(name) = file_name.to_str().and_then(|text| text.parse().ok()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Prefix of a directory that is being made.
pub(crate) const NEW: &str = ".new-";
/// Prefix of a directory that is being removed.
pub(crate) const GONE: &str = ".gone-";
