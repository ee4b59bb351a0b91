use super::config::Config;
use super::discover::{self, GitDirs, Head};
use super::index::{Index, IndexFault, MAX_INDEX_BYTES};
use super::oid::{ObjectFormat, Oid};
use super::run::{Git, GitFault, Settings, output};
use super::scratch::Scratch;
use base::Size;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A branch may be a symbolic reference to another one; git follows five.
const MAX_SYMBOLIC: usize = 5;
/// `packed-refs` of a repository with a million branches and tags.
const MAX_PACKED_REFS: u64 = 256 << 20;

/// Why a repository can't be taken along.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// A git program is needed and there is none.
    #[error("No git program was found, and `{path}` is a git repository")]
    NoGit {
        /// The work tree.
        path: PathBuf,
    },
    /// The repository is broken.
    #[error("The git repository at `{path}` is broken: {reason}")]
    Broken {
        /// `.git`, or the file in it.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Git could not read it.
    #[error("Git can't read the repository at `{path}`")]
    Unreadable {
        /// The work tree.
        path: PathBuf,
        /// What git said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A bare repository has no files to work on.
    #[error(
        "`{path}` is a bare git repository or lies inside a git directory, so there are no files to work on"
    )]
    NoWorkTree {
        /// The git directory.
        path: PathBuf,
    },
    /// `.git` names a git directory that doesn't know this work tree: a planted `.git` could bring any repository of
    /// the user into a machine.
    #[error(
        "`{path}` names the git directory `{git_dir}`, which doesn't name this directory as its work tree"
    )]
    Foreign {
        /// The `.git` file or link.
        path: PathBuf,
        /// Where it leads.
        git_dir: PathBuf,
    },
    /// The index is larger than any real one.
    #[error("The index of the git repository at `{path}` is larger than {limit}")]
    LargeIndex {
        /// The work tree.
        path: PathBuf,
        /// The most that is read.
        limit: Size,
    },
    /// A file of the repository can't be read.
    #[error("Can't read the git repository at `{path}`")]
    Io {
        /// The work tree.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}

/// A repository of the host, read and not touched.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    pub(crate) work_tree: PathBuf,
    pub(crate) dirs: GitDirs,
    pub(crate) config: Config,
    pub(crate) format: ObjectFormat,
    /// The full name of the branch that HEAD stands on (`refs/heads/…`); `None` when it is detached.
    pub(crate) branch: Option<Vec<u8>>,
    /// The commit; `None` when there is none so far.
    pub(crate) head: Option<Oid>,
    pub(crate) index: Index,
    /// Seconds and nanoseconds; `None` without an index.
    pub(crate) index_mtime: Option<(i64, u32)>,
    /// The list of commits whose parents are missing, as it stands in the file.
    pub(crate) shallow: Option<Vec<u8>>,
    /// True when objects may be missing here and be fetched from elsewhere when they are needed.
    pub(crate) partial: bool,
}

impl Repository {
    /// Reads the repository of `work_tree`. `home` is the user's, for settings; `scratch` is a directory where
    /// temporary files may be made.
    pub(crate) fn open(
        git: &Git,
        work_tree: &Path,
        dirs: GitDirs,
        home: Option<&Path>,
        scratch: &Path,
    ) -> Result<Self, GitError> {
        let io = |source| GitError::Io {
            path: work_tree.to_path_buf(),
            source,
        };
        let unreadable = |fault: GitFault| GitError::Unreadable {
            path: work_tree.to_path_buf(),
            source: Box::new(fault),
        };
        let config = Config::read(git, &dirs.git_dir, home).map_err(unreadable)?;
        let format = match config
            .get("extensions.objectformat")
            .map(<[u8]>::to_ascii_lowercase)
            .as_deref()
        {
            None | Some(b"sha1") => ObjectFormat::Sha1,
            Some(b"sha256") => ObjectFormat::Sha256,
            Some(other) => {
                let reason = format!("it names its objects by `{}`", base::escape_line(other, 40));
                return Err(GitError::Broken {
                    path: dirs.git_dir,
                    reason,
                });
            }
        };
        // A git that doesn't know one of the repository's extensions passes over its settings without an error. Then
        // the version is missing, which is the first thing in nearly every repository; other commands say why.
        let is_known = config.get("core.repositoryformatversion").is_some();
        let references = config.get("extensions.refstorage");
        let (branch, head) = if is_known && references.is_none_or(|kind| kind == b"files") {
            read_refs(&dirs).map_err(io)?
        } else {
            ask_for_head(git, &dirs).map_err(unreadable)?
        };
        let shallow = read_optional(&dirs.common_dir.join("shallow"))
            .map_err(io)?
            .filter(|list| !list.is_empty());
        let partial = config.get("extensions.partialclone").is_some()
            || config
                .between("remote.", ".promisor")
                .iter()
                .any(|(name, _)| config.is_true(&format!("remote.{name}.promisor")));
        let mut repository = Self {
            work_tree: work_tree.to_path_buf(),
            dirs,
            config,
            format,
            branch,
            head,
            index: Index::empty(),
            index_mtime: None,
            shallow,
            partial,
        };
        repository.read_index(git, scratch)?;
        Ok(repository)
    }

    fn read_index(&mut self, git: &Git, scratch: &Path) -> Result<(), GitError> {
        let io = |source| GitError::Io {
            path: self.work_tree.clone(),
            source,
        };
        let path = self.dirs.git_dir.join("index");
        let contents =
            read_limited(&path, MAX_INDEX_BYTES).map_err(|error| match error.kind() {
                std::io::ErrorKind::FileTooLarge => GitError::LargeIndex {
                    path: self.work_tree.clone(),
                    limit: Size(MAX_INDEX_BYTES),
                },
                _ => io(error),
            })?;
        let Some((bytes, mtime)) = contents else {
            return Ok(());
        };
        let broken = |reason: &str| GitError::Broken {
            path: path.clone(),
            reason: reason.to_owned(),
        };
        self.index_mtime = Some(mtime);
        let unreadable = |source| GitError::Unreadable {
            path: self.work_tree.clone(),
            source,
        };
        let mut index = match Index::parse(&bytes, self.format) {
            Ok(index) => index,
            Err(IndexFault::Broken(reason)) => return Err(broken(reason)),
            Err(IndexFault::Split) => {
                let scratch = Scratch::new(self, scratch).map_err(io)?;
                let plain = scratch.plain_index(git).map_err(unreadable)?;
                Index::parse(&plain, self.format)
                    .map_err(|_| broken("git could not make it plain"))?
            }
        };
        if index.sparse_dirs().next().is_some() {
            let scratch = Scratch::new(self, scratch).map_err(io)?;
            let mut files = Vec::new();
            for dir in index.sparse_dirs() {
                files.extend(
                    scratch
                        .list_tree(git, &dir.oid, &dir.path)
                        .map_err(unreadable)?,
                );
            }
            index.expand(files);
        }
        self.index = index;
        Ok(())
    }

    /// The directory of objects.
    pub(crate) fn objects(&self) -> PathBuf {
        self.dirs.common_dir.join("objects")
    }

    /// Bytes of all packs, those of other object directories that this one borrows from included.
    pub(crate) fn packed_bytes(&self) -> u64 {
        let mut stores = vec![self.objects()];
        let mut sum = 0;
        let mut at = 0;
        // The bound is git's own for chains of object directories, generously rounded.
        while at < stores.len().min(32) {
            let store = stores[at].clone();
            at += 1;
            for entry in fs_err::read_dir(store.join("pack"))
                .into_iter()
                .flatten()
                .flatten()
            {
                if entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "pack")
                {
                    sum += entry.metadata().map_or(0, |meta| meta.len());
                }
            }
            let list = read_optional(&store.join("info/alternates"))
                .ok()
                .flatten()
                .unwrap_or_default();
            for line in list
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty() && line[0] != b'#')
            {
                let other = store.join(std::ffi::OsStr::from_bytes(line));
                if !stores.contains(&other) {
                    stores.push(other);
                }
            }
        }
        sum
    }

    /// True when objects are shown in the place of others.
    pub(crate) fn has_replacements(&self) -> bool {
        let loose = fs_err::read_dir(self.dirs.common_dir.join("refs/replace"))
            .is_ok_and(|mut list| list.next().is_some());
        let needle: &[u8] = b" refs/replace/";
        loose
            || self
                .common_file("packed-refs")
                .is_some_and(|list| list.windows(needle.len()).any(|part| part == needle))
    }

    /// A file of the git directory that belongs to this work tree alone.
    pub(crate) fn own_file(&self, name: &str) -> Option<Vec<u8>> {
        read_optional(&self.dirs.git_dir.join(name)).ok().flatten()
    }

    /// A file of the git directory that all work trees share.
    pub(crate) fn common_file(&self, name: &str) -> Option<Vec<u8>> {
        read_optional(&self.dirs.common_dir.join(name))
            .ok()
            .flatten()
    }
}

/// Checks that a git directory that `.git` names by a file or a link knows this work tree too, or lies in it.
/// `within` is the outermost work tree: what lies there comes from the same hand.
pub(crate) fn check_owner(
    work_tree: &Path,
    dirs: &GitDirs,
    config: &Config,
    within: &Path,
) -> Result<(), GitError> {
    let real = discover::normal(&dirs.git_dir);
    if real == work_tree.join(".git") || real.starts_with(within) {
        return Ok(());
    }
    let names = |path: &Path| discover::normal(path);
    // A linked worktree: git keeps the way back in a file.
    if let Ok(Some(line)) = discover::read_line(&dirs.git_dir.join("gitdir"))
        && names(&dirs.git_dir.join(std::ffi::OsStr::from_bytes(&line))) == work_tree.join(".git")
    {
        return Ok(());
    }
    // A submodule, or a git directory that was set apart by hand.
    if let Some(value) = config.get("core.worktree")
        && names(&dirs.git_dir.join(std::ffi::OsStr::from_bytes(value))) == work_tree
    {
        return Ok(());
    }
    Err(GitError::Foreign {
        path: work_tree.join(".git"),
        git_dir: real,
    })
}

/// The whole of a file, `None` when it isn't there or is no regular file.
fn read_optional(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    Ok(read_limited(path, MAX_PACKED_REFS)?.map(|(bytes, _)| bytes))
}

type Contents = (Vec<u8>, (i64, u32));

/// The bytes and the time of a file; `None` when there is none. One that is larger than `limit` is an error.
fn read_limited(path: &Path, limit: u64) -> std::io::Result<Option<Contents>> {
    use std::io::Read as _;
    // A FIFO in the place of a file must not hold us up.
    match fs_err::metadata(path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let file = fs_err::File::open(path)?;
    let meta = file.metadata()?;
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(limit)).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    let nanoseconds = u32::try_from(meta.mtime_nsec()).unwrap_or(0);
    if bytes.len() as u64 > limit {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some((bytes, (meta.mtime(), nanoseconds))))
}

type BranchAndCommit = (Option<Vec<u8>>, Option<Oid>);

/// HEAD and its branch from plain files.
fn read_refs(dirs: &GitDirs) -> std::io::Result<BranchAndCommit> {
    let mut branch = None;
    let mut head = discover::read_head(&dirs.git_dir.join("HEAD"));
    for _ in 0..MAX_SYMBOLIC {
        match head {
            Some(Head::Detached(hex)) => return Ok((branch, Oid::from_hex(&hex))),
            Some(Head::Symbolic(name)) => {
                let loose =
                    discover::read_head(&dirs.common_dir.join(std::ffi::OsStr::from_bytes(&name)));
                head = match loose {
                    Some(loose) => Some(loose),
                    None => packed_ref(dirs, &name)?.map(Head::Detached),
                };
                branch.get_or_insert(name);
            }
            None => return Ok((branch, None)),
        }
    }
    Ok((branch, None))
}

fn packed_ref(dirs: &GitDirs, name: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
    let list = read_optional(&dirs.common_dir.join("packed-refs"))?.unwrap_or_default();
    let line = list.split(|byte| *byte == b'\n').find(|line| {
        line.strip_suffix(name)
            .is_some_and(|start| matches!(start.len(), 41 | 65) && start.ends_with(b" "))
    });
    Ok(line.map(|line| line[..line.len() - name.len() - 1].to_vec()))
}

/// HEAD and its branch where references are kept in a way that only git knows. Nothing that these commands do looks
/// at files of the work tree or at programs that the repository's settings name.
fn ask_for_head(git: &Git, dirs: &GitDirs) -> Result<BranchAndCommit, GitFault> {
    let ask = |arguments: &[&str]| {
        let mut command = git.command(&dirs.git_dir, Settings::Own);
        command.args(arguments);
        match output(command, b"") {
            Ok(answer) => Ok(Some(answer.trim_ascii().to_vec())),
            Err(GitFault::Failed { code: Some(1), .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    };
    let branch = ask(&["symbolic-ref", "-q", "HEAD"])?;
    let head = ask(&["rev-parse", "-q", "--verify", "HEAD^{commit}"])?;
    Ok((branch, head.and_then(|hex| Oid::from_hex(&hex))))
}
