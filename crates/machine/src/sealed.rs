use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::fd::OwnedFd;

/// A copy of `source` in memory that nobody can change any more, `name` being what `/proc` shows. QEMU opens its
/// kernel by a path below `/proc/self/fd`, and a descriptor of a file would be opened anew there, against the jail's
/// rules; a memory file isn't subject to them.
pub fn sealed_copy(name: &str, mut source: impl Read) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut memory = File::from(memory);
    io::copy(&mut source, &mut memory)?;
    memory.rewind()?;
    // `FUTURE_WRITE`, not `WRITE`: nothing has the file mapped, so both forbid the same, but the kernel answers the
    // stricter one with `EBUSY` while something of its own (compaction, a memory scanner) holds on to one page.
    fcntl_add_seals(
        &memory,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE,
    )?;
    Ok(memory.into())
}
