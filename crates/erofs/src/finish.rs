//! Turns the tree into metadata: first a place for every inode, then the bytes.

use crate::error::Error;
use crate::layout::{
    BLOCK, BLOCK_LEN, DIRENT_LEN, INODE_LEN, Inode, Layout, SLOT, Superblock, device_number, dirent,
};
use crate::tree::{Body, NodeId, Tree};
use crate::writer::Special;

/// Everything behind the data, and block 0.
pub(crate) struct Metadata {
    pub(crate) bytes: Vec<u8>,
    pub(crate) superblock: [u8; BLOCK_LEN],
}

/// Where each inode and each directory goes.
pub(crate) struct Plan {
    /// By [`NodeId`].
    places: Vec<Place>,
    /// Reachable inodes in the order of their numbers, with the parent (which only directories need).
    order: Vec<(NodeId, NodeId)>,
    /// Byte length of the inodes, a multiple of the block size.
    inodes_len: usize,
    /// First block of the metadata.
    first_block: u32,
    /// Blocks of the whole image.
    blocks: u32,
}

#[derive(Clone, Copy, Default)]
struct Place {
    /// Byte offset of the inode in the metadata; 0 when it has none yet (the first slot stays empty).
    offset: usize,
    links: u32,
    /// Full blocks outside the inode, and the first of them, counted from the end of the inodes.
    blocks: usize,
    first_block: usize,
    /// Bytes of contents.
    size: usize,
}

/// Gives every reachable inode its place: a directory's children lie together, so that listing one directory
/// with all its inodes reads few blocks.
pub(crate) fn plan(tree: &Tree, data_end: u64) -> Result<Plan, Error> {
    let mut places = vec![Place::default(); tree.len()];
    let mut order = Vec::new();
    let mut slots = Slots::new();
    let mut outer_blocks = 0;
    let mut place = |places: &mut [Place], id: NodeId, parent: NodeId| {
        let (size, inline) = contents(tree, id);
        let blocks = (size - inline).div_ceil(BLOCK_LEN);
        places[id as usize] = Place {
            offset: slots.take(INODE_LEN + inline),
            links: 0,
            blocks,
            first_block: outer_blocks,
            size,
        };
        outer_blocks += blocks;
        order.push((id, parent));
    };
    place(&mut places, Tree::ROOT, Tree::ROOT);
    places[Tree::ROOT as usize].links = 1;
    let mut pending = vec![Tree::ROOT];
    while let Some(directory) = pending.pop() {
        let Body::Directory(children) = &tree.node(directory).body else {
            continue;
        };
        places[directory as usize].links += 1; // its own `.`
        let first_pending = pending.len();
        for child in children.values().copied() {
            if places[child as usize].offset == 0 {
                place(&mut places, child, directory);
            }
            places[child as usize].links += 1;
            if matches!(tree.node(child).body, Body::Directory(_)) {
                places[directory as usize].links += 1; // the child's `..`
                pending.push(child);
            }
        }
        pending[first_pending..].reverse();
    }
    let inodes_len = slots.end.next_multiple_of(BLOCK_LEN);
    let first_block = u32::try_from(data_end / BLOCK).map_err(|_| Error::Full)?;
    let own_blocks =
        u32::try_from(inodes_len / BLOCK_LEN + outer_blocks).map_err(|_| Error::Full)?;
    let blocks = first_block.checked_add(own_blocks).ok_or(Error::Full)?;
    Ok(Plan {
        places,
        order,
        inodes_len,
        first_block,
        blocks,
    })
}

impl Plan {
    /// The bytes of it all.
    pub(crate) fn encode(&self, tree: &Tree) -> Metadata {
        let own_blocks = (self.blocks - self.first_block) as usize;
        let mut bytes = vec![0; own_blocks * BLOCK_LEN];
        let (inodes, outer) = bytes.split_at_mut(self.inodes_len);
        let mut directory = Vec::new();
        for ((id, parent), number) in self.order.iter().zip(1..) {
            let node = tree.node(*id);
            let place = &self.places[*id as usize];
            let contents = match &node.body {
                Body::Directory(_) => {
                    self.encode_directory(tree, *id, *parent, &mut directory);
                    directory.as_slice()
                }
                Body::Symlink(target) => target,
                Body::File(_) | Body::Special(_) => &[],
            };
            let (full, inline) = contents.split_at(contents.len().min(place.blocks * BLOCK_LEN));
            outer[place.first_block * BLOCK_LEN..][..full.len()].copy_from_slice(full);
            let inode = Inode {
                layout: if inline.is_empty() {
                    Layout::Plain
                } else {
                    Layout::Inline
                },
                mode: node.mode(),
                size: if let Body::File(extent) = &node.body {
                    extent.size
                } else {
                    place.size as u64
                },
                address: self.address(&node.body, place),
                number,
                links: place.links,
                meta: &node.meta,
            };
            let target = &mut inodes[place.offset..][..INODE_LEN + inline.len()];
            target[..INODE_LEN].copy_from_slice(&inode.encode());
            target[INODE_LEN..].copy_from_slice(inline);
        }
        let superblock = Superblock {
            root: u16::try_from(self.places[Tree::ROOT as usize].offset / SLOT).unwrap_or_default(),
            inodes: self.order.len() as u64,
            blocks: self.blocks,
            metadata: self.first_block,
        };
        Metadata {
            bytes,
            superblock: superblock.encode(),
        }
    }

    /// The inode's address field.
    fn address(&self, body: &Body, place: &Place) -> u32 {
        let block = match body {
            Body::Special(Special::Char { major, minor } | Special::Block { major, minor }) => {
                return device_number(*major, *minor);
            }
            Body::Special(Special::Fifo | Special::Socket) => return 0,
            Body::File(extent) => extent.offset / BLOCK,
            Body::Directory(_) | Body::Symlink(_) if place.blocks == 0 => return 0,
            Body::Directory(_) | Body::Symlink(_) => {
                u64::from(self.first_block)
                    + (self.inodes_len / BLOCK_LEN + place.first_block) as u64
            }
        };
        u32::try_from(block).expect("`end_file` and `plan` refuse what has more blocks than that")
    }

    /// The contents of a directory: blocks of records, the names behind the records of their block.
    fn encode_directory(&self, tree: &Tree, id: NodeId, parent: NodeId, out: &mut Vec<u8>) {
        out.clear();
        let mut block: Vec<(&[u8], NodeId)> = Vec::new();
        let mut used = 0;
        for (name, child) in entries(tree, id, parent) {
            if used + DIRENT_LEN + name.len() > BLOCK_LEN {
                self.encode_block(tree, &block, out);
                out.resize(out.len().next_multiple_of(BLOCK_LEN), 0);
                block.clear();
                used = 0;
            }
            used += DIRENT_LEN + name.len();
            block.push((name, child));
        }
        self.encode_block(tree, &block, out);
    }

    fn encode_block(&self, tree: &Tree, entries: &[(&[u8], NodeId)], out: &mut Vec<u8>) {
        let mut name_offset = entries.len() * DIRENT_LEN;
        for (name, id) in entries {
            let nid = (self.places[*id as usize].offset / SLOT) as u64;
            let short = u16::try_from(name_offset).expect("a block is shorter than 64 KiB");
            out.extend_from_slice(&dirent(nid, short, tree.node(*id).mode()));
            name_offset += name.len();
        }
        for (name, _) in entries {
            out.extend_from_slice(name);
        }
    }
}

/// Byte length of what an inode holds itself (files are elsewhere), and how much of its end goes inline.
fn contents(tree: &Tree, id: NodeId) -> (usize, usize) {
    let size = match &tree.node(id).body {
        Body::Symlink(target) => target.len(),
        Body::Directory(_) => {
            let (mut full, mut used) = (0, 0);
            for (name, _) in entries(tree, id, id) {
                if used + DIRENT_LEN + name.len() > BLOCK_LEN {
                    full += BLOCK_LEN;
                    used = 0;
                }
                used += DIRENT_LEN + name.len();
            }
            full + used
        }
        Body::File(_) | Body::Special(_) => 0,
    };
    // What is inline lies in the inode's own block (the kernel insists).
    let tail = size % BLOCK_LEN;
    (
        size,
        if tail + INODE_LEN <= BLOCK_LEN {
            tail
        } else {
            0
        },
    )
}

/// Names of a directory with `.` and `..`, in the order of their bytes (the kernel searches by halves).
fn entries(tree: &Tree, id: NodeId, parent: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
    let children = match &tree.node(id).body {
        Body::Directory(children) => Some(children),
        _ => None,
    };
    let mut children = children
        .into_iter()
        .flatten()
        .map(|(name, id)| (&**name, *id))
        .peekable();
    let mut dots = [(b".".as_slice(), id), (b"..".as_slice(), parent)]
        .into_iter()
        .peekable();
    std::iter::from_fn(move || match (dots.peek(), children.peek()) {
        (Some((dot, _)), Some((name, _))) if name < dot => children.next(),
        (Some(_), _) => dots.next(),
        (None, _) => children.next(),
    })
}

/// Hands out room for inodes. An inode with what is inline never crosses a block; room that is left at the end of
/// a block is given to later, smaller ones.
struct Slots {
    end: usize,
    /// Start and end of the rooms left.
    gaps: Vec<(usize, usize)>,
}

/// Gaps that are looked at; older ones are given up.
const MAX_GAPS: usize = 16;

impl Slots {
    fn new() -> Self {
        // Inode number 0 means "none" to many programs, so the first slots stay empty.
        Self {
            end: INODE_LEN,
            gaps: Vec::new(),
        }
    }

    fn take(&mut self, len: usize) -> usize {
        let len = len.next_multiple_of(SLOT);
        if let Some(at) = self.gaps.iter().position(|(start, end)| end - start >= len) {
            let (start, end) = self.gaps[at];
            if end - start - len >= INODE_LEN {
                self.gaps[at].0 += len;
            } else {
                self.gaps.remove(at);
            }
            return start;
        }
        let room = self.end.next_multiple_of(BLOCK_LEN) - self.end;
        if room != 0 && room < len {
            if room >= INODE_LEN {
                if self.gaps.len() == MAX_GAPS {
                    self.gaps.remove(0);
                }
                self.gaps.push((self.end, self.end + room));
            }
            self.end += room;
        }
        let start = self.end;
        self.end += len;
        start
    }
}
