use crate::error::Error;
use crate::layout::{BLOCK, BLOCK_LEN};
use std::os::unix::fs::FileExt as _;

/// Bytes gathered before they are written: large enough to make the system calls not count.
const BUFFER: usize = 1 << 20;

/// The image's file as a place to append to.
pub(crate) struct Data {
    file: fs_err::File,
    /// Where the first byte of `buffer` belongs; nothing at or behind it was written but holes.
    written: u64,
    buffer: Vec<u8>,
}

impl Data {
    /// Appends behind `end`; whatever the file holds there is dropped.
    pub(crate) fn new(file: fs_err::File, end: u64) -> Result<Self, Error> {
        file.set_len(end).map_err(Error::Write)?;
        Ok(Self {
            file,
            written: end,
            buffer: Vec::with_capacity(BUFFER),
        })
    }

    /// The offset that the next byte gets.
    pub(crate) fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        // What is large enough by itself is written from where it is.
        if bytes.len() >= BUFFER / 8 {
            self.flush()?;
            return self.put(bytes);
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == BUFFER {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Fills the last block with zeros.
    pub(crate) fn align(&mut self) -> Result<(), Error> {
        let rest = usize::try_from(self.end() % BLOCK).unwrap_or_default();
        if rest == 0 {
            Ok(())
        } else {
            self.append(&[0; BLOCK_LEN][rest..])
        }
    }

    /// Forgets everything from `end` on.
    pub(crate) fn cut(&mut self, end: u64) -> Result<(), Error> {
        if let Some(kept) = end.checked_sub(self.written) {
            self.buffer
                .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            return Ok(());
        }
        self.buffer.clear();
        self.written = end;
        // Blocks of zeros are not written, so what was written there must not stay.
        self.file.set_len(end).map_err(Error::Write)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.put(&buffer);
        self.buffer = buffer;
        if result.is_ok() {
            self.buffer.clear();
        }
        result
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // Zeros alone stay a hole: it costs a comparison of the first block where they are not alone.
        let is_zero = |block: &[u8]| *block == [0; BLOCK_LEN][..block.len()];
        if !bytes.chunks(BLOCK_LEN).all(is_zero) {
            self.file
                .file()
                .write_all_at(bytes, self.written)
                .map_err(Error::Write)?;
        }
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes the first block and ends the file at `size`.
    pub(crate) fn close(mut self, first: &[u8], size: u64) -> Result<fs_err::File, Error> {
        self.flush()?;
        self.file.set_len(size).map_err(Error::Write)?;
        self.file
            .file()
            .write_all_at(first, 0)
            .map_err(Error::Write)?;
        Ok(self.file)
    }
}
