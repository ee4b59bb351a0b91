//! What a machine was given, as far as bringing its work out needs it.

use base::Size;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Spec;
use workspace::{
    ArtifactError, Artifacts, Baseline, BaselineError, BlobDir, Entries, Ignore, Import,
    KnownState, Limits,
};

/// One pass over the machine's workspace.
pub(crate) type Pass = Import<Option<Entries>, Arc<Ignore>, BlobDir>;

/// What is read from the machine for one checkpoint while its command runs, so that a checkpoint never takes the
/// machine's one processor for long. What does not fit comes with the next one, and all of it at the end.
pub(crate) const CHECKPOINT_READ: Size = Size::mib(256);

/// How much a pass may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// What there is, as far as a result may hold it.
    Everything,
    /// [`CHECKPOINT_READ`].
    Little,
}

/// The baseline, its rules, and the globs of what comes out all the same.
#[derive(Debug)]
pub(crate) struct Given {
    /// `None`: nothing went in.
    entries: Option<Entries>,
    ignore: Arc<Ignore>,
    artifacts: Artifacts,
    limits: Limits,
    /// Commits that the machine's repository has from the start.
    pub(crate) known_commits: Vec<String>,
    blobs: PathBuf,
}

/// The baseline can't be used.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    /// It can't be read.
    #[error("The baseline of this sandbox can't be read")]
    Baseline(#[from] BaselineError),
    /// A glob of artifacts is none.
    #[error(transparent)]
    Artifacts(#[from] ArtifactError),
}

impl Given {
    /// Reads the baseline in `dir`; contents go to `blobs`.
    pub(crate) fn load(dir: &Path, spec: &Spec, blobs: PathBuf) -> Result<Self, GivenError> {
        let baseline = Baseline::load(dir)?;
        Ok(Self {
            ignore: Arc::new(baseline.ignore_rules()),
            artifacts: Artifacts::new(&spec.artifacts)?,
            limits: Limits::default(),
            known_commits: baseline.git.and_then(|git| git.head).into_iter().collect(),
            entries: Some(baseline.entries),
            blobs,
        })
    }

    /// A pass that knows what the one before it did; that is taken from `known`, and comes back with the pass.
    pub(crate) fn pass(&self, known: &mut KnownState, reads: Reads) -> std::io::Result<Pass> {
        let blobs = BlobDir::open(&self.blobs)?;
        let limits = match reads {
            Reads::Everything => self.limits,
            Reads::Little => Limits {
                read: CHECKPOINT_READ,
                ..self.limits
            },
        };
        Ok(Import::new(
            self.entries.clone(),
            std::mem::take(known),
            limits,
            Arc::clone(&self.ignore),
            self.artifacts.clone(),
            blobs,
        ))
    }

    /// Names that a test's machine may have.
    #[cfg(test)]
    const TEST_ENTRIES: u64 = 2_000;

    #[cfg(test)]
    pub(crate) fn nothing(blobs: PathBuf) -> Self {
        Self {
            entries: None,
            ignore: Arc::new(Ignore::new(&[], std::iter::empty())),
            artifacts: Artifacts::default(),
            limits: Limits {
                entries: Self::TEST_ENTRIES,
                ..Limits::default()
            },
            known_commits: Vec::new(),
            blobs,
        }
    }
}
