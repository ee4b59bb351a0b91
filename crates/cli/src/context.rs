//! What every verb needs: where things are, how to talk, and the user's configuration. The only reader of the
//! environment.

use crate::config::Config;
use crate::error::{CommandError, Result};
use crate::ui::Ui;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Resolved once, in `main`.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ui: Ui,
    pub(crate) config: Config,
    pub(crate) dirs: Dirs,
    /// The user's home directory, which is never taken for a workspace unasked.
    pub(crate) home: PathBuf,
    /// Where the command was typed (or `-C`).
    pub(crate) cwd: PathBuf,
    /// The user's login name.
    pub(crate) user: Option<String>,
    /// `$PAGER`, when set.
    pub(crate) pager: Option<OsString>,
    /// `$TERM`, for a terminal in the machine.
    pub(crate) term: Option<OsString>,
}

/// Where efimera keeps things.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    /// Images, results, records: `$EFIMERA_HOME`, else `$XDG_DATA_HOME/efimera`.
    pub(crate) data: PathBuf,
    /// What can be made again: `$EFIMERA_HOME/cache`, else `$XDG_CACHE_HOME/efimera`.
    pub(crate) cache: PathBuf,
    /// Sockets: `$XDG_RUNTIME_DIR/efimera`, else `run` below the data.
    pub(crate) run: PathBuf,
}

impl Context {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one reader of the environment"
    )]
    pub(crate) fn from_environment(directory: Option<&Path>) -> Result<Self> {
        let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let set = |name: &str| {
            var(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let no_color = var("NO_COLOR").is_some();
        let ui = Ui::new(no_color, var("TERM").is_some_and(|term| term == "dumb"));
        let home = set("HOME").ok_or_else(|| {
            CommandError::new("There is no home directory: `HOME` is not set")
                .hint("set `HOME` to a directory of yours")
        })?;
        let own = set("EFIMERA_HOME");
        let data = own.clone().unwrap_or_else(|| {
            set("XDG_DATA_HOME")
                .unwrap_or_else(|| home.join(".local/share"))
                .join("efimera")
        });
        let cache = own.clone().map_or_else(
            || {
                set("XDG_CACHE_HOME")
                    .unwrap_or_else(|| home.join(".cache"))
                    .join("efimera")
            },
            |own| own.join("cache"),
        );
        let run = match (&own, set("XDG_RUNTIME_DIR")) {
            (None, Some(runtime)) if runtime.is_dir() => runtime.join("efimera"),
            _ => data.join("run"),
        };
        let config_dir = set("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let config = Config::read(&config_dir.join("efimera/config.toml"))?;
        let here = env::current_dir().map_err(|error| {
            CommandError::new(format!(
                "The current directory is gone or can't be read: {error}"
            ))
        })?;
        let cwd = directory.map_or(here.clone(), |directory| here.join(directory));
        Ok(Self {
            ui,
            config,
            dirs: Dirs { data, cache, run },
            home,
            cwd,
            user: var("USER").and_then(|user| user.into_string().ok()),
            pager: var("PAGER"),
            term: var("TERM"),
        })
    }

    /// A variable of the user's environment, for `-e NAME`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one reader of the environment"
    )]
    pub(crate) fn variable(name: &str) -> Option<OsString> {
        env::var_os(name)
    }
}
