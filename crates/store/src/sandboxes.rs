use crate::dirs::{GONE, NEW, hidden_dir, names_in, remove_tree, take_name};
use crate::{Record, Spec, State, Store, StoreError, VERSION, document};
use base::Name;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// The proof that a sandbox is alive: while one process holds it, all others leave the sandbox alone. It is a
/// locked descriptor, closed on exec; hand it to a child by duplicating it without that flag.
#[derive(Debug)]
pub struct Lock(OwnedFd);

/// A sandbox that was just made.
#[derive(Debug)]
pub struct Created {
    /// Its record, in [`State::Created`].
    pub record: Record,
    /// Held from before it had a name.
    pub lock: Lock,
}

/// A sandbox as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its record.
    pub record: Record,
    /// Its supervisor (or whoever is making it) lives.
    pub alive: bool,
}

/// All sandboxes. One that can't be read doesn't hide the others.
#[derive(Debug, Default)]
pub struct Listing {
    /// In the order of their names.
    pub sandboxes: Vec<Listed>,
    /// Those whose record can't be read, and why.
    pub broken: Vec<(Name, StoreError)>,
}

/// What [`Store::heal`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Healed {
    /// It lives.
    Alive,
    /// It is at rest (stopped), as its record says.
    AtRest,
    /// Its supervisor had died: the sandbox is gone, its result holds the last checkpoint.
    Removed,
    /// Its supervisor had died: it was to be kept, so its disk waits for `start`.
    Kept,
}

impl Lock {
    /// A descriptor that was inherited from the process that made the sandbox or locked it. Fails when it is
    /// not locked by us.
    pub fn inherited(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        // Taking a lock again that the same open file holds already is a no-op; if another holds it, this
        // fails.
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(fd))
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Lock> for OwnedFd {
    fn from(lock: Lock) -> Self {
        lock.0
    }
}

impl Store {
    /// The first name made from `seeds` that is free at this moment (somebody else may be quicker: try again
    /// with more seeds when [`Store::create`] says [`StoreError::NameTaken`]).
    pub fn free_name(&self, seeds: impl IntoIterator<Item = u64>) -> Result<Name, StoreError> {
        seeds
            .into_iter()
            .map(Name::from_seed)
            .find(|name| {
                !self.sandbox_dir(name).exists() && !self.results_dir().join(name.as_str()).exists()
            })
            .ok_or(StoreError::NoFreeName)
    }

    /// Makes a sandbox and its result, both under `spec.name`.
    pub fn create(&self, spec: Spec) -> Result<Created, StoreError> {
        let name = spec.name.clone();
        let record = Record {
            version: VERSION,
            spec,
            state: State::Created,
            supervisor_pid: None,
            vmm_pid: None,
            jail: Vec::new(),
            jail_missing: Vec::new(),
        };
        let hidden = hidden_dir(&self.sandboxes_dir())?;
        let made = (|| {
            let lock = new_lock(&hidden.join(LOCK))?;
            document::save(&hidden.join(RECORD), &record)?;
            // The sandbox first: a result without a sandbox would look like one that a dead supervisor left.
            if !take_name(&hidden, &self.sandbox_dir(&name))? {
                return Err(StoreError::NameTaken(name.clone()));
            }
            Ok(lock)
        })();
        let lock = made.inspect_err(|_| {
            // The first error is the one to tell.
            fs_err::remove_dir_all(&hidden).ok();
        })?;
        if let Err(error) = self.create_result(&record.spec) {
            remove_tree(&self.sandbox_dir(&name))?;
            return Err(error);
        }
        Ok(Created { record, lock })
    }

    /// A sandbox's record as it stands, healed or not.
    pub fn record(&self, name: &Name) -> Result<Record, StoreError> {
        document::load(&self.sandbox_dir(name).join(RECORD), VERSION)?
            .ok_or_else(|| StoreError::NoSandbox(name.clone()))
    }

    /// Replaces a sandbox's record. Only who holds its lock does this.
    pub fn update(&self, record: &Record) -> Result<(), StoreError> {
        document::save(&self.sandbox_dir(&record.spec.name).join(RECORD), record)
    }

    /// True while the sandbox's lock is held.
    pub fn is_alive(&self, name: &Name) -> Result<bool, StoreError> {
        let path = self.sandbox_dir(name).join(LOCK);
        let Some(file) = open_lock(&path)? else {
            return Ok(false);
        };
        // Shared, so that two who look at the same moment don't take each other for the supervisor.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(StoreError::io("look at", &path, error.into())),
        }
    }

    /// Takes the lock of a sandbox at rest, to start or remove it.
    pub fn lock(&self, name: &Name) -> Result<Lock, StoreError> {
        // Somebody's glance at it holds the lock for some microseconds; a supervisor holds it for its life.
        for _ in 0..GLANCES {
            match self.try_lock(name)? {
                Some(lock) => return Ok(lock),
                None => pause(GLANCE),
            }
        }
        Err(StoreError::Running(name.clone()))
    }

    /// Every sandbox, after healing those that need it.
    pub fn list(&self) -> Result<Listing, StoreError> {
        self.sweep();
        let mut listing = Listing::default();
        for name in names_in(&self.sandboxes_dir())? {
            let seen = self
                .heal(&name)
                .and_then(|healed| Ok((healed, self.record(&name)?)));
            match seen {
                Ok((healed, record)) => listing.sandboxes.push(Listed {
                    record,
                    alive: healed == Healed::Alive,
                }),
                // It went away between two looks, or was healed away.
                Err(StoreError::NoSandbox(_)) => {}
                Err(error) => listing.broken.push((name, error)),
            }
        }
        Ok(listing)
    }

    /// Puts right what a dead supervisor left behind. Kills nothing: QEMU died with its supervisor, and a
    /// process id may be somebody else's by now.
    pub fn heal(&self, name: &Name) -> Result<Healed, StoreError> {
        if self.is_alive(name)? {
            return Ok(Healed::Alive);
        }
        let mut record = self.record(name)?;
        if at_rest(&record) {
            return Ok(Healed::AtRest);
        }
        let Some(_lock) = self.try_lock(name)? else {
            return Ok(Healed::Alive);
        };
        // It may have been started, stopped or healed before we had the lock.
        record = self.record(name)?;
        if at_rest(&record) {
            return Ok(Healed::AtRest);
        }
        self.remove_socket(name)?;
        self.heal_result(name)?;
        if record.spec.keep && record.state != State::Created {
            record.state = State::Crashed;
            record.supervisor_pid = None;
            record.vmm_pid = None;
            self.update(&record)?;
            Ok(Healed::Kept)
        } else {
            remove_tree(&self.sandbox_dir(name))?;
            Ok(Healed::Removed)
        }
    }

    /// Removes a sandbox (not its result) whose lock is held.
    pub fn remove(&self, name: &Name, _lock: &Lock) -> Result<(), StoreError> {
        self.remove_socket(name)?;
        remove_tree(&self.sandbox_dir(name)).map(drop)
    }

    /// Removes the socket of a sandbox.
    pub fn remove_socket(&self, name: &Name) -> Result<(), StoreError> {
        let path = self.socket_path(name);
        match fs_err::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    fn try_lock(&self, name: &Name) -> Result<Option<Lock>, StoreError> {
        let path = self.sandbox_dir(name).join(LOCK);
        let io = |source| StoreError::io("lock", &path, source);
        let Some(file) = open_lock(&path)? else {
            return Err(StoreError::NoSandbox(name.clone()));
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(io(error.into())),
        }
        // Between opening and locking the sandbox may have gone, and another of its name come.
        let held = rustix::fs::fstat(&file).map_err(|error| io(error.into()))?;
        match fs_err::metadata(&path) {
            Ok(named) if named.ino() == held.st_ino && named.dev() == held.st_dev => {
                Ok(Some(Lock(file)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::NoSandbox(name.clone()))
            }
            Err(error) => Err(io(error)),
        }
    }

    /// Removes hidden directories of processes that died while making or removing one. What can't be removed
    /// stays for the next time.
    pub(crate) fn sweep(&self) {
        for parent in [
            self.sandboxes_dir(),
            self.results_dir(),
            self.baselines_dir(),
        ] {
            let Ok(entries) = fs_err::read_dir(&parent) else {
                continue;
            };
            for entry in entries.flatten() {
                let file_name = entry.file_name();
                let Some(text) = file_name.to_str() else {
                    continue;
                };
                // One that is being made lives for milliseconds, a baseline's for minutes.
                let stale = text.starts_with(GONE)
                    || text.starts_with(NEW)
                        && entry
                            .metadata()
                            .and_then(|found| found.modified())
                            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED));
                if stale {
                    fs_err::remove_dir_all(entry.path()).ok();
                }
            }
        }
    }
}

fn at_rest(record: &Record) -> bool {
    match record.state {
        State::Stopped => true,
        State::Crashed => record.spec.keep,
        _ => false,
    }
}

fn new_lock(path: &Path) -> Result<Lock, StoreError> {
    let io = |source| StoreError::io("lock", path, source);
    let file = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(io)?;
    let fd = OwnedFd::from(file.into_file());
    flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|error| io(error.into()))?;
    Ok(Lock(fd))
}

fn open_lock(path: &Path) -> Result<Option<OwnedFd>, StoreError> {
    match fs_err::OpenOptions::new().read(true).open(path) {
        Ok(file) => Ok(Some(file.into_file().into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("open", path, error)),
    }
}

/// Waits without anything to wait for.
fn pause(time: Duration) {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // Being woken early only means one more look.
    rustix::event::poll(&mut [], Some(&timeout)).ok();
}

const RECORD: &str = "record.json";
const LOCK: &str = "lock";
const ABANDONED: Duration = Duration::from_hours(1);
/// Together a fifth of a second: far more than a glance takes, and hardly felt by a person.
const GLANCES: u32 = 40;
const GLANCE: Duration = Duration::from_millis(5);
