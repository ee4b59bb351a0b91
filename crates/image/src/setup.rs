//! What a host is missing, as one plan: everything is said before anything is done.

use crate::child::{self, ChildError, Environment, quoted};
use crate::debian::{self, BuildError, DebianOptions};
use crate::host::HostFacts;
use crate::import::{self, ImportError};
use crate::kernel_source::{self, AptOptions, FetchError};
use crate::progress::{Progress, Step};
use crate::store::{Store, StoreError};
use crate::subid;
use crate::table::{KernelWay, Profile, profile};
use base::Size;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;

/// What is missing, in the order in which it is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The items.
    pub items: Vec<Item>,
    /// True where this family of distributions was set up for real by us.
    pub proven: bool,
}

/// One thing that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What kind of thing it is.
    pub kind: ItemKind,
    /// What will be done, for people.
    pub what: String,
    /// What it is needed for, for people.
    pub why: &'static str,
    /// What a person would type for it: the commands that [`execute`] runs, or the verb of ours that does the same.
    pub commands: Vec<Vec<String>>,
    /// True when it changes the host itself.
    pub needs_root: bool,
    /// About how much is downloaded.
    pub download: Size,
    /// About how long it takes, in seconds, with a usual line and disk.
    pub seconds: u32,
}

/// Kinds of items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// Packages of the distribution are installed.
    Packages,
    /// The user gets a range of subordinate ids.
    SubordinateIds,
    /// A guest kernel is fetched or taken over.
    Kernel,
    /// A base image is built or taken in.
    Image,
}

/// How the host is to be set up.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// What children get of the caller's environment.
    pub environment: Environment,
    /// A kernel that is given.
    pub kernel: Option<GivenKernel>,
    /// A tar of a root file system that is given.
    pub tar: Option<PathBuf>,
    /// A file of package sources instead of the host's own.
    pub sources: Option<PathBuf>,
    /// A directory for temporary files that every user may enter, such as `/var/tmp`.
    pub temporary: PathBuf,
    /// True when `sudo` may ask for a password: there is a terminal.
    pub may_ask: bool,
    /// Version of efimera, for records.
    pub efimera: String,
}

/// A kernel's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenKernel {
    /// The kernel.
    pub vmlinuz: PathBuf,
    /// The directory of its modules; without one everything must be built in.
    pub modules: Option<PathBuf>,
}

/// The host can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An item changes the host, and this user may not.
    #[error("This needs root: {}", commands.join(" && "))]
    NeedsRoot {
        /// What to type, ready for a shell.
        commands: Vec<String>,
    },
    /// The package manager isn't known.
    #[error("{name} has no package manager that efimera knows; install these yourself: {missing}")]
    UnknownPackageManager {
        /// The distribution.
        name: String,
        /// What is missing.
        missing: String,
    },
    /// A base image can't be built here.
    #[error(
        "{0} has no package sources that a base image can be built from; give one: `efimera image build --from-tar FILE`"
    )]
    NeedsTar(String),
    /// The given tar can't be opened.
    #[error("Can't read the root file system")]
    Tar(#[source] io::Error),
    /// A command failed.
    #[error("Can't change the host")]
    Child(#[from] ChildError),
    /// The kernel can't be had.
    #[error("Can't get a guest kernel")]
    Kernel(#[from] FetchError),
    /// The base image can't be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The base image can't be taken in.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Plan {
    /// Nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// About how much is downloaded in all.
    pub fn download(&self) -> Size {
        Size(self.items.iter().map(|item| item.download.bytes()).sum())
    }

    /// About how long it takes in all, in seconds.
    pub fn seconds(&self) -> u32 {
        self.items.iter().map(|item| item.seconds).sum()
    }
}

/// Finds out what is missing. Nothing is changed.
///
/// Fails when the store can't be read.
pub fn plan(host: &HostFacts, store: &Store, options: &PlanOptions) -> Result<Plan, StoreError> {
    let present = Present {
        kernel: store.newest_kernel()?.is_some(),
        image: store.newest_image()?.is_some(),
    };
    Ok(plan_for(host, present, options))
}

/// Does what the plan says, in its order, and stops at the first thing that fails: what was done stays, and a new plan is
/// shorter.
pub fn execute(
    plan: &Plan,
    host: &HostFacts,
    store: &Store,
    options: &PlanOptions,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    for item in &plan.items {
        match item.kind {
            ItemKind::Packages | ItemKind::SubordinateIds => {
                change_host(item, host, options, progress)?;
            }
            ItemKind::Kernel => install_kernel(host, store, options, progress)?,
            // What was installed before counts.
            ItemKind::Image => build_image(&HostFacts::read(), store, options, progress)?,
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Present {
    kernel: bool,
    image: bool,
}

fn plan_for(host: &HostFacts, present: Present, options: &PlanOptions) -> Plan {
    let profile = profile(host.family());
    let builds = !present.image && options.tar.is_none() && profile.builds_base;
    let mut items = Vec::new();
    items.extend(packages(host, &profile, builds));
    if builds && !host.root && !host.subordinate_ids {
        items.push(subordinate_ids(host));
    }
    if !present.kernel || options.kernel.is_some() {
        items.push(kernel(host, &profile, options));
    }
    if !present.image || options.tar.is_some() {
        items.push(image(host, &profile, options));
    }
    Plan {
        items,
        proven: profile.proven,
    }
}

fn packages(host: &HostFacts, profile: &Profile, builds: bool) -> Option<Item> {
    let wanted = |program: &str| match program {
        "mmdebstrap" => builds,
        "newuidmap" => builds && !host.root,
        _ => true,
    };
    let missing: Vec<_> = profile
        .programs
        .iter()
        .filter(|(program, ..)| wanted(program) && !host.has(program))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let names: Vec<_> = missing
        .iter()
        .map(|(_, package, _)| (*package).to_owned())
        .collect();
    let megabytes: u64 = missing.iter().map(|(_, _, megabytes)| megabytes).sum();
    let mut commands: Vec<Vec<String>> = profile.install.iter().map(|words| owned(words)).collect();
    if let Some(install) = commands.last_mut() {
        install.extend(names.iter().cloned());
    }
    Some(Item {
        kind: ItemKind::Packages,
        what: format!("Install {}", names.join(", ")),
        why: "the virtual machine and the tools to make its disks",
        commands,
        needs_root: true,
        // The package lists come along.
        download: Size::mib(megabytes + 10),
        seconds: 20 + u32::try_from(megabytes).unwrap_or_default(),
    })
}

fn subordinate_ids(host: &HostFacts) -> Item {
    let text = |path: &str| fs_err::read_to_string(path).unwrap_or_default();
    let start = subid::free_start(&[&text("/etc/subuid"), &text("/etc/subgid")]);
    let range = format!("{start}-{}", start.saturating_add(subid::COUNT - 1));
    Item {
        kind: ItemKind::SubordinateIds,
        what: format!("Give {} the subordinate ids {range}", host.user),
        why: "building the base image without root",
        commands: vec![owned(&[
            "usermod",
            "--add-subuids",
            &range,
            "--add-subgids",
            &range,
            &host.user,
        ])],
        needs_root: true,
        download: Size(0),
        seconds: 1,
    }
}

fn kernel(host: &HostFacts, profile: &Profile, options: &PlanOptions) -> Item {
    let why = "the machine's own kernel; the host's stays as it is";
    let base = Item {
        kind: ItemKind::Kernel,
        what: String::new(),
        why,
        commands: vec![owned(&["efimera", "setup"])],
        needs_root: false,
        download: Size(0),
        seconds: 1,
    };
    if let Some(given) = &options.kernel {
        let mut command = owned(&[
            "efimera",
            "setup",
            "--kernel",
            &given.vmlinuz.to_string_lossy(),
        ]);
        if let Some(modules) = &given.modules {
            command.extend(owned(&["--modules", &modules.to_string_lossy()]));
        }
        return Item {
            what: format!("Take over the kernel {}", given.vmlinuz.display()),
            commands: vec![command],
            ..base
        };
    }
    match profile.kernels.first() {
        Some(KernelWay::Apt(package)) => Item {
            what: format!("Download the guest kernel {package} (unpacked, not installed)"),
            download: Size::mib(36),
            seconds: 15,
            ..base
        },
        Some(KernelWay::Running) | None => Item {
            what: format!("Take over the host's kernel {}", host.kernel_release),
            ..base
        },
    }
}

fn image(host: &HostFacts, profile: &Profile, options: &PlanOptions) -> Item {
    let base = Item {
        kind: ItemKind::Image,
        what: format!(
            "Build the base image of {} from the host's package sources",
            host.os.name
        ),
        why: "what a machine starts from",
        commands: vec![owned(&["efimera", "image", "build"])],
        needs_root: false,
        download: Size::mib(140),
        seconds: 120,
    };
    match &options.tar {
        Some(tar) => Item {
            what: format!("Make a base image of {}", tar.display()),
            commands: vec![owned(&[
                "efimera",
                "image",
                "build",
                "--from-tar",
                &tar.to_string_lossy(),
            ])],
            download: Size(0),
            seconds: 10,
            ..base
        },
        None if profile.builds_base => base,
        None => Item {
            what: "Take in a root file system as the base image (a tar that you give)".to_owned(),
            commands: vec![owned(&["efimera", "image", "build", "--from-tar", "FILE"])],
            download: Size(0),
            seconds: 10,
            ..base
        },
    }
}

/// Runs the commands of an item as root.
fn change_host(
    item: &Item,
    host: &HostFacts,
    options: &PlanOptions,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    if item.commands.is_empty() {
        let missing = item.what.trim_start_matches("Install ").to_owned();
        return Err(SetupError::UnknownPackageManager {
            name: host.os.name.clone(),
            missing,
        });
    }
    let sudo = !host.root;
    if sudo && !(options.may_ask && host.has("sudo")) {
        let commands = item.commands.iter().map(|words| typed(words)).collect();
        return Err(SetupError::NeedsRoot { commands });
    }
    for (number, words) in item.commands.iter().enumerate() {
        progress.step(Step::begin(&item.what));
        let mut command = if sudo {
            as_root(words, &options.environment)
        } else {
            direct(words, &options.environment)
        };
        let ended = child::output(&mut command);
        // All but the last refresh what is known of packages. One foreign source that can't be reached makes that fail,
        // and yet what is needed may be had: the last command tells.
        if number + 1 == item.commands.len() {
            ended?;
        }
    }
    Ok(())
}

fn direct(words: &[String], environment: &Environment) -> std::process::Command {
    let mut command = environment.command(&words[0]);
    command.args(&words[1..]);
    command
}

/// `sudo` clears the environment, so `env` sets it anew on the other side. The password is read from the terminal.
fn as_root(words: &[String], environment: &Environment) -> std::process::Command {
    let mut command = environment.command("sudo");
    command.stdin(Stdio::inherit()).arg("env");
    for (mut variable, value) in environment.variables() {
        variable.push("=");
        variable.push(value);
        command.arg(variable);
    }
    command.args(words);
    command
}

/// The command with `sudo`, for a shell.
fn typed(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    format!("sudo {}", words.join(" "))
}

fn install_kernel(
    host: &HostFacts,
    store: &Store,
    options: &PlanOptions,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    if let Some(given) = &options.kernel {
        progress.step(Step::begin("Taking over the kernel"));
        kernel_source::install_files(
            store,
            &given.vmlinuz,
            given.modules.as_deref(),
            &options.environment,
        )?;
        return Ok(());
    }
    let mut last_error = None;
    for way in profile(host.family()).kernels {
        let installed = match way {
            KernelWay::Apt(package) => {
                let apt = AptOptions {
                    environment: options.environment.clone(),
                    sources: options.sources.clone(),
                    package: (*package).to_owned(),
                };
                kernel_source::install_from_apt(store, host, &apt, progress)
            }
            KernelWay::Running => {
                progress.step(Step::begin("Taking over the host's own kernel"));
                kernel_source::install_running(store, host, &options.environment)
            }
        };
        match installed {
            Ok(_) => return Ok(()),
            // The next way is for hosts that don't have this one, not for a line that is down or a disk that is full.
            Err(error) if error.is_absence() => last_error = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    last_error.map_or(Ok(()), |error| Err(error.into()))
}

fn build_image(
    host: &HostFacts,
    store: &Store,
    options: &PlanOptions,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    if let Some(path) = &options.tar {
        let stream = fs_err::File::open(path).map_err(SetupError::Tar)?;
        import::import_tar(
            store,
            stream,
            &path.to_string_lossy(),
            &options.efimera,
            progress,
        )?;
        return Ok(());
    }
    if !profile(host.family()).builds_base {
        return Err(SetupError::NeedsTar(host.os.name.clone()));
    }
    let options = DebianOptions {
        environment: options.environment.clone(),
        sources: options.sources.clone(),
        temporary: options.temporary.clone(),
        extra_packages: Vec::new(),
        efimera: options.efimera.clone(),
    };
    debian::build_debian(store, host, &options, progress)?;
    Ok(())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests;
