use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::verbs::exec::connect;
use base::{Name, RelPath, Size};
use clap::Args;
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use store::{ResultHead, Store};
use supervisor::client::{Connection, Item};
use supervisor::control::{Command, Note};
use wire::message::{FileKind, ListDir, ListEntry, Reply, Request, Stat, Tree, decode};
use workspace::{Baseline, BlobDir, Kind, Landing, Node};

/// Copy files into or out of a running sandbox, or out of a result
///
/// One side is NAME:PATH. In a sandbox a relative path starts at the workspace, an absolute one at the machine's
/// root; in a result paths start at the workspace. Directories are copied whole. What comes out is written through
/// no link and into no git directory.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Where from: PATH, or NAME:PATH
    source: String,
    /// Where to: PATH, or NAME:PATH
    target: String,
}

/// Files and directories of one copy; more is a tree made to exhaust a walker.
const MAX_ENTRIES: usize = 200_000;
/// The largest file that comes out of a machine.
const MAX_FILE: Size = Size::gib(64);
/// Bytes of one piece on the wire.
const PIECE: usize = 64 * 1024;

/// A side of the copy.
enum Place {
    Here(PathBuf),
    There(Name, Vec<u8>),
}

pub(crate) fn run(context: &Context, args: &CpArgs) -> Result<u8> {
    let store = pick::store(context)?;
    match (place(context, &args.source), place(context, &args.target)) {
        (Place::There(name, path), Place::Here(target)) => {
            if store.is_alive(&name)? {
                out_of_machine(&store, &name, &path, &target)?;
            } else {
                out_of_result(&store, &pick::named(&store, &name)?, &path, &target)?;
            }
        }
        (Place::Here(source), Place::There(name, path)) => {
            into_machine(&store, &name, &source, &path)?;
        }
        (Place::Here(_), Place::Here(_)) => {
            return Err(CommandError::usage("One side has to be NAME:PATH")
                .hint("cp copies files on this computer"));
        }
        (Place::There(..), Place::There(..)) => {
            return Err(CommandError::usage(
                "One side has to be a path on this computer",
            ));
        }
    }
    Ok(0)
}

/// `NAME:PATH`, or a path here; `./a:b` is a path.
fn place(context: &Context, text: &str) -> Place {
    match text.split_once(':') {
        Some((name, path)) if !name.contains('/') => match name.parse() {
            Ok(name) => Place::There(name, path.as_bytes().to_vec()),
            Err(_) => Place::Here(context.cwd.join(text)),
        },
        _ => Place::Here(context.cwd.join(text)),
    }
}

/// Where a copy goes: into `target` when it is a directory, else to its name. Gives the directory and the name.
fn destination(target: &Path, name: &[u8]) -> Result<(PathBuf, RelPath)> {
    if target.is_dir() {
        return Ok((target.to_owned(), RelPath::new(name)?));
    }
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = target.file_name().ok_or_else(|| {
        CommandError::usage(format!("`{}` is no name for a copy", target.display()))
    })?;
    Ok((parent.to_owned(), RelPath::new(name.as_bytes())?))
}

fn last_component(path: &[u8]) -> Vec<u8> {
    let trimmed = path.strip_suffix(b"/").unwrap_or(path);
    let name = trimmed
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    if name.is_empty() || name == b"." || name == b".." {
        b"workspace".to_vec()
    } else {
        name.to_vec()
    }
}

fn out_of_result(store: &Store, head: &ResultHead, path: &[u8], target: &Path) -> Result {
    let changes = pick::changes(store, &head.spec.name)?;
    let baseline = Baseline::load(&store.baseline_dir(&head.spec.baseline))?;
    let blobs = BlobDir::open(store.result_dir(&head.spec.name).blobs())?;
    let workspace = head.spec.workspace.as_os_str().as_bytes();
    let inside = path.strip_prefix(workspace).unwrap_or(path);
    let inside = inside.strip_prefix(b"/").unwrap_or(inside);
    let wanted = match inside.strip_suffix(b"/").unwrap_or(inside) {
        b"" | b"." => RelPath::root(),
        path => RelPath::new(path.strip_prefix(b"./").unwrap_or(path))?,
    };
    let mut nodes: Vec<(RelPath, Node)> = baseline
        .entries
        .iter()
        .filter(|entry| entry.path.is_within(&wanted) && changes.get(&entry.path).is_none())
        .map(|entry| (entry.path.clone(), Node::of_entry(entry)))
        .collect();
    nodes.extend(
        changes
            .changes()
            .iter()
            .filter(|change| change.path.is_within(&wanted))
            .filter_map(|change| Some((change.path.clone(), change.new.clone()?))),
    );
    nodes.sort_by(|a, b| a.0.cmp(&b.0));
    if nodes.is_empty() && !wanted.is_root() {
        return Err(CommandError::new(format!(
            "There is no `{wanted}` in the result {}",
            head.spec.name
        )));
    }
    let (dir, name) = destination(target, &last_component(wanted.as_bytes()))?;
    let landing = Landing::open(&dir)?;
    if wanted.is_root() {
        landing.dir(&name, 0o755)?;
    }
    for (path, node) in nodes {
        let below = path.below(&wanted).unwrap_or_default();
        let place = if below.is_root() {
            name.clone()
        } else {
            RelPath::new([name.as_bytes(), b"/", below.as_bytes()].concat())?
        };
        match node.kind {
            Kind::Dir => landing.dir(&place, node.mode)?,
            Kind::Symlink => landing.symlink(&place, &node.target)?,
            Kind::File => {
                let mut file = landing.file(&place, node.mode)?;
                match baseline
                    .entry(&path)
                    .filter(|entry| entry.digest == node.digest)
                {
                    Some(entry) => file.write_all(&baseline.read(entry)?)?,
                    None => {
                        let digest = node
                            .digest
                            .ok_or_else(|| CommandError::new(format!("`{path}` has no content")))?;
                        blobs.copy(&digest, &mut file)?;
                    }
                }
                file.finish()?;
            }
        }
    }
    Ok(())
}

/// A path of the machine: absolute, or in the workspace.
fn in_machine(path: &[u8]) -> (Tree, Vec<u8>) {
    let trimmed = path
        .strip_suffix(b"/")
        .filter(|path| !path.is_empty())
        .unwrap_or(path);
    match trimmed {
        [b'/', ..] => (Tree::Root, trimmed.to_vec()),
        b"." => (Tree::Workspace, Vec::new()),
        path => (
            Tree::Workspace,
            path.strip_prefix(b"./").unwrap_or(path).to_vec(),
        ),
    }
}

fn out_of_machine(store: &Store, name: &Name, path: &[u8], target: &Path) -> Result {
    let mut connection = connect(store, name)?;
    let (tree, from) = in_machine(path);
    let (dir, place) = destination(target, &last_component(path))?;
    let landing = Landing::open(&dir)?;
    let mut left = MAX_ENTRIES;
    let mut waiting = VecDeque::new();
    match entry_of(&mut connection, tree, &from)? {
        Some(entry) => waiting.push_back((from, place, entry)),
        None => {
            return Err(CommandError::new(format!(
                "There is no `{}` in {name}",
                base::escape(path)
            )));
        }
    }
    while let Some((from, place, entry)) = waiting.pop_front() {
        left = left.checked_sub(1).ok_or_else(|| {
            CommandError::new(format!(
                "More than {MAX_ENTRIES} files and directories are not copied at once"
            ))
        })?;
        match entry.stat.kind {
            FileKind::Dir | FileKind::FreshDir => {
                landing.dir(&place, entry.stat.mode & 0o777)?;
                for child in list(&mut connection, tree, &from)? {
                    waiting.push_back((
                        joined(&from, &child.name),
                        place.join(&child.name)?,
                        child,
                    ));
                }
            }
            FileKind::Symlink => landing.symlink(&place, &entry.target)?,
            FileKind::File => {
                read_file(&mut connection, tree, &from, &landing, &place, &entry.stat)?;
            }
            FileKind::Whiteout | FileKind::Other => {}
        }
    }
    Ok(())
}

/// What the machine has at a path: its directory is listed, since only listings name kinds.
fn entry_of(connection: &mut Connection, tree: Tree, path: &[u8]) -> Result<Option<ListEntry>> {
    let directory = Stat {
        kind: FileKind::Dir,
        mode: 0o755,
        size: 0,
        ino: 0,
        nlink: 1,
        mtime_ns: 0,
        ctime_ns: 0,
    };
    let root = ListEntry {
        name: Vec::new(),
        stat: directory,
        target: Vec::new(),
    };
    if path.is_empty() || path == b"/" {
        return Ok(Some(root));
    }
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (parent, name) = match at {
        Some(0) => (b"/".as_slice(), &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"".as_slice(), path),
    };
    Ok(list(connection, tree, parent)?
        .into_iter()
        .find(|entry| entry.name == name))
}

fn list(connection: &mut Connection, tree: Tree, path: &[u8]) -> Result<Vec<ListEntry>> {
    let dirs = vec![ListDir {
        path: path.to_vec(),
        whole: true,
    }];
    let stream = connection.open(&Command::Files(Request::List { tree, dirs }))?;
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
            return Err(CommandError::new(
                "A directory of the machine lists more entries than are copied at once",
            ));
        }
    }
}

fn read_file(
    connection: &mut Connection,
    tree: Tree,
    from: &[u8],
    landing: &Landing,
    place: &RelPath,
    stat: &Stat,
) -> Result {
    let request = Request::Read {
        tree,
        paths: vec![from.to_vec()],
    };
    let stream = connection.open(&Command::Files(request))?;
    let mut file = landing.file(place, stat.mode & 0o777)?;
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
                        "`{place}` is larger than {MAX_FILE}"
                    )));
                }
                file.write_all(&bytes)?;
            }
            Item::Closed if whole => return Ok(file.finish()?),
            Item::Closed => {
                return Err(CommandError::new(format!(
                    "`{place}` did not come as a whole"
                )));
            }
            Item::Finished(_) => {}
        }
    }
}

fn into_machine(store: &Store, name: &Name, source: &Path, path: &[u8]) -> Result {
    let metadata = fs_err::symlink_metadata(source)?;
    let own_name = fs_err::canonicalize(source)?
        .file_name()
        .map(|name| name.as_bytes().to_vec())
        .unwrap_or_default();
    let mut connection = connect(store, name)?;
    let (tree, mut to) = in_machine(path);
    // Into a directory that is there, else to that name; a slash at the end asks for a directory.
    let there = entry_of(&mut connection, tree, &to)?;
    if there.is_some_and(|entry| entry.stat.kind == FileKind::Dir) || path.ends_with(b"/") {
        to = joined(&to, &own_name);
    }
    let mut waiting = VecDeque::from([(source.to_owned(), to, metadata)]);
    while let Some((source, to, metadata)) = waiting.pop_front() {
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_symlink() {
            let target = fs_err::read_link(&source)?
                .into_os_string()
                .as_bytes()
                .to_vec();
            write(
                &mut connection,
                tree,
                &to,
                FileKind::Symlink,
                mode,
                target,
                Content::None,
            )?;
        } else if metadata.is_dir() {
            write(
                &mut connection,
                tree,
                &to,
                FileKind::Dir,
                mode,
                Vec::new(),
                Content::None,
            )?;
            for entry in fs_err::read_dir(&source)? {
                let entry = entry?;
                let metadata = fs_err::symlink_metadata(entry.path())?;
                waiting.push_back((
                    entry.path(),
                    joined(&to, entry.file_name().as_bytes()),
                    metadata,
                ));
            }
        } else if metadata.is_file() {
            let mut file = fs_err::File::open(&source)?;
            write(
                &mut connection,
                tree,
                &to,
                FileKind::File,
                mode,
                Vec::new(),
                Content::File(&mut file),
            )?;
        }
    }
    Ok(())
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" | b"/" => [dir, name].concat(),
        dir => [dir, b"/", name].concat(),
    }
}

/// A file's bytes on their way in.
pub(crate) enum Content<'a> {
    None,
    Bytes(&'a [u8]),
    File(&'a mut fs_err::File),
}

/// Writes (or removes) one path of a machine.
pub(crate) fn write(
    connection: &mut Connection,
    tree: Tree,
    path: &[u8],
    kind: FileKind,
    mode: u32,
    target: Vec<u8>,
    content: Content<'_>,
) -> Result {
    let request = Request::Write {
        tree,
        path: path.to_vec(),
        kind,
        mode,
        target,
    };
    let stream = connection.open(&Command::Files(request))?;
    match content {
        Content::None => {}
        Content::Bytes(bytes) => connection.send(stream, 0, bytes, None)?,
        Content::File(file) => {
            let mut piece = vec![0; PIECE];
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    count => connection.send(stream, 0, &piece[..count], None)?,
                }
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
                return Err(CommandError::new(format!(
                    "`{}` was not written",
                    base::escape(path)
                )));
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
        Note::Failed { message, hint } => Err(hint
            .into_iter()
            .fold(CommandError::new(message), CommandError::hint)),
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
