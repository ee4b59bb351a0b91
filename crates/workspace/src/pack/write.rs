use super::gitdirs::{self, Objects, Repo};
use super::memory::{Mark, Memory, Pack};
use super::partial::Partial;
use super::plan::Plan;
use super::read::{self, Answers, Job, Outcome, Piece, READERS, Read};
use super::{PackError, PackOptions, PackProgress};
use crate::baseline::{About, DISK_SIZE, IMAGE_FILE};
use crate::git::{FileFacts, FileStat, ObjectFormat, Oid, blob_oid};
use crate::{Baseline, Collected, Entry, Kind};
use base::{Digest, RelPath};
use erofs::{Extent, Meta, Writer};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// Permissions of directories and files that we make ourselves in the image.
const DIR_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Objects are never written to.
const PACK_MODE: u32 = 0o444;

pub(super) fn write(
    collected: &Collected,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<Baseline, PackError> {
    let dir = &options.baselines;
    private_dir(dir).map_err(|source| PackError::write(dir, source))?;
    let repositories = gitdirs::repositories(collected);
    let state = gitdirs::state(collected, &repositories);
    let mut plan = Plan::new(collected, dir, &options.cache, options.owner);
    if let Some(last) = plan
        .last
        .take_if(|last| plan.unchanged && last.memory.git_state == Some(state))
    {
        return reuse(collected, options, last.baseline);
    }
    let partial = Partial::new(dir).map_err(|source| PackError::write(dir, source))?;
    let job = Task {
        collected,
        options,
        repositories: &repositories,
        plan,
        partial: partial.path(),
    };
    let (list, mut memory) = job.run(progress)?;
    memory.git_state = Some(state);
    let baseline = publish(partial, list, dir)?;
    memory.baseline = baseline
        .dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    // What can't be remembered is read again the next time.
    memory.save(&options.cache, &collected.root).ok();
    Ok(baseline)
}

/// Makes a directory that no one else may look into.
pub(super) fn private_dir(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// The last baseline, with what is said about it beside its files brought up to date.
fn reuse(
    collected: &Collected,
    options: &PackOptions,
    last: Baseline,
) -> Result<Baseline, PackError> {
    let about = About {
        unsettled: last.unsettled.clone(),
        image_size: last.image_size,
        data_end: last.data_end,
        ..describe(collected)
    };
    if last.is_described_as(&about) {
        return Ok(last);
    }
    let dir = &options.baselines;
    let fault = |source| PackError::write(dir, source);
    let partial = Partial::new(dir).map_err(fault)?;
    // The same image under a second name; neither is ever written to again.
    fs_err::hard_link(last.image(), partial.path().join(IMAGE_FILE)).map_err(fault)?;
    let digest = about
        .save_with(partial.path(), &last.entries)
        .map_err(fault)?;
    publish(partial, digest, dir)
}

/// Everything of a baseline that collecting already knows.
fn describe(collected: &Collected) -> About {
    About {
        root: collected.root.clone(),
        cwd: collected.cwd.clone(),
        ignore: collected.ignore.clone(),
        nested: collected.nested.clone(),
        left_out: collected.left_out.clone(),
        tracked_secrets: collected.tracked_secrets.clone(),
        unsettled: Vec::new(),
        git: collected.git.clone(),
        root_meta: collected.root_meta,
        image_size: 0,
        data_end: 0,
    }
}

/// Gives a directory of image and list its final name.
fn publish(partial: Partial, list: Digest, dir: &Path) -> Result<Baseline, PackError> {
    let name = dir.join(list.hex());
    partial
        .publish(&name)
        .map_err(|source| PackError::write(dir, source))?;
    Baseline::load(&name).map_err(|source| PackError::write(dir, std::io::Error::other(source)))
}

/// Threads that read from the start, beside the one that becomes a reader when git is done.
fn readers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors - 1).clamp(1, READERS)
}

struct Task<'a> {
    collected: &'a Collected,
    options: &'a PackOptions,
    repositories: &'a [Repo<'a>],
    plan: Plan,
    partial: &'a Path,
}

/// Everything that is in the image so far.
struct Packed {
    entries: Vec<Entry>,
    marks: Vec<Mark>,
    unsettled: Vec<RelPath>,
    unreadable: Vec<RelPath>,
}

/// What became of a file, with its bytes in the image.
enum Arrived {
    Read(Box<Read>, Extent),
    Gone,
    Failed(PackError),
}

impl Task<'_> {
    fn run(
        mut self,
        progress: &mut dyn FnMut(PackProgress),
    ) -> Result<(Digest, Memory), PackError> {
        let collected = self.collected;
        let continues = self.plan.copies_data(collected);
        if !continues {
            self.plan.kept.fill(None);
        }
        let mut writer = self.image(continues)?;
        let wanted = gitdirs::wanted_blobs(collected, self.repositories);
        let jobs: Vec<Job<'_>> = collected
            .entries
            .iter()
            .enumerate()
            .filter(|(at, found)| found.kind == Kind::File && self.plan.kept[*at].is_none())
            .map(|(at, found)| Job {
                at,
                found,
                blob: wanted[at],
            })
            .collect();
        let root = rustix::fs::open(
            &collected.root,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| PackError::Read {
            path: RelPath::root(),
            source: errno.into(),
        })?;
        let scratch = self.partial.join("scratch");
        let memory = self.plan.last.as_ref().map(|last| &last.memory);
        let (packed, objects) = std::thread::scope(|scope| {
            let (queue, mut answers) = read::queue(&root, &jobs, collected.max_file_size);
            // What git does takes the longest, so it gets a processor for itself where there are few.
            for _ in 0..readers() {
                let queue = Arc::clone(&queue);
                scope.spawn(move || queue.read());
            }
            let objects = scope.spawn(|| {
                let queue = queue;
                let git = collected.git_program.as_ref();
                let each = self
                    .repositories
                    .iter()
                    .filter_map(|repo| Some(repo.objects(git?, memory, &scratch)));
                let objects = each.collect::<Result<Vec<Objects>, PackError>>();
                queue.read();
                objects
            });
            let packed = self.files(&mut writer, &jobs, &mut answers, progress)?;
            // Readers that wait for a listener must not be waited for.
            drop(answers);
            let objects = objects
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, PackError>((packed, objects))
        })?;
        let packs = self.git_directories(&mut writer, &packed, &wanted, &objects, continues)?;
        drop(objects);
        fs_err::remove_dir_all(&scratch).or_else(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(PackError::write(self.partial, source)),
        })?;
        let image = writer
            .finish()
            .map_err(|source| PackError::image(&self.options.baselines, source))?;

        let size = image.size.max(DISK_SIZE.bytes());
        fs_err::OpenOptions::new()
            .write(true)
            .open(self.partial.join(IMAGE_FILE))
            .and_then(|file| file.set_len(size))
            .map_err(|source| PackError::write(&self.options.baselines, source))?;
        let mut about = describe(collected);
        about.image_size = size;
        about.data_end = image.data_end;
        about.unsettled = packed.unsettled;
        about.left_out.unreadable.extend(packed.unreadable);
        let list = about
            .save(self.partial, &packed.entries)
            .map_err(|source| PackError::write(&self.options.baselines, source))?;
        let garbage = if continues {
            memory.map_or(0, |memory| memory.garbage) + self.plan.new_garbage()
        } else {
            0
        };
        let memory = Memory {
            baseline: String::new(),
            owner: self.options.owner,
            garbage,
            marks: packed.marks,
            git_state: None,
            packs,
        };
        Ok((list, memory))
    }

    /// A new image, or one that begins with the data of the last.
    fn image(&self, continues: bool) -> Result<Writer, PackError> {
        use fs_err::os::unix::fs::OpenOptionsExt as _;
        let dir = &self.options.baselines;
        let fault = |source| PackError::write(dir, source);
        let path = self.partial.join(IMAGE_FILE);
        let mut open = fs_err::OpenOptions::new();
        let file = open
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(fault)?;
        let root = self.meta(self.collected.root_meta.0, self.collected.root_meta.1);
        let writer = match self.plan.last.as_ref().filter(|_| continues) {
            Some(last) => {
                let end = last.baseline.data_end;
                let mut old = fs_err::File::open(last.baseline.image())
                    .map_err(fault)?
                    .into_file()
                    .take(end);
                // Copied by the kernel, and shared where the file system can.
                let copied = std::io::copy(&mut old, &mut file.file()).map_err(fault)?;
                debug_assert_eq!(
                    copied, end,
                    "the length was checked when the baseline was loaded"
                );
                Writer::continue_from(file, root, end)
            }
            None => Writer::create(file, root),
        };
        let mut writer = writer.map_err(|source| PackError::image(dir, source))?;
        writer
            .add_dir(&RelPath::root(), root)
            .map_err(|source| PackError::image(dir, source))?;
        Ok(writer)
    }

    fn meta(&self, mode: u32, mtime: (i64, u32)) -> Meta {
        let (uid, gid) = self.options.owner;
        Meta {
            mode,
            uid,
            gid,
            mtime,
        }
    }

    /// Puts all collected paths into the image.
    fn files(
        &self,
        writer: &mut Writer,
        jobs: &[Job<'_>],
        answers: &mut Answers,
        progress: &mut dyn FnMut(PackProgress),
    ) -> Result<Packed, PackError> {
        let fault = |source| PackError::image(&self.options.baselines, source);
        let collected = self.collected;
        let mut packed = Packed {
            entries: Vec::with_capacity(collected.entries.len()),
            marks: Vec::with_capacity(collected.entries.len()),
            unsettled: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut report = PackProgress {
            files: 0,
            files_total: collected
                .entries
                .iter()
                .filter(|found| found.kind == Kind::File)
                .count() as u64,
            bytes: 0,
            bytes_total: collected
                .entries
                .iter()
                .filter(|found| found.kind == Kind::File)
                .map(|found| found.size)
                .sum(),
            waits_for_git: false,
        };
        let mut next_job = 0;
        let mut arrived = VecDeque::new();
        for (at, found) in collected.entries.iter().enumerate() {
            let mut entry = Entry {
                path: found.path.clone(),
                kind: found.kind,
                mode: found.mode,
                size: found.size,
                mtime: found.mtime,
                digest: None,
                offset: 0,
                target: found.target.clone(),
            };
            let mut mark = Mark {
                ctime: found.ctime,
                ino: found.ino,
                settled: true,
                oid: None,
            };
            let meta = self.meta(found.mode, found.mtime);
            match (found.kind, self.plan.kept[at].zip(self.plan.last.as_ref())) {
                (Kind::Dir, _) => writer.add_dir(&found.path, meta).map_err(fault)?,
                (Kind::Symlink, _) => {
                    entry.digest = Some(Digest::of(&found.target));
                    writer
                        .add_symlink(&found.path, meta, &found.target)
                        .map_err(fault)?;
                }
                (Kind::File, Some((old, last))) => {
                    let old_entry = &last.entries[old];
                    entry.digest = old_entry.digest;
                    entry.offset = old_entry.offset;
                    mark.oid.clone_from(&last.memory.marks[old].oid);
                    let extent = Extent {
                        offset: entry.offset,
                        size: entry.size,
                    };
                    writer
                        .add_existing(&found.path, meta, extent)
                        .map_err(fault)?;
                }
                (Kind::File, None) => {
                    debug_assert_eq!(jobs[next_job].at, at, "jobs come in the order of entries");
                    if arrived.is_empty() {
                        self.receive(writer, answers, &mut arrived)?;
                    }
                    next_job += 1;
                    let arrived = arrived.pop_front().unwrap_or(Arrived::Gone);
                    let Some((read, extent)) =
                        self.file(writer, &found.path, arrived, &mut packed)?
                    else {
                        continue;
                    };
                    entry = Entry {
                        mode: read.mode,
                        size: extent.size,
                        mtime: read.mtime,
                        digest: Some(read.digest),
                        offset: extent.offset,
                        ..entry
                    };
                    mark = Mark {
                        ctime: read.ctime,
                        ino: read.ino,
                        settled: read.settled,
                        oid: read.oid,
                    };
                    if read.torn {
                        packed.unsettled.push(found.path.clone());
                    }
                }
            }
            if found.kind == Kind::File {
                report.files += 1;
                report.bytes += entry.size;
                progress(report);
            }
            packed.entries.push(entry);
            packed.marks.push(mark);
        }
        if !self.repositories.is_empty() {
            report.waits_for_git = true;
            progress(report);
        }
        Ok(packed)
    }

    /// Puts what comes next from the readers into the image, without names: at least the next job's file.
    fn receive(
        &self,
        writer: &mut Writer,
        answers: &mut Answers,
        arrived: &mut VecDeque<Arrived>,
    ) -> Result<(), PackError> {
        let fault = |source| PackError::image(&self.options.baselines, source);
        let place = |start: u64, outcome| match outcome {
            Outcome::Read { start: at, read } => {
                let offset = start + at as u64;
                let size = read.size;
                Arrived::Read(read, Extent { offset, size })
            }
            Outcome::Gone => Arrived::Gone,
            Outcome::Failed(error) => Arrived::Failed(error),
        };
        loop {
            match answers.next() {
                Piece::Files { bytes, outcomes } => {
                    let start = writer.append(&bytes).map_err(fault)?.offset;
                    answers.give_back(bytes);
                    arrived.extend(outcomes.into_iter().map(|outcome| place(start, outcome)));
                    return Ok(());
                }
                Piece::Bytes(bytes) => writer.write(&bytes).map_err(fault)?,
                Piece::Again => writer.abandon_file().map_err(fault)?,
                Piece::End(outcome @ Outcome::Read { .. }) => {
                    let start = writer.end_data().map_err(fault)?.offset;
                    arrived.push_back(place(start, outcome));
                    return Ok(());
                }
                Piece::End(outcome) => {
                    writer.abandon_file().map_err(fault)?;
                    arrived.push_back(place(0, outcome));
                    return Ok(());
                }
            }
        }
    }

    /// Names a file whose bytes are in the image; `None` when it is gone, or unreadable and left out for that.
    fn file(
        &self,
        writer: &mut Writer,
        path: &RelPath,
        arrived: Arrived,
        packed: &mut Packed,
    ) -> Result<Option<(Read, Extent)>, PackError> {
        match arrived {
            Arrived::Read(read, extent) => {
                writer
                    .add_existing(path, self.meta(read.mode, read.mtime), extent)
                    .map_err(|source| PackError::image(&self.options.baselines, source))?;
                let offset = if extent.size == 0 { 0 } else { extent.offset };
                Ok(Some((*read, Extent { offset, ..extent })))
            }
            Arrived::Failed(PackError::Read { path, .. }) if self.collected.skip_unreadable => {
                packed.unreadable.push(path);
                Ok(None)
            }
            Arrived::Gone => Ok(None),
            Arrived::Failed(error) => Err(error),
        }
    }

    /// Puts the git directories into the image.
    fn git_directories(
        &self,
        writer: &mut Writer,
        packed: &Packed,
        wanted: &[Option<ObjectFormat>],
        objects: &[Objects],
        continues: bool,
    ) -> Result<Vec<Pack>, PackError> {
        let dir = &self.options.baselines;
        let fault = |source| PackError::image(dir, source);
        let mut packs = Vec::new();
        for (repo, objects) in self.repositories.iter().zip(objects) {
            let git_dir = &repo.plan.git_dir;
            // A path that is too long for a machine can't be one of git's own, so the workspace's is at fault.
            let join =
                |below: &str| RelPath::new([git_dir.as_bytes(), b"/", below.as_bytes()].concat());
            let join = |below: &str| {
                join(below).map_err(|source| PackError::git(dir, &repo.nested.dir, source.into()))
            };
            let (index, seconds) = repo.index(self.collected, objects, &|path| {
                self.facts(packed, wanted, path)
            });
            let mtime = (seconds, 0);
            let dirs = [
                "refs",
                "refs/heads",
                "refs/tags",
                "objects",
                "objects/info",
                "objects/pack",
                "info",
            ];
            writer
                .add_dir(git_dir, self.meta(DIR_MODE, mtime))
                .map_err(fault)?;
            for below in dirs {
                writer
                    .add_dir(&join(below)?, self.meta(DIR_MODE, mtime))
                    .map_err(fault)?;
            }
            let mut add = |path: &RelPath, mode, mut bytes: &[u8]| {
                writer
                    .add_data(path, self.meta(mode, mtime), &mut bytes)
                    .map(|_| ())
                    .map_err(fault)
            };
            for file in repo.files(self.collected, objects.shallow.clone()) {
                add(&join(&file.path)?, FILE_MODE, &file.bytes)?;
            }
            if !repo.nested.repository.index.entries.is_empty() {
                add(&join("index")?, FILE_MODE, &index)?;
            }
            if repo.plan.by_file {
                let link = repo.nested.dir.join(b".git");
                let link =
                    link.map_err(|source| PackError::git(dir, &repo.nested.dir, source.into()))?;
                add(&link, FILE_MODE, &repo.plan.link())?;
            }
            for pack in &objects.kept {
                let path = join(&format!("objects/pack/{}", pack.name))?;
                let meta = self.meta(PACK_MODE, mtime);
                let mut pack = pack.clone();
                if continues {
                    let extent = Extent {
                        offset: pack.offset,
                        size: pack.size,
                    };
                    writer.add_existing(&path, meta, extent).map_err(fault)?;
                } else if let Some(last) = &self.plan.last {
                    let image = fs_err::File::open(last.baseline.image())
                        .map_err(|e| PackError::write(dir, e))?;
                    let mut range = Range {
                        file: image.into_file(),
                        at: pack.offset,
                        left: pack.size,
                    };
                    pack.offset = writer
                        .add_data(&path, meta, &mut range)
                        .map_err(fault)?
                        .offset;
                }
                packs.push(pack);
            }
            for new in &objects.new {
                let path = join(&format!("objects/pack/{}", new.name))?;
                // The same name has the same content: a pack is named by what is in it.
                if writer.contains(&path) {
                    continue;
                }
                let mut file = fs_err::File::open(&new.file)
                    .map_err(|source| PackError::write(dir, source))?;
                let extent = writer
                    .add_data(&path, self.meta(PACK_MODE, mtime), &mut file)
                    .map_err(fault)?;
                packs.push(Pack {
                    repository: repo.nested.dir.clone(),
                    key: new.key.clone(),
                    name: new.name.clone(),
                    offset: extent.offset,
                    size: extent.size,
                });
            }
        }
        Ok(packs)
    }

    /// What is known of the file at `path` in the image.
    fn facts<'a>(
        &self,
        packed: &'a Packed,
        wanted: &[Option<ObjectFormat>],
        path: &RelPath,
    ) -> Option<FileFacts<'a>> {
        let at = packed
            .entries
            .binary_search_by(|entry| entry.path.cmp(path))
            .ok()?;
        let (entry, mark) = (&packed.entries[at], &packed.marks[at]);
        if entry.kind == Kind::Dir {
            return None;
        }
        let oid = mark.oid.or_else(|| self.blob(wanted, entry));
        Some(FileFacts {
            stat: FileStat {
                mtime: entry.mtime,
                ctime: mark.ctime,
                ino: mark.ino,
                size: entry.size,
            },
            oid,
            digest: entry.digest,
            target: (entry.kind == Kind::Symlink).then_some(entry.target.as_slice()),
        })
    }

    /// The blob of a file that was taken over from the last image, when a repository must know it.
    fn blob(&self, wanted: &[Option<ObjectFormat>], entry: &Entry) -> Option<Oid> {
        let at = self
            .collected
            .entries
            .binary_search_by(|found| found.path.cmp(&entry.path))
            .ok()?;
        let format = wanted[at]?;
        let last = self
            .plan
            .last
            .as_ref()
            .filter(|_| self.plan.kept[at].is_some())?;
        let bytes = last.baseline.read(entry).ok()?;
        Some(blob_oid(format, &bytes))
    }
}

/// A part of a file.
struct Range {
    file: std::fs::File,
    at: u64,
    left: u64,
}

impl std::io::Read for Range {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = usize::try_from(self.left)
            .unwrap_or(buffer.len())
            .min(buffer.len());
        let count = self.file.read_at(&mut buffer[..length], self.at)?;
        if count == 0 && length > 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}
