//! A command's output on disk, bounded: its first [`SEGMENT`] bytes, and its last one or two times as many.
//! What lies between is dropped, and how much that was can be told from what is left.
//!
//! The log is a row of files `0`, `1`, `2` …, each at most [`SEGMENT`] bytes; once `n` is begun, `n - 2` is
//! removed (never `0`). A file starts with the count of output bytes before it, then come pieces: channel,
//! length, time, bytes. There is no index to get wrong: after a crash at any byte, whole pieces are read.

use crate::StoreError;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Bytes of one file of the log, headers included: enough for any build log that a person reads.
pub const SEGMENT: u64 = 8 << 20;
/// A file's header: output bytes before it, little endian.
const FILE_HEADER: u64 = size_of::<u64>() as u64;
/// A piece's header: channel (u8), zero (3), length (u32), milliseconds since 1970 (u64), little endian.
const PIECE_HEADER: usize = 16;
/// A longer piece is written as several.
const MAX_PIECE: usize = 256 << 10;

/// Writes a log.
#[derive(Debug)]
pub struct OutputLog {
    dir: PathBuf,
    limit: u64,
    number: u64,
    file: File,
    length: u64,
    total: u64,
}

/// What a log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPiece {
    /// Output.
    Bytes {
        /// 1 standard output (or the terminal), 2 standard error.
        channel: u8,
        /// When it came, in milliseconds since 1970.
        time_ms: u64,
        /// The bytes, as the guest sent them.
        bytes: Vec<u8>,
    },
    /// So many bytes of output were dropped here.
    Dropped(u64),
}

/// Reads a log from its start, also while it is written.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    number: u64,
    file: Option<File>,
    total: u64,
}

impl OutputLog {
    /// Begins a log in `dir`, or goes on with the one that is there.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::with_limit(dir, SEGMENT)
    }

    pub(crate) fn with_limit(dir: &Path, limit: u64) -> Result<Self, StoreError> {
        let io = |source| StoreError::io("write the log in", dir, source);
        match segments(dir).map_err(io)?.last() {
            None => {
                let file = begin(dir, 0, 0).map_err(io)?;
                Ok(Self {
                    dir: dir.to_owned(),
                    limit,
                    number: 0,
                    file,
                    length: FILE_HEADER,
                    total: 0,
                })
            }
            Some(&last) => {
                // A piece that a crash cut short must not swallow what follows, so a new file is begun.
                let mut reader = LogReader::at(dir, last);
                while reader.next_piece()?.is_some() {}
                let total = reader.total;
                let mut log = Self {
                    dir: dir.to_owned(),
                    limit,
                    number: last,
                    file: begin(dir, last + 1, total).map_err(io)?,
                    length: FILE_HEADER,
                    total,
                };
                log.advance_to(last + 1).map_err(io)?;
                Ok(log)
            }
        }
    }

    /// Appends output of `channel`.
    pub fn write(&mut self, channel: u8, time_ms: u64, bytes: &[u8]) -> Result<(), StoreError> {
        for part in
            bytes.chunks(MAX_PIECE.min(usize::try_from(self.limit / 4).unwrap_or(MAX_PIECE)))
        {
            self.write_piece(channel, time_ms, part)
                .map_err(|source| StoreError::io("write the log in", &self.dir, source))?;
        }
        Ok(())
    }

    /// Bytes of output so far, kept or dropped.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn write_piece(&mut self, channel: u8, time_ms: u64, bytes: &[u8]) -> io::Result<()> {
        let piece = (PIECE_HEADER + bytes.len()) as u64;
        if self.length + piece > self.limit {
            self.file = begin(&self.dir, self.number + 1, self.total)?;
            self.length = FILE_HEADER;
            self.advance_to(self.number + 1)?;
        }
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut out = Vec::with_capacity(PIECE_HEADER + bytes.len());
        out.extend_from_slice(&[channel, 0, 0, 0]);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&time_ms.to_le_bytes());
        out.extend_from_slice(bytes);
        if let Err(error) = self.file.write_all(&out) {
            // A half-written piece would swallow the next one.
            self.file.set_len(self.length).ok();
            self.file.seek(SeekFrom::Start(self.length)).ok();
            return Err(error);
        }
        self.length += piece;
        self.total += bytes.len() as u64;
        Ok(())
    }

    fn advance_to(&mut self, number: u64) -> io::Result<()> {
        self.number = number;
        if number > 2 {
            match fs_err::remove_file(self.dir.join((number - 2).to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl LogReader {
    /// Reads the log in `dir`.
    pub fn open(dir: &Path) -> Self {
        Self::at(dir, 0)
    }

    fn at(dir: &Path, number: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            number,
            file: None,
            total: 0,
        }
    }

    /// The next piece; `None` when there is none at this moment (more may come while the log is written).
    pub fn next_piece(&mut self) -> Result<Option<LogPiece>, StoreError> {
        self.advance()
            .map_err(|source| StoreError::io("read the log in", &self.dir, source))
    }

    fn advance(&mut self) -> io::Result<Option<LogPiece>> {
        loop {
            if let Some(file) = &mut self.file {
                if let Some(piece) = read_piece(file)? {
                    if let LogPiece::Bytes { bytes, .. } = &piece {
                        self.total += bytes.len() as u64;
                    }
                    return Ok(Some(piece));
                }
                // The writer begins a file only when it is done with the one before.
                let Some(&next) = segments(&self.dir)?
                    .iter()
                    .find(|number| **number > self.number)
                else {
                    return Ok(None);
                };
                // It may have written here once more before it began the next.
                if let Some(piece) = read_piece(file)? {
                    if let LogPiece::Bytes { bytes, .. } = &piece {
                        self.total += bytes.len() as u64;
                    }
                    return Ok(Some(piece));
                }
                self.file = None;
                self.number = next;
            }
            let mut file = match File::open(self.dir.join(self.number.to_string())) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // Removed between two looks: the writer is further on. Or nothing was ever written.
                    match segments(&self.dir)?
                        .into_iter()
                        .find(|at| *at > self.number)
                    {
                        Some(next) => self.number = next,
                        None => return Ok(None),
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut header = [0; size_of::<u64>()];
            match file.read_exact(&mut header) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            let before = u64::from_le_bytes(header);
            let dropped = before.saturating_sub(self.total);
            self.total = before;
            self.file = Some(file);
            if dropped > 0 {
                return Ok(Some(LogPiece::Dropped(dropped)));
            }
        }
    }
}

/// The next whole piece; the file's position stays where it is when there is none.
fn read_piece(file: &mut File) -> io::Result<Option<LogPiece>> {
    let start = file.stream_position()?;
    let rest = file.metadata()?.len().saturating_sub(start);
    let mut header = [0; PIECE_HEADER];
    if rest < PIECE_HEADER as u64 {
        return Ok(None);
    }
    file.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if rest - (PIECE_HEADER as u64) < u64::from(length) || length as usize > MAX_PIECE {
        file.seek(SeekFrom::Start(start))?;
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    let mut time = [0; 8];
    time.copy_from_slice(&header[8..]);
    Ok(Some(LogPiece::Bytes {
        channel: header[0],
        time_ms: u64::from_le_bytes(time),
        bytes,
    }))
}

fn begin(dir: &Path, number: u64, total: u64) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join(number.to_string()))?;
    file.write_all(&total.to_le_bytes())?;
    Ok(file)
}

fn segments(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs_err::read_dir(dir)? {
        if let Some(number) = entry?
            .file_name()
            .to_str()
            .and_then(|text| text.parse().ok())
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
