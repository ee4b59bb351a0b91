use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::machine_files::{self, MachinePath, New};
use crate::pick;
use crate::verbs::exec::connect;
use base::{Name, RelPath};
use clap::Args;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use store::{ResultHead, Store};
use wire::message::FileKind;
use workspace::{Baseline, BlobDir, Kind, LandError, Landing, Node};

/// Copy files into or out of a running sandbox, or out of a result
///
/// One side is NAME:PATH. In a sandbox a relative path starts at the workspace, an absolute one at the machine's
/// root; in a result paths start at the workspace. Directories are copied whole, but for devices, FIFOs and sockets,
/// and for git directories on the way out. What comes out is written through no link and into no git directory.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Where from: PATH, or NAME:PATH
    source: String,
    /// Where to: PATH, or NAME:PATH
    target: String,
}

/// Files and directories of one copy; more is a tree made to exhaust a walker.
const MAX_ENTRIES: usize = 200_000;
/// Names of what was left out that are told.
const MAX_NAMED: usize = 4;

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
                out_of_machine(context, &store, &name, &path, &target)?;
            } else {
                out_of_result(&store, &pick::named(&store, &name)?, &path, &target)?;
            }
        }
        (Place::Here(source), Place::There(name, path)) => {
            into_machine(context, &store, &name, &source, &path)?;
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
        .entry(&wanted)?
        .into_iter()
        .chain(baseline.below(&wanted)?)
        .filter(|entry| changes.get(&entry.path).is_none())
        .map(|entry| (entry.path.clone(), Node::of_entry(&entry)))
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
                    .entry(&path)?
                    .filter(|entry| entry.digest == node.digest)
                {
                    Some(entry) => file.write_all(&baseline.read(&entry)?)?,
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

fn out_of_machine(
    context: &Context,
    store: &Store,
    name: &Name,
    path: &[u8],
    target: &Path,
) -> Result {
    let mut connection = connect(store, name)?;
    let from = MachinePath::typed(path);
    let (dir, place) = destination(target, &last_component(path))?;
    let landing = Landing::open(&dir)?;
    let Some(entry) = machine_files::entry(&mut connection, &from)? else {
        return Err(CommandError::new(format!("There is no `{from}` in {name}")));
    };
    let mut left = MAX_ENTRIES;
    let mut left_out = LeftOut::default();
    let mut waiting = VecDeque::from([(from, place, entry)]);
    let mut first = true;
    while let Some((from, place, entry)) = waiting.pop_front() {
        left = left.checked_sub(1).ok_or_else(too_many)?;
        let mode = entry.stat.mode & 0o777;
        let copied = match entry.stat.kind {
            FileKind::Dir | FileKind::FreshDir => landing.dir(&place, mode).map(|()| true),
            FileKind::Symlink => landing.symlink(&place, &entry.target).map(|()| false),
            FileKind::File => match landing.file(&place, mode) {
                Ok(file) => {
                    machine_files::read(&mut connection, &from, file)?;
                    Ok(false)
                }
                Err(error) => Err(error),
            },
            FileKind::Whiteout | FileKind::Other => {
                left_out.add(&from, first, "neither a file, a directory nor a link")?;
                Ok(false)
            }
        };
        match copied {
            Ok(true) => {
                for child in machine_files::list(&mut connection, &from)? {
                    match place.join(&child.name) {
                        Ok(place) => waiting.push_back((from.join(&child.name), place, child)),
                        Err(error) => left_out.add(&from.join(&child.name), false, error)?,
                    }
                }
            }
            Ok(false) => {}
            Err(error @ LandError::Refused(_)) => left_out.add(&from, first, error)?,
            Err(error) => return Err(error.into()),
        }
        first = false;
    }
    left_out.tell(context);
    Ok(())
}

fn into_machine(
    context: &Context,
    store: &Store,
    name: &Name,
    source: &Path,
    path: &[u8],
) -> Result {
    let metadata = fs_err::symlink_metadata(source)?;
    let mut connection = connect(store, name)?;
    let mut to = MachinePath::typed(path);
    // Into a directory that is there, else to that name; a slash at the end asks for a directory.
    let there = machine_files::entry(&mut connection, &to)?;
    if there.is_some_and(|entry| entry.stat.kind == FileKind::Dir) || path.ends_with(b"/") {
        to = to.join(&own_name(source)?);
    }
    let mut left = MAX_ENTRIES;
    let mut left_out = LeftOut::default();
    let mut waiting = VecDeque::from([(source.to_owned(), to, metadata)]);
    while let Some((source, to, metadata)) = waiting.pop_front() {
        left = left.checked_sub(1).ok_or_else(too_many)?;
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_symlink() {
            let target = fs_err::read_link(&source)?.into_os_string().into_vec();
            machine_files::write(&mut connection, &to, New::Symlink { target })?;
        } else if metadata.is_dir() {
            machine_files::write(&mut connection, &to, New::Dir { mode })?;
            for entry in fs_err::read_dir(&source)? {
                let entry = entry?;
                let metadata = fs_err::symlink_metadata(entry.path())?;
                waiting.push_back((
                    entry.path(),
                    to.join(entry.file_name().as_bytes()),
                    metadata,
                ));
            }
        } else if metadata.is_file() {
            let content = &mut fs_err::File::open(&source)?;
            machine_files::write(&mut connection, &to, New::File { mode, content })?;
        } else {
            let shown = base::escape(source.as_os_str().as_bytes());
            left_out.add(
                &shown,
                left + 1 == MAX_ENTRIES,
                "neither a file, a directory nor a link",
            )?;
        }
    }
    left_out.tell(context);
    Ok(())
}

/// The name that a copy of `source` has in a directory; `.` and `..` have that of the directory they are.
fn own_name(source: &Path) -> Result<Vec<u8>> {
    let name = match source.components().next_back() {
        Some(Component::Normal(name)) => Some(name.to_owned()),
        _ => fs_err::canonicalize(source)?
            .file_name()
            .map(ToOwned::to_owned),
    };
    Ok(name.unwrap_or_default().into_vec())
}

fn too_many() -> CommandError {
    CommandError::new(format!(
        "More than {MAX_ENTRIES} files and directories are not copied at once"
    ))
}

/// What is no part of a copy, though it lies in what is copied.
#[derive(Debug, Default)]
struct LeftOut {
    count: usize,
    first: Vec<String>,
}

impl LeftOut {
    /// `all`: it is what was to be copied, and not something within.
    fn add(&mut self, path: &impl Display, all: bool, why: impl Display) -> Result {
        if all {
            return Err(CommandError::new(format!("`{path}` is not copied")).because(why));
        }
        self.count += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(format!("{path} ({why})"));
        }
        Ok(())
    }

    fn tell(&self, context: &Context) {
        if self.count > 0 {
            let more = match self.count - self.first.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let first = self.first.join(", ");
            context.ui.warn(format!("Not copied: {first}{more}"));
        }
    }
}
