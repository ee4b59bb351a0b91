use base::{RelPath, Size};
use std::path::{Path, PathBuf};

/// Why a workspace can't be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// No room.
    #[error("The disk that holds `{dir}` is full")]
    DiskFull {
        /// Where the baseline was to go.
        dir: PathBuf,
    },
    /// The baseline can't be written.
    #[error("Can't write the baseline in `{dir}`")]
    Write {
        /// Where it was to go.
        dir: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The image can't be made.
    #[error("Can't make the image of the workspace")]
    Image {
        /// The writer's reason.
        #[source]
        source: erofs::Error,
    },
    /// A file can't be read.
    #[error("Can't read `{path}`")]
    Read {
        /// Below the workspace's root.
        path: RelPath,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file grew beyond the limit since it was looked at.
    #[error("`{path}` has grown larger than {limit}")]
    Grown {
        /// Below the workspace's root.
        path: RelPath,
        /// The largest size that is allowed.
        limit: Size,
    },
    /// Git can't pack the objects.
    #[error("Git can't pack the history of the repository in `{repository}`")]
    Git {
        /// Its work tree, below the workspace's root.
        repository: RelPath,
        /// What git said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl PackError {
    /// An error of writing in `dir`, which may be that there is no room.
    pub(super) fn write(dir: &Path, source: std::io::Error) -> Self {
        let dir = dir.to_path_buf();
        if is_full(&source) {
            Self::DiskFull { dir }
        } else {
            Self::Write { dir, source }
        }
    }

    /// An error of the image's writer, whose file is in `dir`.
    pub(super) fn image(dir: &Path, source: erofs::Error) -> Self {
        match source {
            erofs::Error::Write(source) => Self::write(dir, source),
            source => Self::Image { source },
        }
    }

    /// An error of packing a repository's objects in `dir`.
    pub(super) fn git(
        dir: &Path,
        repository: &RelPath,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> Self {
        let full = source.downcast_ref::<std::io::Error>().is_some_and(is_full)
            || source.to_string().contains("No space left on device");
        if full {
            return Self::DiskFull {
                dir: dir.to_path_buf(),
            };
        }
        Self::Git {
            repository: repository.clone(),
            source,
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}
