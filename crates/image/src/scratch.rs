use crate::child::{self, ChildError, Environment};
use crate::clean::EPOCH;
use crate::store::{Store, UNFINISHED};
use base::Size;
use std::io;
use std::path::PathBuf;

/// A blank scratch disk can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// The size is too small for a file system, or larger than ext4 can be.
    #[error("A scratch disk can't be of {0}: it must be at least 64 MiB and at most 16 TiB")]
    Size(Size),
    /// `mkfs.ext4` is missing or failed.
    #[error("Can't make an empty file system (`mkfs.ext4`, package e2fsprogs)")]
    Make(#[source] ChildError),
    /// The file can't be written.
    #[error("Can't write the scratch disk")]
    Io(#[from] io::Error),
}

/// The file system's name: what the guest finds the disk by.
const LABEL: &str = "efimera-scratch";
/// A fixed UUID: every machine has its own copy, and none sees another's.
const UUID: &str = "0efe0efe-0000-4000-8000-000000000001";

impl Store {
    /// The path of an empty ext4 file system of that size: sparse, made once per size, to be copied with
    /// [`crate::copy_sparse`].
    ///
    /// Fails when the size is out of range, or the file can't be made.
    pub fn scratch(&self, size: Size, environment: &Environment) -> Result<PathBuf, ScratchError> {
        // Whole MiB: sizes that people write differ, and a disk has whole blocks.
        let bytes = size.bytes() & !((1 << 20) - 1);
        if !(Size::mib(64)..=Size::gib(16 << 10)).contains(&Size(bytes)) {
            return Err(ScratchError::Size(size));
        }
        let path = self.scratch_directory().join(format!("ext4-{bytes}.img"));
        if path.exists() {
            return Ok(path);
        }
        let new = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(self.scratch_directory())?;
        new.as_file().set_len(bytes)?;
        let mut command = environment.command("mkfs.ext4");
        // No journal: the disk ends with its machine. The inode tables are zero already, since the file is new, so
        // neither the host nor the guest needs to write them. Nothing is kept back for root.
        command
            .args([
                "-q",
                "-F",
                "-O",
                "^has_journal",
                "-m",
                "0",
                "-L",
                LABEL,
                "-U",
                UUID,
            ])
            .args([
                "-E",
                &format!("lazy_itable_init=1,nodiscard,root_owner=0:0,hash_seed={UUID}"),
            ])
            .arg(new.path())
            // The time that mkfs notes down.
            .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string());
        child::output(&mut command).map_err(ScratchError::Make)?;
        new.as_file().sync_all()?;
        new.persist(&path).map_err(|error| error.error)?;
        Ok(path)
    }
}
