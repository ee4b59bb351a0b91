//! The git directories that a machine gets: a new one for each repository, with the objects that the current branch
//! and the index need, and nothing that could say more of the host than that.

use super::config::ConfigWriter;
use super::index::{IndexEntry, IndexStat};
use super::oid::{ObjectFormat, Oid, blob_oid};
use super::repository::Repository;
use super::run::{Git, Settings, output};
use base::{Digest, RelPath};
use std::collections::BTreeMap;
use std::path::Path;

/// Files of an unfinished merge, cherry-pick or revert that are taken along, so that it can be finished inside.
const PENDING_HEADS: [&str; 3] = ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"];
const PENDING_TEXTS: [&str; 3] = ["MERGE_MSG", "MERGE_MODE", "SQUASH_MSG"];

/// Settings of the host's repository that say how files are compared, and hold nothing else.
const CARRIED: [(&str, &str); 7] = [
    ("core.filemode", "filemode"),
    ("core.symlinks", "symlinks"),
    ("core.ignorecase", "ignorecase"),
    ("core.autocrlf", "autocrlf"),
    ("core.eol", "eol"),
    ("core.sparsecheckout", "sparsecheckout"),
    ("core.sparsecheckoutcone", "sparsecheckoutcone"),
];

/// Where one repository's git directory goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuestPlan {
    /// The work tree, below the workspace's root.
    pub(crate) dir: RelPath,
    /// The git directory, below the workspace's root.
    pub(crate) git_dir: RelPath,
    /// True when `.git` in `dir` is a file that names `git_dir`.
    pub(crate) by_file: bool,
}

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its work tree, below the workspace's root.
    pub(crate) dir: RelPath,
    /// The position of the one around it, which comes before it.
    pub(crate) outer: Option<usize>,
    /// Its name as a submodule of that one.
    pub(crate) name: Option<Vec<u8>>,
}

/// One file of a git directory.
#[derive(Debug)]
pub(crate) struct GitFile {
    /// Below the git directory.
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

/// What is known of a file in the workspace.
#[derive(Debug, Clone)]
pub(crate) struct FileFacts<'a> {
    pub(crate) stat: FileStat,
    /// The blob that git would make of the bytes as they are, where it was computed.
    pub(crate) oid: Option<Oid>,
    pub(crate) digest: Option<Digest>,
    /// A link's target.
    pub(crate) target: Option<&'a [u8]>,
}

/// The part of a file's stat that git compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) ino: u64,
    pub(crate) size: u64,
}

/// A submodule that `.gitmodules` names: its path and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) path: Vec<u8>,
    pub(crate) name: Vec<u8>,
}

/// Reads the text of a `.gitmodules` file. One that git can't read names nothing.
pub(crate) fn modules(git: &Git, text: &[u8]) -> Vec<Module> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut command = git.command(Path::new("/nonexistent"), Settings::Own);
    command.args([
        "config",
        "--file",
        "-",
        "--null",
        "--get-regexp",
        r"^submodule\..*\.path$",
    ]);
    let answer = output(command, text).unwrap_or_default();
    let pair = |pair: &[u8]| {
        let end = pair.iter().position(|byte| *byte == b'\n')?;
        let name = pair[..end]
            .strip_prefix(b"submodule.")?
            .strip_suffix(b".path")?;
        Some(Module {
            path: pair[end + 1..].to_vec(),
            name: name.to_vec(),
        })
    };
    answer.split(|byte| *byte == 0).filter_map(pair).collect()
}

/// Chooses the places of git directories.
pub(crate) fn plan(repositories: &[Place]) -> Vec<GuestPlan> {
    let mut plans: Vec<GuestPlan> = Vec::new();
    let mut taken: Vec<(usize, RelPath)> = Vec::new();
    for Place { dir, outer, name } in repositories {
        let module = outer.zip(name.as_ref()).and_then(|(outer, name)| {
            // A name that is no clean path, or that lies within a sibling's, is not worth trusting.
            let name = RelPath::new(name.as_slice()).ok()?;
            let outer_dir = plans.get(outer)?.git_dir.as_bytes();
            let git_dir = RelPath::new([outer_dir, b"/modules/", name.as_bytes()].concat()).ok()?;
            let overlaps = |(other_outer, other): &(usize, RelPath)| {
                *other_outer == outer && (name.is_within(other) || other.is_within(&name))
            };
            if taken.iter().any(overlaps) {
                return None;
            }
            taken.push((outer, name));
            Some(git_dir)
        });
        let plan = match module {
            Some(git_dir) => GuestPlan {
                dir: dir.clone(),
                git_dir,
                by_file: true,
            },
            // Joining `.git` fails only at the very limit of a path's length; such a repository can't be real.
            None => GuestPlan {
                dir: dir.clone(),
                git_dir: dir.join(b".git").unwrap_or_default(),
                by_file: false,
            },
        };
        plans.push(plan);
    }
    plans
}

/// The path that leads from the directory `from` to `to`, both below the same root.
fn relative(from: &RelPath, to: &RelPath) -> Vec<u8> {
    let mut path = b"../".repeat(from.components().count());
    path.extend(to.as_bytes());
    path
}

impl GuestPlan {
    /// The content of the `.git` file in the work tree.
    pub(crate) fn link(&self) -> Vec<u8> {
        [
            b"gitdir: ",
            relative(&self.dir, &self.git_dir).as_slice(),
            b"\n",
        ]
        .concat()
    }

    /// All files of the git directory but packs and the index. `shallow` is the list of commits whose parents are
    /// not there, `exclude` and `attributes` are the user's own rules that hold for every repository.
    pub(crate) fn files(
        &self,
        repository: &Repository,
        modules: &[Module],
        shallow: Option<Vec<u8>>,
        exclude: &[u8],
        attributes: &[u8],
    ) -> Vec<GitFile> {
        let mut files: Vec<GitFile> = Vec::new();
        let mut add = |path: &str, bytes: Vec<u8>| {
            files.push(GitFile {
                path: path.to_owned(),
                bytes,
            });
        };
        let head = repository
            .head
            .as_ref()
            .map(|oid| format!("{oid}\n").into_bytes());
        match (&repository.branch, head) {
            (Some(branch), head) => {
                add("HEAD", [b"ref: ", branch.as_slice(), b"\n"].concat());
                // As a packed reference, because a branch's name need not be a good file name.
                if let Some(head) = head {
                    let hex = head.trim_ascii_end();
                    add(
                        "packed-refs",
                        [hex, b" ", branch.as_slice(), b"\n"].concat(),
                    );
                }
            }
            (None, Some(head)) => add("HEAD", head),
            (None, None) => add("HEAD", b"ref: refs/heads/main\n".to_vec()),
        }
        add("config", self.config(repository, modules));
        if !exclude.is_empty() {
            add("info/exclude", exclude.to_vec());
        }
        if !attributes.is_empty() {
            add("info/attributes", attributes.to_vec());
        }
        if let Some(sparse) = repository.own_file("info/sparse-checkout") {
            add("info/sparse-checkout", sparse);
        }
        if let Some(shallow) = shallow {
            add("shallow", shallow);
        }
        if !pending(repository).is_empty() {
            for name in PENDING_HEADS.into_iter().chain(PENDING_TEXTS) {
                if let Some(bytes) = repository.own_file(name) {
                    add(name, bytes);
                }
            }
        }
        files
    }

    fn config(&self, repository: &Repository, modules: &[Module]) -> Vec<u8> {
        let host = &repository.config;
        let mut config = ConfigWriter::default();
        let extended = repository.format != ObjectFormat::Sha1 || repository.partial;
        config.section("core", None);
        config.set(
            "repositoryformatversion",
            if extended { b"1" } else { b"0" },
        );
        config.set("bare", b"false");
        config.set("logallrefupdates", b"true");
        for (key, name) in CARRIED {
            if let Some(value) = host.get(key) {
                config.set(name, value);
            }
        }
        if host.get("core.filemode").is_none() {
            config.set("filemode", b"true");
        }
        // The index is the host's, and of a file's stat only size and time come out the same in a machine.
        config.set("checkstat", b"minimal");
        config.set("trustctime", b"false");
        if self.by_file {
            config.set("worktree", &relative(&self.git_dir, &self.dir));
        }
        if extended {
            config.section("extensions", None);
            if repository.format != ObjectFormat::Sha1 {
                config.set("objectformat", repository.format.name().as_bytes());
            }
            if repository.partial {
                config.set("partialclone", b"origin");
            }
        }
        if repository.partial {
            // Without an address: what is missing stays missing, and git knows that it may be.
            config.section("remote", Some(b"origin"));
            config.set("promisor", b"true");
        }
        let identity = [
            ("name", host.get("user.name")),
            ("email", host.get("user.email")),
        ];
        if identity.iter().any(|(_, value)| value.is_some()) {
            config.section("user", None);
            for (name, value) in identity {
                if let Some(value) = value {
                    config.set(name, value);
                }
            }
        }
        if let Some(value) = host.get("diff.ignoresubmodules") {
            config.section("diff", None);
            config.set("ignoresubmodules", value);
        }
        let ignored: BTreeMap<String, Vec<u8>> =
            host.between("submodule.", ".ignore").into_iter().collect();
        for module in modules {
            config.section("submodule", Some(&module.name));
            config.set("active", b"true");
            if let Some(value) = ignored.get(&*String::from_utf8_lossy(&module.name)) {
                config.set("ignore", value);
            }
        }
        // Nothing of a short life is worth the time that tidying takes.
        config.section("gc", None);
        config.set("auto", b"0");
        config.section("maintenance", None);
        config.set("auto", b"false");
        config.finish()
    }
}

/// The commits that an unfinished merge, cherry-pick or revert needs.
pub(crate) fn pending(repository: &Repository) -> Vec<Oid> {
    PENDING_HEADS
        .iter()
        .filter_map(|name| repository.own_file(name))
        .flat_map(|text| {
            text.split(|byte| *byte == b'\n')
                .filter_map(Oid::from_hex)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// True when the index proves by itself that `file` is what it was when it was added: on the host's own, strict
/// terms. Otherwise its content has to be looked at.
pub(crate) fn is_proven(
    entry: &IndexEntry,
    file: &FileStat,
    index_mtime: Option<(i64, u32)>,
) -> bool {
    let stat = &entry.stat;
    // A file that was changed in the second in which the index was written may look unchanged.
    let racy = index_mtime.is_none_or(|(seconds, _)| seconds <= i64::from(stat.mtime.0));
    !racy && entry.stage() == 0 && stat.size != 0 && same_stat(entry, file)
}

fn same_stat(entry: &IndexEntry, file: &FileStat) -> bool {
    let stat = &entry.stat;
    same_time(stat.mtime, file.mtime)
        && same_time(stat.ctime, file.ctime)
        && stat.size == low(file.size)
        && stat.ino == low(file.ino)
}

/// Git keeps no more than 32 bits of seconds, and some builds of it keep no nanoseconds.
fn same_time(kept: (u32, u32), real: (i64, u32)) -> bool {
    kept.0 == low(real.0.cast_unsigned()) && (kept.1 == 0 || kept.1 == real.1)
}

/// The lower 32 bits.
fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}

/// The machine's index for `repository`, and the seconds that its file's time must have. The cache of trees is kept
/// when the machine has those trees.
///
/// `facts` tells of the files in the workspace by their path in the repository, `left_out` whether a path was kept
/// out though it may be there on the host. Where the content of a file is known to be what the index says, its entry
/// gets the file's size and time, so that the first `git status` reads no file; where that is not known, the
/// entry gets the size 0, by which git knows that it has to compare.
pub(crate) fn index<'a>(
    repository: &Repository,
    keep_tree_cache: bool,
    facts: &dyn Fn(&[u8]) -> Option<FileFacts<'a>>,
    left_out: &dyn Fn(&[u8]) -> bool,
) -> (Vec<u8>, i64) {
    let mut index = repository.index.clone();
    index.tree_cache = index.tree_cache.filter(|_| keep_tree_cache);
    let mut newest = repository.index_mtime.map_or(0, |(seconds, _)| seconds);
    for entry in &mut index.entries {
        if entry.stage() != 0 {
            continue;
        }
        let Some(file) = facts(&entry.path).filter(|_| !entry.is_gitlink()) else {
            if left_out(&entry.path) {
                entry.set_skip_worktree();
            }
            continue;
        };
        let proven =
            is_proven(entry, &file.stat, repository.index_mtime) || holds(entry, &file, repository);
        entry.stat = IndexStat {
            mtime: (low(file.stat.mtime.0.cast_unsigned()), file.stat.mtime.1),
            size: if proven { low(file.stat.size) } else { 0 },
            ..entry.stat
        };
        newest = newest.max(file.stat.mtime.0.saturating_add(1));
    }
    (index.to_bytes(repository.format), newest)
}

/// True when the file's bytes are known to be what the entry names: as they are, or as what `git lfs` stores for
/// them.
fn holds(entry: &IndexEntry, file: &FileFacts<'_>, repository: &Repository) -> bool {
    if let Some(target) = file.target {
        return entry.is_symlink() && blob_oid(repository.format, target) == entry.oid;
    }
    if entry.is_symlink() {
        return false;
    }
    if file.oid.as_ref() == Some(&entry.oid) {
        return true;
    }
    // The machine has no `git lfs`, so git there would take the file for changed. It isn't, if the host's git uses
    // the filter, or found the file unchanged when it wrote the index.
    let by_lfs =
        repository.config.get("filter.lfs.clean").is_some() || same_stat(entry, &file.stat);
    file.digest.filter(|_| by_lfs).is_some_and(|digest| {
        let (hex, size) = (digest.hex(), file.stat.size);
        let pointer =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{hex}\nsize {size}\n");
        blob_oid(repository.format, pointer.as_bytes()) == entry.oid
    })
}

#[cfg(test)]
mod tests;
