//! Files of a running machine: listed, read and written through its supervisor. Everything that a machine says about
//! its files is only its word: names, kinds and sizes are checked by whoever writes them here.

use crate::error::{CommandError, Result};
use base::Size;
use std::io::Read;
use supervisor::client::{Connection, Item};
use supervisor::control::{Command, Note};
use wire::message::{FileKind, ListDir, ListEntry, Reply, Request, Stat, Tree, decode};
use workspace::LandingFile;

/// Entries of one directory; more is a directory made to exhaust a reader.
const MAX_ENTRIES: usize = 200_000;
/// The largest file that comes out of a machine.
const MAX_FILE: Size = Size::gib(64);
/// Bytes of one piece on the wire.
const PIECE: usize = 64 * 1024;

/// A path of a machine: where it starts, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachinePath {
    tree: Tree,
    bytes: Vec<u8>,
}

impl MachinePath {
    /// As typed: absolute, or in the workspace.
    pub(crate) fn typed(path: &[u8]) -> Self {
        let trimmed = path
            .strip_suffix(b"/")
            .filter(|path| !path.is_empty())
            .unwrap_or(path);
        let (tree, bytes) = match trimmed {
            [b'/', ..] => (Tree::Root, trimmed),
            b"." => (Tree::Workspace, b"".as_slice()),
            path => (Tree::Workspace, path.strip_prefix(b"./").unwrap_or(path)),
        };
        Self {
            tree,
            bytes: bytes.to_vec(),
        }
    }

    /// In the workspace.
    pub(crate) fn of_workspace(path: &base::RelPath) -> Self {
        Self {
            tree: Tree::Workspace,
            bytes: path.as_bytes().to_vec(),
        }
    }

    /// `name` in the directory that this is.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let bytes = match self.bytes.as_slice() {
            dir @ (b"" | b"/") => [dir, name].concat(),
            dir => [dir, b"/", name].concat(),
        };
        Self {
            tree: self.tree,
            bytes,
        }
    }

    /// The directory that it is in, and its name there; `None` for the start of a tree.
    fn split(&self) -> Option<(Self, &[u8])> {
        let path = self.bytes.as_slice();
        if path.is_empty() || path == b"/" {
            return None;
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (b"/".as_slice(), &path[1..]),
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (b"".as_slice(), path),
        };
        let parent = Self {
            tree: self.tree,
            bytes: parent.to_vec(),
        };
        Some((parent, name))
    }
}

impl std::fmt::Display for MachinePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&base::escape(&self.bytes))
    }
}

/// What a machine has at a path: its directory is listed, since only listings name kinds.
pub(crate) fn entry(connection: &mut Connection, path: &MachinePath) -> Result<Option<ListEntry>> {
    let Some((parent, name)) = path.split() else {
        return Ok(Some(root()));
    };
    Ok(list(connection, &parent)?
        .into_iter()
        .find(|entry| entry.name == name))
}

/// The start of a tree, which is in no listing.
fn root() -> ListEntry {
    ListEntry {
        name: Vec::new(),
        stat: Stat {
            kind: FileKind::Dir,
            mode: 0o755,
            size: 0,
            ino: 0,
            nlink: 1,
            mtime_ns: 0,
            ctime_ns: 0,
        },
        target: Vec::new(),
    }
}

/// What a directory of a machine holds.
pub(crate) fn list(connection: &mut Connection, dir: &MachinePath) -> Result<Vec<ListEntry>> {
    let dirs = vec![ListDir {
        path: dir.bytes.clone(),
        whole: true,
    }];
    let request = Request::List {
        tree: dir.tree,
        dirs,
    };
    let stream = connection.open(&Command::Files(request))?;
    let mut found = Vec::new();
    loop {
        match connection.next(stream, None)? {
            Item::Note(note) => match reply(note)? {
                Reply::Entries { entries, .. } => found.extend(entries),
                Reply::Failed(failure) => return Err(failed(&failure.what, failure.errno)),
                _ => {}
            },
            Item::Closed => return Ok(found),
            Item::Data { .. } | Item::Finished(_) => {}
        }
        if found.len() > MAX_ENTRIES {
            return Err(CommandError::new(format!(
                "`{dir}` in the machine lists more than {MAX_ENTRIES} entries"
            )));
        }
    }
}

/// Copies a file of a machine into `file`, which is put in place only when all of it came.
pub(crate) fn read(
    connection: &mut Connection,
    path: &MachinePath,
    mut file: LandingFile,
) -> Result {
    use std::io::Write as _;
    let request = Request::Read {
        tree: path.tree,
        paths: vec![path.bytes.clone()],
    };
    let stream = connection.open(&Command::Files(request))?;
    let mut size = 0;
    let mut whole = false;
    loop {
        match connection.next(stream, None)? {
            Item::Note(note) => match reply(note)? {
                Reply::Failed(failure) => return Err(failed(&failure.what, failure.errno)),
                Reply::FileEnd(_) => whole = true,
                _ => {}
            },
            Item::Data { bytes, .. } => {
                size += bytes.len() as u64;
                if size > MAX_FILE.bytes() {
                    return Err(CommandError::new(format!(
                        "`{path}` is larger than {MAX_FILE}"
                    )));
                }
                file.write_all(&bytes)?;
            }
            Item::Closed if whole => return Ok(file.finish()?),
            Item::Closed => {
                return Err(CommandError::new(format!(
                    "`{path}` did not come as a whole"
                )));
            }
            Item::Finished(_) => {}
        }
    }
}

/// What is written at a path of a machine.
pub(crate) enum New<'a> {
    /// A file, and where its bytes come from.
    File {
        mode: u32,
        content: &'a mut dyn Read,
    },
    Dir {
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
    },
    /// Nothing any more: what is there is removed (of a directory only an empty one).
    Nothing,
}

/// Writes (or removes) one path of a machine.
pub(crate) fn write(connection: &mut Connection, path: &MachinePath, new: New<'_>) -> Result {
    let (kind, mode, target, content) = match new {
        New::File { mode, content } => (FileKind::File, mode, Vec::new(), Some(content)),
        New::Dir { mode } => (FileKind::Dir, mode, Vec::new(), None),
        New::Symlink { target } => (FileKind::Symlink, 0o777, target, None),
        New::Nothing => (FileKind::Whiteout, 0, Vec::new(), None),
    };
    let request = Request::Write {
        tree: path.tree,
        path: path.bytes.clone(),
        kind,
        mode,
        target,
    };
    let stream = connection.open(&Command::Files(request))?;
    if let Some(content) = content {
        let mut piece = vec![0; PIECE];
        loop {
            match content.read(&mut piece)? {
                0 => break,
                count => connection.send(stream, 0, &piece[..count], None)?,
            }
        }
    }
    connection.finish(stream, 0)?;
    loop {
        match connection.next(stream, None)? {
            Item::Note(note) => match reply(note)? {
                Reply::Failed(failure) => return Err(failed(&failure.what, failure.errno)),
                Reply::Done => return Ok(()),
                _ => {}
            },
            Item::Closed => {
                return Err(CommandError::new(format!("`{path}` was not written")));
            }
            Item::Data { .. } | Item::Finished(_) => {}
        }
    }
}

/// What the guest said, as the supervisor passed it on unread.
fn reply(note: Note) -> Result<Reply> {
    match note {
        Note::Reply(bytes) => decode(&bytes)
            .map_err(|_| CommandError::new("The machine's answer can't be understood")),
        Note::Failed { message, hint } => Err(CommandError::told(message, hint)),
        _ => Err(CommandError::new(
            "The machine's answer is none to a request for files",
        )),
    }
}

fn failed(what: &[u8], errno: i32) -> CommandError {
    let what = base::escape_line(what, 300);
    match errno {
        0 => CommandError::new(what),
        errno => CommandError::new(format!(
            "{what}: {}",
            std::io::Error::from_raw_os_error(errno)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::MachinePath;
    use wire::message::Tree;

    #[test]
    fn paths_as_typed() {
        let typed = |text: &str| {
            let path = MachinePath::typed(text.as_bytes());
            (path.tree, String::from_utf8(path.bytes).unwrap())
        };
        assert_eq!(typed("a/b/"), (Tree::Workspace, "a/b".to_owned()));
        assert_eq!(typed("./a"), (Tree::Workspace, "a".to_owned()));
        assert_eq!(typed("."), (Tree::Workspace, String::new()));
        assert_eq!(typed(""), (Tree::Workspace, String::new()));
        assert_eq!(typed("/"), (Tree::Root, "/".to_owned()));
        assert_eq!(typed("/etc/"), (Tree::Root, "/etc".to_owned()));
    }

    #[test]
    fn parents_and_children() {
        let path = MachinePath::typed(b"/etc");
        let (parent, name) = path.split().unwrap();
        assert_eq!(
            (parent.to_string().as_str(), name),
            ("/", b"etc".as_slice())
        );
        assert_eq!(parent.join(name), path);
        let path = MachinePath::typed(b"a");
        let (parent, name) = path.split().unwrap();
        assert_eq!(parent.join(name), path);
        assert!(parent.split().is_none());
    }
}
