use crate::data::Data;
use crate::error::Error;
use crate::finish;
use crate::layout::BLOCK;
use crate::tree::{Body, Tree};
use base::{Digest, Hasher, RelPath, Size};
use std::fmt;
use std::io::Read;

/// Owner, permissions and time of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Permissions with set-id and sticky bits (`0o7777`); higher bits are ignored.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds since 1970 and nanoseconds. It is the inode's only time.
    pub mtime: (i64, u32),
}

/// Where a file's bytes are in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte, a multiple of [`BLOCK`]; 0 for an empty file.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// A file that went into the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Where its bytes are.
    pub extent: Extent,
    /// Digest of its bytes, computed as they went by.
    pub digest: Digest,
}

/// An inode that is neither file, directory nor symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// A character device.
    Char {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    Block {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A complete image.
#[derive(Debug)]
pub struct Finished {
    /// The image's file. It is not synced.
    pub file: fs_err::File,
    /// Bytes of the image, a multiple of [`BLOCK`].
    pub size: u64,
    /// Where the data of the files ends, a multiple of [`BLOCK`]: what [`Writer::continue_from`] wants.
    pub data_end: u64,
}

/// Writes one image. Names may come in any order; parents that were never added get the metadata that was given
/// at the start.
///
/// A file's bytes come through [`Writer::add_file`], which reads and digests them, or piece by piece through
/// [`Writer::begin_file`], [`Writer::write`] and [`Writer::end_file`], where someone else reads and digests (on
/// another thread, say).
pub struct Writer {
    data: Data,
    tree: Tree,
    /// First byte of the file that is being written.
    open: Option<u64>,
    scratch: Vec<u8>,
}

/// Bytes read at once by [`Writer::add_file`].
const CHUNK: usize = 256 << 10;

impl Writer {
    /// Starts an image in `file`, whose contents are dropped. `implied` is the metadata of directories (the root
    /// too) that are never added themselves.
    ///
    /// Fails when the file can't be written.
    pub fn create(file: fs_err::File, implied: Meta) -> Result<Self, Error> {
        Self::start(file, implied, 0, BLOCK)
    }

    /// Starts an image in `file` that already holds the data of an earlier one up to `data_end`; what comes
    /// behind is dropped, and no name is taken over.
    ///
    /// Fails when the file is shorter than `data_end`, `data_end` is no multiple of [`BLOCK`], or the file can't
    /// be written.
    pub fn continue_from(file: fs_err::File, implied: Meta, data_end: u64) -> Result<Self, Error> {
        let length = file.metadata().map_err(Error::Write)?.len();
        if data_end < BLOCK || data_end > length || !data_end.is_multiple_of(BLOCK) {
            return Err(Error::BadExtent {
                path: RelPath::root(),
            });
        }
        Self::start(file, implied, data_end, data_end)
    }

    fn start(file: fs_err::File, implied: Meta, keep: u64, data_end: u64) -> Result<Self, Error> {
        // An empty file is left alone: ext4 takes emptying one for the start of a replacement, and writes all of it
        // to the disk when it is closed.
        if file.metadata().map_err(Error::Write)?.len() > keep {
            file.set_len(keep).map_err(Error::Write)?;
        }
        Ok(Self {
            data: Data::new(file, data_end)?,
            tree: Tree::new(implied),
            open: None,
            scratch: Vec::new(),
        })
    }

    /// Adds a file with all that `reader` gives, and digests it on the way.
    ///
    /// Fails when the reader fails or gives more than `limit` bytes (nothing stays in the image then), the path
    /// is taken, or the image can't be written.
    pub fn add_file(
        &mut self,
        path: &RelPath,
        meta: Meta,
        reader: &mut dyn Read,
        limit: u64,
    ) -> Result<Written, Error> {
        let mut chunk = std::mem::take(&mut self.scratch);
        chunk.resize(CHUNK, 0);
        self.begin_file()?;
        let read = self.read_all(path, reader, limit, &mut chunk);
        self.scratch = chunk;
        match read.and_then(|digest| Ok((digest, self.end_file(path, meta)?))) {
            Ok((digest, extent)) => Ok(Written { extent, digest }),
            Err(error) => {
                self.abandon_file()?;
                Err(error)
            }
        }
    }

    fn read_all(
        &mut self,
        path: &RelPath,
        reader: &mut dyn Read,
        limit: u64,
        chunk: &mut [u8],
    ) -> Result<Digest, Error> {
        let mut hasher = Hasher::new();
        let mut size = 0;
        loop {
            let count = match reader.read(chunk) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(Error::Read {
                        path: path.clone(),
                        source,
                    });
                }
            };
            size += count as u64;
            if size > limit {
                return Err(Error::TooLarge {
                    path: path.clone(),
                    limit: Size(limit),
                });
            }
            hasher.update(&chunk[..count]);
            self.write(&chunk[..count])?;
        }
    }

    /// Begins a file whose name comes at its end. A file that was begun and not ended is dropped.
    ///
    /// Fails when the image can't be written.
    pub fn begin_file(&mut self) -> Result<(), Error> {
        self.abandon_file()?;
        self.data.align()?;
        self.open = Some(self.data.end());
        Ok(())
    }

    /// Appends to the file that was begun (and begins one where none was).
    ///
    /// Fails when the image can't be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.open.is_none() {
            self.begin_file()?;
        }
        self.data.append(bytes)
    }

    /// Ends the file that was begun and gives it its name.
    ///
    /// Fails when the path is taken (the file stays open: end it under another name or abandon it), or the image
    /// is full.
    pub fn end_file(&mut self, path: &RelPath, meta: Meta) -> Result<Extent, Error> {
        let extent = self.extent()?;
        self.tree.insert(path, meta, Body::File(extent))?;
        self.open = None;
        Ok(extent)
    }

    /// Ends the file that was begun without a name: [`Writer::add_existing`] gives it one.
    ///
    /// Fails when the image is full.
    pub fn end_data(&mut self) -> Result<Extent, Error> {
        let extent = self.extent()?;
        self.open = None;
        Ok(extent)
    }

    /// Where the file that was begun is.
    fn extent(&self) -> Result<Extent, Error> {
        let end = self.data.end();
        let start = self.open.unwrap_or(end);
        let size = end - start;
        if u32::try_from(end / BLOCK).is_err() {
            return Err(Error::Full);
        }
        let offset = if size == 0 { 0 } else { start };
        Ok(Extent { offset, size })
    }

    /// Drops the file that was begun, if any, as if it had never come.
    ///
    /// Fails when the image can't be cut.
    pub fn abandon_file(&mut self) -> Result<(), Error> {
        match self.open.take() {
            Some(start) => self.data.cut(start),
            None => Ok(()),
        }
    }

    /// Appends bytes that files will be made of by [`Writer::add_existing`], and says where they are. A file that
    /// was begun and not ended is dropped.
    ///
    /// Fails when the image can't be written, or is full.
    pub fn append(&mut self, bytes: &[u8]) -> Result<Extent, Error> {
        self.begin_file()?;
        self.write(bytes)?;
        self.end_data()
    }

    /// Adds a file with all that `reader` gives, which somebody else has a digest of.
    ///
    /// Fails as [`Writer::add_file`] does.
    pub fn add_data(
        &mut self,
        path: &RelPath,
        meta: Meta,
        reader: &mut dyn Read,
    ) -> Result<Extent, Error> {
        let mut chunk = std::mem::take(&mut self.scratch);
        chunk.resize(CHUNK, 0);
        self.begin_file()?;
        let read = self.copy(path, reader, &mut chunk);
        self.scratch = chunk;
        match read.and_then(|()| self.end_file(path, meta)) {
            Ok(extent) => Ok(extent),
            Err(error) => {
                self.abandon_file()?;
                Err(error)
            }
        }
    }

    fn copy(
        &mut self,
        path: &RelPath,
        reader: &mut dyn Read,
        chunk: &mut [u8],
    ) -> Result<(), Error> {
        loop {
            match reader.read(chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => self.write(&chunk[..count])?,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::Read {
                        path: path.clone(),
                        source,
                    });
                }
            }
        }
    }

    /// Adds a file whose bytes are in the image already: data of an earlier image, or of another path.
    ///
    /// Fails when the extent does not lie within the data, or the path is taken.
    pub fn add_existing(
        &mut self,
        path: &RelPath,
        meta: Meta,
        extent: Extent,
    ) -> Result<(), Error> {
        let end = self.open.unwrap_or_else(|| self.data.end());
        let fits = extent.size == 0
            || (extent.offset >= BLOCK
                && extent.offset.is_multiple_of(BLOCK)
                && extent
                    .offset
                    .checked_add(extent.size)
                    .is_some_and(|last| last <= end));
        if !fits {
            return Err(Error::BadExtent { path: path.clone() });
        }
        let offset = if extent.size == 0 { 0 } else { extent.offset };
        self.tree
            .insert(path, meta, Body::File(Extent { offset, ..extent }))
    }

    /// Adds a second name for something that was added before and is not a directory.
    ///
    /// Fails when there is no such thing, or the path is taken.
    pub fn add_hardlink(&mut self, path: &RelPath, existing: &RelPath) -> Result<(), Error> {
        self.tree.link(path, existing)
    }

    /// Adds a directory; one that is there gets the new metadata. The root is a directory that is there.
    ///
    /// Fails when the path is taken by something else.
    pub fn add_dir(&mut self, path: &RelPath, meta: Meta) -> Result<(), Error> {
        self.tree.insert_directory(path, meta)
    }

    /// Adds a symbolic link.
    ///
    /// Fails when the target is none (empty, longer than 4095 bytes, a NUL byte in it), or the path is taken.
    pub fn add_symlink(&mut self, path: &RelPath, meta: Meta, target: &[u8]) -> Result<(), Error> {
        if target.is_empty() || target.len() > base::MAX_PATH || target.contains(&0) {
            return Err(Error::BadTarget { path: path.clone() });
        }
        self.tree.insert(path, meta, Body::Symlink(target.into()))
    }

    /// Adds a device, named pipe or socket.
    ///
    /// Fails when the path is taken.
    pub fn add_special(
        &mut self,
        path: &RelPath,
        meta: Meta,
        special: Special,
    ) -> Result<(), Error> {
        self.tree.insert(path, meta, Body::Special(special))
    }

    /// True when something has this path.
    pub fn contains(&self, path: &RelPath) -> bool {
        self.tree.find(path).is_some()
    }

    /// True when a directory has this path.
    pub fn contains_dir(&self, path: &RelPath) -> bool {
        self.tree
            .find(path)
            .is_some_and(|id| matches!(self.tree.node(id).body, Body::Directory(_)))
    }

    /// Takes a name away, with all that lies below it; its data stays in the file. True when it was there.
    pub fn remove(&mut self, path: &RelPath) -> bool {
        self.tree.remove(path)
    }

    /// Where the data ends so far, in bytes.
    pub fn data_end(&self) -> u64 {
        self.data.end().next_multiple_of(BLOCK)
    }

    /// Writes the metadata and the superblock. A file that was begun and not ended is dropped.
    ///
    /// Fails when the image can't be written or is larger than the format allows.
    pub fn finish(mut self) -> Result<Finished, Error> {
        self.abandon_file()?;
        self.data.align()?;
        let data_end = self.data.end();
        let metadata = finish::plan(&self.tree, data_end)?.encode(&self.tree);
        self.data.append(&metadata.bytes)?;
        let size = self.data.end();
        let file = self.data.close(&metadata.superblock, size)?;
        Ok(Finished {
            file,
            size,
            data_end,
        })
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("data_end", &self.data_end())
            .field("inodes", &self.tree.len())
            .finish_non_exhaustive()
    }
}
