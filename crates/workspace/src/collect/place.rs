use super::{CollectError, CollectOptions, History, HistoryUsed, Nested};
use crate::GitError;
use crate::git::{self, Config, Git, Repository};
use base::RelPath;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Directories below the home directory that hold credentials and settings, and little else.
const CREDENTIALS: [&str; 10] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config",
    ".local",
    ".password-store",
    ".mozilla",
];

/// Where the workspace is.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) root: PathBuf,
    pub(super) cwd: RelPath,
    pub(super) repository: Option<Nested>,
    pub(super) git: Option<Git>,
    /// Settings, also where there is no repository.
    pub(super) config: Config,
}

/// Finds the root of the workspace, and refuses what no one means to hand over.
pub(super) fn find(options: &CollectOptions) -> Result<Place, CollectError> {
    let look = |source| CollectError::Look {
        path: options.directory.clone(),
        source,
    };
    let directory = fs_err::canonicalize(&options.directory).map_err(look)?;
    if !fs_err::metadata(&directory).map_err(look)?.is_dir() {
        return Err(CollectError::NotADirectory { path: directory });
    }
    let git = Git::find(options.git_program.as_deref());
    let mut place = Place {
        root: directory.clone(),
        cwd: RelPath::root(),
        repository: None,
        config: Config::default(),
        git,
    };
    match git::discover(&directory).map_err(look)? {
        git::Found::Nothing => {}
        git::Found::InsideGitDir { git_dir } => {
            return Err(GitError::NoWorkTree { path: git_dir }.into());
        }
        git::Found::Broken { path, reason } if options.history != History::None => {
            return Err(GitError::Broken {
                path,
                reason: reason.to_owned(),
            }
            .into());
        }
        // Without history, the directory that holds the broken `.git` is as good a root as any.
        git::Found::Broken { path, .. } => {
            place.root = path.parent().unwrap_or(&directory).to_path_buf();
        }
        git::Found::Repository { top, dirs } => {
            let Some(git) = &place.git else {
                return Err(GitError::NoGit { path: top }.into());
            };
            let mut repository =
                Repository::open(git, &top, dirs, options.home.as_deref(), &options.scratch)?;
            let top = work_tree(&repository, &directory, top)?;
            if !options.allow_unusual {
                git::check_owner(&top, &repository.dirs, &repository.config, &top)?;
            }
            repository.work_tree.clone_from(&top);
            place.root = top;
            place.config = repository.config.clone();
            place.repository = Some(Nested {
                dir: RelPath::root(),
                repository,
                outer: None,
                module: None,
                history: HistoryUsed::None,
            });
        }
    }
    if place.repository.is_none()
        && let Some(git) = &place.git
        && let Ok(config) = Config::read(git, Path::new("/nonexistent"), options.home.as_deref())
    {
        place.config = config;
    }
    let below = directory.strip_prefix(&place.root).unwrap_or(Path::new(""));
    if !below.as_os_str().is_empty() {
        place.cwd = RelPath::try_from(below).map_err(|source| CollectError::Path {
            dir: RelPath::root(),
            source,
        })?;
    }
    if !options.allow_unusual {
        refuse_unusual(&place.root, options.home.as_deref())?;
    }
    Ok(place)
}

/// Where the files of the repository are: beside `.git`, or where its settings say.
fn work_tree(
    repository: &Repository,
    directory: &Path,
    beside: PathBuf,
) -> Result<PathBuf, GitError> {
    let none = || GitError::NoWorkTree {
        path: repository.dirs.git_dir.clone(),
    };
    // A linked work tree of a bare repository is not bare itself.
    let own = repository.dirs.git_dir == repository.dirs.common_dir;
    let top = match repository.config.get("core.worktree").filter(|_| own) {
        Some(value) => git::normal(
            &repository
                .dirs
                .git_dir
                .join(std::ffi::OsStr::from_bytes(value)),
        ),
        None if own && repository.config.is_true("core.bare") => return Err(none()),
        None => beside,
    };
    if directory.starts_with(&top) {
        Ok(top)
    } else {
        Err(none())
    }
}

fn refuse_unusual(root: &Path, home: Option<&Path>) -> Result<(), CollectError> {
    let unusual = |what| {
        Err(CollectError::Unusual {
            path: root.to_path_buf(),
            what,
        })
    };
    if root == Path::new("/") {
        return unusual("the root of the file system");
    }
    if let Some(home) = home.map(git::normal) {
        if home == root {
            return unusual("your home directory");
        }
        if home.starts_with(root) {
            return unusual("a directory that holds your home directory");
        }
        if CREDENTIALS.iter().any(|name| root == home.join(name)) {
            return unusual("where credentials and settings are kept");
        }
        if [".ssh", ".gnupg"]
            .iter()
            .any(|name| root.starts_with(home.join(name)))
        {
            return unusual("where keys are kept");
        }
    }
    let owner = fs_err::metadata(root)
        .map_err(|source| CollectError::Look {
            path: root.to_path_buf(),
            source,
        })?
        .uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(CollectError::NotYours {
            path: root.to_path_buf(),
            owner,
        });
    }
    Ok(())
}
