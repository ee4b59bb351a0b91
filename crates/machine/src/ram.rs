//! A guest's memory as a file: made, copied without its holes, sealed, and shared between processes.

use base::Size;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create, open, readlinkat, seek,
};
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What keeps a file from changes for good. `FUTURE_WRITE`, not `WRITE`, for the reason that
/// [`crate::sealed_copy`] has; nothing has mapped it before, so both forbid the same.
const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

/// What is copied at a time, in bytes: small enough to stay in the processor's cache. Between a file system and a memory
/// file neither `copy_file_range(2)` works nor is `sendfile(2)` any faster, and neither leaves zeros out.
const PIECE: usize = 128 * 1024;

/// The smallest hole, in bytes.
const PAGE: usize = 4096;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// A memory file of `size` bytes, all zero, that takes no memory yet. `name` is what `/proc` shows.
pub fn new_ram(name: &str, size: Size) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, size.bytes())?;
    Ok(memory)
}

/// How much one thread takes at a time, in bytes.
const SHARE: u64 = 4 << 20;

/// The most threads that copy. Memory is what is waited for, so more of them gain little.
const THREADS: usize = 4;

/// Copies what is used of `from` into `to`, which becomes as long and must hold nothing before (or nothing but holes).
/// Pages of nothing but zeros become holes. Gives how many bytes were written. The position of `from` changes.
pub fn copy_ram(from: impl AsFd, to: impl AsFd) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let size = u64::try_from(fstat(from)?.st_size).unwrap_or_default();
    ftruncate(to, size)?;
    let mut shares = Vec::new();
    let mut at = 0;
    while let Some(data) = next_data(from, at, size)? {
        at = data.end;
        let starts = data
            .clone()
            .step_by(usize::try_from(SHARE).unwrap_or(PIECE));
        shares.extend(starts.map(|start| start..data.end.min(start + SHARE)));
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = processors.min(THREADS).min(shares.len());
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<u64> {
        let mut buffer = vec![0; PIECE];
        let mut copied = 0;
        while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
            copied += copy_share(from, to, share.clone(), &mut buffer)?;
        }
        Ok(copied)
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            // One that can't be started isn't needed.
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut copied = work()?;
        for other in others {
            copied += other
                .join()
                .map_err(|_| io::Error::other("a thread that copied memory failed"))??;
        }
        Ok(copied)
    })
}

/// Copies the used pages of one part.
fn copy_share(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    share: Range<u64>,
    buffer: &mut [u8],
) -> io::Result<u64> {
    let mut copied = 0;
    let mut at = share.start;
    while at < share.end {
        let wanted =
            usize::try_from(share.end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = again(|| pread(from, &mut buffer[..wanted], at))?;
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the memory's file was cut while it was copied",
            ));
        }
        copied += write_used(to, &buffer[..count], at)?;
        at += count as u64;
    }
    Ok(copied)
}

/// A copy of `from` as a memory file of `size` bytes that nobody can change any more, for [`crate::Ram::Private`].
/// `name` tells it from others in [`share_of`].
pub fn sealed_ram(name: &str, from: impl AsFd, size: Size) -> io::Result<OwnedFd> {
    let from = from.as_fd();
    let found = fstat(from)?.st_size;
    if u64::try_from(found) != Ok(size.bytes()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it has {found} bytes instead of {}", size.bytes()),
        ));
    }
    let memory = new_ram(name, size)?;
    copy_ram(from, &memory)?;
    fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Whether nobody can change the file any more.
pub(crate) fn is_sealed(file: impl AsFd) -> io::Result<bool> {
    match fcntl_get_seals(file) {
        Ok(seals) => Ok(seals.contains(SEALS)),
        // Not a memory file.
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file that the process `pid` holds as its descriptor `fd`, if it is one from [`sealed_ram`] with this
/// `name` and `size`, made by this user.
///
/// The process must be one of our own and alive after this has returned, which the caller has to know (by the lock
/// of its record): a QEMU that its guest has taken over can make such a file with any content.
pub fn share_of(pid: u32, fd: i32, name: &str, size: Size) -> io::Result<OwnedFd> {
    let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let file = open(
        format!("/proc/{pid}/fd/{fd}"),
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
        Mode::empty(),
    )?;
    if !is_sealed(&file)? {
        return wrong("it isn't a sealed memory file");
    }
    let stat = fstat(&file)?;
    if u64::try_from(stat.st_size) != Ok(size.bytes()) {
        return wrong("it has another size");
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return wrong("it belongs to another user");
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = readlinkat(rustix::fs::CWD, link, Vec::new())?;
    if target.to_bytes() != format!("/memfd:{name} (deleted)").as_bytes() {
        return wrong("it has another name");
    }
    Ok(file)
}

/// Writes the runs of pages that aren't all zero.
fn write_used(to: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<u64> {
    let is_zero = |page: &&[u8]| **page == ZEROS[..page.len()];
    let mut written = 0;
    let mut start = 0;
    while start < bytes.len() {
        let pages = || bytes[start..].chunks(PAGE);
        let zeros = pages().take_while(is_zero).count();
        if zeros > 0 {
            start += zeros * PAGE;
            continue;
        }
        let used = pages().take_while(|page| !is_zero(page)).count() * PAGE;
        let end = (start + used).min(bytes.len());
        let mut done = start;
        while done < end {
            done += again(|| pwrite(to, &bytes[done..end], at + done as u64))?;
        }
        written += (end - start) as u64;
        start = end;
    }
    Ok(written)
}

fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The next part of `file` from `at` on that isn't a hole.
fn next_data(file: BorrowedFd<'_>, at: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // No data any more.
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some(start..end))
}

#[cfg(test)]
mod tests;
