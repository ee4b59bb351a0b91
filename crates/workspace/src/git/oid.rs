use std::fmt;
use std::fmt::Write as _;

/// Which hash a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    /// Bytes of an object's name.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The name in git's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }
}

/// The name of a git object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Oid {
    bytes: [u8; 32],
    length: u8,
}

impl Oid {
    /// From raw bytes, 20 or 32 of them.
    pub(crate) fn from_bytes(raw: &[u8]) -> Option<Self> {
        let length = u8::try_from(raw.len())
            .ok()
            .filter(|length| matches!(length, 20 | 32))?;
        let mut bytes = [0; 32];
        bytes[..raw.len()].copy_from_slice(raw);
        Some(Self { bytes, length })
    }

    /// From 40 or 64 hex digits.
    pub(crate) fn from_hex(hex: &[u8]) -> Option<Self> {
        let nibble = |digit: u8| {
            char::from(digit)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        };
        let mut pairs = hex.chunks_exact(2);
        let raw: Option<Vec<u8>> = pairs
            .by_ref()
            .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
            .collect();
        Self::from_bytes(&raw.filter(|_| pairs.remainder().is_empty())?)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hex = String::with_capacity(64);
        for byte in self.as_bytes() {
            write!(hex, "{byte:02x}")?;
        }
        f.write_str(&hex)
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names a blob piece by piece, as `git hash-object --no-filters` does.
pub(crate) struct BlobHasher(Inner);

enum Inner {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl BlobHasher {
    /// A hasher for a blob of `size` bytes.
    pub(crate) fn new(format: ObjectFormat, size: u64) -> Self {
        use sha2::Digest as _;
        let header = format!("blob {size}\0");
        Self(match format {
            ObjectFormat::Sha1 => Inner::Sha1(sha1::Sha1::new_with_prefix(header)),
            ObjectFormat::Sha256 => Inner::Sha256(sha2::Sha256::new_with_prefix(header)),
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        use sha2::Digest as _;
        match &mut self.0 {
            Inner::Sha1(hasher) => hasher.update(bytes),
            Inner::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Oid {
        use sha2::Digest as _;
        let (mut bytes, mut length) = ([0; 32], 32);
        match self.0 {
            Inner::Sha1(hasher) => {
                bytes[..20].copy_from_slice(&hasher.finalize());
                length = 20;
            }
            Inner::Sha256(hasher) => bytes.copy_from_slice(&hasher.finalize()),
        }
        Oid { bytes, length }
    }
}

/// The checksum that ends git's own files.
pub(crate) fn checksum(format: ObjectFormat, bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    match format {
        ObjectFormat::Sha1 => sha1::Sha1::digest(bytes).to_vec(),
        ObjectFormat::Sha256 => sha2::Sha256::digest(bytes).to_vec(),
    }
}

/// The name of the blob `bytes`.
pub(crate) fn blob_oid(format: ObjectFormat, bytes: &[u8]) -> Oid {
    let mut hasher = BlobHasher::new(format, bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}
