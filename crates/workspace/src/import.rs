//! Brings a machine's work out: asks the guest for the upper layer of its overlay and the files in it, checks
//! every answer, and works out what differs from the baseline.
//!
//! ```text
//!            next_request ──▶ List / Read, one at a time, up to 64 directories or files each
//!  caller ◀─┤
//!            message, data, closed ◀── what came on that stream
//!            is_done ──▶ finish: change set, what is known for next time, counts
//! ```
//!
//! No IO but that of the [`BlobSink`]; no clock. The guest is hostile: it decides nothing but contents. A
//! directory is asked for once and its names are taken once, so that each path has one fate; only what was
//! listed as a directory is descended into, so that nothing lies below a file or a link; what can't be read
//! stays as the baseline has it. The cost is that of the upper layer: the baseline is only searched.

mod blobs;
mod counts;
mod error;
mod gitdirs;
mod known;
mod limits;
mod listing;
mod rules;
mod settle;
#[cfg(test)]
mod tests;

pub(crate) use blobs::copy_checked;
pub use blobs::{BlobDir, BlobSink};
pub use counts::{Counts, Reason, Refusal};
pub use error::ImportError;
pub(crate) use gitdirs::is_git_directory;
pub use known::KnownState;
pub use limits::{
    Limits, MAX_ENTRIES, MAX_EXCESS, MAX_FILE, MAX_NAMED, MAX_PATH_BYTES, MAX_TOTAL, MAX_TRIES,
};
pub use listing::Listing;
pub use rules::{ArtifactError, Artifacts, IgnoreRules, NoRules};

use crate::Kind;
use crate::change::{Change, ChangeSet, Node, is_target};
use crate::names::is_git_store_alias;
use base::{Hasher, MAX_COMPONENT, RelPath};
use known::{Known, Mark};
use limits::{CLOCK_STEP_NS, MAX_BUFFERED, MAX_REQUEST_PATHS, SMALL_FILE};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use wire::message::{Failure, FileKind, ListDir, ListEntry, MAX_BATCH, Reply, Request, Stat, Tree};

/// One pass over a machine's workspace.
#[derive(Debug)]
pub struct Import<B, I, S> {
    baseline: B,
    ignore: I,
    artifacts: Artifacts,
    limits: Limits,
    sink: S,
    previous: KnownState,
    known: KnownState,
    dirs: VecDeque<DirJob>,
    small: VecDeque<FileJob>,
    large: VecDeque<FileJob>,
    pending: Pending,
    changes: BTreeMap<RelPath, Change>,
    /// Ignored directories that are looked into for artifacts; they come out once something in them does.
    passages: HashMap<RelPath, u32>,
    counts: Counts,
    newest_ctime_ns: i64,
    path_bytes: u64,
    total: u64,
    unanswered: u8,
    failed: bool,
}

#[derive(Debug)]
struct DirJob {
    path: RelPath,
    whole: bool,
    /// The rules ignore it: what is new in it is ignored too.
    ignored: bool,
    /// An artifact glob picked it: all in it comes out.
    picked: bool,
    tries: u8,
    /// Names that were taken already.
    seen: HashSet<Vec<u8>>,
}

#[derive(Debug)]
struct FileJob {
    path: RelPath,
    /// As it was listed. Another inode number may be told when it is read: the upper layer has its own.
    listed: Mark,
    size: u64,
    tries: u8,
}

#[derive(Debug)]
enum Pending {
    Nothing,
    List {
        jobs: VecDeque<DirJob>,
        index: u32,
    },
    Read {
        jobs: VecDeque<FileJob>,
        open: Option<OpenFile>,
    },
}

/// The file whose bytes are coming.
#[derive(Debug)]
struct OpenFile {
    stat: Stat,
    hasher: Hasher,
    buffer: Vec<u8>,
    spooled: bool,
    received: u64,
    refused: Option<Reason>,
}

impl<B: Listing, I: IgnoreRules, S: BlobSink> Import<B, I, S> {
    /// Starts a pass against `baseline`, with what the pass before it knew.
    pub fn new(
        baseline: B,
        previous: KnownState,
        limits: Limits,
        ignore: I,
        artifacts: Artifacts,
        sink: S,
    ) -> Self {
        let root = DirJob {
            path: RelPath::root(),
            whole: false,
            ignored: false,
            picked: false,
            tries: 0,
            seen: HashSet::new(),
        };
        Self {
            baseline,
            ignore,
            artifacts,
            limits,
            sink,
            previous,
            known: KnownState::default(),
            dirs: VecDeque::from([root]),
            small: VecDeque::new(),
            large: VecDeque::new(),
            pending: Pending::Nothing,
            changes: BTreeMap::new(),
            passages: HashMap::new(),
            counts: Counts::default(),
            newest_ctime_ns: i64::MIN,
            path_bytes: 0,
            total: 0,
            unanswered: 0,
            failed: false,
        }
    }

    /// What to ask next, on a stream of its own; `None` while an answer is awaited, and when all is done. After an
    /// error the import is dead.
    pub fn next_request(&mut self) -> Result<Option<Request>, ImportError> {
        if self.failed || !matches!(self.pending, Pending::Nothing) {
            return Ok(None);
        }
        let mut request = None;
        self.guarded(|import| {
            request = import.request()?;
            Ok(())
        })?;
        Ok(request)
    }

    fn request(&mut self) -> Result<Option<Request>, ImportError> {
        if !self.dirs.is_empty() {
            let jobs = take_batch(&mut self.dirs, |job| &job.path);
            let dirs = jobs.iter().map(DirJob::request).collect();
            self.pending = Pending::List { jobs, index: 0 };
            return Ok(Some(Request::List {
                tree: Tree::Workspace,
                dirs,
            }));
        }
        loop {
            let queue = if self.small.is_empty() {
                &mut self.large
            } else {
                &mut self.small
            };
            let jobs = take_batch(queue, |job| &job.path);
            if jobs.is_empty() {
                return Ok(None);
            }
            let (now, later) = self.within_read_limit(jobs);
            for job in later {
                self.defer(job)?;
            }
            if !now.is_empty() {
                let paths = now.iter().map(|job| job.path.as_bytes().to_vec()).collect();
                self.pending = Pending::Read {
                    jobs: now,
                    open: None,
                };
                return Ok(Some(Request::Read {
                    tree: Tree::Workspace,
                    paths,
                }));
            }
        }
    }

    /// Everything was asked and answered.
    pub fn is_done(&self) -> bool {
        !self.failed
            && matches!(self.pending, Pending::Nothing)
            && self.dirs.is_empty()
            && self.small.is_empty()
            && self.large.is_empty()
    }

    /// A message came on the request's stream. After an error the import is dead.
    pub fn message(&mut self, reply: Reply) -> Result<(), ImportError> {
        self.guarded(|import| import.take_message(reply))
    }

    /// Bytes came on the request's stream (channel 1).
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.guarded(|import| import.take_data(bytes))
    }

    /// The guest closed or reset the request's stream.
    pub fn closed(&mut self) -> Result<(), ImportError> {
        self.guarded(Self::take_close)
    }

    /// Gives up, and keeps what was learned: the pass after it reads less.
    pub fn abandon(mut self) -> KnownState {
        self.sink.discard();
        // A pass that finds all of it there has nothing new to bring to the disk. Should it fail, a power cut costs
        // what was read, and is noticed.
        self.sink.sync().ok();
        let mut known = self.previous;
        known.files.extend(self.known.files);
        known
    }

    /// The result, once [`Import::is_done`].
    pub fn finish(mut self) -> Result<(ChangeSet, KnownState, Counts), ImportError> {
        if !self.is_done() {
            return Err(ImportError::Unfinished);
        }
        gitdirs::leave_out(&mut self.changes, &self.baseline, &mut self.counts)?;
        self.sink.sync().map_err(ImportError::Store)?;
        let changes = ChangeSet::new(self.changes.into_values().collect())?;
        Ok((changes, self.known, self.counts))
    }

    fn guarded(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        if self.failed {
            return Err(ImportError::Unfinished);
        }
        let outcome = step(self);
        if outcome.is_err() {
            self.failed = true;
            self.sink.discard();
        }
        outcome
    }

    fn take_message(&mut self, reply: Reply) -> Result<(), ImportError> {
        match (
            std::mem::replace(&mut self.pending, Pending::Nothing),
            reply,
        ) {
            (
                Pending::List { jobs, index },
                Reply::Entries {
                    index: at,
                    entries,
                    last,
                },
            ) => self.take_entries(jobs, index, (at, entries, last)),
            (Pending::List { mut jobs, index }, Reply::Failed(failure)) => {
                let job = jobs
                    .pop_front()
                    .ok_or(ImportError::OutOfOrder("a failure"))?;
                self.listing_failed(job, &failure);
                self.pending = Pending::List {
                    jobs,
                    index: index + 1,
                };
                Ok(())
            }
            (Pending::Read { jobs, open: None }, Reply::File(stat)) => {
                if jobs.is_empty() {
                    return Err(ImportError::OutOfOrder("a file"));
                }
                let open = Some(self.open(stat));
                self.pending = Pending::Read { jobs, open };
                Ok(())
            }
            (
                Pending::Read {
                    mut jobs,
                    open: Some(open),
                },
                Reply::FileEnd(stat),
            ) => {
                let job = jobs
                    .pop_front()
                    .ok_or(ImportError::OutOfOrder("a file's end"))?;
                self.pending = Pending::Read { jobs, open: None };
                self.file_ended(job, open, &stat)
            }
            (Pending::Read { mut jobs, .. }, Reply::Failed(failure)) => {
                let job = jobs
                    .pop_front()
                    .ok_or(ImportError::OutOfOrder("a failure"))?;
                self.sink.discard();
                self.unreadable(job.path.as_bytes(), &failure);
                self.pending = Pending::Read { jobs, open: None };
                Ok(())
            }
            (_, reply) => Err(ImportError::OutOfOrder(describe(&reply))),
        }
    }

    fn take_entries(
        &mut self,
        mut jobs: VecDeque<DirJob>,
        index: u32,
        (at, entries, last): (u32, Vec<ListEntry>, bool),
    ) -> Result<(), ImportError> {
        let Some(mut job) = jobs.pop_front().filter(|_| at == index) else {
            return Err(ImportError::OutOfOrder("a listing"));
        };
        if entries.is_empty() && !last {
            return Err(ImportError::EmptyListing);
        }
        for entry in entries {
            self.take_entry(&mut job, entry)?;
        }
        if last {
            self.listing_ended(&job)?;
        } else {
            jobs.push_front(job);
        }
        self.pending = Pending::List {
            jobs,
            index: index + u32::from(last),
        };
        Ok(())
    }

    fn take_entry(&mut self, job: &mut DirJob, entry: ListEntry) -> Result<(), ImportError> {
        self.counts.entries += 1;
        if self.counts.entries > self.limits.entries {
            return Err(ImportError::TooManyEntries(self.limits.entries));
        }
        self.hold(entry.name.len())?;
        if !is_component(&entry.name) {
            self.counts.leave_out(&shown(job, &entry), Reason::BadName);
            return Ok(());
        }
        if job.seen.contains(&entry.name) {
            self.counts.duplicates += 1;
            return Ok(());
        }
        job.seen.insert(entry.name.clone());
        if is_git_store_alias(&entry.name) {
            // The machine's own git directory changes with every command; its commits come out another way.
            if !(job.path.is_root() && entry.name == b".git") {
                self.counts.leave_out(&shown(job, &entry), Reason::GitStore);
            }
            return Ok(());
        }
        let Ok(path) = job.path.join(&entry.name) else {
            self.counts.leave_out(&shown(job, &entry), Reason::TooDeep);
            return Ok(());
        };
        self.hold(path.as_bytes().len())?;
        self.newest_ctime_ns = self.newest_ctime_ns.max(entry.stat.ctime_ns);
        self.decide(job, path, entry)
    }

    /// The fate of one path.
    fn decide(&mut self, job: &DirJob, path: RelPath, entry: ListEntry) -> Result<(), ImportError> {
        let kind = entry.stat.kind;
        let is_dir = matches!(kind, FileKind::Dir | FileKind::FreshDir);
        let in_baseline = self.baseline.find(&path)?.map(|entry| entry.kind);
        let ignored = job.ignored || self.ignore.is_ignored(&path, is_dir);
        let picked = job.picked || (ignored && self.artifacts.picks(&path));
        let stays = ignored && !picked && in_baseline.is_none();
        let passage = stays && is_dir && self.artifacts.may_pick_below(&path);
        if stays && !passage {
            self.counts.ignored += u64::from(kind != FileKind::Whiteout);
            return Ok(());
        }
        match kind {
            // A whole listing shows what is there, so a whiteout in it is noise.
            FileKind::Whiteout if job.whole => {}
            FileKind::Whiteout => self.emit(&path, None, false)?,
            FileKind::Other => {
                self.counts.leave_out(path.as_bytes(), Reason::Special);
                self.emit(&path, None, false)?;
            }
            FileKind::Symlink if !is_target(&entry.target) => {
                self.counts.leave_out(path.as_bytes(), Reason::BadTarget);
            }
            FileKind::Symlink => {
                self.hold(entry.target.len())?;
                self.emit(&path, Some(Node::symlink(entry.target)), false)?;
            }
            FileKind::File => self.found_file(path, &entry.stat)?,
            FileKind::Dir | FileKind::FreshDir => {
                if passage {
                    self.passages.insert(path.clone(), entry.stat.mode);
                } else {
                    self.emit(&path, Some(Node::dir(entry.stat.mode)), false)?;
                }
                // Where the baseline has no directory nothing can show through, whatever the guest calls it.
                let whole =
                    job.whole || kind == FileKind::FreshDir || in_baseline != Some(Kind::Dir);
                self.dirs.push_back(DirJob {
                    path,
                    whole,
                    ignored,
                    picked,
                    tries: 0,
                    seen: HashSet::new(),
                });
            }
        }
        Ok(())
    }

    fn listing_ended(&mut self, job: &DirJob) -> Result<(), ImportError> {
        self.unanswered = 0;
        if !job.whole {
            return Ok(());
        }
        for name in self.baseline.children(&job.path)? {
            if job.seen.contains(&name) || is_git_store_alias(&name) {
                continue;
            }
            if let Ok(path) = job.path.join(&name) {
                self.emit(&path, None, false)?;
            }
        }
        Ok(())
    }

    fn listing_failed(&mut self, mut job: DirJob, failure: &Failure) {
        job.tries += 1;
        if job.tries < MAX_TRIES && !is_gone(failure) {
            self.dirs.push_back(job);
        } else {
            // What is unknown stays as the baseline has it: never a deletion.
            self.unreadable(job.path.as_bytes(), failure);
        }
    }

    fn found_file(&mut self, path: RelPath, stat: &Stat) -> Result<(), ImportError> {
        if stat.size > self.limits.file.bytes() {
            self.counts.leave_out(path.as_bytes(), Reason::TooLarge);
            return Ok(());
        }
        if let Some(known) = self.previous.files.get(&path)
            && known.settled
            && known.mark == Mark::of(stat)
            && self.is_kept(&path, &known.digest, known.size)?
        {
            let known = Known {
                mode: stat.mode,
                ..known.clone()
            };
            return self.settle(path, known, false);
        }
        let job = FileJob {
            path,
            listed: Mark::of(stat),
            size: stat.size,
            tries: 0,
        };
        self.queue(job);
        Ok(())
    }

    fn queue(&mut self, job: FileJob) {
        if job.size <= SMALL_FILE {
            self.small.push_back(job);
        } else {
            self.large.push_back(job);
        }
    }

    fn within_read_limit(&self, jobs: VecDeque<FileJob>) -> (VecDeque<FileJob>, Vec<FileJob>) {
        let mut planned = self.counts.read;
        let mut now = VecDeque::new();
        let mut later = Vec::new();
        for job in jobs {
            let after = planned.saturating_add(job.size);
            if after <= self.limits.read.bytes() {
                planned = after;
                now.push_back(job);
            } else {
                later.push(job);
            }
        }
        (now, later)
    }

    /// Leaves a file for the next import; until then the state that was known before stands.
    fn defer(&mut self, job: FileJob) -> Result<(), ImportError> {
        self.counts.deferred += 1;
        self.stand(job.path)
    }

    fn open(&self, stat: Stat) -> OpenFile {
        let refused = if stat.kind != FileKind::File {
            Some(Reason::Unreadable)
        } else if stat.size > self.limits.file.bytes() {
            Some(Reason::TooLarge)
        } else if self.total.saturating_add(stat.size) > self.limits.total.bytes() {
            Some(Reason::OverTotal)
        } else {
            None
        };
        OpenFile {
            stat,
            hasher: Hasher::new(),
            buffer: Vec::new(),
            spooled: false,
            received: 0,
            refused,
        }
    }

    fn take_data(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        let Pending::Read {
            open: Some(open), ..
        } = &mut self.pending
        else {
            return Err(ImportError::OutOfOrder("bytes"));
        };
        let count = bytes.len() as u64;
        open.received = open.received.saturating_add(count);
        self.counts.read = self.counts.read.saturating_add(count);
        if open.received > open.stat.size.saturating_add(MAX_EXCESS) {
            return Err(ImportError::TooMuchData);
        }
        if open.received > self.limits.file.bytes() {
            open.refused.get_or_insert(Reason::TooLarge);
        }
        if self.total.saturating_add(open.received) > self.limits.total.bytes() {
            open.refused.get_or_insert(Reason::OverTotal);
        }
        if open.refused.is_some() {
            open.buffer = Vec::new();
            return Ok(());
        }
        open.hasher.update(bytes);
        if !open.spooled && open.buffer.len() + bytes.len() <= MAX_BUFFERED {
            open.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        let store = |sink: &mut S, open: &mut OpenFile| {
            if !open.spooled {
                sink.begin()?;
                sink.write(&std::mem::take(&mut open.buffer))?;
                open.spooled = true;
            }
            sink.write(bytes)
        };
        match store(&mut self.sink, open) {
            // What is smaller may still fit.
            Err(error) if is_full(&error) => {
                self.sink.discard();
                open.refused = Some(Reason::NoRoom);
                Ok(())
            }
            other => other.map_err(ImportError::Store),
        }
    }

    fn file_ended(
        &mut self,
        mut job: FileJob,
        open: OpenFile,
        end: &Stat,
    ) -> Result<(), ImportError> {
        self.unanswered = 0;
        self.counts.files_read += 1;
        if let Some(reason) = open.refused {
            self.sink.discard();
            return self.refuse(job.path, reason);
        }
        let mark = Mark::of(&open.stat);
        let torn = mark != Mark::of(end) || open.received != open.stat.size;
        job.tries += 1;
        if torn && job.tries < MAX_TRIES {
            self.sink.discard();
            job.size = end.size;
            self.queue(job);
            return Ok(());
        }
        let mark = if torn || !job.listed.is_same_time(&mark) {
            Mark::NEVER
        } else {
            job.listed
        };
        let digest = open.hasher.finish();
        let keep = |sink: &mut S| {
            if !open.spooled {
                sink.begin()?;
                sink.write(&open.buffer)?;
            }
            sink.finish(&digest)
        };
        if self.is_kept(&job.path, &digest, open.received)? {
            self.sink.discard();
        } else {
            match keep(&mut self.sink) {
                Err(error) if is_full(&error) => {
                    self.sink.discard();
                    return self.refuse(job.path, Reason::NoRoom);
                }
                other => other.map_err(ImportError::Store)?,
            }
        }
        let before = self.previous.files.get(&job.path);
        let known = Known {
            mark,
            digest,
            size: open.received,
            mode: open.stat.mode,
            settled: before.is_some_and(|known| known.mark == mark)
                || open.stat.ctime_ns.saturating_add(CLOCK_STEP_NS) <= self.newest_ctime_ns,
        };
        self.settle(job.path, known, torn)
    }

    fn take_close(&mut self) -> Result<(), ImportError> {
        let (dirs, files) = match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => return Ok(()),
            Pending::List { jobs, .. } => (jobs, VecDeque::new()),
            Pending::Read { jobs, .. } => (VecDeque::new(), jobs),
        };
        if dirs.is_empty() && files.is_empty() {
            return Ok(());
        }
        self.sink.discard();
        self.unanswered += 1;
        if self.unanswered >= MAX_TRIES {
            return Err(ImportError::Unanswered(self.unanswered));
        }
        self.dirs.extend(dirs);
        for job in files {
            self.queue(job);
        }
        Ok(())
    }

    fn unreadable(&mut self, path: &[u8], failure: &Failure) {
        if is_gone(failure) {
            self.counts.vanished += 1;
        } else {
            self.counts.leave_out(path, Reason::Unreadable);
        }
    }

    fn hold(&mut self, bytes: usize) -> Result<(), ImportError> {
        self.path_bytes += bytes as u64;
        if self.path_bytes > self.limits.path_bytes {
            return Err(ImportError::TooManyPathBytes(self.limits.path_bytes));
        }
        Ok(())
    }
}

impl DirJob {
    fn request(&self) -> ListDir {
        ListDir {
            path: self.path.as_bytes().to_vec(),
            whole: self.whole,
        }
    }
}

fn shown(job: &DirJob, entry: &ListEntry) -> Vec<u8> {
    if job.path.is_root() {
        return entry.name.clone();
    }
    [job.path.as_bytes(), b"/", &entry.name].concat()
}

fn take_batch<T>(queue: &mut VecDeque<T>, path: impl Fn(&T) -> &RelPath) -> VecDeque<T> {
    let mut bytes = 0;
    let mut count = 0;
    for job in queue.iter().take(MAX_BATCH) {
        bytes += path(job).as_bytes().len();
        if count > 0 && bytes > MAX_REQUEST_PATHS {
            break;
        }
        count += 1;
    }
    queue.drain(..count).collect()
}

fn is_component(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= MAX_COMPONENT
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// The guest found nothing there (any more): `ENOENT`, `ENOTDIR`.
fn is_gone(failure: &Failure) -> bool {
    matches!(failure.errno, 2 | 20)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn describe(reply: &Reply) -> &'static str {
    match reply {
        Reply::Ready(_) => "that it is ready",
        Reply::Failed(_) => "a failure",
        Reply::Started { .. } => "a command's start",
        Reply::Exited(_) => "a command's end",
        Reply::Entries { .. } => "a listing",
        Reply::File(_) => "a file",
        Reply::FileEnd(_) => "a file's end",
        Reply::Done => "that it is done",
        Reply::Held => "that it holds still",
        Reply::Spun { .. } => "a measurement",
    }
}
