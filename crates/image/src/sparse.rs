use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

/// Bytes copied by one call where the kernel can't do it alone.
const CHUNK: usize = 256 << 10;

/// Copies the contents of `source` to `target`, which is empty, leaving holes where `source` has holes: a blank disk
/// of many GiB is copied in milliseconds. Shares the blocks where the file system can. Both must be seekable; both
/// positions are changed.
///
/// Fails when `source` can't be read or `target` not be written.
pub fn copy_sparse(source: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let (source, target) = (source.as_fd(), target.as_fd());
    if rustix::fs::ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    let size = rustix::fs::fstat(source)?.st_size.cast_unsigned();
    rustix::fs::ftruncate(target, size)?;
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(source, SeekFrom::Hole(start))?.min(size);
        copy(source, target, start, at)?;
    }
    Ok(())
}

/// Copies the bytes from `start` to `end`.
fn copy(source: impl AsFd, target: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            // Two file systems, or one that can't: by hand.
            Err(
                Errno::XDEV
                | Errno::INVAL
                | Errno::NOSYS
                | Errno::OPNOTSUPP
                | Errno::BADF
                | Errno::PERM,
            ) => {
                return copy_by_hand(source, target, from, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(source: impl AsFd, target: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK);
        let count =
            rustix::io::retry_on_intr(|| rustix::io::pread(&source, &mut chunk[..wanted], at))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut written = 0;
        while written < count {
            let place = at + written as u64;
            written += rustix::io::retry_on_intr(|| {
                rustix::io::pwrite(&target, &chunk[written..count], place)
            })?;
        }
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
