use crate::StoreError;
use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Write as _};
use std::path::Path;

/// Bytes of a document that are read at most; a head or a record has some kilobytes.
const MAX_DOCUMENT: u64 = 64 << 20;

/// The one field that every version of every document has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a versioned JSON document; `None` when it is not there.
pub(crate) fn load<T: DeserializeOwned>(path: &Path, want: u32) -> Result<Option<T>, StoreError> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    let malformed = |source| StoreError::Malformed {
        path: path.to_owned(),
        source,
    };
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(malformed)?;
    if version != want {
        return Err(StoreError::Version {
            path: path.to_owned(),
            found: version,
            want,
        });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(malformed)
}

/// Writes a JSON document so that readers see the old one or the new one, never a part.
pub(crate) fn save<T: Serialize>(path: &Path, document: &T) -> Result<(), StoreError> {
    let mut bytes =
        serde_json::to_vec_pretty(document).map_err(|source| StoreError::Malformed {
            path: path.to_owned(),
            source,
        })?;
    bytes.push(b'\n');
    replace(path, &bytes)
}

/// Replaces a file by rename. The temporary's name is unique, so that two writers don't write into one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", unique()));
    let temporary = Path::new(&temporary);
    let written = write_new(temporary, bytes).and_then(|()| fs_err::rename(temporary, path));
    written.map_err(|source| {
        // What is left of a failed write is of no use to anybody; the error to report is the first.
        fs_err::remove_file(temporary).ok();
        StoreError::io("write", path, source)
    })
}

/// Hex digits that no other process or moment uses.
pub(crate) fn unique() -> String {
    let mut random = [0; 8];
    // A kernel that booted always has random bytes; should it not, the zeros make a collision an error of
    // `create_new`, not a mix-up.
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok();
    format!("{:016x}", u64::from_ne_bytes(random))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    // Without this a power cut could leave an empty file under the final name.
    file.sync_data()
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    use std::io::Read as _;
    let read = fs_err::File::open(path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", path, error)),
    }
}
