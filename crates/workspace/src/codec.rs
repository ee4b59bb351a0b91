//! The binary form of our own lists: fixed-width little-endian numbers, byte strings with their length before them,
//! and a digest of everything at the end, so that a file cut in half is known for one.

use base::Digest;

/// Bytes that are no list of ours, or not a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The digest at the end is wrong.
    #[error("The file is cut off or was changed")]
    Damaged,
    /// The first bytes name another format or version.
    #[error("The file has another format or version")]
    Foreign,
    /// The digest is right and the content is not.
    #[error("The file's content makes no sense")]
    Nonsense,
}

#[derive(Debug)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    /// Starts with eight bytes that name the format and its version.
    pub(crate) fn new(magic: [u8; 8]) -> Self {
        Self(magic.to_vec())
    }

    /// Starts with nothing: a part of a whole that is named and digested elsewhere.
    pub(crate) fn bare() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn time(&mut self, (seconds, nanoseconds): (i64, u32)) {
        self.0.extend(seconds.to_le_bytes());
        self.u32(nanoseconds);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.raw(bytes);
    }

    /// A path or a link's target, which the rules for those keep below 64 KiB.
    pub(crate) fn short(&mut self, bytes: &[u8]) {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_le_bytes());
        self.raw(&bytes[..usize::from(length)]);
    }

    pub(crate) fn bytes_so_far(&self) -> usize {
        self.0.len()
    }

    /// The bytes without a digest.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The bytes with their digest at the end.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let digest = Digest::of(&self.0);
        self.raw(digest.as_bytes());
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// Checks the digest and the name of the format.
    pub(crate) fn new(bytes: &'a [u8], magic: [u8; 8]) -> Result<Self, Malformed> {
        let (body, digest) = bytes.split_last_chunk::<32>().ok_or(Malformed::Damaged)?;
        if Digest::of(body) != Digest::from_bytes(*digest) {
            return Err(Malformed::Damaged);
        }
        body.strip_prefix(&magic)
            .map(Self)
            .ok_or(Malformed::Foreign)
    }

    /// A part of a whole whose digest was checked.
    pub(crate) fn bare(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes that are still to come.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.array().map(u16::from_le_bytes)?;
        self.raw(usize::from(length))
    }

    pub(crate) fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Nonsense)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.raw(N)?.try_into().map_err(|_| Malformed::Nonsense)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn time(&mut self) -> Result<(i64, u32), Malformed> {
        Ok((self.array().map(i64::from_le_bytes)?, self.u32()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u64()?).map_err(|_| Malformed::Nonsense)?;
        self.raw(length)
    }

    /// The number of items that follow, each of at least `least` bytes: a lying number is found out before memory is
    /// set aside for it.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u64()?).map_err(|_| Malformed::Nonsense)?;
        if count > self.0.len() / least {
            Err(Malformed::Nonsense)
        } else {
            Ok(count)
        }
    }

    /// Fails when something is left.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Nonsense)
        }
    }
}
