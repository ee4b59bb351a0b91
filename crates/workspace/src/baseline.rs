//! The baseline: the exact content that went into a machine, and what every diff is taken against.
//!
//! On disk it is a directory of two files: `image.erofs`, which the guest mounts as its workspace, and
//! `baseline.bin`, a versioned list of entries that says for each path what it is, its digest, and where its
//! bytes lie in the image (see [`crate::list`]). The sanitised git directories are in the image and not in the list, so that no diff
//! can ever speak of them.

use crate::codec::{Decoder, Encoder, Malformed};
use crate::list::{Entries, ListWriter};
use crate::{GitFacts, Ignore, Listing as _, Omitted};
use base::{Digest, RelPath, Size};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// What a path is. Anything else (devices, FIFOs, sockets) never goes in and never comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; its content is its target.
    Symlink,
}

/// One path of the baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Below the workspace root.
    pub path: RelPath,
    /// File, directory or link.
    pub kind: Kind,
    /// Permission bits (`0o777` at most). Meaningless for links, where it is `0o777`.
    pub mode: u32,
    /// Bytes of a file, or of a link's target; 0 for a directory.
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Digest of a file's bytes or of a link's target; `None` for a directory.
    pub digest: Option<Digest>,
    /// Where a file's bytes start in the image, in bytes. Links keep theirs in [`Entry::target`].
    pub offset: u64,
    /// A link's target; empty for others.
    pub target: Vec<u8>,
}

/// A file of ignore rules as it was when the baseline was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoreFile {
    /// The directory whose content the rules speak of (the root for `info/exclude` and the user's own file).
    pub dir: RelPath,
    /// The rules, in gitignore's syntax.
    pub rules: Vec<u8>,
}

/// The size of every baseline's image, with a hole behind what it holds: a guest learns a disk's size once, which for
/// one that starts from a template is before there is a workspace. Three times the largest workspace that goes in.
pub const DISK_SIZE: Size = Size::gib(64);
/// The image's name in a baseline's directory.
pub const IMAGE_FILE: &str = "image.erofs";
/// The list's name in a baseline's directory.
pub const LIST_FILE: &str = "baseline.bin";
/// Names the format of what the list says beside its entries.
const ABOUT_MAGIC: [u8; 8] = *b"efi-abo\x01";

/// A baseline on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The directory that holds the two files.
    pub dir: PathBuf,
    /// The workspace's root on the host, absolute.
    pub root: PathBuf,
    /// Where in it the command was given.
    pub cwd: RelPath,
    /// All paths, on disk.
    pub entries: Entries,
    /// Rules that decide what is ignored, the weakest first. [`Baseline::ignore_rules`] reads them.
    pub ignore: Vec<IgnoreFile>,
    /// Roots of repositories below the workspace's own, where ignore rules from above end.
    pub nested: Vec<RelPath>,
    /// What did not go in.
    pub left_out: Omitted,
    /// Tracked files that look like secrets and went in.
    pub tracked_secrets: Vec<RelPath>,
    /// Files that kept changing while they were read: each is a whole of bytes that were there, and perhaps not at
    /// one time.
    pub unsettled: Vec<RelPath>,
    /// What there is of git.
    pub git: Option<GitFacts>,
    /// Permission bits and time of the root.
    pub root_meta: (u32, (i64, u32)),
    /// Bytes of the image.
    pub image_size: u64,
    /// Where in the image the data of files ends and the metadata begins.
    pub data_end: u64,
}

/// Why a baseline can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// A file can't be read or written.
    #[error("Can't use the baseline in `{dir}`")]
    Io {
        /// Its directory.
        dir: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The list is not one, or not whole.
    #[error("The list of the baseline in `{dir}` is damaged")]
    List {
        /// Its directory.
        dir: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Malformed,
    },
    /// The image is not as long as the list says.
    #[error(
        "The image of the baseline in `{dir}` is damaged: it has {found} bytes, not {expected}"
    )]
    Image {
        /// Its directory.
        dir: PathBuf,
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A file's bytes in the image are not what the list says.
    #[error("The image of the baseline in `{dir}` is damaged: `{path}` has changed")]
    Content {
        /// The baseline's directory.
        dir: PathBuf,
        /// The path.
        path: RelPath,
    },
}

impl Baseline {
    /// Opens the baseline in `dir`. Its entries are read when they are asked for.
    ///
    /// Fails when a file is missing, cut off or of another version.
    pub fn load(dir: &Path) -> Result<Self, BaselineError> {
        let (entries, about) = Entries::open(dir, LIST_FILE)?;
        let about = About::decode(&about).map_err(|source| BaselineError::List {
            dir: dir.to_path_buf(),
            source,
        })?;
        let baseline = about.with(dir.to_path_buf(), entries);
        let found = fs_err::metadata(baseline.image())
            .map_err(|source| BaselineError::Io {
                dir: dir.to_path_buf(),
                source,
            })?
            .len();
        if found != baseline.image_size {
            return Err(BaselineError::Image {
                dir: dir.to_path_buf(),
                expected: baseline.image_size,
                found,
            });
        }
        Ok(baseline)
    }

    /// The image's path.
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE_FILE)
    }

    /// What the baseline has at `path`.
    ///
    /// Fails when the list can't be read or is damaged there.
    pub fn entry(&self, path: &RelPath) -> Result<Option<Entry>, BaselineError> {
        self.entries.find(path)
    }

    /// Everything below the directory `dir`, in the order of its bytes.
    ///
    /// Fails when the list can't be read or is damaged there.
    pub fn below(&self, dir: &RelPath) -> Result<Vec<Entry>, BaselineError> {
        self.entries.below(dir)
    }

    /// The rules that decide what is ignored.
    pub fn ignore_rules(&self) -> Ignore {
        Ignore::new(&self.ignore, self.nested.iter().cloned())
    }

    /// The bytes of a file, or a link's target, checked against its digest. `entry` must be one of this baseline's.
    ///
    /// Fails when the image can't be read or was changed.
    pub fn read(&self, entry: &Entry) -> Result<Vec<u8>, BaselineError> {
        if entry.kind != Kind::File {
            return Ok(entry.target.clone());
        }
        let content = || BaselineError::Content {
            dir: self.dir.clone(),
            path: entry.path.clone(),
        };
        let io = |source| BaselineError::Io {
            dir: self.dir.clone(),
            source,
        };
        let fits = entry
            .offset
            .checked_add(entry.size)
            .is_some_and(|end| end <= self.image_size);
        let size = usize::try_from(entry.size)
            .ok()
            .filter(|_| fits)
            .ok_or_else(content)?;
        let mut bytes = vec![0; size];
        let image = fs_err::File::open(self.image()).map_err(io)?;
        image
            .file()
            .read_exact_at(&mut bytes, entry.offset)
            .map_err(io)?;
        if entry
            .digest
            .is_some_and(|digest| digest != Digest::of(&bytes))
        {
            return Err(content());
        }
        Ok(bytes)
    }

    /// What is said about it beside its entries.
    fn about(&self) -> About {
        About {
            root: self.root.clone(),
            cwd: self.cwd.clone(),
            ignore: self.ignore.clone(),
            nested: self.nested.clone(),
            left_out: self.left_out.clone(),
            tracked_secrets: self.tracked_secrets.clone(),
            unsettled: self.unsettled.clone(),
            git: self.git.clone(),
            root_meta: self.root_meta,
            image_size: self.image_size,
            data_end: self.data_end,
        }
    }

    /// The same said about other entries, or other things about the same ones.
    pub(crate) fn is_described_as(&self, about: &About) -> bool {
        self.about() == *about
    }
}

/// Everything of a baseline but its entries and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) root: PathBuf,
    pub(crate) cwd: RelPath,
    pub(crate) ignore: Vec<IgnoreFile>,
    pub(crate) nested: Vec<RelPath>,
    pub(crate) left_out: Omitted,
    pub(crate) tracked_secrets: Vec<RelPath>,
    pub(crate) unsettled: Vec<RelPath>,
    pub(crate) git: Option<GitFacts>,
    pub(crate) root_meta: (u32, (i64, u32)),
    pub(crate) image_size: u64,
    pub(crate) data_end: u64,
}

impl About {
    /// Writes the list of a baseline into `dir`, with entries that come in the order of the bytes of their paths.
    /// The digest is that of the whole.
    pub(crate) fn save<'a>(
        &self,
        dir: &Path,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> std::io::Result<Digest> {
        let mut list = ListWriter::new(new_list(dir)?)?;
        for entry in entries {
            list.push(entry)?;
        }
        list.finish(&self.encode())
    }

    /// The same with the entries of another list.
    pub(crate) fn save_with(&self, dir: &Path, entries: &Entries) -> std::io::Result<Digest> {
        entries.copy_to(new_list(dir)?)?.finish(&self.encode())
    }

    fn with(self, dir: PathBuf, entries: Entries) -> Baseline {
        Baseline {
            dir,
            root: self.root,
            cwd: self.cwd,
            entries,
            ignore: self.ignore,
            nested: self.nested,
            left_out: self.left_out,
            tracked_secrets: self.tracked_secrets,
            unsettled: self.unsettled,
            git: self.git,
            root_meta: self.root_meta,
            image_size: self.image_size,
            data_end: self.data_end,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new(ABOUT_MAGIC);
        // What is small and may grow is JSON; bytes that may be anything are not.
        let header = Header {
            left_out: self.left_out.clone(),
            tracked_secrets: self.tracked_secrets.clone(),
            unsettled: self.unsettled.clone(),
            nested: self.nested.clone(),
            git: self.git.clone(),
        };
        out.bytes(&serde_json::to_vec(&header).unwrap_or_default());
        out.bytes(self.root.as_os_str().as_bytes());
        out.bytes(self.cwd.as_bytes());
        out.u32(self.root_meta.0);
        out.time(self.root_meta.1);
        out.u64(self.image_size);
        out.u64(self.data_end);
        out.u64(self.ignore.len() as u64);
        for file in &self.ignore {
            out.bytes(file.dir.as_bytes());
            out.bytes(&file.rules);
        }
        out.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let path = |bytes: &[u8]| match bytes {
            [] => Ok(RelPath::root()),
            bytes => RelPath::new(bytes).map_err(|_| Malformed::Nonsense),
        };
        let mut input = Decoder::new(bytes, ABOUT_MAGIC)?;
        let Header {
            left_out,
            tracked_secrets,
            unsettled,
            nested,
            git,
        } = serde_json::from_slice(input.bytes()?).map_err(|_| Malformed::Nonsense)?;
        let root = PathBuf::from(std::ffi::OsString::from_vec(input.bytes()?.to_vec()));
        let cwd = path(input.bytes()?)?;
        let root_meta = (input.u32()?, input.time()?);
        let (image_size, data_end) = (input.u64()?, input.u64()?);
        let ignore = (0..input.count(16)?)
            .map(|_| {
                Ok(IgnoreFile {
                    dir: path(input.bytes()?)?,
                    rules: input.bytes()?.to_vec(),
                })
            })
            .collect::<Result<_, Malformed>>()?;
        input.finish()?;
        Ok(Self {
            root,
            cwd,
            ignore,
            nested,
            left_out,
            tracked_secrets,
            unsettled,
            git,
            root_meta,
            image_size,
            data_end,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    left_out: Omitted,
    tracked_secrets: Vec<RelPath>,
    unsettled: Vec<RelPath>,
    nested: Vec<RelPath>,
    git: Option<GitFacts>,
}

/// An empty file for a list in `dir`.
fn new_list(dir: &Path) -> std::io::Result<fs_err::File> {
    use fs_err::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs_err::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join(LIST_FILE))
}
