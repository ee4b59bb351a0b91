//! The user's configuration: `$XDG_CONFIG_HOME/efimera/config.toml`. An unknown key is an error, since a
//! misspelt safety setting that is silently ignored is worse than none.

use crate::error::{CommandError, Result};
use base::Size;
use serde::{Deserialize, Deserializer};
use std::io;
use std::path::Path;
use std::str::FromStr;

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) machine: Machine,
    pub(crate) workspace: Workspace,
    pub(crate) run: Run,
}

/// `[machine]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Machine {
    pub(crate) cpus: Option<u32>,
    #[serde(deserialize_with = "text")]
    pub(crate) memory: Option<Size>,
    #[serde(deserialize_with = "text")]
    pub(crate) disk: Option<Size>,
    /// `auto`, `kvm` (demands hardware) or `tcg`.
    pub(crate) accel: Option<String>,
}

/// `[workspace]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Workspace {
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) artifacts: Vec<String>,
    /// `auto`, `full`, `shallow` or `none`.
    pub(crate) history: Option<String>,
}

/// `[run]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Run {
    /// As `8h`, `30m`.
    pub(crate) linger: Option<String>,
    pub(crate) timeout: Option<String>,
}

impl Config {
    /// Reads the file; a missing one is an empty one.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match fs_err::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                CommandError::usage(format!(
                    "`{}` is not a configuration of efimera: {error}",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }
}

fn text<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?
        .parse()
        .map(Some)
        .map_err(serde::de::Error::custom)
}

/// Seconds of a duration as people write it: `90`, `90s`, `30m`, `8h`, `2d`.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
    {
        Some(seconds) if factor > 0 => Ok(seconds),
        _ => Err(format!(
            "`{}` is not a duration (write it as 90s, 30m or 8h)",
            base::escape_line(text.as_bytes(), 40)
        )),
    }
}
