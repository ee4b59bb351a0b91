//! What is remembered of the last pack of a workspace, so that the next one reads only what changed.

use crate::codec::{Decoder, Encoder, Malformed};
use crate::git::Oid;
use base::{Digest, RelPath};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MAGIC: [u8; 8] = *b"efi-mem\x01";

/// The last pack of a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// The name of the baseline's directory.
    pub(super) baseline: String,
    /// Owner of the files in the image.
    pub(super) owner: (u32, u32),
    /// Bytes of blocks in the image that no path uses any more.
    pub(super) garbage: u64,
    /// One for each entry of the baseline, in the same order.
    pub(super) marks: Vec<Mark>,
    /// Everything about the git directories but their packs.
    pub(super) git_state: Option<Digest>,
    pub(super) packs: Vec<Pack>,
}

/// What else than the baseline's list must be the same for a file to be unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) ctime: (i64, u32),
    pub(super) ino: u64,
    /// False when the file was read so soon after its last change that another one could bear the same times.
    pub(super) settled: bool,
    /// The git blob of the file's bytes, where it was computed.
    pub(super) oid: Option<Oid>,
}

/// A pack of git objects, or a file that belongs to one, in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pack {
    /// The repository's work tree.
    pub(super) repository: RelPath,
    /// What decides its content.
    pub(super) key: PackKey,
    /// Name in `objects/pack`.
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// What decides the content of a pack. A repository has a chain of history packs and one of its index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PackKey {
    /// What these commits reach, less what earlier packs of the chain hold. The digest is that of the list of
    /// commits without parents.
    History { tips: Vec<Oid>, shallow: Digest },
    /// What the index names, less what those commits reach.
    Index(Digest),
}

impl Memory {
    /// What is remembered of `root`; `None` when that is nothing, or damaged.
    pub(super) fn load(cache: &Path, root: &Path) -> Option<Self> {
        Self::decode(&fs_err::read(file(cache, root)).ok()?).ok()
    }

    /// Remembers this of `root`, in one step.
    pub(super) fn save(&self, cache: &Path, root: &Path) -> std::io::Result<()> {
        use std::io::Write as _;
        let path = file(cache, root);
        let dir = path.parent().unwrap_or(cache);
        super::write::private_dir(dir)?;
        let mut new = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
        new.write_all(&self.encode())?;
        new.persist(&path)?;
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new(MAGIC);
        out.bytes(self.baseline.as_bytes());
        out.u32(self.owner.0);
        out.u32(self.owner.1);
        out.u64(self.garbage);
        out.u64(self.marks.len() as u64);
        for mark in &self.marks {
            out.time(mark.ctime);
            out.u64(mark.ino);
            out.byte(mark.settled.into());
            out.bytes(mark.oid.as_ref().map_or(&[], Oid::as_bytes));
        }
        out.bytes(
            self.git_state
                .as_ref()
                .map_or(&[], |digest| digest.as_bytes()),
        );
        out.u64(self.packs.len() as u64);
        for pack in &self.packs {
            out.bytes(pack.repository.as_bytes());
            match &pack.key {
                PackKey::History { tips, shallow } => {
                    out.byte(0);
                    out.u64(tips.len() as u64);
                    for tip in tips {
                        out.bytes(tip.as_bytes());
                    }
                    out.raw(shallow.as_bytes());
                }
                PackKey::Index(digest) => {
                    out.byte(1);
                    out.raw(digest.as_bytes());
                }
            }
            out.bytes(pack.name.as_bytes());
            out.u64(pack.offset);
            out.u64(pack.size);
        }
        out.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Malformed::Nonsense);
        let digest = |bytes: &[u8]| {
            bytes
                .try_into()
                .map(Digest::from_bytes)
                .map_err(|_| Malformed::Nonsense)
        };
        let mut input = Decoder::new(bytes, MAGIC)?;
        let baseline = text(input.bytes()?)?;
        let owner = (input.u32()?, input.u32()?);
        let garbage = input.u64()?;
        let marks = (0..input.count(29)?)
            .map(|_| {
                let (ctime, ino, settled) = (input.time()?, input.u64()?, input.byte()? == 1);
                let oid = Some(input.bytes()?)
                    .filter(|bytes| !bytes.is_empty())
                    .map(|bytes| Oid::from_bytes(bytes).ok_or(Malformed::Nonsense))
                    .transpose()?;
                Ok(Mark {
                    ctime,
                    ino,
                    settled,
                    oid,
                })
            })
            .collect::<Result<_, Malformed>>()?;
        let git_state = Some(input.bytes()?)
            .filter(|bytes| !bytes.is_empty())
            .map(digest)
            .transpose()?;
        let packs = (0..input.count(33)?)
            .map(|_| {
                let repository = match input.bytes()? {
                    [] => RelPath::root(),
                    bytes => RelPath::new(bytes).map_err(|_| Malformed::Nonsense)?,
                };
                let key = match input.byte()? {
                    0 => {
                        let tips = (0..input.count(8)?)
                            .map(|_| Oid::from_bytes(input.bytes()?).ok_or(Malformed::Nonsense))
                            .collect::<Result<_, Malformed>>()?;
                        PackKey::History {
                            tips,
                            shallow: digest(input.raw(32)?)?,
                        }
                    }
                    1 => PackKey::Index(digest(input.raw(32)?)?),
                    _ => return Err(Malformed::Nonsense),
                };
                Ok(Pack {
                    repository,
                    key,
                    name: text(input.bytes()?)?,
                    offset: input.u64()?,
                    size: input.u64()?,
                })
            })
            .collect::<Result<_, Malformed>>()?;
        input.finish()?;
        Ok(Self {
            baseline,
            owner,
            garbage,
            marks,
            git_state,
            packs,
        })
    }
}

/// The baselines' names that are remembered, of workspaces that were packed within the last `days`; what is older is
/// forgotten. Only the beginning of each file is looked at, so a damaged one may keep a baseline for nothing.
pub(super) fn remembered(cache: &Path, days: u64) -> std::io::Result<BTreeSet<String>> {
    let oldest = SystemTime::now() - Duration::from_hours(24 * days);
    let mut names = BTreeSet::new();
    let entries = match fs_err::read_dir(cache.join("workspaces")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.metadata()?.modified()? < oldest {
            fs_err::remove_file(entry.path())?;
            continue;
        }
        let mut start = Vec::new();
        fs_err::File::open(entry.path())?
            .take(START)
            .read_to_end(&mut start)?;
        names.extend(first_name(&start));
    }
    Ok(names)
}

/// More than the magic, a length and a name.
const START: u64 = 512;

fn first_name(start: &[u8]) -> Option<String> {
    let rest = start.strip_prefix(&MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    String::from_utf8(rest.get(..length)?.to_vec()).ok()
}

/// Forgets what was packed of `root`.
pub(super) fn forget(cache: &Path, root: &Path) -> std::io::Result<()> {
    match fs_err::remove_file(file(cache, root)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn file(cache: &Path, root: &Path) -> PathBuf {
    cache.join("workspaces").join(format!(
        "{}.bin",
        Digest::of(root.as_os_str().as_bytes()).hex()
    ))
}
