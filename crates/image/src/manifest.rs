use base::{Digest, Size};
use serde::{Deserialize, Serialize};

/// What an image holds and how it was made; `manifest.json` beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this record's form: [`Manifest::FORM`].
    pub form: u32,
    /// SHA-256 of the image's file.
    pub digest: Digest,
    /// Bytes of the image's file.
    pub size: Size,
    /// Machine architecture as `uname` has it, such as `x86_64`.
    pub architecture: String,
    /// What it is, for people: `Debian GNU/Linux 12 (bookworm)`.
    pub name: String,
    /// Where its files came from.
    pub origin: Origin,
    /// Version of efimera that made it.
    pub efimera: String,
    /// When it was made, in seconds since 1970. Not part of the digest.
    pub created: u64,
    /// Its packages by name, where it has dpkg's list of them.
    pub packages: Vec<Package>,
}

/// Where an image's files came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Origin {
    /// Installed from the host's package sources.
    Packages {
        /// The program that did it and its version, such as `mmdebstrap 1.3.5`.
        builder: String,
        /// Releases and components, such as `bookworm main`, without addresses.
        sources: Vec<String>,
    },
    /// A tar of a root file system.
    Tar {
        /// The name of the file or stream, for people.
        name: String,
    },
}

/// One installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Manifest {
    /// The form that this version writes and reads.
    pub const FORM: u32 = 1;
}
