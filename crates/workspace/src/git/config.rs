use super::run::{Git, GitFault, Settings, output};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The settings that are asked for: what a work tree looks like, how it is compared, and who commits.
const WANTED: &str = "^(core\\.(repositoryformatversion|bare|worktree|filemode|symlinks|ignorecase|autocrlf|eol|excludesfile|attributesfile\
    |sparsecheckout|sparsecheckoutcone)|extensions\\..*|user\\.(name|email)|diff\\.ignoresubmodules\
    |submodule\\..*\\.ignore|remote\\..*\\.promisor|filter\\.lfs\\.clean)$";

/// Effective settings: the system's, the user's and the repository's, the strongest last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Config(BTreeMap<String, Vec<u8>>);

impl Config {
    /// Asks git. `git_dir` may be one that doesn't exist; then only the user's own settings count.
    pub(crate) fn read(git: &Git, git_dir: &Path, home: Option<&Path>) -> Result<Self, GitFault> {
        let mut command = git.command(git_dir, Settings::User(home));
        command.args(["config", "--includes", "--null", "--get-regexp", WANTED]);
        let answer = match output(command, b"") {
            Ok(answer) => answer,
            // Git's way to say that nothing matched.
            Err(GitFault::Failed { code: Some(1), .. }) => Vec::new(),
            Err(fault) => return Err(fault),
        };
        Ok(Self::parse(&answer))
    }

    /// Pairs of a key, a newline and a value, each ended by NUL. A key without a value is true.
    fn parse(answer: &[u8]) -> Self {
        let pairs = answer
            .split(|byte| *byte == 0)
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let end = pair.iter().position(|byte| *byte == b'\n');
                let (key, value) = end.map_or((pair, b"true".as_slice()), |end| {
                    (&pair[..end], &pair[end + 1..])
                });
                (String::from_utf8_lossy(key).into_owned(), value.to_vec())
            });
        Self(pairs.collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }

    /// The value as text; `None` when it is not set or not UTF-8.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.get(key)
            .and_then(|value| String::from_utf8(value.to_vec()).ok())
    }

    /// The value as git reads truth.
    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            matches!(value.as_slice(), b"true" | b"yes" | b"on")
                || value.iter().any(|digit| (b'1'..=b'9').contains(digit))
        })
    }

    /// All keys that begin with `prefix` and end with `suffix`, with what stands between.
    pub(crate) fn between(&self, prefix: &str, suffix: &str) -> Vec<(String, Vec<u8>)> {
        self.0
            .iter()
            .filter_map(|(key, value)| {
                let middle = key.strip_prefix(prefix)?.strip_suffix(suffix)?;
                Some((middle.to_owned(), value.clone()))
            })
            .collect()
    }

    /// A path of the user's, `~/` resolved; `default` below the user's configuration directory when it is not set.
    pub(crate) fn user_path(
        &self,
        key: &str,
        home: Option<&Path>,
        default: &str,
    ) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt as _;
        let Some(value) = self.get(key) else {
            return Some(home?.join(".config/git").join(default));
        };
        let path = match value.strip_prefix(b"~/") {
            Some(rest) => home?.join(std::ffi::OsStr::from_bytes(rest)),
            None => PathBuf::from(std::ffi::OsStr::from_bytes(value)),
        };
        path.is_absolute().then_some(path)
    }
}

/// Writes a configuration file that git reads back to the same values.
#[derive(Debug, Default)]
pub(crate) struct ConfigWriter(Vec<u8>);

impl ConfigWriter {
    /// Opens a section, with a subsection where one is given.
    pub(crate) fn section(&mut self, name: &str, subsection: Option<&[u8]>) {
        self.0.extend(format!("[{name}").into_bytes());
        if let Some(subsection) = subsection {
            self.0.extend(b" \"");
            for byte in subsection.iter().filter(|byte| !matches!(byte, b'\n' | 0)) {
                if matches!(byte, b'"' | b'\\') {
                    self.0.push(b'\\');
                }
                self.0.push(*byte);
            }
            self.0.push(b'"');
        }
        self.0.extend(b"]\n");
    }

    /// Sets a value in the section that was opened last.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.0.extend(format!("\t{key} = \"").into_bytes());
        for byte in value {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', *byte]),
                b'\n' => self.0.extend(b"\\n"),
                b'\t' => self.0.extend(b"\\t"),
                0 | b'\r' => {}
                other => self.0.push(*other),
            }
        }
        self.0.extend(b"\"\n");
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}
