use super::error::Several;
use super::nested::{self, Opened};
use super::place::Place;
use super::{
    AUTO_HISTORY_LIMIT, CollectError, CollectOptions, Collected, Found, GitFacts, GitNote, History,
};
use super::{HistoryUsed, Nested, Omitted, Shape};
use crate::git::{self, Module, Repository};
use crate::ignore::{MAX_RULES_BYTES, RuleList, is_well_formed, verdict};
use crate::secrets::{self, Secrets, Suspicion};
use crate::{IgnoreFile, Kind};
use base::{RelPath, Size};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use std::collections::HashMap;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

/// Walks the whole workspace.
pub(super) fn walk(options: &CollectOptions, place: Place) -> Result<Collected, CollectError> {
    let Place {
        root,
        cwd,
        repository,
        git,
        config,
    } = place;
    let look = |source: std::io::Error| CollectError::Look {
        path: root.clone(),
        source,
    };
    let fd =
        rustix::fs::open(&root, DIR_FLAGS, Mode::empty()).map_err(|errno| look(errno.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| look(errno.into()))?;
    let home = options.home.as_deref();
    let user_ignore = read_small(
        config
            .user_path("core.excludesfile", home, "ignore")
            .as_deref(),
    );
    let attributes = read_small(
        config
            .user_path("core.attributesfile", home, "attributes")
            .as_deref(),
    );
    let mut walker = Walker {
        options,
        root: &root,
        include: patterns(&options.include)?,
        exclude: patterns(&options.exclude)?,
        secrets: Secrets::new(),
        user_ignore: &user_ignore,
        git: git.as_ref(),
        privileged: rustix::process::geteuid().is_root(),
        repositories: Vec::new(),
        modules: Vec::new(),
        cursors: Vec::new(),
        entries: Vec::new(),
        ignore: Vec::new(),
        left_out: Omitted::default(),
        absent: Vec::new(),
        tracked_secrets: Vec::new(),
        too_large: Vec::new(),
        total: 0,
        broken: Vec::new(),
        only_found: options.only.as_ref().is_none_or(RelPath::is_root),
    };
    let mut scope = Scope {
        repository: None,
        lists: Rc::default(),
        ignored: false,
        included: false,
    };
    match repository {
        Some(repository) => scope = walker.enter_repository(repository),
        None => walker.add_rules(&mut scope, &RelPath::root(), user_ignore.clone()),
    }
    walker.directory(&fd, &RelPath::root(), &scope)?;
    walker.check()?;
    walker.add_way_to(&fd, &cwd);

    let Walker {
        repositories,
        entries,
        ignore,
        left_out,
        absent,
        tracked_secrets,
        broken,
        ..
    } = walker;
    let mut facts = repositories
        .first()
        .filter(|first| first.dir.is_root())
        .map(facts);
    if let Some(facts) = &mut facts {
        facts
            .notes
            .extend(broken.into_iter().map(|dir| GitNote::BrokenNested { dir }));
    }
    let nested = repositories
        .iter()
        .map(|nested| nested.dir.clone())
        .filter(|dir| !dir.is_root())
        .collect();
    Ok(Collected {
        root_meta: (stat.st_mode & 0o777, mtime(&stat)),
        cwd,
        entries,
        left_out,
        tracked_secrets,
        git: facts,
        ignore,
        nested,
        repositories,
        git_program: git,
        absent,
        only: options.only.clone(),
        attributes,
        user_ignore,
        skip_unreadable: options.skip_unreadable,
        max_file_size: options.max_file_size,
        root,
    })
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);
const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

struct Walker<'a> {
    options: &'a CollectOptions,
    root: &'a Path,
    include: RuleList,
    exclude: RuleList,
    secrets: Secrets,
    user_ignore: &'a [u8],
    git: Option<&'a git::Git>,
    /// Root reads everything, whatever the permissions say.
    privileged: bool,
    repositories: Vec<Nested>,
    /// Submodules that each repository names.
    modules: Vec<Vec<Module>>,
    /// Where in each repository's index the last question was answered.
    cursors: Vec<usize>,
    entries: Vec<Found>,
    ignore: Vec<IgnoreFile>,
    left_out: Omitted,
    /// Paths that are there and may be tracked, and stay out all the same.
    absent: Vec<RelPath>,
    tracked_secrets: Vec<RelPath>,
    too_large: Vec<(RelPath, Size)>,
    total: u64,
    broken: Vec<RelPath>,
    only_found: bool,
}

/// What holds for a directory's content.
#[derive(Clone)]
struct Scope {
    /// The repository that it belongs to.
    repository: Option<usize>,
    /// Rules from the weakest to the strongest.
    lists: Rc<Vec<Rc<RuleList>>>,
    /// A directory above is ignored: only what is tracked or included goes in.
    ignored: bool,
    /// A directory above was included by name.
    included: bool,
}

/// What is to become of a path.
enum Fate {
    Take {
        tracked: bool,
    },
    /// A directory that is left out, but not all that lies in it.
    Pass,
    Leave,
}

impl Walker<'_> {
    fn enter_repository(&mut self, nested: Nested) -> Scope {
        let dir = nested.dir.clone();
        let exclude = nested
            .repository
            .common_file("info/exclude")
            .unwrap_or_default();
        let text = nested.repository.work_tree.join(".gitmodules");
        let is_file = fs_err::symlink_metadata(&text).is_ok_and(|meta| meta.is_file());
        let text = if is_file {
            read_small(Some(&text))
        } else {
            Vec::new()
        };
        self.modules.push(
            self.git
                .map(|git| git::modules(git, &text))
                .unwrap_or_default(),
        );
        self.cursors.push(0);
        let history = history_of(&nested.repository, self.options.history);
        self.repositories.push(Nested { history, ..nested });
        let mut scope = Scope {
            repository: Some(self.repositories.len() - 1),
            lists: Rc::default(),
            ignored: false,
            included: false,
        };
        self.add_rules(&mut scope, &dir, self.user_ignore.to_vec());
        self.add_rules(&mut scope, &dir, exclude);
        scope
    }

    fn add_rules(&mut self, scope: &mut Scope, dir: &RelPath, rules: Vec<u8>) {
        let list = RuleList::parse(dir, &rules);
        if !list.is_empty() {
            Rc::make_mut(&mut scope.lists).push(list.into());
            self.ignore.push(IgnoreFile {
                dir: dir.clone(),
                rules,
            });
        }
    }

    /// Takes the content of the directory `fd`.
    fn directory(
        &mut self,
        fd: &OwnedFd,
        dir: &RelPath,
        scope: &Scope,
    ) -> Result<(), CollectError> {
        let Ok(mut names) = list(fd) else {
            self.leave_unreadable(dir.clone());
            return Ok(());
        };
        names.sort_unstable();
        let mut scope = scope.clone();
        if !scope.ignored
            && names
                .binary_search_by(|name| name.as_slice().cmp(b".gitignore"))
                .is_ok()
            && let Some(rules) = read_at(fd, b".gitignore", MAX_RULES_BYTES)
        {
            self.add_rules(&mut scope, dir, rules);
        }
        for name in names {
            if name == b".git" {
                continue;
            }
            let path = dir.join(&name).map_err(|source| CollectError::Path {
                dir: dir.clone(),
                source,
            })?;
            if let Some(only) = &self.options.only
                && !path.is_within(only)
                && !only.is_within(&path)
            {
                continue;
            }
            // Whatever is gone by now was never there.
            let Ok(stat) = rustix::fs::statat(fd, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            self.path(fd, &name, path, &stat, &scope)?;
        }
        Ok(())
    }

    fn path(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        scope: &Scope,
    ) -> Result<(), CollectError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_dir = kind == FileType::Directory;
        let mut scope = scope.clone();
        let fate = self.fate(&path, is_dir, &mut scope);
        if self.options.only.as_ref().is_some_and(|only| *only == path) {
            self.only_found = true;
            // Whoever asks for an ignored path by name means it.
            scope.included |= scope.ignored || matches!(fate, Fate::Pass | Fate::Leave);
        }
        let towards_only = self
            .options
            .only
            .as_ref()
            .is_some_and(|only| only.is_within(&path));
        let tracked = match fate {
            Fate::Take { tracked } => tracked,
            Fate::Pass => false,
            Fate::Leave if towards_only && !self.is_excluded(&path, is_dir) => false,
            Fate::Leave => {
                self.count_left_out(path, is_dir);
                return Ok(());
            }
        };
        match kind {
            FileType::Directory => self.subdirectory(parent, name, &path, stat, &scope),
            FileType::Symlink => {
                let Ok(target) = rustix::fs::readlinkat(parent, name, Vec::new()) else {
                    return Ok(());
                };
                let found = found(path, Kind::Symlink, stat, target.into_bytes());
                self.add(found)
            }
            FileType::RegularFile => self.file(parent, name, path, stat, tracked, scope.included),
            _ => {
                self.left_out.special.push(path);
                Ok(())
            }
        }
    }

    fn is_excluded(&self, path: &RelPath, is_dir: bool) -> bool {
        self.exclude.verdict(path.as_bytes(), is_dir) == Some(true)
    }

    /// Decides by names alone, and notes in `scope` what that means for what lies below.
    fn fate(&mut self, path: &RelPath, is_dir: bool, scope: &mut Scope) -> Fate {
        let bytes = path.as_bytes();
        if self.is_excluded(path, is_dir) {
            return Fate::Leave;
        }
        scope.included |= self.include.verdict(bytes, is_dir) == Some(true);
        let tracked = self.is_tracked(path, is_dir, scope.repository);
        if tracked && !is_dir {
            return Fate::Take { tracked };
        }
        if !scope.ignored {
            let mut lists = scope.lists.iter().map(|list| &**list);
            scope.ignored = verdict(&mut lists, bytes, is_dir) == Some(true);
        }
        if !scope.ignored || scope.included {
            return Fate::Take { tracked };
        }
        if is_dir && (tracked || self.include.may_match_below(bytes)) {
            Fate::Pass
        } else {
            Fate::Leave
        }
    }

    /// True when the repository's index names the path, or something below it.
    fn is_tracked(&mut self, path: &RelPath, is_dir: bool, repository: Option<usize>) -> bool {
        let Some((nested, cursor)) =
            repository.and_then(|at| self.repositories.get(at).zip(self.cursors.get_mut(at)))
        else {
            return false;
        };
        let below = match nested.dir.as_bytes() {
            [] => path.as_bytes(),
            dir => &path.as_bytes()[dir.len() + 1..],
        };
        let entries = &nested.repository.index.entries;
        let is_at = |at: usize| entries.get(at).is_some_and(|entry| entry.path == below);
        // The walk goes by names as the index does, so the next one asked for is most often the next one there.
        if let Some(at) = [*cursor, *cursor + 1].into_iter().find(|at| is_at(*at)) {
            *cursor = at;
            return true;
        }
        *cursor = entries.partition_point(|entry| entry.path.as_slice() < below);
        if is_at(*cursor) {
            return true;
        }
        if !is_dir {
            return false;
        }
        // Names such as `a-b` and `a.c` sort between `a` and `a/…`.
        let inside = [below, b"/"].concat();
        *cursor = entries.partition_point(|entry| entry.path < inside);
        entries
            .get(*cursor)
            .is_some_and(|entry| entry.path.starts_with(&inside))
    }

    fn count_left_out(&mut self, path: RelPath, is_dir: bool) {
        if self.is_excluded(&path, is_dir) {
            self.left_out.excluded.push(path.clone());
            self.absent.push(path);
        } else {
            self.left_out.ignored += 1;
        }
    }

    fn subdirectory(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: &RelPath,
        stat: &Stat,
        scope: &Scope,
    ) -> Result<(), CollectError> {
        let fd = match rustix::fs::openat(parent, name, DIR_FLAGS, Mode::empty()) {
            Ok(fd) => fd,
            // Gone or replaced since it was looked at.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Ok(());
            }
            Err(_) => {
                self.leave_unreadable(path.clone());
                return Ok(());
            }
        };
        let before = self.entries.len();
        self.add(found(path.clone(), Kind::Dir, stat, Vec::new()))?;
        let inner = self.enter(&fd, path, scope);
        self.directory(&fd, path, inner.as_ref().unwrap_or(scope))?;
        // Of an ignored directory nothing may be left; then it was not worth a mention in the first place.
        let empty = self.entries.len() == before + 1;
        let towards_only = self
            .options
            .only
            .as_ref()
            .is_some_and(|only| only.is_within(path));
        if empty && scope.ignored && !scope.included && !towards_only {
            self.entries.truncate(before);
        }
        Ok(())
    }

    /// The scope of a repository that begins in the directory, if one does.
    fn enter(&mut self, fd: &OwnedFd, path: &RelPath, scope: &Scope) -> Option<Scope> {
        rustix::fs::statat(fd, ".git", AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let absolute = self.root.join(path.as_path());
        let home = self.options.home.as_deref();
        let trust = self.options.allow_unusual;
        match nested::open(
            self.git?,
            &absolute,
            self.root,
            home,
            &self.options.scratch,
            trust,
        ) {
            Opened::Plain => None,
            Opened::Broken => {
                self.broken.push(path.clone());
                None
            }
            Opened::Repository(repository) => {
                let outer = scope.repository;
                let module = outer.and_then(|outer| {
                    let below = path.below(&self.repositories[outer].dir)?;
                    let mut modules = self.modules[outer].iter();
                    modules
                        .find(|module| module.path == below.as_bytes())
                        .map(|module| module.name.clone())
                });
                let nested = Nested {
                    dir: path.clone(),
                    repository: *repository,
                    outer,
                    module,
                    history: HistoryUsed::None,
                };
                let mut inner = self.enter_repository(nested);
                inner.included = scope.included;
                Some(inner)
            }
        }
    }

    fn file(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        tracked: bool,
        included: bool,
    ) -> Result<(), CollectError> {
        let suspicious = match self.secrets.suspect(path.as_bytes()) {
            Suspicion::No => false,
            Suspicion::Yes => true,
            Suspicion::LookInside => start_of(parent, name, secrets::MAX_SEARCHED)
                .is_none_or(|bytes| secrets::holds_secret(path.as_bytes(), &bytes)),
        };
        if suspicious && !included {
            if !tracked {
                self.left_out.secrets.push(path);
                return Ok(());
            }
            self.tracked_secrets.push(path.clone());
        }
        let owner_reads =
            stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o400 != 0;
        if !self.privileged
            && !owner_reads
            && rustix::fs::accessat(parent, name, rustix::fs::Access::READ_OK, AtFlags::EACCESS)
                .is_err()
        {
            self.leave_unreadable(path);
            return Ok(());
        }
        let found = found(path, Kind::File, stat, Vec::new());
        if found.size > self.options.max_file_size.bytes() {
            self.too_large.push((found.path, Size(found.size)));
            return Ok(());
        }
        self.total += found.size;
        self.add(found)
    }

    fn leave_unreadable(&mut self, path: RelPath) {
        self.left_out.unreadable.push(path.clone());
        self.absent.push(path);
    }

    fn add(&mut self, found: Found) -> Result<(), CollectError> {
        self.entries.push(found);
        let limit = self.options.max_files;
        if self.entries.len() as u64 <= limit {
            return Ok(());
        }
        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        for entry in &self.entries {
            *counts
                .entry(entry.path.components().next().unwrap_or_default())
                .or_default() += 1;
        }
        let largest = counts
            .into_iter()
            .max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)));
        let (name, count) = largest.unwrap_or_default();
        Err(CollectError::TooMany {
            limit,
            largest: RelPath::new(name).unwrap_or_default(),
            count,
        })
    }

    /// What can only be judged at the end, so that a message can name everything.
    fn check(&mut self) -> Result<(), CollectError> {
        if let Some(only) = self.options.only.as_ref().filter(|_| !self.only_found) {
            return Err(CollectError::NoSuchPath { path: only.clone() });
        }
        let unreadable = &self.left_out.unreadable;
        if !unreadable.is_empty() && !self.options.skip_unreadable {
            let first = Several::new(unreadable, |path| format!("`{path}`"));
            return Err(CollectError::Unreadable {
                count: unreadable.len(),
                first,
            });
        }
        if !self.too_large.is_empty() {
            self.too_large
                .sort_by_key(|(_, size)| std::cmp::Reverse(size.bytes()));
            let first = Several::new(&self.too_large, |(path, size)| format!("`{path}` ({size})"));
            let limit = self.options.max_file_size;
            return Err(CollectError::TooLarge {
                count: self.too_large.len(),
                first,
                limit,
            });
        }
        let limit = self.options.max_total_size;
        if self.total > limit.bytes() {
            return Err(CollectError::TooMuch {
                size: Size(self.total),
                limit,
            });
        }
        // A walk by directories is not in the order of whole paths: `a-b` comes before `a/b`.
        self.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }

    /// Makes sure that the directory in which the command was given is there, though it may be ignored, and empty.
    fn add_way_to(&mut self, root: &OwnedFd, cwd: &RelPath) {
        let mut next = Some(cwd.clone());
        while let Some(dir) = next.filter(|dir| !dir.is_root()) {
            next = dir.parent();
            let Err(at) = self.entries.binary_search_by(|found| found.path.cmp(&dir)) else {
                return;
            };
            if let Ok(stat) = rustix::fs::statat(root, dir.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
                self.entries
                    .insert(at, found(dir, Kind::Dir, &stat, Vec::new()));
            }
        }
    }
}

/// How much of the history goes along when `wanted` is wanted.
fn history_of(repository: &Repository, wanted: History) -> HistoryUsed {
    match wanted {
        History::None => HistoryUsed::None,
        History::Shallow => HistoryUsed::Shallow,
        History::Auto if repository.packed_bytes() > AUTO_HISTORY_LIMIT.bytes() => {
            HistoryUsed::Shallow
        }
        History::Full | History::Auto => HistoryUsed::Full,
    }
}

fn facts(nested: &Nested) -> GitFacts {
    let Nested {
        repository,
        history,
        ..
    } = nested;
    let mut notes = Vec::new();
    let packed = Size(repository.packed_bytes());
    if *history == HistoryUsed::Shallow && packed > AUTO_HISTORY_LIMIT {
        notes.push(GitNote::Cut { packed });
    }
    if repository.partial {
        notes.push(GitNote::Partial);
    }
    if repository.shallow.is_some() {
        notes.push(GitNote::Shallow);
    }
    if repository.has_replacements() {
        notes.push(GitNote::Replaced);
    }
    if ["rebase-merge", "rebase-apply"]
        .iter()
        .any(|name| repository.dirs.git_dir.join(name).is_dir())
    {
        notes.push(GitNote::Rebasing);
    }
    let branch = repository.branch.as_ref().map(|name| {
        let short = name.strip_prefix(b"refs/heads/").unwrap_or(name);
        String::from_utf8_lossy(short).into_owned()
    });
    GitFacts {
        head: repository.head.as_ref().map(ToString::to_string),
        branch,
        shape: if repository.dirs.git_dir != repository.dirs.common_dir {
            Shape::Worktree
        } else if repository.dirs.by_file {
            Shape::Apart
        } else {
            Shape::Plain
        },
        history: *history,
        user_name: repository.config.text("user.name"),
        user_email: repository.config.text("user.email"),
        notes,
    }
}

/// All patterns as one list, the later ones stronger.
fn patterns(patterns: &[String]) -> Result<RuleList, CollectError> {
    for pattern in patterns {
        // A line break would make it two patterns, and one that is parsed to nothing, or that is broken, would
        // match nothing.
        let is_one = !pattern.contains('\n')
            && is_well_formed(pattern.as_bytes())
            && !RuleList::parse(&RelPath::root(), pattern.as_bytes()).is_empty();
        if !is_one {
            return Err(CollectError::BadPattern {
                pattern: base::escape_line(pattern.as_bytes(), 80),
            });
        }
    }
    Ok(RuleList::parse(
        &RelPath::root(),
        patterns.join("\n").as_bytes(),
    ))
}

fn found(path: RelPath, kind: Kind, stat: &Stat, target: Vec<u8>) -> Found {
    Found {
        path,
        kind,
        mode: if kind == Kind::Symlink {
            0o777
        } else {
            stat.st_mode & 0o777
        },
        size: match kind {
            Kind::Dir => 0,
            Kind::Symlink => target.len() as u64,
            Kind::File => u64::try_from(stat.st_size).unwrap_or(0),
        },
        mtime: mtime(stat),
        ctime: (
            stat.st_ctime,
            u32::try_from(stat.st_ctime_nsec).unwrap_or(0),
        ),
        ino: stat.st_ino,
        target,
    }
}

fn mtime(stat: &Stat) -> (i64, u32) {
    (
        stat.st_mtime,
        u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    )
}

/// The names in a directory, but `.` and `..`.
fn list(fd: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd.as_fd())? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// The first bytes of a regular file; `None` when it can't be read.
fn start_of(parent: &OwnedFd, name: &[u8], limit: u64) -> Option<Vec<u8>> {
    let fd = rustix::fs::openat(parent, name, FILE_FLAGS, Mode::empty()).ok()?;
    let file = std::fs::File::from(fd);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A whole file of rules; `None` when it can't be read or is larger than any.
fn read_at(parent: &OwnedFd, name: &[u8], limit: u64) -> Option<Vec<u8>> {
    start_of(parent, name, limit + 1).filter(|bytes| bytes.len() as u64 <= limit)
}

/// A whole file of the user's settings, empty when there is none.
fn read_small(path: Option<&Path>) -> Vec<u8> {
    let Some(path) = path.filter(|path| path.is_file()) else {
        return Vec::new();
    };
    let Some((parent, name)) = path.parent().zip(path.file_name()) else {
        return Vec::new();
    };
    // The user's own file may be a link.
    let Ok(real) = fs_err::canonicalize(parent.join(name)) else {
        return Vec::new();
    };
    let Some((parent, name)) = real.parent().zip(real.file_name()) else {
        return Vec::new();
    };
    let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
    let Ok(fd) = rustix::fs::open(parent, flags, Mode::empty()) else {
        return Vec::new();
    };
    read_at(&fd, name.as_bytes(), MAX_RULES_BYTES).unwrap_or_default()
}
