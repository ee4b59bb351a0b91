use crate::git::{BlobHasher, ObjectFormat, Oid};
use crate::{Found, PackError};
use base::{Digest, Hasher, Size};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, ResolveFlags, SeekFrom};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that read at the same time. One is not enough where files are small, and more than two only wait for the
/// one that writes.
pub(super) const READERS: usize = 2;
/// Batches that may be begun before the writer asks for them: some are done, and each reader has one at work.
const BEGUN: usize = 2 * READERS;
/// Files up to this size travel whole and together, so that one that changes while it is read costs nothing.
const SMALL: u64 = 1 << 20;
/// Bytes of small files that travel together: handing over each by itself takes longer than reading it, and these
/// are still in the processor's cache when they are written.
const BATCH: u64 = 256 << 10;
/// Bytes of a large file that travel at once.
const PIECE: usize = 1 << 20;
/// Pieces of one batch that may wait for the writer.
const WAITING: usize = 2;
/// How often a file is read again when it changes meanwhile.
const TRIES: u32 = 3;
/// File systems keep times by a clock that ticks; ext4's and xfs's by one of at most 10 ms, doubled twice to be sure.
const TICK_NANOSECONDS: i128 = 40_000_000;
/// Where a time has no nanoseconds at all, the file system may count in steps of two seconds.
const COARSE_NANOSECONDS: i128 = 2_000_000_000;
/// [`erofs::BLOCK`] as a length in memory.
const BLOCK: usize = 4096;

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
    /// Small files, as the image has them: each begins at a multiple of [`erofs::BLOCK`], with zeros before it.
    Files {
        bytes: Vec<u8>,
        outcomes: Vec<Outcome>,
    },
    /// Bytes of a large file.
    Bytes(Vec<u8>),
    /// The large file changed and is read again: what came of it is void.
    Again,
    /// What became of the large file.
    End(Outcome),
}

/// What became of a job.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was read. A small file's bytes begin at `start` of those that came with it.
    Read { start: usize, read: Box<Read> },
    /// The file is gone, or is a file no more.
    Gone,
    /// It can't be read.
    Failed(PackError),
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Read {
    /// Bytes that were read.
    pub(super) size: u64,
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

/// The jobs, of which each reader takes the next batch when it is done with one.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    root: &'a OwnedFd,
    jobs: &'a [Job<'a>],
    limit: Size,
    waiting: Mutex<Waiting>,
    spare: Spare,
}

/// Memory of small files that are in the image, for the next ones: taking it anew each time costs the kernel as much
/// as reading them does.
type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

#[derive(Debug)]
struct Waiting {
    batches: std::vec::IntoIter<Range<usize>>,
    /// Tells the writer of each batch that is begun, in their order.
    begun: SyncSender<Receiver<Piece>>,
}

/// The answers to jobs, in their order.
#[derive(Debug)]
pub(super) struct Answers {
    begun: Receiver<Receiver<Piece>>,
    /// Of the batch that is being told.
    pieces: Option<Receiver<Piece>>,
    spare: Spare,
}

impl Answers {
    /// Takes back the bytes of small files, when they are not needed any more.
    pub(super) fn give_back(&self, bytes: Vec<u8>) {
        lock(&self.spare).push(bytes);
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Piece {
        loop {
            if let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()) {
                return piece;
            }
            self.pieces = self.begun.recv().ok();
            if self.pieces.is_none() {
                // All readers are gone, so one has panicked, which its scope tells.
                return Piece::End(Outcome::Gone);
            }
        }
    }
}

/// A queue of `jobs` below the directory `root`, and where their answers come. Only readers may keep hold of the
/// queue: when the last of them is gone, nothing more can come.
pub(super) fn queue<'a>(
    root: &'a OwnedFd,
    jobs: &'a [Job<'a>],
    limit: Size,
) -> (Arc<Queue<'a>>, Answers) {
    let (sender, begun) = sync_channel(BEGUN);
    let waiting = Waiting {
        batches: batches(jobs).into_iter(),
        begun: sender,
    };
    let spare = Spare::default();
    let queue = Queue {
        root,
        jobs,
        limit,
        waiting: Mutex::new(waiting),
        spare: Arc::clone(&spare),
    };
    let answers = Answers {
        begun,
        pieces: None,
        spare,
    };
    (Arc::new(queue), answers)
}

impl Queue<'_> {
    /// Reads until nothing is left to be read, or the writer is gone: when it failed, nobody wants to know.
    pub(super) fn read(&self) {
        while let Some((batch, sender)) = self.begin() {
            let mut reader = Reader {
                root: self.root,
                limit: self.limit,
                sender: &sender,
                spare: &self.spare,
                bytes: Vec::new(),
                outcomes: Vec::new(),
            };
            if reader.batch(&self.jobs[batch]).is_err() {
                return;
            }
        }
    }

    /// Takes the next batch. Waits while the writer has too many before it; the others would wait for the same.
    fn begin(&self) -> Option<(Range<usize>, SyncSender<Piece>)> {
        let mut waiting = lock(&self.waiting);
        let batch = waiting.batches.next()?;
        let (sender, pieces) = sync_channel(WAITING);
        waiting.begun.send(pieces).ok()?;
        Some((batch, sender))
    }
}

/// Nothing is half-done under these locks, so a panic of another thread spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Jobs that are read one after the other and travel together.
fn batches(jobs: &[Job<'_>]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (at, job) in jobs.iter().enumerate() {
        let size = job.found.size.next_multiple_of(erofs::BLOCK);
        if at > start && bytes + size > BATCH {
            batches.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < jobs.len() {
        batches.push(start..jobs.len());
    }
    batches
}

/// The writer is gone.
struct Unwanted;

struct Reader<'a> {
    root: &'a OwnedFd,
    limit: Size,
    sender: &'a SyncSender<Piece>,
    spare: &'a Spare,
    /// What is to travel next.
    bytes: Vec<u8>,
    outcomes: Vec<Outcome>,
}

impl Reader<'_> {
    fn send(&self, piece: Piece) -> Result<(), Unwanted> {
        self.sender.send(piece).map_err(|_| Unwanted)
    }

    fn batch(&mut self, jobs: &[Job<'_>]) -> Result<(), Unwanted> {
        let block = |size: u64| size.next_multiple_of(erofs::BLOCK);
        let expected = jobs.iter().map(|job| block(job.found.size));
        let expected = expected.sum::<u64>().min(BATCH + SMALL);
        self.bytes = lock(self.spare).pop().unwrap_or_default();
        self.bytes.clear();
        self.bytes.reserve(usize::try_from(expected).unwrap_or(0));
        self.outcomes = Vec::with_capacity(jobs.len());
        for job in jobs {
            match self.job(job) {
                Ok(Small::Done(outcome)) => self.outcomes.push(outcome),
                Ok(Small::TooLarge(mut file, stat)) => {
                    self.flush()?;
                    let outcome = match self.large(job, &mut file, stat)? {
                        Ok(outcome) => outcome,
                        Err(error) => failed(job, error),
                    };
                    self.send(Piece::End(outcome))?;
                }
                Err(error) => self.outcomes.push(failed(job, error)),
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Unwanted> {
        if self.outcomes.is_empty() {
            return Ok(());
        }
        let (bytes, outcomes) = (
            std::mem::take(&mut self.bytes),
            std::mem::take(&mut self.outcomes),
        );
        self.send(Piece::Files { bytes, outcomes })
    }

    /// Reads a file, if it is small, behind the bytes that are there.
    fn job(&mut self, job: &Job<'_>) -> std::io::Result<Small> {
        let Some(fd) = open(self.root, job)? else {
            return Ok(Small::Done(Outcome::Gone));
        };
        let file = File::from(fd);
        let end = self.bytes.len();
        let start = end.next_multiple_of(BLOCK);
        // When it was collected it was looked at; if it is still the same after it was read, it was all the time.
        let mut before = State::of_found(job.found);
        let mut attempt = 0;
        loop {
            self.bytes.truncate(end);
            if before.size > self.limit.bytes() {
                return Ok(Small::Done(grown(job, self.limit)));
            }
            if before.size > SMALL {
                return Ok(Small::TooLarge(file, before));
            }
            let now = now();
            self.bytes.resize(start, 0);
            let size = usize::try_from(before.size).unwrap_or(0);
            read_up_to(&file, &mut self.bytes, size)?;
            let Some(after) = State::of_file(&file)? else {
                self.bytes.truncate(end);
                return Ok(Small::Done(Outcome::Gone));
            };
            let content = &self.bytes[start..];
            let stable = content.len() == size && before == after;
            if stable || attempt == TRIES {
                let mut hashers = Hashers::new(job, before.size);
                hashers.update(content);
                let read = Box::new(Read {
                    size: content.len() as u64,
                    ..hashers.finish(&before, &after, stable, now)
                });
                if content.is_empty() {
                    self.bytes.truncate(end);
                    return Ok(Small::Done(Outcome::Read { start: 0, read }));
                }
                return Ok(Small::Done(Outcome::Read { start, read }));
            }
            // The first attempt went by what collecting saw, which may be long ago.
            attempt += 1;
            before = after;
            rustix::fs::seek(&file, SeekFrom::Start(0))?;
        }
    }

    /// Reads a large file piece by piece.
    fn large(
        &self,
        job: &Job<'_>,
        file: &mut File,
        mut before: State,
    ) -> Result<std::io::Result<Outcome>, Unwanted> {
        macro_rules! tell {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(error) => return Ok(Err(error.into())),
                }
            };
        }
        for attempt in 0..=TRIES {
            if before.size > self.limit.bytes() {
                return Ok(Ok(grown(job, self.limit)));
            }
            tell!(rustix::fs::seek(&*file, SeekFrom::Start(0)));
            let now = now();
            let mut hashers = Hashers::new(job, before.size);
            let mut left = before.size;
            while left > 0 {
                let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let mut bytes = Vec::with_capacity(length);
                tell!(read_up_to(file, &mut bytes, length));
                if bytes.is_empty() {
                    break;
                }
                hashers.update(&bytes);
                left -= bytes.len() as u64;
                self.send(Piece::Bytes(bytes))?;
            }
            let Some(after) = tell!(State::of_file(file)) else {
                return Ok(Ok(Outcome::Gone));
            };
            let stable = left == 0 && before == after;
            if stable || attempt == TRIES {
                let read = Read {
                    size: before.size - left,
                    ..hashers.finish(&before, &after, stable, now)
                };
                let read = Box::new(read);
                return Ok(Ok(Outcome::Read { start: 0, read }));
            }
            self.send(Piece::Again)?;
            before = after;
        }
        Ok(Ok(Outcome::Gone))
    }
}

fn failed(job: &Job<'_>, source: std::io::Error) -> Outcome {
    let path = job.found.path.clone();
    Outcome::Failed(PackError::Read { path, source })
}

fn grown(job: &Job<'_>, limit: Size) -> Outcome {
    let path = job.found.path.clone();
    Outcome::Failed(PackError::Grown { path, limit })
}

/// What came of a file that was expected to be small.
enum Small {
    Done(Outcome),
    TooLarge(File, State),
}

/// What tells that a file has changed. Times are seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    ino: u64,
    mode: u32,
}

impl State {
    fn of_found(found: &Found) -> Self {
        Self {
            size: found.size,
            mtime: found.mtime,
            ctime: found.ctime,
            ino: found.ino,
            mode: found.mode,
        }
    }

    /// `None` when it is no regular file.
    fn of_file(file: &File) -> std::io::Result<Option<Self>> {
        let stat = rustix::fs::fstat(file)?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Ok(None);
        }
        Ok(Some(Self {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (
                stat.st_mtime,
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
            ctime: (
                stat.st_ctime,
                u32::try_from(stat.st_ctime_nsec).unwrap_or(0),
            ),
            ino: stat.st_ino,
            mode: stat.st_mode & 0o777,
        }))
    }
}

/// Appends up to `length` bytes of the file to `bytes`, fewer only at its end.
fn read_up_to(file: &File, bytes: &mut Vec<u8>, length: usize) -> rustix::io::Result<()> {
    let end = bytes.len() + length;
    bytes.reserve_exact(length);
    while bytes.len() < end {
        match rustix::io::read(file, spare_capacity(bytes)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(0) => break,
            Ok(_) => {}
        }
    }
    // There may have been room for more, and more to read.
    bytes.truncate(end);
    Ok(())
}

struct Hashers {
    sha256: Hasher,
    blob: Option<BlobHasher>,
    /// Bytes that are still to come.
    left: u64,
}

impl Hashers {
    fn new(job: &Job<'_>, size: u64) -> Self {
        Self {
            sha256: Hasher::new(),
            blob: job.blob.map(|format| BlobHasher::new(format, size)),
            left: size,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(blob) = &mut self.blob {
            blob.update(bytes);
        }
        self.left = self.left.saturating_sub(bytes.len() as u64);
    }

    /// `now` is when reading began.
    fn finish(self, before: &State, after: &State, stable: bool, now: (i64, i64)) -> Read {
        let ctime = (before.ctime.0, i64::from(before.ctime.1));
        Read {
            size: 0,
            digest: self.sha256.finish(),
            // The blob's name begins with its size.
            oid: self.blob.filter(|_| self.left == 0).map(BlobHasher::finish),
            mode: after.mode,
            mtime: before.mtime,
            ctime: before.ctime,
            ino: before.ino,
            settled: stable && is_before_tick(ctime, now),
            torn: !stable,
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

fn now() -> (i64, i64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (now.tv_sec, now.tv_nsec)
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
