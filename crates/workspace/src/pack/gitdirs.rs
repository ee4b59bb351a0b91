//! What of git goes into the image: for each repository a git directory of files that we write, packs of objects
//! that git makes, and the index.

use super::memory::{Memory, Pack, PackKey};
use super::{PackError, is_below_any};
use crate::collect::{HistoryUsed, Nested, SHALLOW_COMMITS};
use crate::git::{
    self, FileFacts, FileStat, Git, GitFile, GuestPlan, Index, Module, ObjectFormat, Oid, Scratch,
};
use crate::{Collected, Found, Kind};
use base::{Digest, Hasher, RelPath};
use std::path::{Path, PathBuf};

/// How many packs a chain of history may have before it is made anew.
const MAX_CHAIN: usize = 8;

/// One repository that goes along.
#[derive(Debug)]
pub(super) struct Repo<'a> {
    pub(super) nested: &'a Nested,
    pub(super) plan: GuestPlan,
    modules: Vec<Module>,
}

/// The objects of one repository.
#[derive(Debug)]
pub(super) struct Objects {
    /// Packs of the last image that are still right.
    pub(super) kept: Vec<Pack>,
    pub(super) new: Vec<NewPack>,
    /// The list of commits without parents.
    pub(super) shallow: Option<Vec<u8>>,
    /// False when a tree that the index's cache names is not there.
    has_cached_trees: bool,
    /// Holds the new packs until they are in the image.
    _scratch: Scratch,
}

/// A file of a pack that git made.
#[derive(Debug)]
pub(super) struct NewPack {
    pub(super) key: PackKey,
    pub(super) name: String,
    pub(super) file: PathBuf,
}

/// All repositories that bring history, with the places of their git directories.
pub(super) fn repositories(collected: &Collected) -> Vec<Repo<'_>> {
    // A repository without history is nothing that one around it could speak of, so positions are kept.
    let shapes: Vec<_> = collected
        .repositories
        .iter()
        .map(|nested| git::Place {
            dir: nested.dir.clone(),
            outer: nested.outer,
            name: nested.module.clone(),
        })
        .collect();
    let plans = git::plan(&shapes);
    let modules = |at: usize| {
        let inner = collected
            .repositories
            .iter()
            .filter(move |other| other.outer == Some(at));
        inner.filter_map(move |other| {
            let path = other
                .dir
                .below(&collected.repositories[at].dir)?
                .as_bytes()
                .to_vec();
            Some(Module {
                path,
                name: other.module.clone()?,
            })
        })
    };
    collected
        .repositories
        .iter()
        .zip(plans)
        .enumerate()
        .filter(|(_, (nested, _))| nested.history != HistoryUsed::None)
        .map(|(at, (nested, plan))| Repo {
            nested,
            plan,
            modules: modules(at).collect(),
        })
        .collect()
}

impl Repo<'_> {
    /// The files of the git directory that are neither packs nor the index.
    pub(super) fn files(&self, collected: &Collected, shallow: Option<Vec<u8>>) -> Vec<GitFile> {
        let repository = &self.nested.repository;
        let own = |name| repository.common_file(name).unwrap_or_default();
        let exclude = join_rules(&collected.user_ignore, &own("info/exclude"));
        let attributes = join_rules(&collected.attributes, &own("info/attributes"));
        self.plan
            .files(repository, &self.modules, shallow, &exclude, &attributes)
    }

    /// The commits whose history goes along.
    fn tips(&self) -> Vec<Oid> {
        let repository = &self.nested.repository;
        let mut tips: Vec<Oid> = repository
            .head
            .iter()
            .copied()
            .chain(git::pending(repository))
            .collect();
        tips.sort_unstable();
        tips.dedup();
        tips
    }

    /// Everything that decides which objects the index names.
    fn index_digest(&self) -> Digest {
        let index = &self.nested.repository.index;
        let mut hasher = Hasher::new();
        for entry in &index.entries {
            hasher.update(&entry.mode.to_le_bytes());
            hasher.update(&[
                u8::try_from(entry.stage()).unwrap_or(0),
                entry.skips_worktree().into(),
            ]);
            hasher.update(entry.oid.as_bytes());
            hasher.update(&entry.path);
            hasher.update(b"\0");
        }
        hasher.update(index.tree_cache.as_deref().unwrap_or_default());
        hasher.finish()
    }

    /// Packs the objects, or finds them in the last image.
    pub(super) fn objects(
        &self,
        git: &Git,
        memory: Option<&Memory>,
        scratch: &Path,
    ) -> Result<Objects, PackError> {
        let fault = |source| PackError::git(scratch, &self.nested.dir, source);
        let repository = &self.nested.repository;
        let scratch_dir =
            Scratch::new(repository, scratch).map_err(|source| fault(source.into()))?;
        let tips = self.tips();
        let shallow = if self.nested.history == HistoryUsed::Shallow && !tips.is_empty() {
            scratch_dir
                .cut(git, &tips, SHALLOW_COMMITS)
                .map_err(fault)?
        } else {
            repository.shallow.clone()
        };
        let shallow_digest = Digest::of(shallow.as_deref().unwrap_or_default());
        let history_key = PackKey::History {
            tips: tips.clone(),
            shallow: shallow_digest,
        };
        let mut whole = Hasher::new();
        whole.update(self.index_digest().as_bytes());
        whole.update(shallow_digest.as_bytes());
        for tip in &tips {
            whole.update(tip.as_bytes());
        }
        let whole = whole.finish();
        let index_key = PackKey::Index(whole);
        // The same index, without the trees of its cache.
        let bare_key = PackKey::Index(Digest::of(whole.as_bytes()));

        let last: Vec<&Pack> = memory
            .into_iter()
            .flat_map(|memory| &memory.packs)
            .filter(|pack| pack.repository == self.nested.dir)
            .collect();
        let (chain, index): (Vec<&Pack>, Vec<&Pack>) = last
            .into_iter()
            .partition(|pack| matches!(pack.key, PackKey::History { .. }));
        let mut kept: Vec<Pack> = Vec::new();
        let mut new = Vec::new();
        let mut add = |key: &PackKey, files: Vec<PathBuf>| {
            new.extend(files.into_iter().map(|file| {
                NewPack {
                    key: key.clone(),
                    name: file
                        .file_name()
                        .map(|name| name.to_string_lossy().into_owned())
                        .unwrap_or_default(),
                    file,
                }
            }));
        };
        let mut has_cached_trees = true;
        let known = self.known(git, &scratch_dir, &chain, &tips, shallow_digest);
        if let Some(known) = &known {
            kept.extend(chain.iter().map(|pack| (*pack).clone()));
            if *known != tips {
                add(
                    &history_key,
                    scratch_dir.pack_history(git, &tips, known).map_err(fault)?,
                );
            }
        } else {
            add(
                &history_key,
                scratch_dir.pack_history(git, &tips, &[]).map_err(fault)?,
            );
        }
        let is_known = |key| index.iter().any(|pack| pack.key == key);
        let is_bare = is_known(bare_key.clone());
        if known.as_ref() == Some(&tips) && (is_bare || is_known(index_key.clone())) {
            has_cached_trees = !is_bare;
            kept.extend(index.into_iter().cloned());
        } else if !repository.index.entries.is_empty() {
            let pack = |index: &Index| {
                scratch_dir.pack_index(git, &tips, &index.to_bytes(repository.format))
            };
            match pack(&repository.index) {
                Ok(files) => add(&index_key, files),
                Err(first) => {
                    // The cache of trees is a convenience, and may name trees that were never written.
                    has_cached_trees = false;
                    let bare = Index {
                        tree_cache: None,
                        ..repository.index.clone()
                    };
                    add(&bare_key, pack(&bare).map_err(|_| fault(first))?);
                }
            }
        }
        Ok(Objects {
            has_cached_trees,
            kept,
            new,
            shallow,
            _scratch: scratch_dir,
        })
    }

    /// The commits whose history the last image's chain of packs holds, when the chain can be used: its end is these
    /// tips, or the new tips stand on it. Whatever is not reached by the new tips must not go along.
    fn known(
        &self,
        git: &Git,
        scratch: &Scratch,
        chain: &[&Pack],
        tips: &[Oid],
        shallow_digest: Digest,
    ) -> Option<Vec<Oid>> {
        let PackKey::History {
            tips: known,
            shallow,
        } = &chain.last()?.key
        else {
            return None;
        };
        if *shallow != shallow_digest {
            return None;
        }
        if known == tips {
            return Some(known.clone());
        }
        let mut keys: Vec<&PackKey> = chain.iter().map(|pack| &pack.key).collect();
        keys.dedup();
        let head = self.nested.repository.head.as_ref()?;
        let grows = keys.len() < MAX_CHAIN
            && !self.nested.repository.partial
            && known
                .iter()
                .all(|known| scratch.is_ancestor(git, known, head));
        grows.then(|| known.clone())
    }

    /// The index, and the seconds that its file's time must have.
    pub(super) fn index<'a>(
        &self,
        collected: &Collected,
        objects: &Objects,
        facts: &dyn Fn(&RelPath) -> Option<FileFacts<'a>>,
    ) -> (Vec<u8>, i64) {
        let full = |path: &[u8]| self.full_path(path);
        let left_out = |path: &[u8]| {
            full(path).is_some_and(|path| {
                let only = collected.only.as_ref();
                let out = is_below_any(&path, &collected.absent)
                    || only.is_some_and(|only| !path.is_within(only));
                // A submodule that is taken along in part is there.
                let entries = &collected.entries;
                out && entries
                    .binary_search_by(|found| found.path.cmp(&path))
                    .is_err()
            })
        };
        git::index(
            &self.nested.repository,
            objects.has_cached_trees,
            &|path| facts(&full(path)?),
            &left_out,
        )
    }

    /// A path of the index, from the workspace's root.
    fn full_path(&self, path: &[u8]) -> Option<RelPath> {
        let dir = self.nested.dir.as_bytes();
        if dir.is_empty() {
            RelPath::new(path).ok()
        } else {
            RelPath::new([dir, b"/", path].concat()).ok()
        }
    }
}

/// For each collected entry the hash of the repository that must know which blob it is, because its index does not
/// prove by itself that the file is unchanged.
pub(super) fn wanted_blobs(
    collected: &Collected,
    repositories: &[Repo<'_>],
) -> Vec<Option<ObjectFormat>> {
    let mut wanted = vec![None; collected.entries.len()];
    for repo in repositories {
        let repository = &repo.nested.repository;
        for entry in &repository.index.entries {
            if entry.is_gitlink() || entry.is_symlink() || entry.stage() != 0 {
                continue;
            }
            let Some(path) = repo.full_path(&entry.path) else {
                continue;
            };
            let Ok(at) = collected
                .entries
                .binary_search_by(|found| found.path.cmp(&path))
            else {
                continue;
            };
            let found = &collected.entries[at];
            if found.kind == Kind::File
                && !git::is_proven(entry, &stat(found), repository.index_mtime)
            {
                wanted[at] = Some(repository.format);
            }
        }
    }
    wanted
}

fn stat(found: &Found) -> FileStat {
    FileStat {
        mtime: found.mtime,
        ctime: found.ctime,
        ino: found.ino,
        size: found.size,
    }
}

/// Everything that decides the git directories, but the packs' bytes and the times in the index. The same digest
/// means that the last image's git directories are still right, as long as the files are the same.
pub(super) fn state(collected: &Collected, repositories: &[Repo<'_>]) -> Digest {
    let mut hasher = Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for repo in repositories {
        add(repo.plan.dir.as_bytes());
        add(repo.plan.git_dir.as_bytes());
        add(&[u8::from(repo.nested.history == HistoryUsed::Shallow)]);
        for file in repo.files(collected, repo.nested.repository.shallow.clone()) {
            add(file.path.as_bytes());
            add(&file.bytes);
        }
        for tip in repo.tips() {
            add(tip.as_bytes());
        }
        add(repo.index_digest().as_bytes());
    }
    for path in collected.absent.iter().chain(&collected.only) {
        add(path.as_bytes());
    }
    hasher.finish()
}

/// Two files of rules as one, the second stronger.
fn join_rules(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut rules = first.to_vec();
    if !rules.is_empty() && !rules.ends_with(b"\n") {
        rules.push(b'\n');
    }
    rules.extend(second);
    rules
}
