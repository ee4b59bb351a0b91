//! Where guest kernels come from.

use crate::child::{self, ChildError, Environment, Running};
use crate::debian::apt_network_settings;
use crate::host::HostFacts;
use crate::import::now;
use crate::kernel::{Kernel, KernelRecord, ModuleRecord};
use crate::modules::{self, ModulesError, Selection};
use crate::progress::{Progress, Step, Unit};
use crate::sources::{self, SourcesError};
use crate::store::{Store, StoreError, private_directory, private_file, unfinished};
use base::{Digest, RelPath};
use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A kernel can't be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The kernel's file can't be read.
    #[error("Can't read the kernel")]
    Read(#[source] io::Error),
    /// The file is no x86 kernel.
    #[error("`{}` is no Linux kernel for x86-64 (neither a bzImage nor an ELF file)", path.display())]
    NotAKernel {
        /// The file.
        path: PathBuf,
    },
    /// The modules were made for another kernel.
    #[error("The modules were made for Linux {modules}, but the kernel is {kernel}")]
    OtherRelease {
        /// What the modules say.
        modules: String,
        /// What the kernel says.
        kernel: String,
    },
    /// A module is missing or can't be read.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// The running kernel's file is not where distributions put it, or not readable by this user.
    #[error("The running kernel's file is not readable ({})", tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NotReadable {
        /// The paths that were tried.
        tried: Vec<PathBuf>,
    },
    /// The host's package sources can't be used.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// The host has no apt.
    #[error(
        "Fetching a kernel package needs `apt-get` and `dpkg-deb`; give a kernel with `--kernel PATH --modules DIRECTORY`"
    )]
    NoApt,
    /// A program that was started failed.
    #[error("Can't fetch the kernel package")]
    Child(#[from] ChildError),
    /// The package sources have no such kernel.
    #[error("The host's package sources have no package `{0}` with a kernel")]
    NoPackage(String),
    /// A package can't be unpacked.
    #[error("Can't unpack the kernel package")]
    Unpack(#[source] io::Error),
    /// The store can't be written.
    #[error("Can't store the kernel")]
    Io(#[source] io::Error),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FetchError {
    /// True when this host just doesn't have such a kernel, so that another one may be looked for.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::NoPackage(_)
                | Self::NoApt
                | Self::NotReadable { .. }
                | Self::Sources(SourcesError::None { .. } | SourcesError::NoCodename)
                | Self::Modules(ModulesError::Missing { .. })
        )
    }
}

/// How a kernel package is fetched.
#[derive(Debug, Clone)]
pub struct AptOptions {
    /// What children get of the caller's environment.
    pub environment: Environment,
    /// A file of package sources instead of the host's own.
    pub sources: Option<PathBuf>,
    /// The package, such as `linux-image-cloud-amd64`.
    pub package: String,
}

/// Stores a kernel that is given as a file, and what is needed of the modules below `modules` (a directory such as
/// `/lib/modules/6.1.0-57-cloud-amd64`). Without a directory everything must be built in, which can't be checked here.
///
/// Fails when the file is no kernel, a module is missing, or the store can't be written.
pub fn install_files(
    store: &Store,
    vmlinuz: &Path,
    modules: Option<&Path>,
    environment: &Environment,
) -> Result<Kernel, FetchError> {
    let origin = vmlinuz.display().to_string();
    install(store, vmlinuz, modules, origin, environment)
}

/// Stores the kernel that the host itself runs.
///
/// Fails when its file can't be read (some distributions hide it from ordinary users), a module is missing, or the store
/// can't be written.
pub fn install_running(
    store: &Store,
    host: &HostFacts,
    environment: &Environment,
) -> Result<Kernel, FetchError> {
    let release = &host.kernel_release;
    let modules = PathBuf::from(format!("/lib/modules/{release}"));
    let tried = vec![
        PathBuf::from(format!("/boot/vmlinuz-{release}")),
        modules.join("vmlinuz"),
    ];
    match tried.iter().find(|path| fs_err::File::open(path).is_ok()) {
        Some(path) => install(
            store,
            path,
            Some(&modules),
            format!("{} (the host's)", path.display()),
            environment,
        ),
        None => Err(FetchError::NotReadable { tried }),
    }
}

/// Fetches a kernel package with the host's own package client, without installing anything and without root: package
/// lists and packages go to a directory of ours.
///
/// Fails when the package can't be had or unpacked, a module is missing, or the store can't be written.
pub fn install_from_apt(
    store: &Store,
    host: &HostFacts,
    options: &AptOptions,
    progress: &mut dyn Progress,
) -> Result<Kernel, FetchError> {
    if !host.has("apt-get") || !host.has("dpkg-deb") {
        return Err(FetchError::NoApt);
    }
    let sources = match &options.sources {
        Some(path) => sources::of_file(path)?,
        None => sources::of_host(Path::new("/"), &host.os)?,
    };
    let work = unfinished(&store.kernels_directory()).map_err(FetchError::Io)?;
    let apt = Apt::prepare(
        work.path(),
        &sources::to_deb822(&sources),
        &options.environment,
    )?;
    apt.run(&["update"], "Fetching the package lists", progress)?;
    let packages = apt.kernel_packages(&options.package)?;
    let names: Vec<_> = packages.keys().map(String::as_str).collect();
    apt.run(
        &[&["download"], names.as_slice()].concat(),
        "Downloading the kernel",
        progress,
    )?;
    progress.step(Step::begin("Unpacking the kernel"));
    let unpacked = unpack_all(work.path(), &options.environment)?;
    let Some((vmlinuz, modules)) = unpacked else {
        return Err(FetchError::NoPackage(options.package.clone()));
    };
    // The package that holds the kernel itself has the release in its name.
    let origin = packages
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect::<Vec<_>>()
        .join(", ");
    install(
        store,
        &vmlinuz,
        Some(&modules),
        origin,
        &options.environment,
    )
}

fn install(
    store: &Store,
    vmlinuz: &Path,
    modules: Option<&Path>,
    origin: String,
    environment: &Environment,
) -> Result<Kernel, FetchError> {
    let kernel = fs_err::read(vmlinuz).map_err(FetchError::Read)?;
    let release = release(&kernel).ok_or_else(|| FetchError::NotAKernel {
        path: vmlinuz.to_path_buf(),
    })?;
    let selection = match modules {
        Some(directory) => modules::select(directory, environment)?,
        None => Selection {
            modules: Vec::new(),
            absent: Vec::new(),
        },
    };
    let other = selection
        .modules
        .iter()
        .find(|module| !release.is_empty() && module.release != release);
    if let Some(module) = other {
        return Err(FetchError::OtherRelease {
            modules: module.release.clone(),
            kernel: release,
        });
    }
    let new = unfinished(&store.kernels_directory()).map_err(FetchError::Io)?;
    let digest = Digest::of(&kernel);
    let write =
        |path: &Path, bytes: &[u8]| private_file(path).and_then(|mut file| file.write_all(bytes));
    write(&new.path().join(KernelRecord::VMLINUZ), &kernel).map_err(FetchError::Io)?;
    let directory = new.path().join(KernelRecord::MODULES);
    private_directory(&directory).map_err(FetchError::Io)?;
    let mut records = Vec::new();
    for (number, module) in selection.modules.iter().enumerate() {
        let file = format!("{number:02}-{}.ko", module.name);
        write(&directory.join(&file), &module.bytes).map_err(FetchError::Io)?;
        records.push(ModuleRecord {
            file,
            digest: Digest::of(&module.bytes),
        });
    }
    let name = if release.is_empty() {
        "linux".to_owned()
    } else {
        safe_name(&release)
    };
    let record = KernelRecord {
        form: KernelRecord::FORM,
        id: format!("{name}-{}", digest.short()),
        release,
        origin,
        vmlinuz: digest,
        modules: records,
        absent: selection.absent,
        created: now(),
    };
    Ok(store.keep_kernel(new, record)?)
}

/// apt with a state of its own.
struct Apt<'a> {
    directory: &'a Path,
    environment: &'a Environment,
}

impl<'a> Apt<'a> {
    fn prepare(
        directory: &'a Path,
        sources: &str,
        environment: &'a Environment,
    ) -> Result<Self, FetchError> {
        for name in ["sources.d", "state/lists/partial", "cache/archives/partial"] {
            private_directory(&directory.join(name)).map_err(FetchError::Io)?;
        }
        // apt reads this file before any other of its settings. The host's own are left out but for those of the
        // network: they may hold commands to be run after each update.
        let path = directory.display();
        let mut settings = format!(
            "Dir::Etc::main \"/dev/null\";\n\
             Dir::Etc::parts \"/dev/null\";\n\
             Dir::Etc::sourcelist \"/dev/null\";\n\
             Dir::Etc::sourceparts \"{path}/sources.d\";\n\
             Dir::State \"{path}/state\";\n\
             Dir::State::status \"/var/lib/dpkg/status\";\n\
             Dir::Cache \"{path}/cache\";\n\
             Acquire::Languages \"none\";\n\
             APT::Sandbox::User \"root\";\n"
        );
        for setting in apt_network_settings(environment)? {
            settings.push_str(&setting);
            settings.push_str(";\n");
        }
        let write = |name: &str, text: &str| {
            private_file(&directory.join(name)).and_then(|mut file| file.write_all(text.as_bytes()))
        };
        write("sources.d/host.sources", sources).map_err(FetchError::Io)?;
        write("apt.conf", &settings).map_err(FetchError::Io)?;
        Ok(Self {
            directory,
            environment,
        })
    }

    fn command(&self, program: &str) -> std::process::Command {
        let mut command = self.environment.command(program);
        command
            .current_dir(self.directory)
            .env("APT_CONFIG", self.directory.join("apt.conf"));
        command
    }

    /// Runs `apt-get` and hands on how far it is.
    fn run(
        &self,
        arguments: &[&str],
        what: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), FetchError> {
        progress.step(Step::begin(what));
        let mut command = self.command("apt-get");
        // Progress on standard output (apt's README.progress-reporting).
        command
            .args(["--quiet", "--option", "APT::Status-Fd=1"])
            .args(arguments);
        let mut running = Running::start(&mut command, None)?;
        let mut last = 0;
        for line in BufReader::new(running.stdout()).split(b'\n') {
            // A line that can't be read is the end of it, which `finish` explains.
            let Ok(line) = line else { break };
            if let Some(percent) = percent(&line)
                && percent != last
            {
                last = percent;
                progress.step(Step {
                    what,
                    done: percent,
                    total: Some(100),
                    unit: Unit::Percent,
                });
            }
        }
        Ok(running.finish()?)
    }

    /// Names and versions of the packages that hold the kernel: the one that is asked for and those that it depends on,
    /// as far as they are of a kernel.
    fn kernel_packages(&self, package: &str) -> Result<BTreeMap<String, String>, FetchError> {
        let mut packages = BTreeMap::new();
        let mut pending = vec![package.to_owned()];
        while let Some(name) = pending.pop() {
            if packages.contains_key(&name) || packages.len() >= MAX_PACKAGES {
                continue;
            }
            let shown =
                child::output(
                    self.command("apt-cache")
                        .args(["show", "--no-all-versions", &name]),
                );
            let Ok(shown) = shown else {
                return Err(FetchError::NoPackage(base::escape_line(
                    name.as_bytes(),
                    80,
                )));
            };
            let shown = String::from_utf8_lossy(&shown);
            let field = |key: &str| {
                shown
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
                    .unwrap_or_default()
            };
            packages.insert(name, field("Version").to_owned());
            pending.extend(kernel_dependencies(field("Depends")));
        }
        Ok(packages)
    }
}

/// A meta package, the kernel and its modules are three; ten is more than any distribution has.
const MAX_PACKAGES: usize = 10;

/// The packages of a `Depends` field that are parts of a kernel.
fn kernel_dependencies(depends: &str) -> Vec<String> {
    depends
        .split(',')
        .filter_map(|choice| choice.split('|').next()?.split_ascii_whitespace().next())
        .filter(|name| {
            ["linux-image-", "linux-modules-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .map(str::to_owned)
        .collect()
}

/// `dlstatus:2:89.9955:Retrieving file 2 of 2` is 89.
fn percent(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.strip_prefix("dlstatus:")?.split(':');
    fields
        .nth(1)?
        .split('.')
        .next()?
        .parse()
        .ok()
        .filter(|percent| *percent <= 100)
}

/// Unpacks the packages in `directory`, and returns the kernel and the directory of its modules.
fn unpack_all(
    directory: &Path,
    environment: &Environment,
) -> Result<Option<(PathBuf, PathBuf)>, FetchError> {
    let target = directory.join("unpacked");
    private_directory(&target).map_err(FetchError::Io)?;
    let mut vmlinuz = None;
    let mut modules = None;
    for entry in fs_err::read_dir(directory).map_err(FetchError::Io)? {
        let path = entry.map_err(FetchError::Io)?.path();
        if path.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        let mut command = environment.command("dpkg-deb");
        command.arg("--fsys-tarfile").arg(&path);
        let mut running = Running::start(&mut command, None)?;
        let unpacked = unpack(running.stdout(), &target);
        running.finish()?;
        for file in unpacked.map_err(FetchError::Unpack)? {
            match file {
                Unpacked::Kernel(path) => vmlinuz = Some(path),
                Unpacked::Modules(path) => modules = Some(path),
            }
        }
    }
    Ok(vmlinuz.zip(modules))
}

enum Unpacked {
    Kernel(PathBuf),
    Modules(PathBuf),
}

/// Takes kernel and modules out of a package's contents.
fn unpack(stream: impl Read, target: &Path) -> io::Result<Vec<Unpacked>> {
    let mut found = Vec::new();
    let mut archive = tar::Archive::new(stream);
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let bytes = entry.path_bytes();
        let bytes = bytes.strip_prefix(b"./").unwrap_or(&bytes);
        let bytes = bytes.strip_prefix(b"usr/").unwrap_or(bytes);
        // A `RelPath` can't lead out of the target, whatever the package says.
        let Ok(path) = RelPath::new(bytes) else {
            continue;
        };
        let parts: Vec<_> = path.components().collect();
        let (kernel, module) = match parts.as_slice() {
            [b"boot", name] => (name.starts_with(b"vmlinuz-"), false),
            [b"lib", b"modules", _, _, ..] => (false, true),
            _ => (false, false),
        };
        if !kernel && !module {
            continue;
        }
        let place = target.join(path.as_path());
        private_directory(place.parent().unwrap_or(target))?;
        io::copy(&mut entry, &mut private_file(&place)?)?;
        if kernel {
            found.push(Unpacked::Kernel(place));
        } else if let Some(release) = path.components().nth(2) {
            let release = std::ffi::OsStr::from_bytes(release);
            found.push(Unpacked::Modules(target.join("lib/modules").join(release)));
        }
    }
    Ok(found)
}

/// The release that a kernel's file says it is; empty where it doesn't say. `None` for what is no kernel.
fn release(kernel: &[u8]) -> Option<String> {
    if kernel.starts_with(b"\x7fELF\x02\x01") {
        return Some(String::new());
    }
    // The boot protocol (Documentation/arch/x86/boot.rst): a signature at 0x202, and at 0x20e the place of a text that
    // begins with the release, counted from 0x200.
    if kernel.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let place = kernel.get(0x20e..0x210)?;
    let start = 0x200 + usize::from(u16::from_le_bytes([place[0], place[1]]));
    let text = kernel.get(start..)?;
    let text = &text[..text.iter().take(256).position(|byte| *byte == 0)?];
    Some(
        String::from_utf8_lossy(text)
            .split_ascii_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned(),
    )
}

/// A release as part of a directory's name.
fn safe_name(release: &str) -> String {
    let safe = |character: char| character.is_ascii_alphanumeric() || "-_.+".contains(character);
    let name: String = release
        .chars()
        .map(|character| if safe(character) { character } else { '_' })
        .take(80)
        .collect();
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
