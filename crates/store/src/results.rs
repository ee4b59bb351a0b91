use crate::dirs::{hidden_dir, names_in, remove_tree, take_name};
use crate::{Completeness, Ending, ResultHead, Spec, Store, StoreError, VERSION, document};
use base::Name;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// What lies in a result's directory.
pub const RESULT_FILES: [&str; 5] = [HEAD, CHANGES, BLOBS, COMMITS, OUTPUT];

/// The paths of one result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultDir {
    dir: PathBuf,
}

/// All results. One that can't be read doesn't hide the others.
#[derive(Debug, Default)]
pub struct Results {
    /// The newest first.
    pub heads: Vec<ResultHead>,
    /// Those whose head can't be read, and why.
    pub broken: Vec<(Name, StoreError)>,
}

impl ResultDir {
    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The change set.
    pub fn changes(&self) -> PathBuf {
        self.dir.join(CHANGES)
    }

    /// File contents by digest.
    pub fn blobs(&self) -> PathBuf {
        self.dir.join(BLOBS)
    }

    /// The pack of commits made inside.
    pub fn commits(&self) -> PathBuf {
        self.dir.join(COMMITS)
    }

    /// The command's output, see [`crate::OutputLog`].
    pub fn output(&self) -> PathBuf {
        self.dir.join(OUTPUT)
    }

    fn head(&self) -> PathBuf {
        self.dir.join(HEAD)
    }
}

impl Store {
    /// Where a result lies, there or not.
    pub fn result_dir(&self, name: &Name) -> ResultDir {
        ResultDir {
            dir: self.results_dir().join(name.as_str()),
        }
    }

    /// A result's head as it stands, healed or not.
    pub fn result(&self, name: &Name) -> Result<ResultHead, StoreError> {
        document::load(&self.result_dir(name).head(), VERSION)?
            .ok_or_else(|| StoreError::NoResult(name.clone()))
    }

    /// Every result, after healing those that need it.
    pub fn results(&self) -> Result<Results, StoreError> {
        self.sweep();
        let mut heads = Vec::new();
        let mut broken = Vec::new();
        for name in names_in(&self.results_dir())? {
            match self.settled_result(&name) {
                Ok(head) => heads.push(head),
                Err(StoreError::NoResult(_)) => {}
                Err(error) => broken.push((name, error)),
            }
        }
        heads.sort_by(|a, b| (b.spec.created, &a.spec.name).cmp(&(a.spec.created, &b.spec.name)));
        Ok(Results { heads, broken })
    }

    /// The results of one workspace directory, the newest first.
    pub fn results_of(&self, workspace: &Path) -> Result<Vec<ResultHead>, StoreError> {
        let mut heads = self.results()?.heads;
        heads.retain(|head| head.spec.workspace == workspace);
        Ok(heads)
    }

    /// A result's head, after healing it when its supervisor is dead.
    pub fn settled_result(&self, name: &Name) -> Result<ResultHead, StoreError> {
        let head = self.result(name)?;
        if head.completeness != Completeness::Running {
            return Ok(head);
        }
        match self.heal(name) {
            Ok(_) => {}
            // The sandbox is gone: a supervisor writes its result's end before it removes the sandbox, so
            // either the head says so by now, or nobody will ever write it.
            Err(StoreError::NoSandbox(_)) => self.heal_result(name)?,
            Err(error) => return Err(error),
        }
        self.result(name)
    }

    /// Changes a result's head while nobody else does.
    pub fn update_result(
        &self,
        name: &Name,
        change: impl FnOnce(&mut ResultHead),
    ) -> Result<ResultHead, StoreError> {
        let dir = self.result_dir(name);
        let lock = match fs_err::File::open(dir.path()) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NoResult(name.clone()));
            }
            Err(error) => return Err(StoreError::io("open", dir.path(), error)),
        };
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| StoreError::io("lock", dir.path(), error.into()))?;
        let mut head = self.result(name)?;
        change(&mut head);
        document::save(&dir.head(), &head)?;
        Ok(head)
    }

    /// Replaces a result's change set. The contents that it names are in `blobs/` already.
    pub fn write_changes(&self, name: &Name, changes: &impl Serialize) -> Result<(), StoreError> {
        document::save(&self.result_dir(name).changes(), changes)
    }

    /// Notes that a result was applied, in seconds since 1970.
    pub fn mark_applied(&self, name: &Name, when: i64) -> Result<(), StoreError> {
        self.update_result(name, |head| head.applied = Some(when))
            .map(drop)
    }

    /// Removes a result; not while its sandbox runs.
    pub fn discard(&self, name: &Name) -> Result<(), StoreError> {
        if self.is_alive(name)? {
            return Err(StoreError::Running(name.clone()));
        }
        if remove_tree(self.result_dir(name).path())? {
            Ok(())
        } else {
            Err(StoreError::NoResult(name.clone()))
        }
    }

    /// Makes the result of a sandbox that has none any more (a kept one that is started again after its result
    /// was discarded), or leaves it as it is.
    pub fn ensure_result(&self, spec: &Spec) -> Result<(), StoreError> {
        if self.result_dir(&spec.name).path().exists() {
            return Ok(());
        }
        match self.create_result(spec) {
            Err(StoreError::NameTaken(_)) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn create_result(&self, spec: &Spec) -> Result<(), StoreError> {
        let head = ResultHead {
            version: VERSION,
            spec: spec.clone(),
            ending: None,
            completeness: Completeness::Running,
            saved: 0,
            ended: 0,
            ignored: 0,
            refused: Vec::new(),
            refused_count: 0,
            limits: Vec::new(),
            commits: Vec::new(),
            applied: None,
        };
        let hidden = hidden_dir(&self.results_dir())?;
        let made = (|| {
            for part in [BLOBS, COMMITS, OUTPUT] {
                let part = hidden.join(part);
                DirBuilder::new()
                    .mode(0o700)
                    .create(&part)
                    .map_err(|error| StoreError::io("make", &part, error))?;
            }
            document::save(&hidden.join(HEAD), &head)?;
            if take_name(&hidden, self.result_dir(&spec.name).path())? {
                Ok(())
            } else {
                Err(StoreError::NameTaken(spec.name.clone()))
            }
        })();
        made.inspect_err(|_| {
            // The first error is the one to tell.
            fs_err::remove_dir_all(&hidden).ok();
        })
    }

    /// Ends a result whose supervisor can't do it any more.
    pub(crate) fn heal_result(&self, name: &Name) -> Result<(), StoreError> {
        let healed = self.update_result(name, |head| {
            if head.completeness != Completeness::Running {
                return;
            }
            head.completeness = if head.saved > 0 {
                Completeness::Checkpoint
            } else {
                Completeness::Nothing
            };
            head.ending.get_or_insert_with(|| {
                Ending::Crashed("the supervisor was killed, or the computer went down".to_owned())
            });
            head.ended = jiff::Timestamp::now().as_second();
        });
        match healed {
            Ok(_) | Err(StoreError::NoResult(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

const HEAD: &str = "result.json";
const CHANGES: &str = "changes.json";
const BLOBS: &str = "blobs";
const COMMITS: &str = "commits";
const OUTPUT: &str = "output";
