use super::config::ConfigWriter;
use super::oid::Oid;
use super::repository::Repository;
use super::run::{Git, Settings, output};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A git directory of our own that borrows the host's objects. Commands run here see no setting, hook, attribute,
/// replacement or graft of the host's repository, and whatever they write stays here.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    host: PathBuf,
    partial: bool,
}

impl Scratch {
    /// Makes one below `parent`.
    pub(crate) fn new(repository: &Repository, parent: &Path) -> std::io::Result<Self> {
        fs_err::create_dir_all(parent)?;
        let dir = tempfile::Builder::new()
            .prefix("git-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let path = dir.path();
        for below in [
            "objects/pack",
            "objects/info",
            "refs/heads",
            "info",
            "empty",
        ] {
            fs_err::create_dir_all(path.join(below))?;
        }
        fs_err::write(path.join("HEAD"), "ref: refs/heads/none\n")?;
        let mut alternates = repository.objects().into_os_string();
        alternates.push("\n");
        fs_err::write(
            path.join("objects/info/alternates"),
            alternates.as_encoded_bytes(),
        )?;
        let mut config = ConfigWriter::default();
        config.section("core", None);
        config.set("repositoryformatversion", b"1");
        config.set("bare", b"false");
        config.section("extensions", None);
        config.set("objectformat", repository.format.name().as_bytes());
        if repository.partial {
            config.set("partialclone", b"origin");
            config.section("remote", Some(b"origin"));
            config.set("promisor", b"true");
        }
        fs_err::write(path.join("config"), config.finish())?;
        if let Some(shallow) = &repository.shallow {
            fs_err::write(path.join("shallow"), shallow)?;
        }
        Ok(Self {
            host: repository.dirs.git_dir.clone(),
            partial: repository.partial,
            dir,
        })
    }

    fn command(&self, git: &Git) -> Command {
        let mut command = git.command(self.dir.path(), Settings::Own);
        // An empty work tree: no file can be looked at, so no filter can run.
        command.env("GIT_WORK_TREE", self.dir.path().join("empty"));
        command
    }

    /// The host's index as one file, where it is split.
    pub(crate) fn plain_index(&self, git: &Git) -> Result<Vec<u8>, AnyError> {
        let path = self.dir.path();
        fs_err::copy(self.host.join("index"), path.join("index"))?;
        for entry in fs_err::read_dir(&self.host)? {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(b"sharedindex.")
            {
                fs_err::copy(entry.path(), path.join(entry.file_name()))?;
            }
        }
        let mut command = self.command(git);
        command.args([
            "update-index",
            "--no-split-index",
            "--no-untracked-cache",
            "--force-write-index",
        ]);
        output(command, b"")?;
        Ok(fs_err::read(path.join("index"))?)
    }

    /// All files in the tree `tree`, their paths below `dir` (with its slash at the end): path, mode, object.
    pub(crate) fn list_tree(
        &self,
        git: &Git,
        tree: &Oid,
        dir: &[u8],
    ) -> Result<Vec<(Vec<u8>, u32, Oid)>, AnyError> {
        let mut command = self.command(git);
        command.args(["ls-tree", "-r", "-z", "--full-tree", &tree.to_string()]);
        let answer = output(command, b"")?;
        let file = |line: &[u8]| {
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            let mut words = line[..tab].split(|byte| *byte == b' ');
            let mode = u32::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 8).ok()?;
            let oid = Oid::from_hex(words.nth(1)?)?;
            Some(([dir, &line[tab + 1..]].concat(), mode, oid))
        };
        Ok(answer.split(|byte| *byte == 0).filter_map(file).collect())
    }

    /// Makes the history end after the newest `commits` commits that `tips` reach, and gives the list of those that
    /// lost parents.
    pub(crate) fn cut(
        &self,
        git: &Git,
        tips: &[Oid],
        commits: usize,
    ) -> Result<Option<Vec<u8>>, AnyError> {
        let mut command = self.command(git);
        command.args(["rev-list", "--parents", &format!("--max-count={commits}")]);
        command.args(tips.iter().map(ToString::to_string));
        let answer = output(command, b"")?;
        let lines: Vec<Vec<&[u8]>> = answer
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| line.split(|byte| *byte == b' ').collect())
            .collect();
        let kept: std::collections::HashSet<&[u8]> = lines
            .iter()
            .filter_map(|line| line.first().copied())
            .collect();
        let path = self.dir.path().join("shallow");
        // Where the host's own history ends, it ends here too, as far as the end is within reach.
        let before = fs_err::read(&path).unwrap_or_default();
        let mut list: Vec<u8> = Vec::new();
        let ends = before
            .split(|byte| *byte == b'\n')
            .filter(|oid| kept.contains(oid));
        let cut = lines
            .iter()
            .filter(|line| line[1..].iter().any(|parent| !kept.contains(parent)))
            .map(|line| line[0]);
        for oid in ends.chain(cut) {
            list.extend(oid);
            list.push(b'\n');
        }
        if list.is_empty() {
            fs_err::remove_file(&path).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            return Ok(None);
        }
        fs_err::write(&path, &list)?;
        Ok(Some(list))
    }

    /// Packs what `tips` reach, less what `known` reach. The files are below this directory, gone with it.
    pub(crate) fn pack_history(
        &self,
        git: &Git,
        tips: &[Oid],
        known: &[Oid],
    ) -> Result<Vec<PathBuf>, AnyError> {
        self.pack(git, "history", tips, known, None)
    }

    /// Packs what the index `index` names, less what the commits `known` hold.
    pub(crate) fn pack_index(
        &self,
        git: &Git,
        known: &[Oid],
        index: &[u8],
    ) -> Result<Vec<PathBuf>, AnyError> {
        self.pack(git, "index", &[], known, Some(index))
    }

    fn pack(
        &self,
        git: &Git,
        name: &str,
        tips: &[Oid],
        known: &[Oid],
        index: Option<&[u8]>,
    ) -> Result<Vec<PathBuf>, AnyError> {
        if tips.is_empty() && index.is_none() {
            return Ok(Vec::new());
        }
        let mut lines: Vec<String> = tips.iter().map(ToString::to_string).collect();
        for known in known {
            lines.push(format!("^{known}"));
            if index.is_some() {
                // That a commit is left out says nothing of its files to git, as long as no commit is packed.
                lines.push(format!("^{known}^{{tree}}"));
            }
        }
        let revisions = lines.join("\n") + "\n";
        let out = self.dir.path().join(name);
        fs_err::create_dir_all(&out)?;
        // No search for new deltas: those that are there are taken over, and the machine is short-lived.
        let mut arguments = vec![
            "pack-objects",
            "-q",
            "--delta-base-offset",
            "--window=0",
            "--compression=1",
        ];
        let index_file = out.join("index");
        let input = if self.partial {
            self.list(
                git,
                &revisions,
                index.map(|index| (index_file.as_path(), index)),
            )?
        } else {
            arguments.push("--revs");
            if index.is_some() {
                arguments.push("--indexed-objects");
            }
            revisions.into_bytes()
        };
        let mut command = self.command(git);
        if let Some(index) = index {
            fs_err::write(&index_file, index)?;
            command.env("GIT_INDEX_FILE", &index_file);
        }
        command.args(arguments).arg(out.join("pack"));
        output(command, &input)?;
        let mut files = Vec::new();
        for entry in fs_err::read_dir(&out)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "pack")
                && objects_in(&path)? > 0
            {
                if self.partial {
                    let promisor = path.with_extension("promisor");
                    fs_err::write(&promisor, "")?;
                    files.push(promisor);
                }
                files.push(path.with_extension("idx"));
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// The names of all objects that are there, where some are missing by design.
    fn list(
        &self,
        git: &Git,
        revisions: &str,
        index: Option<(&Path, &[u8])>,
    ) -> Result<Vec<u8>, AnyError> {
        let mut command = self.command(git);
        command.args([
            "rev-list",
            "--objects",
            "--no-object-names",
            "--missing=allow-any",
        ]);
        if let Some((file, index)) = index {
            fs_err::write(file, index)?;
            command.env("GIT_INDEX_FILE", file).arg("--indexed-objects");
        }
        command.arg("--stdin");
        Ok(output(command, revisions.as_bytes())?)
    }

    /// True when `ancestor` can be reached from `head`.
    pub(crate) fn is_ancestor(&self, git: &Git, ancestor: &Oid, head: &Oid) -> bool {
        let mut command = self.command(git);
        command.args([
            "merge-base",
            "--is-ancestor",
            &ancestor.to_string(),
            &head.to_string(),
        ]);
        output(command, b"").is_ok()
    }
}

/// The number of objects that a pack's header gives.
fn objects_in(pack: &Path) -> std::io::Result<u32> {
    use std::io::Read as _;
    let mut header = [0; 12];
    fs_err::File::open(pack)?.read_exact(&mut header)?;
    Ok(u32::from_be_bytes([
        header[8], header[9], header[10], header[11],
    ]))
}
