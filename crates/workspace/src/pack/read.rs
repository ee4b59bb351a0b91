use crate::git::{BlobHasher, ObjectFormat, Oid};
use crate::{Found, PackError};
use base::{Digest, Hasher, Size};
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Threads that read. One is not enough where files are small, and more than two only wait for the one that writes.
const READERS: usize = 2;
/// Files up to this size travel in one piece, so that one that changes while it is read costs nothing.
const PIECE: usize = 1 << 20;
/// Pieces that may wait for the writer, per reader.
const WAITING: usize = 16;
/// How often a file is read again when it changes meanwhile.
const TRIES: u32 = 3;
/// File systems keep times by a clock that ticks; ext4's and xfs's by one of at most 10 ms, doubled twice to be sure.
const TICK_NANOSECONDS: i128 = 40_000_000;
/// Where a time has no nanoseconds at all, the file system may count in steps of two seconds.
const COARSE_NANOSECONDS: i128 = 2_000_000_000;

/// A file to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    /// Where it is among the collected entries.
    pub(super) at: usize,
    pub(super) found: &'a Found,
    /// The hash of a repository that wants to know which blob this is.
    pub(super) blob: Option<ObjectFormat>,
}

/// What comes from a reader, in the order of its jobs.
#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes of the file that is being read.
    Bytes(Vec<u8>),
    /// The file changed and is read again: what came of it is void.
    Again,
    /// The file is complete.
    End(Box<Read>),
    /// The file is gone, or is a file no more.
    Gone,
    /// It can't be read.
    Failed(PackError),
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) digest: Digest,
    pub(super) oid: Option<Oid>,
    pub(super) mode: u32,
    pub(super) mtime: (i64, u32),
    pub(super) ctime: (i64, u32),
    pub(super) ino: u64,
    /// False when it was read so soon after its last change that another one could bear the same times.
    pub(super) settled: bool,
    /// True when it changed during every attempt.
    pub(super) torn: bool,
}

/// Starts readers for `jobs` below the directory `root`, and gives their answers: those of job `n` come from the
/// channel `n % len`.
pub(super) fn start<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    root: &'env OwnedFd,
    jobs: &'env [Job<'env>],
    limit: Size,
) -> Vec<Receiver<Piece>> {
    (0..READERS)
        .map(|reader| {
            let (sender, receiver) = sync_channel(WAITING);
            scope.spawn(move || {
                for job in jobs.iter().skip(reader).step_by(READERS) {
                    // The writer is gone when it failed; then nobody wants to know.
                    if read(root, job, limit, &sender).is_err() {
                        return;
                    }
                }
            });
            receiver
        })
        .collect()
}

/// The writer is gone.
struct Unwanted;

fn read(
    root: &OwnedFd,
    job: &Job<'_>,
    limit: Size,
    sender: &SyncSender<Piece>,
) -> Result<(), Unwanted> {
    let send = |piece| sender.send(piece).map_err(|_| Unwanted);
    let failed = |source: std::io::Error| {
        Piece::Failed(PackError::Read {
            path: job.found.path.clone(),
            source,
        })
    };
    let fd = match open(root, job) {
        Ok(Some(fd)) => fd,
        Ok(None) => return send(Piece::Gone),
        Err(errno) => return send(failed(errno.into())),
    };
    let mut file = std::fs::File::from(fd);
    for attempt in 1..=TRIES {
        let before = match rustix::fs::fstat(&file) {
            Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => stat,
            Ok(_) => return send(Piece::Gone),
            Err(errno) => return send(failed(errno.into())),
        };
        let size = u64::try_from(before.st_size).unwrap_or(0);
        if size > limit.bytes() {
            return send(Piece::Failed(PackError::Grown {
                path: job.found.path.clone(),
                limit,
            }));
        }
        let mut hashers = Hashers {
            sha256: Hasher::new(),
            blob: job.blob.map(|format| BlobHasher::new(format, size)),
        };
        let mut left = size;
        let mut whole = Vec::new();
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let mut bytes = Vec::with_capacity(length);
            match file.by_ref().take(length as u64).read_to_end(&mut bytes) {
                Ok(_) => {}
                Err(source) => return send(failed(source)),
            }
            if bytes.is_empty() {
                break;
            }
            hashers.update(&bytes);
            left -= bytes.len() as u64;
            if size > PIECE as u64 {
                send(Piece::Bytes(bytes))?;
            } else {
                whole.extend(bytes);
            }
        }
        let after = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(errno) => return send(failed(errno.into())),
        };
        let stable = left == 0 && stamp(&before) == stamp(&after);
        if !stable && attempt < TRIES {
            if size > PIECE as u64 {
                send(Piece::Again)?;
            }
            if let Err(source) = std::io::Seek::rewind(&mut file) {
                return send(failed(source));
            }
            continue;
        }
        if !whole.is_empty() {
            send(Piece::Bytes(whole))?;
        }
        let read = Read {
            digest: hashers.sha256.finish(),
            // The blob's name begins with its size.
            oid: hashers.blob.filter(|_| left == 0).map(BlobHasher::finish),
            mode: after.st_mode & 0o777,
            mtime: (
                before.st_mtime,
                u32::try_from(before.st_mtime_nsec).unwrap_or(0),
            ),
            ctime: (
                before.st_ctime,
                u32::try_from(before.st_ctime_nsec).unwrap_or(0),
            ),
            ino: before.st_ino,
            settled: stable && is_settled(&before),
            torn: !stable,
        };
        return send(Piece::End(Box::new(read)));
    }
    Ok(())
}

struct Hashers {
    sha256: Hasher,
    blob: Option<BlobHasher>,
}

impl Hashers {
    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(blob) = &mut self.blob {
            blob.update(bytes);
        }
    }
}

/// Opens the file beneath the root, following no link anywhere. `None` when there is none any more.
fn open(root: &OwnedFd, job: &Job<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(
            root,
            job.found.path.as_path(),
            flags,
            Mode::empty(),
            resolve,
        ) {
            Ok(fd) => return Ok(Some(fd)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::NXIO
                | rustix::io::Errno::XDEV,
            ) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

fn stamp(stat: &Stat) -> (i64, i64, u64, i64, u64) {
    // Times of different widths on different systems; the values are compared and nothing else.
    (
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
    )
}

/// True when any later change of the file must give it a later change time.
fn is_settled(stat: &Stat) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let ctime = (
        stat.st_ctime,
        i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
    );
    is_before_tick(ctime, (now.tv_sec, now.tv_nsec))
}

/// True when a change at `now` can't bear the time `changed`. Both are seconds and nanoseconds.
fn is_before_tick(changed: (i64, i64), now: (i64, i64)) -> bool {
    let nanoseconds = |time: (i64, i64)| i128::from(time.0) * 1_000_000_000 + i128::from(time.1);
    let step = if changed.1 == 0 {
        COARSE_NANOSECONDS
    } else {
        TICK_NANOSECONDS
    };
    nanoseconds(now) - nanoseconds(changed) > step
}

#[cfg(test)]
mod tests;
