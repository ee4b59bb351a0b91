//! What a machine was given, as far as bringing its work out needs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Spec;
use workspace::{
    ArtifactError, Artifacts, Baseline, BaselineError, BlobDir, Entry, Ignore, Import, KnownState,
    Limits,
};

/// One pass over the machine's workspace.
pub(crate) type Pass = Import<Arc<Vec<Entry>>, Arc<Ignore>, BlobDir>;

/// The baseline, its rules, and the globs of what comes out all the same.
#[derive(Debug)]
pub(crate) struct Given {
    entries: Arc<Vec<Entry>>,
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
            entries: Arc::new(baseline.entries),
            blobs,
        })
    }

    /// A pass that knows what the one before it did.
    pub(crate) fn pass(&self, known: KnownState) -> std::io::Result<Pass> {
        Ok(Import::new(
            Arc::clone(&self.entries),
            known,
            self.limits,
            Arc::clone(&self.ignore),
            self.artifacts.clone(),
            BlobDir::open(&self.blobs)?,
        ))
    }

    /// Names that a test's machine may have.
    #[cfg(test)]
    const TEST_ENTRIES: u64 = 2_000;

    #[cfg(test)]
    pub(crate) fn nothing(blobs: PathBuf) -> Self {
        Self {
            entries: Arc::new(Vec::new()),
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
