//! Staging, commit and the way back. Which steps are done is read from the file system itself, so that the way
//! back is the same after an error and after a crash:
//!
//! | step | in staging | done when | back |
//! |---|---|---|---|
//! | remove a file | `oN`: the original | `oN` is there | rename `oN` back |
//! | place over a file | `nN`: new, after the exchange the original | the path is the inode that was staged | exchange |
//! | place over a file, without exchange | `oN`: the original | `oN` is there | unlink ours, rename `oN` back |
//! | place a new file | `nN`: new | the path is the inode that was staged | rename it into staging |
//! | remove a directory | – | it is absent | make it |
//! | make a directory | – | it is there | remove it if empty |

use super::beneath::{Beneath, look_at, names, stat_at};
use super::journal::{Journal, JournalFile, Operation, Phase, VERSION};
use super::plan::{Plan, Step};
use super::{ApplyError, Contents};
use crate::Kind;
use crate::change::Node;
use base::{Hasher, RelPath};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The new file of a step, as it was staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StagedFile {
    step: usize,
    device: u64,
    inode: u64,
}

#[derive(Debug)]
pub(super) struct Transaction<'a> {
    root: &'a Beneath,
    journal: Journal,
    /// `None` when it is gone already.
    staging: Option<OwnedFd>,
    /// Steps that may have been done, from the first.
    reached: Cell<usize>,
}

/// Whether the file system exchanges two names in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renames {
    /// `RENAME_EXCHANGE` and `RENAME_NOREPLACE`, where they work.
    Exchange,
    /// Links and plain renames, as on file systems that know neither (NFS).
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only tests ask for the fallback")
    )]
    Plain,
}

impl Plan {
    /// Does it, all or nothing. `journal` names a file, in a directory of ours, that is there while the
    /// operation is under way.
    pub fn apply(self, contents: &dyn Contents, journal: &Path) -> Result<Operation, ApplyError> {
        self.apply_with(contents, journal, Renames::Exchange, &mut |_| true)
    }

    /// `watch` is called before each step of the commit with its number. When it says no, everything stops as it
    /// is, as if the process had died: for tests.
    pub(super) fn apply_with(
        self,
        contents: &dyn Contents,
        journal: &Path,
        renames: Renames,
        watch: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Operation, ApplyError> {
        let mut operation = Operation {
            version: VERSION,
            change_set: self.change_set,
            changes: self.todo,
            already: self.already,
            kept: Vec::new(),
        };
        if self.steps.is_empty() {
            return Ok(operation);
        }
        match self.root.lock() {
            Ok(true) => {}
            Ok(false) => return Err(ApplyError::Busy(self.root_path)),
            Err(errno) => return Err(step_error("lock", &RelPath::root(), errno.into())),
        }
        let mut random = [0; 8];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        filled.map_err(|errno| step_error("stage", &RelPath::root(), errno.into()))?;
        let staging = format!(".efimera-{:016x}", u64::from_le_bytes(random));
        let record = Journal::new(&self.root_path, staging, self.steps);
        let file = JournalFile::create(journal, &record)?;
        let mut transaction = Transaction {
            root: &self.root,
            journal: record,
            staging: None,
            reached: Cell::new(0),
        };
        let done = transaction
            .stage(contents)
            .and_then(|()| {
                transaction.journal.phase = Phase::Commit;
                file.write(&transaction.journal)
            })
            .and_then(|()| transaction.commit(renames, watch));
        match done {
            Ok(None) => Ok(operation),
            Ok(Some(kept)) => {
                operation.kept = kept;
                transaction.journal.phase = Phase::Done;
                let written = file.write(&transaction.journal);
                if let Err(error) = written {
                    return Err(transaction.give_up(file, error));
                }
                transaction.remove_staging();
                file.remove()?;
                Ok(operation)
            }
            Err(error) => Err(transaction.give_up(file, error)),
        }
    }
}

impl<'a> Transaction<'a> {
    /// Goes on with what a crash left.
    pub(super) fn resume(root: &'a Beneath, journal: Journal) -> Result<Self, Errno> {
        let staging = match base::RelPath::new(journal.staging.as_bytes()) {
            Ok(path) => match root.dir(&path) {
                Ok(fd) => Some(fd),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            },
            Err(_) => return Err(Errno::INVAL),
        };
        let reached = Cell::new(journal.steps.len());
        Ok(Self {
            root,
            journal,
            staging,
            reached,
        })
    }

    fn give_up(&self, file: JournalFile, error: ApplyError) -> ApplyError {
        if let Err(worse) = self.roll_back() {
            // The journal stays for another try.
            return worse;
        }
        self.remove_staging();
        // A journal that can't be removed is found and recovered later, to the same end.
        file.remove().err();
        error
    }

    fn staging(&self) -> Result<&OwnedFd, Errno> {
        self.staging.as_ref().ok_or(Errno::NOENT)
    }

    fn stage(&mut self, contents: &dyn Contents) -> Result<(), ApplyError> {
        let here = RelPath::root();
        let fail = |errno: Errno| step_error("write into", &here, errno.into());
        rustix::fs::mkdirat(self.root, self.journal.staging.as_str(), Mode::RWXU).map_err(fail)?;
        let path = RelPath::new(self.journal.staging.as_bytes()).map_err(|_| fail(Errno::INVAL))?;
        let staging = self.root.dir(&path).map_err(fail)?;
        self.staging = Some(staging);
        for (at, step) in self.journal.steps.iter().enumerate() {
            let Step::Place { path, old, new } = step else {
                continue;
            };
            let stat = self.stage_one(at, path, old.as_ref(), new, contents)?;
            let staged = StagedFile {
                step: at,
                device: stat.st_dev,
                inode: stat.st_ino,
            };
            self.journal.staged.push(staged);
        }
        // One call for all files, and before the journal says that they are there.
        rustix::fs::syncfs(self.staging().map_err(fail)?).map_err(fail)
    }

    fn stage_one(
        &self,
        at: usize,
        path: &RelPath,
        old: Option<&Node>,
        new: &Node,
        contents: &dyn Contents,
    ) -> Result<rustix::fs::Stat, ApplyError> {
        let fail = |errno: Errno| step_error("write", path, errno.into());
        let staging = self.staging().map_err(fail)?;
        let name = PathBuf::from(format!("n{at}"));
        let owner = self.owner(old.map(|_| path)).map_err(fail)?;
        if new.kind == Kind::Symlink {
            use std::os::unix::ffi::OsStrExt as _;
            let target = Path::new(std::ffi::OsStr::from_bytes(&new.target));
            rustix::fs::symlinkat(target, staging, &name).map_err(fail)?;
            if let Some((uid, gid)) = owner {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(staging, &name, Some(uid), Some(gid), flags).map_err(fail)?;
            }
        } else {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file =
                rustix::fs::openat(staging, &name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
            let mut checked = Checked {
                file: File::from(file),
                hasher: Hasher::new(),
            };
            let digest = new.digest.ok_or_else(|| fail(Errno::INVAL))?;
            if old.is_some_and(|old| old.digest == new.digest) {
                // Only the mode changes: the host's own content, which the plan compared.
                self.copy_own(path, &mut checked)?;
            } else {
                contents
                    .copy_to(&digest, &mut checked)
                    .map_err(|source| content(path, source))?;
            }
            let Checked { file, hasher } = checked;
            if hasher.finish() != digest {
                let what = "it is not what was reviewed";
                return Err(content(
                    path,
                    io::Error::new(io::ErrorKind::InvalidData, what),
                ));
            }
            if let Some((uid, gid)) = owner {
                rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(fail)?;
            }
            rustix::fs::fchmod(&file, Mode::from_raw_mode(new.mode)).map_err(fail)?;
        }
        stat_at(staging, &name).map_err(fail)
    }

    fn copy_own(&self, path: &RelPath, to: &mut dyn Write) -> Result<(), ApplyError> {
        let open = || {
            let (parent, name) = self.root.parent(path)?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, name, flags, Mode::empty())
        };
        let own = open().map_err(|errno| step_error("read", path, errno.into()))?;
        io::copy(&mut File::from(own), to)
            .map(|_| ())
            .map_err(|source| step_error("copy", path, source))
    }

    /// Whose a new file is, when we are root and the tree is somebody else's: as the file that it replaces, or
    /// as the root directory.
    fn owner(&self, replaced: Option<&RelPath>) -> Result<Option<(Uid, Gid)>, Errno> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let stat = match replaced {
            Some(path) => self.root.stat(path)?,
            None => rustix::fs::fstat(self.root)?,
        };
        Ok(Some((
            Uid::from_raw(stat.st_uid),
            Gid::from_raw(stat.st_gid),
        )))
    }

    /// Does all steps; gives the directories that stay, or `None` when `watch` stopped it.
    fn commit(
        &self,
        renames: Renames,
        watch: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<RelPath>>, ApplyError> {
        let mut kept = Vec::new();
        for (at, step) in self.journal.steps.iter().enumerate() {
            let path = step.path();
            if !watch(at) {
                return Ok(None);
            }
            self.reached.set(at + 1);
            match step {
                Step::DirMode { new, .. } => {
                    let open = Mode::from_raw_mode(*new | 0o700);
                    self.root
                        .chmod(path, open)
                        .map_err(|errno| step_error("open", path, errno.into()))?;
                }
                Step::Remove { old, .. } => {
                    self.take_away(at, path, old, renames)?;
                }
                Step::RemoveDir { forced, .. } => match self.remove_dir(path) {
                    Ok(()) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) if !forced => kept.push(path.clone()),
                    Err(errno) => return Err(step_error("remove", path, errno.into())),
                },
                Step::MakeDir { .. } => {
                    self.make_dir(path).map_err(|errno| {
                        if errno == Errno::EXIST {
                            // It is somebody else's.
                            self.reached.set(at);
                            return ApplyError::MovedOn(path.clone());
                        }
                        step_error("make", path, errno.into())
                    })?;
                }
                Step::Place { old, .. } => self.place(at, path, old.as_ref(), renames)?,
            }
        }
        // Last, since a directory without the right to write takes nothing in, and from the deepest up.
        for step in self.journal.steps.iter().rev() {
            if let Step::DirMode {
                path, new: mode, ..
            }
            | Step::MakeDir { path, mode } = step
            {
                self.root
                    .chmod(path, Mode::from_raw_mode(*mode))
                    .map_err(|errno| step_error("set the mode of", path, errno.into()))?;
            }
        }
        rustix::fs::syncfs(self.root)
            .map_err(|errno| step_error("sync", &RelPath::root(), errno.into()))?;
        Ok(Some(kept))
    }

    fn remove_dir(&self, path: &RelPath) -> Result<(), Errno> {
        let (parent, name) = self.root.parent(path)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
    }

    fn make_dir(&self, path: &RelPath) -> Result<(), Errno> {
        let (parent, name) = self.root.parent(path)?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
        if let Some((uid, gid)) = self.owner(None)? {
            rustix::fs::fchown(self.root.dir(path)?, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Moves a file into staging, and looks whether it is the one that was planned.
    fn take_away(
        &self,
        at: usize,
        path: &RelPath,
        old: &Node,
        renames: Renames,
    ) -> Result<(), ApplyError> {
        let name = original(at);
        let take = || {
            let (parent, from) = self.root.parent(path)?;
            let staging = self.staging()?;
            rename_new(&parent, from, staging, &name, renames)?;
            look_at(staging, &name)
        };
        let found = take().map_err(|errno| step_error("remove", path, errno.into()))?;
        if found.is(Some(old)) {
            Ok(())
        } else {
            Err(ApplyError::MovedOn(path.clone()))
        }
    }

    fn place(
        &self,
        at: usize,
        path: &RelPath,
        old: Option<&Node>,
        renames: Renames,
    ) -> Result<(), ApplyError> {
        let staged = PathBuf::from(format!("n{at}"));
        let fail = |errno: Errno| match errno {
            // Something came to a place that was empty.
            Errno::EXIST => ApplyError::MovedOn(path.clone()),
            errno => step_error("write", path, errno.into()),
        };
        let staging = self.staging().map_err(fail)?;
        let (parent, name) = self.root.parent(path).map_err(fail)?;
        let Some(old) = old else {
            return rename_new(staging, &staged, &parent, name, renames).map_err(fail);
        };
        if renames == Renames::Exchange {
            match rustix::fs::renameat_with(staging, &staged, &parent, name, RenameFlags::EXCHANGE)
            {
                Ok(()) => {
                    let found = look_at(staging, &staged).map_err(fail)?;
                    let same = found.is(Some(old));
                    return if same {
                        Ok(())
                    } else {
                        Err(ApplyError::MovedOn(path.clone()))
                    };
                }
                Err(errno) if !is_unsupported(errno) => return Err(fail(errno)),
                Err(_) => {}
            }
        }
        self.take_away(at, path, old, renames)?;
        rename_new(staging, &staged, &parent, name, renames).map_err(fail)
    }

    /// Undoes every step that was done, the last one first. Goes on after a failure, and tells the first.
    pub(super) fn roll_back(&self) -> Result<(), ApplyError> {
        if self.journal.phase == Phase::Staging {
            return Ok(());
        }
        let mut first = None;
        let reached = &self.journal.steps[..self.reached.get()];
        for step in reached {
            if let Step::DirMode {
                path, new: mode, ..
            }
            | Step::MakeDir { path, mode } = step
            {
                // It may have its last mode already, and what is in it has to go.
                self.root
                    .chmod(path, Mode::from_raw_mode(*mode | 0o700))
                    .ok();
            }
        }
        for (at, step) in reached.iter().enumerate().rev() {
            if let Err(errno) = self.undo(at, step) {
                first.get_or_insert_with(|| ApplyError::Rollback {
                    path: step.path().clone(),
                    staging: self.journal.root().join(&self.journal.staging),
                    source: errno.into(),
                });
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn undo(&self, at: usize, step: &Step) -> Result<(), Errno> {
        let (parent, name) = match self.root.parent(step.path()) {
            // Where its directory was never made nothing was done, or somebody has moved it away since.
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {
                return if self.holds_original(at)? {
                    Err(errno)
                } else {
                    Ok(())
                };
            }
            other => other?,
        };
        match step {
            Step::DirMode { path, old, .. } => self.root.chmod(path, Mode::from_raw_mode(*old)),
            Step::Remove { .. } => self.bring_back(at, &parent, name),
            Step::RemoveDir { path, mode, .. } => {
                match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                    Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno),
                    Ok(()) => {
                        if let Some((uid, gid)) = self.owner(None)? {
                            rustix::fs::fchown(self.root.dir(path)?, Some(uid), Some(gid))?;
                        }
                        self.root.chmod(path, Mode::from_raw_mode(*mode))
                    }
                }
            }
            Step::MakeDir { .. } => match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                // Not made yet, or somebody put something of their own into it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                other => other,
            },
            Step::Place { old, .. } => {
                let Some(staging) = &self.staging else {
                    return Ok(());
                };
                let staged = PathBuf::from(format!("n{at}"));
                let taken_away = stat_at(staging, &original(at)).is_ok();
                if self.is_ours(at, &parent, name)? {
                    if old.is_some() && !taken_away {
                        let flags = RenameFlags::EXCHANGE;
                        return rustix::fs::renameat_with(staging, &staged, &parent, name, flags);
                    }
                    rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
                } else if old.is_some() && !taken_away && self.is_swapped_out(at, &staged)? {
                    // Somebody has put something of their own over ours: theirs stays, and so does the original.
                    return Err(Errno::EXIST);
                }
                self.bring_back(at, &parent, name)
            }
        }
    }

    /// Staging has what was at the step's path before.
    fn holds_original(&self, at: usize) -> Result<bool, Errno> {
        let Some(staging) = &self.staging else {
            return Ok(false);
        };
        let staged = PathBuf::from(format!("n{at}"));
        Ok(stat_at(staging, &original(at)).is_ok() || self.is_swapped_out(at, &staged)?)
    }

    /// What is staged for a step is not what we staged, but what the exchange brought there.
    fn is_swapped_out(&self, at: usize, staged: &Path) -> Result<bool, Errno> {
        let staging = self.staging()?;
        Ok(stat_at(staging, staged).is_ok() && !self.is_ours(at, staging, staged)?)
    }

    fn bring_back(&self, at: usize, parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
        let original = original(at);
        let Some(staging) = &self.staging else {
            return Ok(());
        };
        match stat_at(staging, &original) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
            Ok(_) => rename_new(staging, &original, parent, name, Renames::Exchange),
        }
    }

    /// The name leads to the file that was staged for the step.
    fn is_ours(&self, at: usize, parent: &OwnedFd, name: &Path) -> Result<bool, Errno> {
        let Some(staged) = self.journal.staged.iter().find(|staged| staged.step == at) else {
            return Ok(false);
        };
        match stat_at(parent, name) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino) == (staged.device, staged.inode)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the staging directory with all that is in it.
    pub(super) fn remove_staging(&self) {
        let Some(staging) = &self.staging else {
            return;
        };
        // What can't be removed is only a directory too many, and named so that a person knows whose it is.
        let list = |fd: &OwnedFd| names(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        for name in list(staging).unwrap_or_default() {
            use std::os::unix::ffi::OsStrExt as _;
            let name = Path::new(std::ffi::OsStr::from_bytes(&name));
            rustix::fs::unlinkat(staging, name, AtFlags::empty()).ok();
        }
        rustix::fs::unlinkat(self.root, self.journal.staging.as_str(), AtFlags::REMOVEDIR).ok();
    }
}

fn original(at: usize) -> PathBuf {
    PathBuf::from(format!("o{at}"))
}

/// Renames to a name that must not be there.
fn rename_new(
    from_dir: impl AsFd,
    from: &Path,
    to_dir: impl AsFd,
    to: &Path,
    renames: Renames,
) -> Result<(), Errno> {
    if renames == Renames::Exchange {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&from_dir, from, &to_dir, to, flags) {
            Err(errno) if is_unsupported(errno) => {}
            other => return other,
        }
    }
    rustix::fs::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())?;
    rustix::fs::unlinkat(&from_dir, from, AtFlags::empty())
}

fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn step_error(doing: &'static str, path: &RelPath, source: io::Error) -> ApplyError {
    ApplyError::Step {
        doing,
        path: path.clone(),
        source,
    }
}

fn content(path: &RelPath, source: io::Error) -> ApplyError {
    ApplyError::Content {
        path: path.clone(),
        source,
    }
}

/// A file that is digested while it is written.
struct Checked {
    file: File,
    hasher: Hasher,
}

impl Write for Checked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
