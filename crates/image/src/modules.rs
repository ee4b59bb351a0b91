//! Which kernel modules an initramfs needs, and in which order they are to be loaded.
//!
//! Dependencies are read from the modules themselves (`depends=` in their `.modinfo`), because `modules.dep` is made by
//! `depmod` when a kernel is installed and is not in a package that is only unpacked.

use crate::child::{ChildError, Environment, Running};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Modules without which a machine can't run: its disks, its channel to the host, its file systems.
const REQUIRED: [&str; 7] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "virtio_rng",
    "erofs",
    "overlay",
    "ext4",
];
/// Modules that are taken along where they are.
const OPTIONAL: [&str; 4] = ["virtio_net", "virtio_balloon", "fuse", "squashfs"];
/// The largest module in bytes: real ones are below 2 MiB, those with debugging symbols below 64.
const MAX_MODULE: u64 = 128 << 20;
/// The deepest directory of modules: real ones are seven below the kernel's.
const MAX_DEPTH: usize = 16;

/// What a kernel's modules are missing, or why they can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// The directory or a file in it can't be read.
    #[error("Can't read the kernel's modules")]
    Read(#[from] io::Error),
    /// A module that a machine needs is neither there nor built in.
    #[error("The kernel has no module `{name}`{}", needed_by(.by.as_deref()))]
    Missing {
        /// The module.
        name: String,
        /// The module that depends on it, where one does.
        by: Option<String>,
    },
    /// A module is not an ELF file with information about itself.
    #[error("`{}` is not a kernel module", path.display())]
    NotAModule {
        /// The file.
        path: PathBuf,
    },
    /// A compressed module can't be unpacked.
    #[error("Can't unpack `{}`", path.display())]
    Unpack {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ChildError,
    },
}

/// Modules in the order of loading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) modules: Vec<Module>,
    /// Optional ones that are neither there nor built in.
    pub(crate) absent: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// With underscores, as the kernel has it.
    pub(crate) name: String,
    /// Not compressed.
    pub(crate) bytes: Vec<u8>,
    /// The kernel's release that it was made for; empty where it doesn't say.
    pub(crate) release: String,
}

/// Picks what an initramfs needs from a directory such as `/lib/modules/6.1.0-57-cloud-amd64`.
pub(crate) fn select(
    directory: &Path,
    environment: &Environment,
) -> Result<Selection, ModulesError> {
    let mut picker = Picker {
        environment,
        files: BTreeMap::new(),
        built_in: built_in(directory)?,
        done: BTreeSet::new(),
        modules: Vec::new(),
    };
    walk(directory, 0, &mut picker.files)?;
    for name in REQUIRED {
        picker.pick(name, None)?;
    }
    let mut absent = Vec::new();
    for name in OPTIONAL {
        let before = picker.modules.len();
        match picker.pick(name, None) {
            Ok(()) => {}
            Err(ModulesError::Missing { .. }) => {
                // What was taken for its sake only is of no use.
                for module in picker.modules.drain(before..) {
                    picker.done.remove(&module.name);
                }
                absent.push(name.to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Selection {
        modules: picker.modules,
        absent,
    })
}

struct Picker<'a> {
    environment: &'a Environment,
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
    /// Picked, or being picked.
    done: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Picker<'_> {
    /// Takes a module behind everything that it depends on.
    fn pick(&mut self, name: &str, by: Option<&str>) -> Result<(), ModulesError> {
        if self.built_in.contains(name) || self.done.contains(name) {
            return Ok(());
        }
        let Some(path) = self.files.get(name).cloned() else {
            return Err(ModulesError::Missing {
                name: name.to_owned(),
                by: by.map(str::to_owned),
            });
        };
        let bytes = read(&path, self.environment)?;
        let info = Info::parse(&bytes).ok_or(ModulesError::NotAModule { path })?;
        self.done.insert(name.to_owned());
        let picked = info
            .depends
            .iter()
            .try_for_each(|depends| self.pick(depends, Some(name)));
        if let Err(error) = picked {
            self.done.remove(name);
            return Err(error);
        }
        for wish in &info.wishes {
            // A soft dependency is by name or by alias (`crc32c` is `crc32c_generic`); where it isn't to be had the
            // module says so itself when it needs it.
            for candidate in [wish.clone(), format!("{wish}_generic")] {
                if self.files.contains_key(&candidate) {
                    self.pick(&candidate, Some(name))?;
                }
            }
        }
        self.modules.push(Module {
            name: name.to_owned(),
            bytes,
            release: info.release,
        });
        Ok(())
    }
}

/// Names of the modules that are part of the kernel itself. Without the list nothing is.
fn built_in(directory: &Path) -> io::Result<BTreeSet<String>> {
    match fs_err::read_to_string(directory.join("modules.builtin")) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

fn walk(directory: &Path, depth: usize, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        entries.push(entry?);
    }
    entries.sort_by_key(fs_err::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        // `build` and `source` are links to the kernel's sources: links are not followed.
        if kind.is_dir() && depth < MAX_DEPTH {
            walk(&path, depth + 1, files)?;
        } else if kind.is_file()
            && let Some(name) = module_name(&path)
        {
            files.entry(name).or_insert(path);
        }
    }
    Ok(())
}

/// `virtio_rng` for `…/virtio-rng.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.gz", ".ko.xz", ".ko.zst"]
        .iter()
        .find_map(|suffix| file.strip_suffix(suffix))?;
    Some(stem.replace('-', "_"))
}

/// The bytes of a module, unpacked. `xz` and `zstd` are programs of the host: a host whose modules are packed with them
/// has them, and a few modules once per kernel are not worth a library each.
fn read(path: &Path, environment: &Environment) -> Result<Vec<u8>, ModulesError> {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    let mut bytes = Vec::new();
    match extension {
        "ko" => {
            fs_err::File::open(path)?
                .take(MAX_MODULE)
                .read_to_end(&mut bytes)?;
        }
        "gz" => {
            let packed = fs_err::File::open(path)?;
            flate2::read::MultiGzDecoder::new(packed)
                .take(MAX_MODULE)
                .read_to_end(&mut bytes)?;
        }
        _ => {
            let unpack = |source| ModulesError::Unpack {
                path: path.to_path_buf(),
                source,
            };
            let mut command = environment.command(if extension == "xz" { "xz" } else { "zstd" });
            command
                .args(["--decompress", "--stdout", "--quiet", "--"])
                .arg(path);
            let mut running = Running::start(&mut command, None).map_err(unpack)?;
            running.stdout().take(MAX_MODULE).read_to_end(&mut bytes)?;
            running.finish().map_err(unpack)?;
        }
    }
    Ok(bytes)
}

/// What a module says about itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Info {
    depends: Vec<String>,
    /// Soft dependencies to be loaded before it.
    wishes: Vec<String>,
    release: String,
}

impl Info {
    /// Reads the section `.modinfo`: `key=value` texts, each closed by a NUL byte.
    fn parse(module: &[u8]) -> Option<Self> {
        let mut info = Self::default();
        for record in section(module, b".modinfo")?.split(|byte| *byte == 0) {
            let Some((key, value)) = std::str::from_utf8(record)
                .ok()
                .and_then(|text| text.split_once('='))
            else {
                continue;
            };
            match key {
                "depends" => info.depends.extend(names(value.split(','))),
                "softdep" => {
                    let words = value
                        .split_ascii_whitespace()
                        .skip_while(|word| *word != "pre:")
                        .skip(1);
                    info.wishes
                        .extend(names(words.take_while(|word| !word.ends_with(':'))));
                }
                "vermagic" => value
                    .split(' ')
                    .next()
                    .unwrap_or_default()
                    .clone_into(&mut info.release),
                _ => {}
            }
        }
        Some(info)
    }
}

fn names<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    words
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
}

/// A section of a 64-bit little-endian ELF file (elf(5)).
fn section<'a>(elf: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = elf.get(at..at.checked_add(length)?)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    // Magic, 64-bit, little-endian.
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, entry, count, names) = (
        number(0x28, 8)?,
        number(0x3a, 2)?,
        number(0x3c, 2)?,
        number(0x3e, 2)?,
    );
    let header = |index: usize| table.checked_add(index.checked_mul(entry)?);
    let body = |at: usize| {
        let start = number(at.checked_add(0x18)?, 8)?;
        elf.get(start..start.checked_add(number(at.checked_add(0x20)?, 8)?)?)
    };
    let names = body(header(names)?)?;
    (0..count).find_map(|index| {
        let at = header(index)?;
        let own = names.get(number(at, 4)?..)?;
        (own.strip_prefix(name)?.first() == Some(&0))
            .then(|| body(at))
            .flatten()
    })
}

fn needed_by(by: Option<&str>) -> String {
    by.map(|by| format!(", which `{by}` needs"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
