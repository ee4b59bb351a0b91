use base::RelPath;
use globset::{GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

/// What the baseline's own ignore rules say of a path.
pub trait IgnoreRules {
    /// True when `path` itself is ignored. Whoever asks has looked at the directories above it.
    fn is_ignored(&self, path: &RelPath, is_dir: bool) -> bool;
}

/// Ignores nothing: a workspace without git.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRules;

impl IgnoreRules for NoRules {
    fn is_ignored(&self, _: &RelPath, _: bool) -> bool {
        false
    }
}

impl<T: IgnoreRules + ?Sized> IgnoreRules for &T {
    fn is_ignored(&self, path: &RelPath, is_dir: bool) -> bool {
        (**self).is_ignored(path, is_dir)
    }
}

impl<T: IgnoreRules + ?Sized> IgnoreRules for std::sync::Arc<T> {
    fn is_ignored(&self, path: &RelPath, is_dir: bool) -> bool {
        (**self).is_ignored(path, is_dir)
    }
}

/// Globs of ignored paths that come out all the same (`--artifact`). A glob without a slash matches at any
/// depth; with one it starts at the root. A directory that matches comes out with all that it holds.
#[derive(Debug, Clone, Default)]
pub struct Artifacts {
    picks: GlobSet,
    /// For each glob its directories one by one; `None` where a match may begin or go on at any depth.
    routes: Vec<Vec<Option<GlobMatcher>>>,
}

/// The glob can't be read.
#[derive(Debug, thiserror::Error)]
#[error("`{glob}` is not a glob of paths below the workspace")]
pub struct ArtifactError {
    glob: String,
    source: Option<globset::Error>,
}

impl Artifacts {
    /// Reads the globs.
    pub fn new<G: AsRef<str>>(globs: &[G]) -> Result<Self, ArtifactError> {
        let mut set = GlobSetBuilder::new();
        let mut routes = Vec::new();
        for given in globs {
            let given_glob = given.as_ref().trim_end_matches('/');
            let glob = given_glob.trim_start_matches("./").trim_start_matches('/');
            let error = |source| ArtifactError {
                glob: base::escape_line(given.as_ref().as_bytes(), 120),
                source,
            };
            if glob.is_empty() || glob.split('/').any(|part| part == "..") {
                return Err(error(None));
            }
            let anchored = given_glob.contains('/');
            let whole = if anchored {
                glob.to_owned()
            } else {
                format!("**/{glob}")
            };
            set.add(compile(&whole).map_err(|source| error(Some(source)))?);
            routes.push(route(&whole));
        }
        let picks = set.build().map_err(|source| ArtifactError {
            glob: globs
                .iter()
                .map(AsRef::as_ref)
                .collect::<Vec<_>>()
                .join(" "),
            source: Some(source),
        })?;
        Ok(Self { picks, routes })
    }

    /// True when a glob matches `path` itself.
    pub fn picks(&self, path: &RelPath) -> bool {
        self.picks.is_match(path.as_path())
    }

    /// True when a glob might match something below the directory `path`.
    pub fn may_pick_below(&self, path: &RelPath) -> bool {
        self.routes.iter().any(|route| {
            let mut steps = route.iter();
            for component in path.components() {
                match steps.next() {
                    None => return false,
                    Some(None) => return true,
                    Some(Some(step)) => {
                        use std::os::unix::ffi::OsStrExt as _;
                        if !step.is_match(std::ffi::OsStr::from_bytes(component)) {
                            return false;
                        }
                    }
                }
            }
            steps.next().is_some()
        })
    }
}

fn compile(glob: &str) -> Result<globset::Glob, globset::Error> {
    GlobBuilder::new(glob).literal_separator(true).build()
}

fn route(glob: &str) -> Vec<Option<GlobMatcher>> {
    // Alternatives may hold slashes, so such a glob can't be taken apart.
    if glob.contains(['{', '[']) {
        return vec![None];
    }
    let step = |part: &str| match part {
        "**" => None,
        part => compile(part).ok().map(|glob| glob.compile_matcher()),
    };
    glob.split('/').map(step).collect()
}
