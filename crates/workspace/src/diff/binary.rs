//! git's form of binary content in a patch: zlib, then base 85, 52 bytes a line.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};

/// git's digits (`base85.c`), not those of RFC 1924.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Bytes of one line.
const PER_LINE: usize = 52;

/// Writes one `literal` section; `copy` writes the content's `size` bytes into what it is given.
pub(super) fn write_literal(
    size: u64,
    copy: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "literal {size}")?;
    let mut encoder = ZlibEncoder::new(
        Lines {
            held: Vec::with_capacity(PER_LINE),
            out,
        },
        Compression::default(),
    );
    copy(&mut encoder)?;
    let mut lines = encoder.finish()?;
    lines.put()?;
    lines.out.write_all(b"\n")
}

struct Lines<'a> {
    held: Vec<u8>,
    out: &'a mut dyn Write,
}

impl Lines<'_> {
    fn put(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let mut line = Vec::with_capacity(2 + PER_LINE / 4 * 5);
        // The length: `A` to `Z` for 1 to 26, `a` to `z` for 27 to 52.
        let length = u8::try_from(self.held.len()).unwrap_or(u8::MAX);
        line.push(if length <= 26 {
            b'A' + length - 1
        } else {
            b'a' + length - 27
        });
        for chunk in self.held.chunks(4) {
            let mut group = [0; 4];
            group[..chunk.len()].copy_from_slice(chunk);
            let mut value = u32::from_be_bytes(group) as usize;
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[value % 85];
                value /= 85;
            }
            line.extend_from_slice(&digits);
        }
        line.push(b'\n');
        self.held.clear();
        self.out.write_all(&line)
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(PER_LINE - self.held.len()));
            self.held.extend_from_slice(now);
            rest = later;
            if self.held.len() == PER_LINE {
                self.put()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
