//! A base image from the host's own package sources, by `mmdebstrap`.

use crate::child::{ChildError, Environment, Running};
use crate::clean::{Cleaner, EPOCH};
use crate::host::HostFacts;
use crate::import::{self, ImportError, LIMITS, Metered};
use crate::manifest::Origin;
use crate::progress::{Progress, Step};
use crate::sources::{self, Source, SourcesError};
use crate::store::{Image, Store};
use crate::{child, dpkg};
use base::RelPath;
use erofs::Meta;
use std::path::{Path, PathBuf};

/// How a base image is built.
#[derive(Debug, Clone)]
pub struct DebianOptions {
    /// What children get of the caller's environment.
    pub environment: Environment,
    /// A file of package sources (deb822, as `/etc/apt/sources.list.d/*.sources`) instead of the host's own.
    pub sources: Option<PathBuf>,
    /// A directory for the system while it is installed: about 800 MB, and every user must be able to enter it.
    pub temporary: PathBuf,
    /// Packages beyond the usual ones.
    pub extra_packages: Vec<String>,
    /// Version of efimera, for the manifest.
    pub efimera: String,
}

/// A base image can't be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// `mmdebstrap` is not installed.
    #[error("Building a base image needs `mmdebstrap`; `efimera setup` installs it")]
    NoBuilder,
    /// Building without root needs a range of subordinate user ids.
    #[error(
        "Building a base image without root needs `newuidmap` and a range of ids in /etc/subuid and /etc/subgid; `efimera setup` adds them"
    )]
    NoSubordinateIds,
    /// The kernel doesn't let an ordinary user have namespaces.
    #[error(
        "Building a base image without root needs user namespaces, which this host forbids; build it once as root (`sudo efimera image build`)"
    )]
    NoUserNamespaces,
    /// The host's package sources can't be used.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A program that was started failed.
    #[error("Can't build the base image")]
    Child(#[source] ChildError),
    /// What it made can't be made into an image.
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// What the base image holds beyond the essential packages.
pub(crate) const PACKAGES: [&str; 10] = [
    "build-essential",
    "ca-certificates",
    "curl",
    "git",
    "less",
    "openssh-client",
    "procps",
    "python3",
    "ripgrep",
    "sudo",
];

/// What `mmdebstrap` says at the beginning of each of its steps, and what that is for people.
const STEPS: [(&str, &str); 5] = [
    ("running apt-get update", "Fetching the package lists"),
    (
        "downloading packages",
        "Downloading the base system's packages",
    ),
    ("extracting archives", "Unpacking the base system"),
    (
        "installing essential packages",
        "Installing the essential packages",
    ),
    (
        "installing remaining packages",
        "Installing the other packages",
    ),
];

/// Builds the base image of the host's release and stores it.
///
/// Fails when something needed is missing (before anything is downloaded), a package can't be had, or the store can't be
/// written.
pub fn build_debian(
    store: &Store,
    host: &HostFacts,
    options: &DebianOptions,
    progress: &mut dyn Progress,
) -> Result<Image, BuildError> {
    let mode = mode(host)?;
    let sources = match &options.sources {
        Some(path) => sources::of_file(path)?,
        None => sources::of_host(Path::new("/"), &host.os)?,
    };
    let builder = version(&options.environment).map_err(BuildError::Child)?;
    let origin = Origin::Packages {
        builder,
        sources: sources::releases(&sources),
    };
    let image = import::Building::start(store)?;
    progress.step(Step::begin("Installing the base system"));
    let mut command = options.environment.command("mmdebstrap");
    command
        .arg(format!("--mode={mode}"))
        .args(["--variant=minbase", "--format=tar"])
        .arg(format!("--include={}", packages(&options.extra_packages)))
        // No translations of descriptions: they are as large as the package list itself.
        .arg("--aptopt=Acquire::Languages \"none\"")
        .args(network_options(&options.environment).map_err(BuildError::Child)?)
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .env("TMPDIR", &options.temporary);
    let input = sources::to_deb822(&sources).into_bytes();
    let running = Running::start(&mut command, Some(input)).map_err(BuildError::Child)?;
    finish(image, running, origin, &sources, host, options, progress)
}

/// Takes what `running` writes into the image.
fn finish(
    mut image: import::Building,
    mut running: Running,
    origin: Origin,
    sources: &[Source],
    host: &HostFacts,
    options: &DebianOptions,
    progress: &mut dyn Progress,
) -> Result<Image, BuildError> {
    let stdout = running.stdout();
    running.until_output(&stdout, &mut |line| {
        if let Some((_, what)) = STEPS.iter().find(|(said, _)| line.contains(said)) {
            progress.step(Step::begin(what));
        }
    });
    let mut cleaner = Cleaner::default();
    let mut metered = Metered::new(stdout, "Packing the base image", progress);
    let appended = erofs::tar::append(&mut image.writer, &mut metered, LIMITS, &mut cleaner);
    drop(metered);
    // When the builder fails its stream ends early: its own words tell why, not the broken stream.
    match (appended, running.finish()) {
        (_, Err(error)) => return Err(BuildError::Child(error)),
        (Err(error), Ok(())) => return Err(ImportError::Tar(error).into()),
        (Ok(_), Ok(())) => {}
    }
    let shown = sources::to_deb822(&sources::without_secrets(sources));
    let meta = Meta {
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: (EPOCH, 0),
    };
    let path = RelPath::new(b"etc/apt/sources.list.d/host.sources")
        .expect("a constant path is well-formed");
    image
        .writer
        .add_file(&path, meta, &mut shown.as_bytes(), u64::MAX)
        .map_err(ImportError::from)?;
    let packages = dpkg::installed(&cleaner.status);
    Ok(image.finish(
        host.os.name.clone(),
        origin,
        packages,
        &options.efimera,
        progress,
    )?)
}

/// How `mmdebstrap` becomes root in the new system.
fn mode(host: &HostFacts) -> Result<&'static str, BuildError> {
    if !host.has("mmdebstrap") {
        return Err(BuildError::NoBuilder);
    }
    if host.root {
        return Ok("root");
    }
    if !host.user_namespaces {
        return Err(BuildError::NoUserNamespaces);
    }
    if !host.has("newuidmap") || !host.subordinate_ids {
        return Err(BuildError::NoSubordinateIds);
    }
    Ok("unshare")
}

fn packages(extra: &[String]) -> String {
    let mut packages: Vec<&str> = PACKAGES
        .iter()
        .copied()
        .chain(extra.iter().map(String::as_str))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages.join(",")
}

/// The host's own settings for reaching its mirrors (proxies, certificates), which the builder wouldn't look at. They
/// stay out of the image.
fn network_options(environment: &Environment) -> Result<Vec<String>, ChildError> {
    let settings = apt_network_settings(environment)?;
    Ok(settings
        .into_iter()
        .map(|setting| format!("--aptopt={setting}"))
        .collect())
}

/// Lines of `apt-config dump` about proxies, certificates and retries, without the closing semicolon.
pub(crate) fn apt_network_settings(environment: &Environment) -> Result<Vec<String>, ChildError> {
    let dump = child::output(environment.command("apt-config").arg("dump"))?;
    Ok(network_settings(&String::from_utf8_lossy(&dump)))
}

fn network_settings(dump: &str) -> Vec<String> {
    const KEYS: [&str; 6] = [
        "Acquire::http::",
        "Acquire::https::",
        "Acquire::ftp::",
        "Acquire::Retries ",
        "Acquire::ForceIPv4 ",
        "Acquire::ForceIPv6 ",
    ];
    dump.lines()
        .filter(|line| KEYS.iter().any(|key| line.starts_with(key)))
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect()
}

/// `mmdebstrap 1.3.5`
fn version(environment: &Environment) -> Result<String, ChildError> {
    let said = child::output(environment.command("mmdebstrap").arg("--version"))?;
    let said = String::from_utf8_lossy(&said);
    Ok(base::escape_line(
        said.lines()
            .next()
            .unwrap_or("mmdebstrap")
            .trim()
            .as_bytes(),
        80,
    ))
}

#[cfg(test)]
mod tests;
