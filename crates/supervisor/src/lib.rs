//! One sandbox's event loop, and the command line's way to it.

pub mod client;
mod clock;
mod commits;
pub mod control;
mod error;
mod given;
mod life;
mod pipe;
mod relay;
mod saver;
mod signals;
mod supervise;
mod vmm;

pub use commits::{CommitRefs, PACK, REFS, Ref};
pub use error::RunError;
pub use given::GivenError;
pub use vmm::{Freezer, LaunchError, Launched, Launcher, Memory, Process};

use base::Name;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use store::{Ending, Lock, Store};

/// What a supervisor starts with.
#[derive(Debug)]
pub struct Start {
    /// Where records and results are.
    pub store: Store,
    /// Which sandbox; its record is there. In [`store::State::Created`] this is its first machine, otherwise
    /// (`Stopped`, `Crashed`) it goes on with the scratch disk that it has, and runs no command of its own.
    pub name: Name,
    /// Its lock, held.
    pub lock: Lock,
    /// The first client's end of a socketpair.
    pub first_client: Option<UnixStream>,
    /// The host's zone as a name below `/usr/share/zoneinfo`; empty for UTC.
    pub timezone: String,
    /// Where its machine goes on from. `None`: it begins, with the disk that it has if it has one.
    pub resume: Option<Resume>,
}

/// A snapshot to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The snapshot's directory.
    pub directory: PathBuf,
    /// The sandbox is another one than that which was frozen, and gets a name and an identity of its own.
    pub fork: bool,
}

/// Runs a sandbox until its end: returns when the machine is gone, the result is written and the sandbox's
/// directory is removed (or the sandbox is stopped, when it is kept).
///
/// Whatever keeps it from starting at all is written into the result as its ending, too: a first client that
/// finds its socket closed without a word looks there.
pub fn run(start: Start, launcher: &mut dyn Launcher) -> Result<(), RunError> {
    let (store, name) = (start.store.clone(), start.name.clone());
    let ran = begin(start, launcher);
    if let Err(error) = &ran {
        let text = with_causes(error);
        // Healing fills in what is missing; what was told already stays.
        store
            .update_result(&name, |head| {
                head.ending.get_or_insert(Ending::Crashed(text));
            })
            .ok();
        store.heal(&name).ok();
    }
    ran
}

fn begin(start: Start, launcher: &mut dyn Launcher) -> Result<(), RunError> {
    let spec = start.store.record(&start.name)?.spec;
    let baseline = start.store.baseline_dir(&spec.baseline);
    let blobs = start.store.result_dir(&start.name).blobs();
    let given = given::Given::load(&baseline, &spec, blobs)?;
    let signals = signals::Signals::catch()?;
    supervise::supervise(start, given, launcher, Some(signals.as_fd()))
}

/// An error and its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
