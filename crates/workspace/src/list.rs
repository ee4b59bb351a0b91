//! The entries of a baseline on disk, made so that one can be looked up without reading the others: bringing ten
//! changes out of a workspace must cost the same whether a thousand files went in or a million.
//!
//! ```text
//!  magic │ block │ block │ … │ tail: magic, what else there is to say, index of the blocks, digest │ tail's length
//! ```
//!
//! A block is a run of sorted entries; the index has for each its length, its digest and its first path. The tail's
//! digest is checked when the list is opened, a block's whenever it is read, so that damage is found where it
//! matters. A few blocks are kept in memory as they are on disk, and no more.

#[cfg(test)]
mod tests;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::{BaselineError, Entry, Kind, Listing};
use base::{Digest, RelPath};
use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Names the list's format and its version.
const MAGIC: [u8; 8] = *b"efi-bas\x02";
/// A block ends with the entry that brings it to this size: small enough to look through for one entry, large enough
/// that the index of a million entries stays small.
const BLOCK_BYTES: usize = 16 << 10;
/// The most bytes that one entry takes: a path, a link's target, and what is of fixed size.
const MAX_ENTRY: usize = 2 * base::MAX_PATH + 128;
/// The longest block.
const MAX_BLOCK: usize = BLOCK_BYTES + MAX_ENTRY;
/// The least bytes of an entry, so that a lying number of them is found out: its shortest path and an empty directory.
const MIN_ENTRY: usize = 2 + 1 + 1 + 4 + 12;
/// The longest tail: the index of ten million entries, with long names, and ignore rules stay far below.
const MAX_TAIL: u64 = 256 << 20;
/// Blocks kept in memory, 16 KiB each: those around a change, its directory and its siblings.
const KEPT_BLOCKS: usize = 32;
/// Bytes before the first block and behind the tail.
const FRAME: u64 = 8 + 8;

/// The entries of a baseline, in the order of the bytes of their paths, without the root itself. Opened once, it
/// stays readable when its file is removed. Cloning shares what is open.
#[derive(Clone)]
pub struct Entries {
    open: Arc<Open>,
}

struct Open {
    /// The baseline's directory, for errors.
    dir: PathBuf,
    file: fs_err::File,
    blocks: Vec<Block>,
    count: u64,
    /// The blocks used last, the newest at the end.
    kept: Mutex<Vec<(usize, Arc<Loaded>)>>,
}

/// Where a block is and what it holds.
#[derive(PartialEq, Eq)]
struct Block {
    offset: u64,
    length: usize,
    entries: u64,
    digest: Digest,
    first: RelPath,
}

/// A block in memory, as it is on disk.
struct Loaded {
    bytes: Vec<u8>,
    /// Where each entry starts.
    starts: Vec<usize>,
}

impl Entries {
    /// Opens the list `name` in the baseline's directory `dir`. Gives what else its tail says, too.
    pub(crate) fn open(dir: &Path, name: &str) -> Result<(Self, Vec<u8>), BaselineError> {
        let io = |source| BaselineError::Io {
            dir: dir.to_path_buf(),
            source,
        };
        let malformed = |source| BaselineError::List {
            dir: dir.to_path_buf(),
            source,
        };
        let file = fs_err::File::open(dir.join(name)).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let read = |offset, length: u64| {
            let length = usize::try_from(length).map_err(|_| malformed(Malformed::Nonsense))?;
            let mut bytes = vec![0; length];
            file.file().read_exact_at(&mut bytes, offset).map_err(io)?;
            Ok(bytes)
        };
        if length < FRAME {
            return Err(malformed(Malformed::Damaged));
        }
        if read(0, 8)? != MAGIC {
            return Err(malformed(Malformed::Foreign));
        }
        let tail_length = read(length - 8, 8)?
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| malformed(Malformed::Damaged))?;
        if tail_length > MAX_TAIL.min(length - FRAME) {
            return Err(malformed(Malformed::Damaged));
        }
        let blocks_end = length - 8 - tail_length;
        let tail = read(blocks_end, tail_length)?;
        let (about, blocks) = decode_tail(&tail, blocks_end).map_err(malformed)?;
        let open = Open {
            dir: dir.to_path_buf(),
            file,
            count: blocks.iter().map(|block| block.entries).sum(),
            blocks,
            kept: Mutex::default(),
        };
        Ok((
            Self {
                open: Arc::new(open),
            },
            about,
        ))
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.open.count
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.open.count == 0
    }

    /// All of them, read and checked. For a workspace of a million files that is some hundred megabytes.
    pub fn to_vec(&self) -> Result<Vec<Entry>, BaselineError> {
        let mut all = Vec::with_capacity(usize::try_from(self.open.count).unwrap_or(0));
        self.scan(b"", &mut |entry| {
            all.push(entry);
            true
        })?;
        Ok(all)
    }

    /// A new list of the same entries, without a look at them.
    pub(crate) fn copy_to(&self, mut file: fs_err::File) -> io::Result<ListWriter> {
        let end = self.open.blocks_end();
        let mut at = 0;
        let mut piece = vec![0; 1 << 20];
        while at < end {
            let length = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            self.open
                .file
                .file()
                .read_exact_at(&mut piece[..length], at)?;
            file.write_all(&piece[..length])?;
            at += length as u64;
        }
        let copy = |block: &Block| Block {
            first: block.first.clone(),
            ..*block
        };
        Ok(ListWriter {
            blocks: self.open.blocks.iter().map(copy).collect(),
            ..ListWriter::behind(file, end)
        })
    }
}

impl Listing for Entries {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        let open = &*self.open;
        let after = open
            .blocks
            .partition_point(|block| block.first.as_bytes() <= start);
        for number in after.saturating_sub(1)..open.blocks.len() {
            let block = open.block(number)?;
            let at = block
                .starts
                .partition_point(|at| path_at(&block.bytes, *at) < start);
            for at in &block.starts[at..] {
                let entry = decode(&mut Decoder::bare(&block.bytes[*at..]));
                if !visit(entry.map_err(|source| open.malformed(source))?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Open {
    fn malformed(&self, source: Malformed) -> BaselineError {
        BaselineError::List {
            dir: self.dir.clone(),
            source,
        }
    }

    fn blocks_end(&self) -> u64 {
        let end = |block: &Block| block.offset + block.length as u64;
        self.blocks.last().map_or(MAGIC.len() as u64, end)
    }

    /// The block with this number, from memory or from disk.
    fn block(&self, number: usize) -> Result<Arc<Loaded>, BaselineError> {
        // A thread that panicked left a list of whole blocks behind.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().rposition(|(other, _)| *other == number);
        let (_, block) = match found {
            Some(at) => kept.remove(at),
            None => (number, Arc::new(self.load(number)?)),
        };
        if kept.len() >= KEPT_BLOCKS {
            kept.remove(0);
        }
        kept.push((number, Arc::clone(&block)));
        Ok(block)
    }

    fn load(&self, number: usize) -> Result<Loaded, BaselineError> {
        let block = &self.blocks[number];
        let mut bytes = vec![0; block.length];
        self.file
            .file()
            .read_exact_at(&mut bytes, block.offset)
            .map_err(|source| BaselineError::Io {
                dir: self.dir.clone(),
                source,
            })?;
        if Digest::of(&bytes) != block.digest {
            return Err(self.malformed(Malformed::Damaged));
        }
        let next = self.blocks.get(number + 1);
        let starts = starts(&bytes, block, next).map_err(|source| self.malformed(source))?;
        Ok(Loaded { bytes, starts })
    }
}

/// Where the entries of a block start. They must be as many as the index says, sorted, and between its first path
/// and that of the next block.
fn starts(bytes: &[u8], block: &Block, next: Option<&Block>) -> Result<Vec<usize>, Malformed> {
    let mut input = Decoder::bare(bytes);
    let mut starts = Vec::with_capacity(usize::try_from(block.entries).unwrap_or(0));
    while input.left() > 0 {
        let start = bytes.len() - input.left();
        skip(&mut input)?;
        starts.push(start);
    }
    let paths = || starts.iter().map(|at| path_at(bytes, *at));
    let in_order = paths().is_sorted_by(|a, b| a < b)
        && paths().next() == Some(block.first.as_bytes())
        && next.is_none_or(|next| paths().next_back() < Some(next.first.as_bytes()));
    if in_order && starts.len() as u64 == block.entries {
        Ok(starts)
    } else {
        Err(Malformed::Nonsense)
    }
}

/// The path of the entry that starts there, in a block that was looked through.
fn path_at(bytes: &[u8], at: usize) -> &[u8] {
    Decoder::bare(&bytes[at..]).short().unwrap_or_default()
}

fn encode(out: &mut Encoder, entry: &Entry) {
    out.short(entry.path.as_bytes());
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
        Kind::Symlink => out.short(&entry.target),
    }
}

/// Passes by an entry without a copy of anything.
fn skip(input: &mut Decoder<'_>) -> Result<(), Malformed> {
    input.short()?;
    let kind = input.byte()?;
    input.raw(4 + 12)?;
    match kind {
        0 => input.raw(8 + 8 + 32).map(drop),
        1 => Ok(()),
        2 => input.short().map(drop),
        _ => Err(Malformed::Nonsense),
    }
}

fn decode(input: &mut Decoder<'_>) -> Result<Entry, Malformed> {
    let path = RelPath::new(input.short()?).map_err(|_| Malformed::Nonsense)?;
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
            entry.target = input.short()?.to_vec();
            entry.size = entry.target.len() as u64;
            entry.digest = Some(Digest::of(&entry.target));
        }
    }
    Ok(entry)
}

fn decode_tail(tail: &[u8], blocks_end: u64) -> Result<(Vec<u8>, Vec<Block>), Malformed> {
    let mut input = Decoder::new(tail, MAGIC)?;
    let about = input.bytes()?.to_vec();
    let mut offset = MAGIC.len() as u64;
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..input.count(4 + 4 + 32 + 2)? {
        let length = usize::try_from(input.u32()?).map_err(|_| Malformed::Nonsense)?;
        let entries = u64::from(input.u32()?);
        let digest = input.raw(32)?.try_into().map_err(|_| Malformed::Nonsense)?;
        let first = RelPath::new(input.short()?).map_err(|_| Malformed::Nonsense)?;
        let in_order = blocks.last().is_none_or(|last| last.first < first);
        let fits = length <= MAX_BLOCK && entries >= 1 && entries <= (length / MIN_ENTRY) as u64;
        if !(in_order && fits) {
            return Err(Malformed::Nonsense);
        }
        blocks.push(Block {
            offset,
            length,
            entries,
            digest: Digest::from_bytes(digest),
            first,
        });
        offset += length as u64;
    }
    input.finish()?;
    if offset == blocks_end {
        Ok((about, blocks))
    } else {
        Err(Malformed::Nonsense)
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        // Their digests say whether they hold the same.
        self.open.blocks == other.open.blocks
    }
}

impl Eq for Entries {}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("dir", &self.open.dir)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Writes a list, entry by entry.
pub(crate) struct ListWriter {
    out: io::BufWriter<fs_err::File>,
    blocks: Vec<Block>,
    offset: u64,
    /// The block that is being filled.
    block: Encoder,
    entries: u64,
    first: RelPath,
}

impl ListWriter {
    /// Begins a list in an empty file.
    pub(crate) fn new(mut file: fs_err::File) -> io::Result<Self> {
        file.write_all(&MAGIC)?;
        Ok(Self::behind(file, MAGIC.len() as u64))
    }

    fn behind(file: fs_err::File, offset: u64) -> Self {
        Self {
            out: io::BufWriter::with_capacity(1 << 18, file),
            blocks: Vec::new(),
            offset,
            block: Encoder::bare(),
            entries: 0,
            first: RelPath::root(),
        }
    }

    /// Adds an entry, which comes behind all that were added before.
    pub(crate) fn push(&mut self, entry: &Entry) -> io::Result<()> {
        if self.entries == 0 {
            self.first.clone_from(&entry.path);
        }
        encode(&mut self.block, entry);
        self.entries += 1;
        if self.block.bytes_so_far() >= BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.entries == 0 {
            return Ok(());
        }
        let bytes = std::mem::replace(&mut self.block, Encoder::bare()).into_bytes();
        self.blocks.push(Block {
            offset: self.offset,
            length: bytes.len(),
            entries: std::mem::take(&mut self.entries),
            digest: Digest::of(&bytes),
            first: std::mem::take(&mut self.first),
        });
        self.offset += bytes.len() as u64;
        self.out.write_all(&bytes)
    }

    /// Ends the list with what else there is to say. The digest is that of the whole.
    pub(crate) fn finish(mut self, about: &[u8]) -> io::Result<Digest> {
        self.end_block()?;
        let mut tail = Encoder::new(MAGIC);
        tail.bytes(about);
        tail.u64(self.blocks.len() as u64);
        let small = |number: u64| {
            u32::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
        };
        for block in &self.blocks {
            tail.u32(small(block.length as u64)?);
            tail.u32(small(block.entries)?);
            tail.raw(block.digest.as_bytes());
            tail.short(block.first.as_bytes());
        }
        let tail = tail.finish();
        self.out.write_all(&tail)?;
        self.out.write_all(&(tail.len() as u64).to_le_bytes())?;
        self.out.flush()?;
        Ok(Digest::of(&tail))
    }
}
