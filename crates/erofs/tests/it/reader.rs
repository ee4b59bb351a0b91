//! A small reader, written from the kernel's `erofs_fs.h` and not from the writer: it sees what extraction loses
//! (owners, devices, links, the order of names).

use std::os::unix::fs::FileExt as _;
use std::path::Path;

pub(crate) struct Reader {
    file: std::fs::File,
    superblock: Vec<u8>,
    /// Inodes and directories.
    metadata: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) nid: u64,
    pub(crate) mode: u64,
    pub(crate) size: u64,
    /// Block address or device number.
    pub(crate) raw: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: (i64, u64),
    pub(crate) links: u64,
    inline: bool,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> Self {
        let file = fs_err::File::open(path).unwrap().into_file();
        let mut superblock = vec![0; 128];
        file.read_exact_at(&mut superblock, 1024).unwrap();
        assert_eq!(number(&superblock, 0, 4), 0xe0f5_e1e2);
        let metadata_at = number(&superblock, 40, 4) * 4096;
        let size = file.metadata().unwrap().len();
        assert_eq!(size, number(&superblock, 36, 4) * 4096);
        let mut metadata = vec![0; usize::try_from(size - metadata_at).unwrap()];
        file.read_exact_at(&mut metadata, metadata_at).unwrap();
        Self {
            file,
            superblock,
            metadata,
        }
    }

    fn number(&self, at: usize, length: usize) -> u64 {
        number(&self.metadata, at, length)
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub(crate) fn inodes(&self) -> u64 {
        number(&self.superblock, 16, 8)
    }

    pub(crate) fn root(&self) -> Inode {
        self.inode(number(&self.superblock, 14, 2))
    }

    /// Where an inode is in the metadata.
    fn at(nid: u64) -> usize {
        usize::try_from(nid * 32).unwrap()
    }

    fn inode(&self, nid: u64) -> Inode {
        let at = Self::at(nid);
        let format = self.number(at, 2);
        assert!(
            format == 1 || format == 1 | 2 << 1,
            "an extended inode, plain or inline"
        );
        assert!(at % 4096 + 64 <= 4096, "an inode within one block");
        Inode {
            nid,
            mode: self.number(at + 4, 2),
            size: self.number(at + 8, 8),
            raw: self.number(at + 16, 4),
            uid: self.number(at + 24, 4),
            gid: self.number(at + 28, 4),
            mtime: (
                self.number(at + 32, 8).cast_signed(),
                self.number(at + 40, 4),
            ),
            links: self.number(at + 44, 4),
            inline: format != 1,
        }
    }

    /// All bytes of a file, link or directory.
    pub(crate) fn contents(&self, inode: &Inode) -> Vec<u8> {
        let size = usize::try_from(inode.size).unwrap();
        let tail = if inode.inline { size % 4096 } else { 0 };
        let mut bytes = if size == tail {
            Vec::new()
        } else {
            self.read(inode.raw * 4096, size - tail)
        };
        let inline_at = Self::at(inode.nid) + 64;
        assert!(
            tail == 0 || inline_at % 4096 + tail <= 4096,
            "inline contents within one block"
        );
        bytes.extend_from_slice(&self.metadata[inline_at..][..tail]);
        bytes
    }

    /// Names and inodes of a directory; fails on names that are not in strictly ascending order.
    pub(crate) fn entries(&self, directory: &Inode) -> Vec<(Vec<u8>, Inode)> {
        assert_eq!(directory.mode & 0o170_000, 0o040_000);
        let mut entries: Vec<(Vec<u8>, Inode)> = Vec::new();
        for block in self.contents(directory).chunks(4096) {
            let short = |at: usize| usize::from(block[at]) | usize::from(block[at + 1]) << 8;
            let count = short(8) / 12;
            for index in 0..count {
                let start = short(index * 12 + 8);
                let end = if index + 1 == count {
                    block.len()
                } else {
                    short((index + 1) * 12 + 8)
                };
                let name: Vec<u8> = block[start..end]
                    .iter()
                    .copied()
                    .take_while(|byte| *byte != 0)
                    .collect();
                assert!(
                    entries.last().is_none_or(|(last, _)| *last < name),
                    "names in ascending order"
                );
                let nid = (0..8)
                    .rev()
                    .fold(0, |nid, at| nid << 8 | u64::from(block[index * 12 + at]));
                let inode = self.inode(nid);
                let kinds = [0o10, 0o4, 0o2, 0o6, 0o1, 0o14, 0o12];
                assert_eq!(
                    inode.mode >> 12,
                    kinds[usize::from(block[index * 12 + 10]) - 1]
                );
                entries.push((name, inode));
            }
        }
        entries
    }

    pub(crate) fn find(&self, path: &str) -> Inode {
        path.split('/')
            .filter(|name| !name.is_empty())
            .fold(self.root(), |inode, name| {
                let mut entries = self.entries(&inode).into_iter();
                entries
                    .find(|(entry, _)| entry == name.as_bytes())
                    .expect("the path is there")
                    .1
            })
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..][..length]
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
