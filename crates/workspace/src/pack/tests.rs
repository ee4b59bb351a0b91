mod cache;
mod faults;
mod files;
mod hostile;
mod shapes;
mod status;

use crate::{Baseline, CollectOptions, Collected, History, PackOptions, collect, pack};
use base::{Digest, RelPath, Size};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place of its own: a home, a cache, and room for repositories.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in ["home", "state"] {
            fs_err::create_dir_all(bench.path(name)).unwrap();
        }
        let settings = "[user]\n\tname = Ada \\\"L\\\" Byron\n\temail = ada@example.org\n[protocol \"file\"]\n\tallow = always\n\
                        [init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n";
        bench.write("home/.gitconfig", settings);
        bench
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        // Real, so that what git prints can be compared.
        fs_err::canonicalize(self.dir.path()).unwrap().join(below)
    }

    pub(crate) fn write(&self, below: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(below);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, bytes).unwrap();
    }

    /// Runs git as a person does, and gives what it printed.
    pub(crate) fn git(&self, below: &str, arguments: &[&str]) -> String {
        let (output, success) = self.try_git(&self.path(below), arguments);
        assert!(success, "git {arguments:?} in {below}: {output}");
        output
    }

    pub(crate) fn try_git(&self, dir: &Path, arguments: &[&str]) -> (String, bool) {
        let mut command = Command::new(git_program());
        command
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C");
        command
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CEILING_DIRECTORIES", self.path(""));
        let output = command.current_dir(dir).args(arguments).output().unwrap();
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text.push_str(&String::from_utf8_lossy(&output.stderr));
        }
        (text, output.status.success())
    }

    pub(crate) fn options(&self, below: &str) -> CollectOptions {
        CollectOptions {
            directory: self.path(below),
            only: None,
            include: Vec::new(),
            exclude: Vec::new(),
            skip_unreadable: false,
            history: History::Auto,
            allow_unusual: false,
            git_program: Some(git_program()),
            home: Some(self.path("home")),
            max_file_size: Size::gib(2),
            max_total_size: Size::gib(20),
            max_files: 1_000_000,
            scratch: self.path("state/scratch"),
        }
    }

    pub(crate) fn collect(&self, below: &str) -> Collected {
        collect(&self.options(below)).unwrap()
    }

    pub(crate) fn pack_options(&self) -> PackOptions {
        PackOptions {
            baselines: self.path("state/baselines"),
            cache: self.path("state/cache"),
            owner: (
                rustix::process::getuid().as_raw(),
                rustix::process::getgid().as_raw(),
            ),
        }
    }

    pub(crate) fn pack(&self, collected: &Collected) -> Baseline {
        let baseline = pack(collected, &self.pack_options(), &mut |_| {}).unwrap();
        assert_eq!(
            Baseline::load(&baseline.dir).unwrap(),
            baseline,
            "what is loaded is what was packed"
        );
        baseline
    }

    /// Collects, packs and extracts in one go; the extracted copy is in `out`.
    pub(crate) fn round(&self, below: &str) -> Round {
        self.round_with(&self.options(below))
    }

    pub(crate) fn round_with(&self, options: &CollectOptions) -> Round {
        let host = self.path("");
        let before = tree(&host, &["state"]);
        let collected = collect(options).unwrap();
        let baseline = self.pack(&collected);
        let after = tree(&host, &["state"]);
        assert_same(&before, &after);
        let out = self.extract(&baseline);
        Round {
            collected,
            baseline,
            out,
        }
    }

    pub(crate) fn extract(&self, baseline: &Baseline) -> PathBuf {
        let out = tempfile::Builder::new()
            .prefix("out-")
            .tempdir_in(self.path("state"))
            .unwrap()
            .keep();
        let output = Command::new("fsck.erofs")
            .arg(format!("--extract={}", out.display()))
            .args(["--overwrite", "--preserve"])
            .arg(baseline.image())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "fsck.erofs: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        out
    }
}

/// What came of a workspace.
pub(crate) struct Round {
    pub(crate) collected: Collected,
    pub(crate) baseline: Baseline,
    pub(crate) out: PathBuf,
}

impl Round {
    pub(crate) fn paths(&self) -> Vec<String> {
        self.baseline
            .entries
            .to_vec()
            .unwrap()
            .iter()
            .map(|entry| entry.path.to_string())
            .collect()
    }
}

/// The git that these tests run: the newest that is here, for shapes that older ones don't know.
pub(crate) fn git_program() -> PathBuf {
    ["/usr/local/bin/git", "/usr/bin/git"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.is_file())
        .unwrap()
}

pub(crate) fn rel(path: &str) -> RelPath {
    RelPath::new(path).unwrap()
}

pub(crate) fn names(paths: &[RelPath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

/// Every path below `root` with everything that is known of it: kind, mode, size, times, content.
pub(crate) fn tree(root: &Path, skipped: &[&str]) -> BTreeMap<PathBuf, String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs_err::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if dir == root && skipped.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let meta = fs_err::symlink_metadata(&path).unwrap();
            let content = if meta.is_dir() {
                waiting.push(path.clone());
                String::new()
            } else if meta.is_symlink() {
                base::escape(fs_err::read_link(&path).unwrap().as_os_str().as_bytes())
            } else if meta.is_file() {
                // What root can't read, no one compares.
                fs_err::read(&path)
                    .map_or_else(|_| "unreadable".into(), |bytes| Digest::of(&bytes).hex())
            } else {
                "special".into()
            };
            let facts = format!(
                "{:o} {} {}.{} {}.{} {content}",
                meta.mode(),
                meta.len(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec()
            );
            all.insert(path, facts);
        }
    }
    all
}

pub(crate) fn assert_same(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) {
    for (path, facts) in before {
        assert_eq!(
            Some(facts),
            after.get(path),
            "{} was changed",
            path.display()
        );
    }
    for path in after.keys() {
        assert!(before.contains_key(path), "{} was made", path.display());
    }
}

/// Names in the directory of baselines that are none.
pub(crate) fn leftovers(bench: &Bench) -> usize {
    let list = fs_err::read_dir(bench.path("state/baselines")).unwrap();
    list.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .as_encoded_bytes()
            .starts_with(b".partial")
    })
    .count()
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
