//! The host's own package sources, cut down to those of its distribution.

use crate::os_release::OsRelease;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Why no package source can be used.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// A file can't be read.
    #[error("Can't read the host's package sources")]
    Read(#[source] std::io::Error),
    /// A file that was given names no source.
    #[error("`{}` names no package source", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// `os-release` names no release.
    #[error(
        "The host's os-release names no VERSION_CODENAME, so its package sources can't be told apart"
    )]
    NoCodename,
    /// None of the sources is the distribution's own.
    #[error("None of the host's package sources is one of {name} {codename} itself")]
    None {
        /// The distribution.
        name: String,
        /// Its release.
        codename: String,
    },
}

/// One source: some suites of one archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) uris: Vec<String>,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    /// A file of keys, where one is named.
    pub(crate) signed_by: Option<String>,
    pub(crate) trusted: bool,
}

/// Reads `etc/apt/sources.list` and `sources.list.d` below `root`, and keeps what belongs to the distribution itself:
/// its release, its updates and its security updates.
pub(crate) fn of_host(root: &Path, release: &OsRelease) -> Result<Vec<Source>, SourcesError> {
    if release.codename.is_empty() {
        return Err(SourcesError::NoCodename);
    }
    let mut sources = Vec::new();
    for path in files(root).map_err(SourcesError::Read)? {
        let text = fs_err::read_to_string(&path).map_err(SourcesError::Read)?;
        let parsed = if path
            .extension()
            .is_some_and(|extension| extension == "sources")
        {
            parse_deb822(&text)
        } else {
            parse_lines(&text)
        };
        sources.extend(parsed);
    }
    let sources: Vec<_> = sources
        .into_iter()
        .filter_map(|source| own(source, release))
        .collect();
    if sources.is_empty() {
        return Err(SourcesError::None {
            name: release.name.clone(),
            codename: release.codename.clone(),
        });
    }
    Ok(sources)
}

/// Reads a file of sources that someone gave: all of it is used. `.list` files have one source to a line, others are
/// deb822.
pub(crate) fn of_file(path: &Path) -> Result<Vec<Source>, SourcesError> {
    let text = fs_err::read_to_string(path).map_err(SourcesError::Read)?;
    let by_line = path
        .extension()
        .is_some_and(|extension| extension == "list");
    let sources = if by_line {
        parse_lines(&text)
    } else {
        parse_deb822(&text)
    };
    if sources.is_empty() {
        Err(SourcesError::Empty {
            path: path.to_path_buf(),
        })
    } else {
        Ok(sources)
    }
}

/// The sources as a deb822 file.
pub(crate) fn to_deb822(sources: &[Source]) -> String {
    let mut text = String::new();
    for source in sources {
        // Writing to a String can't fail.
        _ = writeln!(
            text,
            "Types: deb\nURIs: {}\nSuites: {}",
            source.uris.join(" "),
            source.suites.join(" ")
        );
        if !source.components.is_empty() {
            _ = writeln!(text, "Components: {}", source.components.join(" "));
        }
        if let Some(keys) = &source.signed_by {
            _ = writeln!(text, "Signed-By: {keys}");
        }
        if source.trusted {
            text.push_str("Trusted: yes\n");
        }
        text.push('\n');
    }
    text
}

/// The sources as the guest may see them: without a user's name and password in an address, and without a file of
/// keys that is only on the host.
pub(crate) fn without_secrets(sources: &[Source]) -> Vec<Source> {
    let mut sources = sources.to_vec();
    for source in &mut sources {
        for uri in &mut source.uris {
            *uri = without_credentials(uri);
        }
        source.signed_by.take_if(|keys| !is_archive_keyring(keys));
    }
    sources
}

/// `bookworm main`, `bookworm-updates main`, …: what a manifest says of its sources.
pub(crate) fn releases(sources: &[Source]) -> Vec<String> {
    let mut names: Vec<_> = sources
        .iter()
        .flat_map(|source| {
            source
                .suites
                .iter()
                .map(|suite| format!("{suite} {}", source.components.join(" ")))
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The files that apt would read, in its order (sources.list(5)).
fn files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let apt = root.join("etc/apt");
    let mut files = Vec::new();
    let list = apt.join("sources.list");
    if list.exists() {
        files.push(list);
    }
    let parts = apt.join("sources.list.d");
    if parts.exists() {
        let mut found = Vec::new();
        for entry in fs_err::read_dir(&parts)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "list" || extension == "sources")
            {
                found.push(path);
            }
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// `deb [option=value …] URI SUITE COMPONENT …`
fn parse_lines(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line
            .strip_prefix("deb ")
            .or_else(|| line.strip_prefix("deb\t"))
        else {
            continue;
        };
        let rest = rest.trim_start();
        let (options, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((options, rest)) => (options, rest),
            None => ("", rest),
        };
        let option = |name: &str| {
            options.split_ascii_whitespace().find_map(|option| {
                let (key, value) = option.split_once('=')?;
                key.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        let mut words = rest.split_ascii_whitespace().map(str::to_owned);
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else {
            continue;
        };
        sources.push(Source {
            uris: vec![uri],
            suites: vec![suite],
            components: words.collect(),
            signed_by: option("signed-by"),
            trusted: option("trusted").is_some_and(|value| value == "yes"),
        });
    }
    sources
}

/// Paragraphs of fields; a line that starts with white space goes on with the field before it.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(paragraph(&std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                // An embedded key is a block of lines in which `.` stands for an empty one: keep it as it is.
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn paragraph(fields: &[(String, String)]) -> Option<Source> {
    let field = |name: &str| {
        fields
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    let list = |name: &str| -> Vec<String> {
        field(name)
            .unwrap_or_default()
            .split_ascii_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let no =
        |value: &str| ["no", "false", "off", "0"].contains(&value.to_ascii_lowercase().as_str());
    if !list("types").iter().any(|kind| kind == "deb") || field("enabled").is_some_and(no) {
        return None;
    }
    let source = Source {
        uris: list("uris"),
        suites: list("suites"),
        components: list("components"),
        signed_by: field("signed-by").map(str::to_owned),
        trusted: field("trusted").is_some_and(|value| value == "yes"),
    };
    (!source.uris.is_empty() && !source.suites.is_empty()).then_some(source)
}

/// The part of a source that is the distribution's own, if any. Third parties use the same suite names, so they are
/// told by their keys, and where none is named by their address and components.
fn own(mut source: Source, release: &OsRelease) -> Option<Source> {
    let codename = release.codename.as_str();
    let wanted = [
        codename.to_owned(),
        format!("{codename}-updates"),
        format!("{codename}-security"),
        format!("{codename}/updates"),
    ];
    source.suites.retain(|suite| wanted.contains(suite));
    let components = [
        "main",
        "restricted",
        "universe",
        "multiverse",
        "contrib",
        "non-free",
        "non-free-firmware",
    ];
    source
        .components
        .retain(|component| components.contains(&component.as_str()));
    if source.suites.is_empty() || source.components.is_empty() {
        return None;
    }
    let own = match &source.signed_by {
        Some(keys) => is_archive_keyring(keys),
        None => source.uris.iter().all(|uri| {
            let last = uri
                .trim_end_matches('/')
                .rsplit('/')
                .next()
                .unwrap_or_default();
            ["debian", "ubuntu"]
                .iter()
                .any(|name| last.starts_with(name))
                && !uri.contains("/linux/")
        }),
    };
    own.then_some(source)
}

fn is_archive_keyring(keys: &str) -> bool {
    let names = [
        "debian-archive-keyring",
        "ubuntu-archive-keyring",
        "debian-archive-",
    ];
    let file = keys.rsplit('/').next().unwrap_or_default();
    keys.starts_with("/usr/share/keyrings/") && names.iter().any(|name| file.starts_with(name))
}

fn without_credentials(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else {
        return uri.to_owned();
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests;
