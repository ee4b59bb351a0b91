//! An image from a tar stream, in one pass.
//!
//! The stream is foreign: every name is checked before use ([`RelPath`]), a hard link leads to an earlier entry
//! only, and the number of entries and bytes is limited. Extended attributes are ignored. As with `tar` itself, a
//! later entry replaces an earlier one of the same path.

use crate::error::Error;
use crate::writer::{Meta, Special, Writer};
use base::{PathError, RelPath, Size};
use std::io::{self, Read};
use tar::{Archive, Entry, EntryType};

/// The most of one file that [`Action::Capture`] keeps in memory, in bytes.
pub const MAX_CAPTURE: u64 = 64 << 20;

/// Decides about each entry as it comes.
pub trait Filter {
    /// What becomes of the entry. The metadata may be changed.
    fn decide(&mut self, path: &RelPath, kind: Kind, meta: &mut Meta) -> Action;

    /// The contents of a file for which [`Filter::decide`] said [`Action::Capture`].
    fn captured(&mut self, path: &RelPath, bytes: &[u8]);
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, a second name, a device or a named pipe.
    Other,
}

/// What becomes of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It goes into the image.
    Keep,
    /// It is left out.
    Skip,
    /// A file goes into the image without its contents; anything else as it is.
    Empty,
    /// A file goes into the image and its contents are handed to [`Filter::captured`].
    Capture,
}

/// How much a stream may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of entries.
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
}

/// What went in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Number of entries, those left out included.
    pub entries: u64,
    /// Bytes of all files that were kept.
    pub bytes: u64,
}

/// What can go wrong with a tar stream.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The stream ends early, is none, or can't be read.
    #[error("Can't read the tar stream")]
    Read(#[source] io::Error),
    /// The name of an entry leads elsewhere than below the root.
    #[error("The tar stream has an entry with an unusable name")]
    Name(#[source] PathError),
    /// The number of entries or bytes is over the limit.
    #[error("The tar stream holds more than {entries} entries or {bytes}", bytes = Size(.0.bytes), entries = .0.entries)]
    TooLarge(Limits),
    /// An entry is of a kind that an image can't hold.
    #[error("The tar stream has an entry `{path}` of unknown kind `{kind}`")]
    Kind {
        /// The entry's path.
        path: RelPath,
        /// The kind's letter, printable.
        kind: String,
    },
    /// The image can't take the entry.
    #[error(transparent)]
    Image(#[from] Error),
}

/// Adds all entries of `stream` to the image.
///
/// Fails on the first entry that can't be taken; the writer is of no further use then.
pub fn append(
    writer: &mut Writer,
    stream: impl Read,
    limits: Limits,
    filter: &mut dyn Filter,
) -> Result<Summary, TarError> {
    let mut archive = Archive::new(stream);
    let mut summary = Summary::default();
    for entry in archive.entries().map_err(TarError::Read)? {
        let entry = entry.map_err(TarError::Read)?;
        summary.entries += 1;
        if summary.entries > limits.entries {
            return Err(TarError::TooLarge(limits));
        }
        summary.bytes += append_entry(writer, entry, limits, limits.bytes - summary.bytes, filter)?;
    }
    Ok(summary)
}

/// Returns the number of bytes kept.
fn append_entry(
    writer: &mut Writer,
    mut entry: Entry<'_, impl Read>,
    limits: Limits,
    bytes_left: u64,
    filter: &mut dyn Filter,
) -> Result<u64, TarError> {
    let kind = entry.header().entry_type();
    if matches!(kind, EntryType::XGlobalHeader) {
        return Ok(0);
    }
    let path = name(&entry.path_bytes())?;
    let mut meta = metadata(&mut entry)?;
    let shape = match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        _ => Kind::Other,
    };
    let action = filter.decide(&path, shape, &mut meta);
    if action == Action::Skip {
        return Ok(0);
    }
    if kind != EntryType::Directory || !writer.contains_dir(&path) {
        writer.remove(&path);
    }
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => match action {
            Action::Empty => {
                writer.add_file(&path, meta, &mut io::empty(), 0)?;
            }
            Action::Capture => {
                let limit = bytes_left.min(MAX_CAPTURE);
                let mut bytes = Vec::new();
                entry
                    .by_ref()
                    .take(limit + 1)
                    .read_to_end(&mut bytes)
                    .map_err(TarError::Read)?;
                if bytes.len() as u64 > limit {
                    return Err(TarError::TooLarge(limits));
                }
                filter.captured(&path, &bytes);
                return Ok(writer
                    .add_file(&path, meta, &mut bytes.as_slice(), limit)?
                    .extent
                    .size);
            }
            Action::Keep | Action::Skip => {
                let written = writer.add_file(&path, meta, &mut entry, bytes_left);
                return match written {
                    Ok(written) => Ok(written.extent.size),
                    Err(Error::TooLarge { .. }) => Err(TarError::TooLarge(limits)),
                    Err(error) => Err(error.into()),
                };
            }
        },
        EntryType::Directory => writer.add_dir(&path, meta)?,
        EntryType::Symlink => {
            writer.add_symlink(&path, meta, &entry.link_name_bytes().unwrap_or_default())?;
        }
        EntryType::Link => {
            let target = name(&entry.link_name_bytes().unwrap_or_default())?;
            writer.add_hardlink(&path, &target)?;
        }
        EntryType::Char | EntryType::Block => {
            let number = |number: io::Result<Option<u32>>| {
                number
                    .map(Option::unwrap_or_default)
                    .map_err(TarError::Read)
            };
            let major = number(entry.header().device_major())?;
            let minor = number(entry.header().device_minor())?;
            let special = if kind == EntryType::Char {
                Special::Char { major, minor }
            } else {
                Special::Block { major, minor }
            };
            writer.add_special(&path, meta, special)?;
        }
        EntryType::Fifo => writer.add_special(&path, meta, Special::Fifo)?,
        _ => {
            return Err(TarError::Kind {
                path,
                kind: base::escape(&[kind.as_byte()]),
            });
        }
    }
    Ok(0)
}

/// The path that an entry's name stands for: a leading `./` and a closing slash are usual.
fn name(bytes: &[u8]) -> Result<RelPath, TarError> {
    let mut bytes = bytes;
    while let Some(rest) = bytes.strip_prefix(b"./") {
        bytes = rest;
    }
    if let Some(rest) = bytes.strip_suffix(b"/")
        && !rest.is_empty()
    {
        bytes = rest;
    }
    match bytes {
        b"" | b"." => Ok(RelPath::root()),
        _ => RelPath::new(bytes).map_err(TarError::Name),
    }
}

fn metadata(entry: &mut Entry<'_, impl Read>) -> Result<Meta, TarError> {
    let header = entry.header();
    let mut meta = Meta {
        mode: header.mode().map_err(TarError::Read)?,
        uid: id(header.uid().map_err(TarError::Read)?)?,
        gid: id(header.gid().map_err(TarError::Read)?)?,
        mtime: (
            i64::try_from(header.mtime().map_err(TarError::Read)?).unwrap_or(i64::MAX),
            0,
        ),
    };
    // POSIX.1-2001 records hold what the header has no room for: large owners, parts of a second.
    for record in entry
        .pax_extensions()
        .map_err(TarError::Read)?
        .into_iter()
        .flatten()
    {
        let record = record.map_err(TarError::Read)?;
        let text = String::from_utf8_lossy(record.value_bytes());
        let number = || text.parse().map_err(|_| bad_record());
        match record.key_bytes() {
            b"mtime" => meta.mtime = time(&text).ok_or_else(bad_record)?,
            b"uid" => meta.uid = id(number()?)?,
            b"gid" => meta.gid = id(number()?)?,
            _ => {}
        }
    }
    Ok(meta)
}

fn id(number: u64) -> Result<u32, TarError> {
    u32::try_from(number).map_err(|_| bad_record())
}

fn bad_record() -> TarError {
    TarError::Read(io::Error::new(
        io::ErrorKind::InvalidData,
        "an entry has a number that is none or too large",
    ))
}

/// Seconds and nanoseconds of a decimal number; digits beyond nanoseconds are cut.
fn time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.bytes().any(|byte| !byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    match (whole.starts_with('-'), nanoseconds) {
        // Nanoseconds count upwards: -0.25 is 0.75 after -1.
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((seconds, nanoseconds)),
    }
}
