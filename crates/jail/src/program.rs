use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The files of one program, as [`crate::Confinement`] wants them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFiles {
    /// The program, its loader, its libraries and its modules.
    pub executable: Vec<PathBuf>,
    /// Firmware, and the loader's cache.
    pub readable: Vec<PathBuf>,
}

/// The files of a program could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is not a 64-bit little-endian ELF program.
    #[error("`{0}` is not a program for this machine")]
    NotElf(PathBuf),
    /// The loader could not list the libraries.
    #[error("The loader `{loader}` can't list the libraries of `{program}`: {reason}")]
    Loader {
        /// The loader that the program names.
        loader: PathBuf,
        /// The program.
        program: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Finds what QEMU at `qemu` reads and executes when it starts a machine: itself, its loader and libraries, the
/// emulator's module, and the firmware that the machine type `q35` needs (seen with strace, QEMU 7.2).
///
/// Runs the program's loader, which takes about 10 ms: the result can be kept until the program changes.
pub fn program_files(qemu: &Path) -> Result<ProgramFiles, ProgramError> {
    let mut executable = BTreeSet::from([qemu.to_path_buf()]);
    let modules = modules(qemu);
    let loader = interpreter(qemu)?;
    if let Some(loader) = &loader {
        executable.insert(loader.clone());
        for file in std::iter::once(qemu).chain(modules.iter().map(PathBuf::as_path)) {
            executable.extend(libraries(loader, file)?);
        }
    }
    executable.extend(modules);

    let mut readable = Vec::new();
    // Libraries in unusual places (Debian's alternatives, for one) are found by the cache alone.
    let cache = PathBuf::from("/etc/ld.so.cache");
    if loader.is_some() && cache.is_file() {
        readable.push(cache);
    }
    for directory in firmware_directories(qemu) {
        readable.extend(
            FIRMWARE
                .iter()
                .map(|name| directory.join(name))
                .filter(|path| path.is_file()),
        );
    }
    Ok(ProgramFiles {
        executable: executable.into_iter().collect(),
        readable,
    })
}

/// What `q35` loads: the BIOS, KVM's helper for the interrupt controller, and the small programs that put a
/// kernel given with `-kernel` in place (by DMA, by ports, and for uncompressed kernels).
const FIRMWARE: &[&str] = &[
    "bios-256k.bin",
    "kvmvapic.bin",
    "linuxboot_dma.bin",
    "linuxboot.bin",
    "pvh.bin",
];

/// Where the distributions keep firmware: beside the program's prefix, as QEMU itself looks, and the usual ones.
fn firmware_directories(qemu: &Path) -> BTreeSet<PathBuf> {
    let prefix = prefix(qemu).join("share");
    [prefix.as_path(), Path::new("/usr/share")]
        .iter()
        .flat_map(|share| ["qemu", "seabios", "qemu-kvm"].map(|name| share.join(name)))
        .collect()
}

/// Accelerators that are built as modules (Debian has the emulator as one, Fedora too). The directory is fixed
/// when QEMU is built; these are the ones in use.
fn modules(qemu: &Path) -> Vec<PathBuf> {
    let prefix = prefix(qemu);
    let multiarch = format!("lib/{}-linux-gnu/qemu", std::env::consts::ARCH);
    let directories = [
        multiarch.as_str(),
        "lib64/qemu",
        "lib/qemu",
        "lib64/qemu-kvm",
    ];
    let names = ["accel-tcg-x86_64.so", "accel-kvm-x86_64.so"];
    directories
        .iter()
        .flat_map(|directory| names.map(|name| prefix.join(directory).join(name)))
        .filter(|path| path.is_file())
        .collect()
}

fn prefix(qemu: &Path) -> &Path {
    qemu.parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/usr"))
}

/// The shared libraries of `file`, as the loader itself resolves them. The loader maps the file but runs none of
/// its code (ld.so(8), `--list`).
fn libraries(loader: &Path, file: &Path) -> Result<Vec<PathBuf>, ProgramError> {
    let failed = |reason: String| ProgramError::Loader {
        loader: loader.to_path_buf(),
        program: file.to_path_buf(),
        reason,
    };
    let output = Command::new(loader)
        .arg("--list")
        .arg(file)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(base::escape_line(&output.stderr, 200)));
    }
    parse_list(&output.stdout).map_err(|library| failed(format!("`{library}` is missing")))
}

/// Reads lines such as `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f…)` and `/lib64/ld-linux… (0x…)`.
/// The kernel's own `linux-vdso.so.1 (0x…)` has no file. The error is the name of a library that wasn't found.
fn parse_list(output: &[u8]) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in output.split(|&byte| byte == b'\n') {
        let line = line.trim_ascii();
        let (name, target) = match find(line, b" => ") {
            Some(at) => (&line[..at], &line[at + 4..]),
            None => (line, line),
        };
        if target.starts_with(b"not found") {
            return Err(base::escape_line(name, 200));
        }
        let end = find(target, b" (0x").unwrap_or(target.len());
        if target.starts_with(b"/") {
            paths.push(PathBuf::from(OsString::from_vec(target[..end].to_vec())));
        }
    }
    Ok(paths)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The loader that an ELF program asks for (`PT_INTERP`); none for a static one.
fn interpreter(program: &Path) -> Result<Option<PathBuf>, ProgramError> {
    // Offsets from elf(5), Elf64_Ehdr and Elf64_Phdr.
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    const PT_INTERP: u32 = 3;
    let mut file = fs_err::File::open(program)?;
    let not_elf = || ProgramError::NotElf(program.to_path_buf());
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| not_elf())?;
    // Class 2 is 64 bits, data 1 is little-endian.
    if !header.starts_with(b"\x7fELF\x02\x01") || usize::from(u16_at(&header, 54)) != PROGRAM_HEADER
    {
        return Err(not_elf());
    }
    let table = u64_at(&header, 32);
    for index in 0..u64::from(u16_at(&header, 56)) {
        let mut entry = [0; PROGRAM_HEADER];
        file.seek(SeekFrom::Start(table + index * PROGRAM_HEADER as u64))?;
        file.read_exact(&mut entry).map_err(|_| not_elf())?;
        if u32_at(&entry, 0) != PT_INTERP {
            continue;
        }
        // The path with its closing NUL.
        let length = usize::try_from(u64_at(&entry, 32))
            .ok()
            .filter(|&length| length <= base::MAX_PATH + 1);
        let mut path = vec![0; length.ok_or_else(not_elf)?];
        file.seek(SeekFrom::Start(u64_at(&entry, 8)))?;
        file.read_exact(&mut path).map_err(|_| not_elf())?;
        let path = path.strip_suffix(b"\0").ok_or_else(not_elf)?;
        return Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(path))));
    }
    Ok(None)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
