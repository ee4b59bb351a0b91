//! The baseline: the exact content that went into a machine, and what every diff is taken against.
//!
//! On disk it is a directory of two files: `image.erofs`, which the guest mounts as its workspace, and
//! `baseline.bin`, a versioned list of entries that says for each path what it is, its digest, and where its
//! bytes lie in the image. The sanitised git directories are in the image and not in the list, so that no diff
//! can ever speak of them.

use crate::codec::{Decoder, Encoder, Malformed};
use crate::{GitFacts, Ignore, Omitted};
use base::{Digest, RelPath, Size};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
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
/// Names the list's format and its version.
const MAGIC: [u8; 8] = *b"efi-bas\x01";
/// A list of more bytes is refused: a million long paths stay well below.
const MAX_LIST_BYTES: u64 = 4 << 30;

/// A baseline on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The directory that holds the two files.
    pub dir: PathBuf,
    /// The workspace's root on the host, absolute.
    pub root: PathBuf,
    /// Where in it the command was given.
    pub cwd: RelPath,
    /// All paths, in the order of their bytes, without the root itself.
    pub entries: Vec<Entry>,
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
    /// Reads the baseline in `dir`.
    ///
    /// Fails when a file is missing, cut off or of another version.
    pub fn load(dir: &Path) -> Result<Self, BaselineError> {
        let io = |source| BaselineError::Io {
            dir: dir.to_path_buf(),
            source,
        };
        let path = dir.join(LIST_FILE);
        let list = |source| BaselineError::List {
            dir: dir.to_path_buf(),
            source,
        };
        if fs_err::metadata(&path).map_err(io)?.len() > MAX_LIST_BYTES {
            return Err(list(Malformed::Nonsense));
        }
        let bytes = fs_err::read(path).map_err(io)?;
        let baseline = Self::decode(dir, &bytes).map_err(list)?;
        let found = fs_err::metadata(baseline.image()).map_err(io)?.len();
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
    pub fn entry(&self, path: &RelPath) -> Option<&Entry> {
        self.entries
            .binary_search_by(|entry| entry.path.cmp(path))
            .ok()
            .map(|at| &self.entries[at])
    }

    /// Everything below the directory `dir`, in the order of its bytes.
    pub fn below(&self, dir: &RelPath) -> impl Iterator<Item = &Entry> {
        // Between `a` and what lies in it, there may be `a-b`.
        let start = self.entries.partition_point(|entry| entry.path < *dir);
        let end_key = [dir.as_bytes(), b"0"].concat();
        self.entries[start..]
            .iter()
            .take_while(move |entry| {
                end_key.len() == 1 || entry.path.as_bytes() < end_key.as_slice()
            })
            .filter(move |entry| entry.path != *dir && entry.path.is_within(dir))
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

    /// Writes the list into `self.dir`, which holds the image.
    pub(crate) fn save(&self, bytes: &[u8]) -> std::io::Result<()> {
        use fs_err::os::unix::fs::OpenOptionsExt as _;
        let mut options = fs_err::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.dir.join(LIST_FILE))?;
        file.write_all(bytes)
    }

    /// The bytes of the list. The directory is no part of it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new(MAGIC);
        // What is small and may grow is JSON; what is many is binary.
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
        out.u64(self.entries.len() as u64);
        for entry in &self.entries {
            out.bytes(entry.path.as_bytes());
            out.byte(match entry.kind {
                Kind::File => 0,
                Kind::Dir => 1,
                Kind::Symlink => 2,
            });
            out.u32(entry.mode);
            out.time(entry.mtime);
            match entry.kind {
                Kind::File => {
                    out.u64(entry.size);
                    out.u64(entry.offset);
                    out.raw(entry.digest.unwrap_or_else(|| Digest::of(b"")).as_bytes());
                }
                Kind::Dir => {}
                Kind::Symlink => out.bytes(&entry.target),
            }
        }
        out.finish()
    }

    fn decode(dir: &Path, bytes: &[u8]) -> Result<Self, Malformed> {
        let path = |bytes: &[u8]| match bytes {
            [] => Ok(RelPath::root()),
            bytes => RelPath::new(bytes).map_err(|_| Malformed::Nonsense),
        };
        let mut input = Decoder::new(bytes, MAGIC)?;
        let header: Header =
            serde_json::from_slice(input.bytes()?).map_err(|_| Malformed::Nonsense)?;
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
        let entries = (0..input.count(25)?)
            .map(|_| {
                let path = path(input.bytes()?)?;
                let kind = match input.byte()? {
                    0 => Kind::File,
                    1 => Kind::Dir,
                    2 => Kind::Symlink,
                    _ => return Err(Malformed::Nonsense),
                };
                let (mode, mtime) = (input.u32()?, input.time()?);
                let mut entry = Entry {
                    path,
                    kind,
                    mode,
                    size: 0,
                    mtime,
                    digest: None,
                    offset: 0,
                    target: Vec::new(),
                };
                match kind {
                    Kind::File => {
                        (entry.size, entry.offset) = (input.u64()?, input.u64()?);
                        let digest = input.raw(32)?.try_into().map_err(|_| Malformed::Nonsense)?;
                        entry.digest = Some(Digest::from_bytes(digest));
                    }
                    Kind::Dir => {}
                    Kind::Symlink => {
                        entry.target = input.bytes()?.to_vec();
                        entry.size = entry.target.len() as u64;
                        entry.digest = Some(Digest::of(&entry.target));
                    }
                }
                Ok(entry)
            })
            .collect::<Result<Vec<_>, Malformed>>()?;
        input.finish()?;
        if !entries.is_sorted_by(|a, b| a.path < b.path) {
            return Err(Malformed::Nonsense);
        }
        let Header {
            left_out,
            tracked_secrets,
            unsettled,
            nested,
            git,
        } = header;
        let dir = dir.to_path_buf();
        Ok(Self {
            dir,
            root,
            cwd,
            entries,
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
