//! Numbers and records of the format, as `fs/erofs/erofs_fs.h` of Linux 6.1 has them.

use crate::crc::crc32c;
use crate::writer::Meta;

/// Bytes in a block: the size of an x86-64 page, the only block size that Linux before 6.4 mounts.
pub const BLOCK: u64 = 4096;
/// [`BLOCK`] as a length in memory.
pub(crate) const BLOCK_LEN: usize = 4096;
/// Bytes of an extended inode.
pub(crate) const INODE_LEN: usize = 64;
/// Inodes are addressed in units of this many bytes from the start of the metadata.
pub(crate) const SLOT: usize = 32;
/// Bytes of one directory record without its name.
pub(crate) const DIRENT_LEN: usize = 12;

const SUPERBLOCK_OFFSET: usize = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
const COMPAT_CHECKSUM: u32 = 1;
/// The inode's time is the modification time (it once was the change time).
const COMPAT_MTIME: u32 = 2;

pub(crate) const S_IFIFO: u16 = 0o010_000;
pub(crate) const S_IFCHR: u16 = 0o020_000;
pub(crate) const S_IFDIR: u16 = 0o040_000;
pub(crate) const S_IFBLK: u16 = 0o060_000;
pub(crate) const S_IFREG: u16 = 0o100_000;
pub(crate) const S_IFLNK: u16 = 0o120_000;
pub(crate) const S_IFSOCK: u16 = 0o140_000;

/// Where an inode's contents are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All of it in consecutive blocks.
    Plain = 0,
    /// Full blocks first, the rest right behind the inode.
    Inline = 2,
}

/// An extended inode.
pub(crate) struct Inode<'a> {
    pub(crate) layout: Layout,
    /// File type and permissions.
    pub(crate) mode: u16,
    pub(crate) size: u64,
    /// First block of the contents, or the device number.
    pub(crate) address: u32,
    /// What 32-bit programs see as the inode's number.
    pub(crate) number: u32,
    pub(crate) links: u32,
    pub(crate) meta: &'a Meta,
}

impl Inode<'_> {
    pub(crate) fn encode(&self) -> [u8; INODE_LEN] {
        let mut bytes = [0; INODE_LEN];
        let mut put = Put {
            bytes: &mut bytes,
            at: 0,
        };
        // Bit 0 of the format says "extended"; the layout is in the bits above.
        put.u16(1 | (self.layout as u16) << 1);
        put.u16(0); // no extended attributes
        put.u16(self.mode);
        put.u16(0);
        put.u64(self.size);
        put.u32(self.address);
        put.u32(self.number);
        put.u32(self.meta.uid);
        put.u32(self.meta.gid);
        put.u64(self.meta.mtime.0.cast_unsigned());
        put.u32(self.meta.mtime.1);
        put.u32(self.links);
        bytes
    }
}

/// The whole of block 0.
pub(crate) struct Superblock {
    /// Inode address of the root directory.
    pub(crate) root: u16,
    pub(crate) inodes: u64,
    /// Blocks of the image.
    pub(crate) blocks: u32,
    /// First block of the metadata.
    pub(crate) metadata: u32,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; BLOCK_LEN] {
        let mut block = [0; BLOCK_LEN];
        let mut put = Put {
            bytes: &mut block,
            at: SUPERBLOCK_OFFSET,
        };
        put.u32(MAGIC);
        put.u32(0); // the checksum, below
        put.u32(COMPAT_CHECKSUM | COMPAT_MTIME);
        put.u8(12); // block size as a power of two
        put.u8(0);
        put.u16(self.root);
        put.u64(self.inodes);
        put.u64(0); // build time: only compact inodes refer to it
        put.u32(0);
        put.u32(self.blocks);
        put.u32(self.metadata);
        // The rest stays zero: shared attributes, UUID, label, incompatible features, further devices.
        let checksum = crc32c(u32::MAX, &block[SUPERBLOCK_OFFSET..]);
        block[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }
}

/// One directory record without its name.
pub(crate) fn dirent(nid: u64, name_offset: u16, mode: u16) -> [u8; DIRENT_LEN] {
    let kind = match mode & 0o170_000 {
        S_IFREG => 1,
        S_IFDIR => 2,
        S_IFCHR => 3,
        S_IFBLK => 4,
        S_IFIFO => 5,
        S_IFSOCK => 6,
        S_IFLNK => 7,
        _ => 0,
    };
    let mut bytes = [0; DIRENT_LEN];
    let mut put = Put {
        bytes: &mut bytes,
        at: 0,
    };
    put.u64(nid);
    put.u16(name_offset);
    put.u8(kind);
    bytes
}

/// The kernel's `new_encode_dev`.
pub(crate) fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Put<'_> {
    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    fn raw(&mut self, value: &[u8]) {
        self.bytes[self.at..][..value.len()].copy_from_slice(value);
        self.at += value.len();
    }
}
