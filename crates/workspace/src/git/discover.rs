//! Finds the repository that a directory belongs to, as git does, without running git.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// A `.git` file or `HEAD` is one line; more than a path's length is not one.
const MAX_LINE: u64 = 8192;

/// The directories of one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitDirs {
    /// What belongs to this work tree alone: `HEAD`, the index.
    pub(crate) git_dir: PathBuf,
    /// What all work trees share: objects, branches, configuration. The same as `git_dir` without worktrees.
    pub(crate) common_dir: PathBuf,
    /// True when `.git` is a file that names `git_dir` (a linked worktree or a submodule).
    pub(crate) by_file: bool,
}

/// What stands at `.git` of a directory.
#[derive(Debug)]
pub(crate) enum DotGit {
    /// Nothing, or something that git passes over.
    None,
    Repository(GitDirs),
    /// It should be a repository and is none, for this reason.
    Broken {
        path: PathBuf,
        reason: &'static str,
    },
}

/// What a directory belongs to.
#[derive(Debug)]
pub(crate) enum Found {
    /// No repository.
    Nothing,
    /// The repository whose `.git` stands in this directory.
    Repository {
        top: PathBuf,
        dirs: GitDirs,
    },
    /// The directory is (or lies in) a git directory itself.
    InsideGitDir {
        git_dir: PathBuf,
    },
    Broken {
        path: PathBuf,
        reason: &'static str,
    },
}

/// Looks upwards from `start` (absolute, without symbolic links) and stays on its file system, as git does.
pub(crate) fn discover(start: &Path) -> std::io::Result<Found> {
    let device = fs_err::metadata(start)?.dev();
    for dir in start.ancestors() {
        if fs_err::metadata(dir)?.dev() != device {
            break;
        }
        match inspect(dir)? {
            DotGit::None => {}
            DotGit::Repository(dirs) => {
                return Ok(Found::Repository {
                    top: dir.to_path_buf(),
                    dirs,
                });
            }
            DotGit::Broken { path, reason } => return Ok(Found::Broken { path, reason }),
        }
        if is_git_dir(dir, dir) {
            return Ok(Found::InsideGitDir {
                git_dir: dir.to_path_buf(),
            });
        }
    }
    Ok(Found::Nothing)
}

/// Looks at `.git` in `dir` alone.
pub(crate) fn inspect(dir: &Path) -> std::io::Result<DotGit> {
    let dot_git = dir.join(".git");
    let broken = |reason| {
        Ok(DotGit::Broken {
            path: dot_git.clone(),
            reason,
        })
    };
    // Git follows a link at `.git`.
    let meta = match fs_err::metadata(&dot_git) {
        Ok(meta) => meta,
        Err(error) => {
            return match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                    Ok(DotGit::None)
                }
                _ => Err(error),
            };
        }
    };
    if meta.is_file() {
        let Some(line) = read_line(&dot_git)? else {
            return broken("it is not a line that names a git directory");
        };
        let Some(target) = line.strip_prefix(b"gitdir: ") else {
            return broken("it doesn't begin with `gitdir: `");
        };
        let git_dir = normal(&dir.join(OsStr::from_bytes(target)));
        let common_dir = common_dir(&git_dir)?;
        return if is_git_dir(&git_dir, &common_dir) {
            Ok(DotGit::Repository(GitDirs {
                git_dir,
                common_dir,
                by_file: true,
            }))
        } else {
            broken("the git directory that it names is not there")
        };
    }
    if !meta.is_dir() {
        return Ok(DotGit::None);
    }
    let common_dir = common_dir(&dot_git)?;
    if is_git_dir(&dot_git, &common_dir) {
        return Ok(DotGit::Repository(GitDirs {
            git_dir: dot_git,
            common_dir,
            by_file: false,
        }));
    }
    // An empty directory, or one with a few files of other tools, was never a repository.
    let was_one = ["HEAD", "objects", "refs", "config"]
        .iter()
        .any(|name| dot_git.join(name).symlink_metadata().is_ok());
    if was_one {
        broken("its HEAD, `objects` or `refs` is missing or unreadable")
    } else {
        Ok(DotGit::None)
    }
}

/// What `HEAD` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    /// `refs/heads/…`
    Symbolic(Vec<u8>),
    /// Hex digits.
    Detached(Vec<u8>),
}

/// Reads a file of the form of `HEAD`; `None` when it is something else.
pub(crate) fn read_head(path: &Path) -> Option<Head> {
    if let Ok(target) = fs_err::read_link(path) {
        let target = target.into_os_string().as_bytes().to_vec();
        return target
            .starts_with(b"refs/")
            .then_some(Head::Symbolic(target));
    }
    let line = read_line(path).ok()??;
    if let Some(name) = line.strip_prefix(b"ref:") {
        let name = name.trim_ascii();
        return name
            .starts_with(b"refs/")
            .then(|| Head::Symbolic(name.to_vec()));
    }
    let hex = line
        .split(u8::is_ascii_whitespace)
        .next()
        .unwrap_or_default();
    (matches!(hex.len(), 40 | 64) && hex.iter().all(u8::is_ascii_hexdigit))
        .then(|| Head::Detached(hex.to_vec()))
}

/// The first line of a small file, without the line's end. `None` when the file is larger or no regular file.
pub(crate) fn read_line(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let meta = fs_err::metadata(path)?;
    if !meta.is_file() || meta.len() > MAX_LINE {
        return Ok(None);
    }
    let bytes = fs_err::read(path)?;
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    Ok(Some(line.strip_suffix(b"\r").unwrap_or(line).to_vec()))
}

/// Where `git_dir` shares objects and branches with others.
fn common_dir(git_dir: &Path) -> std::io::Result<PathBuf> {
    let file = git_dir.join("commondir");
    if !file.is_file() {
        return Ok(git_dir.to_path_buf());
    }
    let line = read_line(&file)?.unwrap_or_default();
    Ok(normal(&git_dir.join(OsStr::from_bytes(&line))))
}

/// What git takes for a git directory.
fn is_git_dir(git_dir: &Path, common_dir: &Path) -> bool {
    read_head(&git_dir.join("HEAD")).is_some()
        && common_dir.join("objects").is_dir()
        && common_dir.join("refs").is_dir()
}

/// Without `.` and `..`. Right as long as no directory before a `..` is a symbolic link, so those are resolved where
/// they exist.
pub(crate) fn normal(path: &Path) -> PathBuf {
    if let Ok(real) = fs_err::canonicalize(path) {
        return real;
    }
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
