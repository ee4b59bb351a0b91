use crate::error::Error;
use crate::layout::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK};
use crate::writer::{Extent, Meta, Special};
use base::RelPath;
use std::collections::BTreeMap;

/// Index of an inode in [`Tree`].
pub(crate) type NodeId = u32;

/// Names and inodes, without any data. Several names may lead to one inode.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// What a directory gets that was only implied by a path below it.
    implied: Meta,
}

pub(crate) struct Node {
    pub(crate) meta: Meta,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    File(Extent),
    Symlink(Box<[u8]>),
    Special(Special),
}

impl Node {
    /// File type and permissions as the inode has them.
    pub(crate) fn mode(&self) -> u16 {
        let kind = match self.body {
            Body::Directory(_) => S_IFDIR,
            Body::File(_) => S_IFREG,
            Body::Symlink(_) => S_IFLNK,
            Body::Special(Special::Char { .. }) => S_IFCHR,
            Body::Special(Special::Block { .. }) => S_IFBLK,
            Body::Special(Special::Fifo) => S_IFIFO,
            Body::Special(Special::Socket) => S_IFSOCK,
        };
        kind | u16::try_from(self.meta.mode & 0o7777).unwrap_or_default()
    }
}

impl Tree {
    pub(crate) const ROOT: NodeId = 0;

    pub(crate) fn new(implied: Meta) -> Self {
        Self {
            nodes: vec![Node {
                meta: implied,
                body: Body::Directory(BTreeMap::new()),
            }],
            implied,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// The number of inodes ever added, which is the length of a table by [`NodeId`].
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The inode that `path` leads to; no link is followed.
    pub(crate) fn find(&self, path: &RelPath) -> Option<NodeId> {
        path.components()
            .try_fold(Self::ROOT, |id, name| match &self.node(id).body {
                Body::Directory(children) => children.get(name).copied(),
                _ => None,
            })
    }

    /// Adds an inode under a name that is not taken.
    pub(crate) fn insert(&mut self, path: &RelPath, meta: Meta, body: Body) -> Result<(), Error> {
        let (parent, name) = self.vacancy(path)?;
        let id = self.push(Node { meta, body })?;
        self.name(parent, name, id);
        Ok(())
    }

    /// Adds a directory, or gives one that is there the metadata.
    pub(crate) fn insert_directory(&mut self, path: &RelPath, meta: Meta) -> Result<(), Error> {
        match self.find(path) {
            Some(id) if matches!(self.node(id).body, Body::Directory(_)) => {
                self.nodes[id as usize].meta = meta;
                Ok(())
            }
            _ => self.insert(path, meta, Body::Directory(BTreeMap::new())),
        }
    }

    /// Adds a second name of an inode that is not a directory.
    pub(crate) fn link(&mut self, path: &RelPath, target: &RelPath) -> Result<(), Error> {
        let no_target = || Error::NoTarget {
            path: path.clone(),
            target: target.clone(),
        };
        let id = self.find(target).ok_or_else(no_target)?;
        if matches!(self.node(id).body, Body::Directory(_)) {
            return Err(no_target());
        }
        let (parent, name) = self.vacancy(path)?;
        self.name(parent, name, id);
        Ok(())
    }

    /// Takes a name away, with all that lies below it. True when it was there.
    pub(crate) fn remove(&mut self, path: &RelPath) -> bool {
        let Some(((parent, name), _)) = path
            .parent()
            .and_then(|parent| self.find(&parent))
            .zip(path.file_name())
            .zip(self.find(path))
        else {
            return false;
        };
        match &mut self.nodes[parent as usize].body {
            Body::Directory(children) => children.remove(name).is_some(),
            _ => false,
        }
    }

    /// The parent's inode and the last component of a path that is not taken; parents are made.
    fn vacancy<'p>(&mut self, path: &'p RelPath) -> Result<(NodeId, &'p [u8]), Error> {
        let Some(last) = path.file_name() else {
            return Err(Error::Exists { path: path.clone() });
        };
        let mut parent = Self::ROOT;
        let mut components = path.components();
        components.next_back();
        for name in components {
            let Body::Directory(children) = &self.node(parent).body else {
                return Err(Error::NotADirectory { path: path.clone() });
            };
            parent = if let Some(id) = children.get(name) {
                *id
            } else {
                let id = self.push(Node {
                    meta: self.implied,
                    body: Body::Directory(BTreeMap::new()),
                })?;
                self.name(parent, name, id);
                id
            };
        }
        match &self.node(parent).body {
            Body::Directory(children) if children.contains_key(last) => {
                Err(Error::Exists { path: path.clone() })
            }
            Body::Directory(_) => Ok((parent, last)),
            _ => Err(Error::NotADirectory { path: path.clone() }),
        }
    }

    fn push(&mut self, node: Node) -> Result<NodeId, Error> {
        let id = NodeId::try_from(self.nodes.len()).map_err(|_| Error::Full)?;
        self.nodes.push(node);
        Ok(id)
    }

    fn name(&mut self, parent: NodeId, name: &[u8], id: NodeId) {
        if let Body::Directory(children) = &mut self.nodes[parent as usize].body {
            children.insert(name.into(), id);
        }
    }
}
