//! Has the kernel read what everyone is going to need, before anyone waits for it.
//!
//! erofs reads its metadata block by block, each when it is looked at: the first `git status` of 5,000 files waited
//! for a hundred blocks, one after the other, and took three times as long as the second. The host's writer puts all
//! of it at the image's end in one piece, which comes in one go.

use rustix::fs::{Advice, Mode, OFlags};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Where an erofs has its superblock, and the bytes of it that matter here.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_LEN: usize = 48;
/// `EROFS_SUPER_MAGIC_V1`
const MAGIC: u32 = 0xe0f5_e1e2;
/// The most that is read ahead: the metadata of about 300,000 files. It takes memory from the machine, if only until
/// someone else wants it.
const MOST: u64 = 32 << 20;

/// Begins to read the metadata of the erofs on `disk`, and returns before it is there. What can't be read now will be
/// when it is needed, so nothing here is an error.
pub(crate) fn read_metadata(disk: &Path) {
    let opened = rustix::fs::open(disk, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(disk) = opened
        && let Some((offset, length)) = metadata(&disk)
    {
        _ = rustix::fs::fadvise(&disk, offset, Some(length), Advice::WillNeed);
    }
}

fn metadata(disk: &OwnedFd) -> Option<(u64, NonZeroU64)> {
    let mut superblock = [0; SUPERBLOCK_LEN];
    let count = rustix::io::pread(disk, &mut superblock, SUPERBLOCK).ok()?;
    extent(superblock.get(..count)?)
}

/// Where the metadata begins, and how much of it to read.
fn extent(superblock: &[u8]) -> Option<(u64, NonZeroU64)> {
    let number = |at: usize| {
        let bytes = superblock.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    // `struct erofs_super_block` of the kernel's `fs/erofs/erofs_fs.h`.
    let block_bits = *superblock.get(12)?;
    let (blocks, first) = (number(36)?, number(40)?);
    if number(0)? != MAGIC || !(9..=16).contains(&block_bits) {
        return None;
    }
    let length = u64::from(blocks.checked_sub(first)?) << block_bits;
    let length = NonZeroU64::new(length.min(MOST))?;
    Some((u64::from(first) << block_bits, length))
}

#[cfg(test)]
mod tests;
