//! Commits that were made inside: asked of the machine's own git, as its user, and kept as inert data. The host
//! never runs git on any of it here.
//!
//! ```text
//!  git log (what the baseline does not have) ──none──▶ done
//!     └─▶ git for-each-ref ─▶ git pack-objects ─▶ commits/{commits.pack, refs.json}
//! ```
//!
//! A guest without git, without a repository, or with a lying git costs a few bounded bytes and seconds, and
//! leaves the commits of the time before as they were.

use base::{Digest, Hasher};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use serde::{Deserialize, Serialize};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use store::Commit;
use wire::message::{Exec, Exit, RunAs};

/// Commits that are listed and kept. Who makes more in one run has rewritten history.
const MAX_COMMITS: usize = 1_000;
/// Bytes of one answer of git that is text.
const MAX_TEXT: usize = 512 * 1024;
/// Bytes of the pack.
const MAX_PACK: u64 = 512 << 20;
/// References that are kept.
const MAX_REFS: usize = 1_000;
/// Characters of a subject line.
const MAX_SUBJECT: usize = 200;
/// Bytes of a reference's name.
const MAX_REF_NAME: usize = 400;

/// One retrieval, command by command.
#[derive(Debug)]
pub(crate) struct Retrieval {
    dir: PathBuf,
    /// Commits that the baseline has, as hex ids.
    known: Vec<String>,
    step: Step,
    text: Vec<u8>,
    pack: Option<Pack>,
    commits: Vec<Commit>,
    truncated: bool,
    refs: Vec<Ref>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Log,
    Refs,
    Pack,
}

#[derive(Debug)]
struct Pack {
    file: fs_err::File,
    hasher: Hasher,
    length: u64,
}

/// What a command's end leads to.
#[derive(Debug)]
pub(crate) enum Then {
    /// Run this as well.
    Run(Exec, Vec<u8>),
    /// Done. The commits now kept; `None` to leave those of the time before.
    Done(Option<Vec<Commit>>, Option<String>),
}

/// `commits/refs.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRefs {
    /// Format, [`store::VERSION`].
    pub version: u32,
    /// Commits that the pack builds on, which the baseline has.
    pub known: Vec<String>,
    /// Branches and tags as they were in the machine.
    pub refs: Vec<Ref>,
    /// Digest of `commits.pack`, and its length in bytes.
    pub pack: Digest,
    /// See above.
    pub pack_length: u64,
}

/// A branch or tag of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ref {
    /// Its full name, printable.
    pub name: String,
    /// The object's id in hex.
    pub id: String,
}

impl Retrieval {
    /// What it starts with. `known` are the tips that the baseline has.
    pub(crate) fn new(dir: PathBuf, known: &[String]) -> (Self, Exec) {
        let known: Vec<String> = known
            .iter()
            .filter(|id| is_object_id(id))
            .cloned()
            .collect();
        let limit = format!("--max-count={}", MAX_COMMITS + 1);
        let mut words = vec!["log", "-z", "--format=%H %s", "--no-show-signature", &limit];
        // Branches, tags and HEAD, wherever it is; also before the first commit.
        words.extend(["--exclude=refs/stash", "--all"]);
        if !known.is_empty() {
            words.push("--not");
            words.extend(known.iter().map(String::as_str));
        }
        words.push("--");
        let exec = git(&words, false);
        let retrieval = Self {
            dir,
            known,
            step: Step::Log,
            text: Vec::new(),
            pack: None,
            commits: Vec::new(),
            truncated: false,
            refs: Vec::new(),
        };
        (retrieval, exec)
    }

    /// Output of the running command. False when it is too much: the command is to be given up.
    pub(crate) fn output(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.step != Step::Pack {
            self.text.extend_from_slice(bytes);
            return Ok(self.text.len() <= MAX_TEXT);
        }
        let pack = match &mut self.pack {
            Some(pack) => pack,
            None => self.pack.insert(Pack {
                file: fs_err::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(self.partial())?,
                hasher: Hasher::new(),
                length: 0,
            }),
        };
        pack.length += bytes.len() as u64;
        if pack.length > MAX_PACK {
            return Ok(false);
        }
        pack.hasher.update(bytes);
        pack.file.write_all(bytes)?;
        Ok(true)
    }

    /// The running command ended.
    pub(crate) fn ended(&mut self, exit: Option<Exit>) -> io::Result<Then> {
        let text = std::mem::take(&mut self.text);
        // No git, no repository, no commit at all: nothing was committed.
        if exit != Some(Exit::Code(0)) {
            let sentence = (self.step != Step::Log).then(|| {
                "git in the machine could not list or pack the commits made there".to_owned()
            });
            return self.give_up(sentence);
        }
        match self.step {
            Step::Log => {
                self.commits = read_log(&text);
                if self.commits.is_empty() {
                    return Ok(Then::Done(None, None));
                }
                self.truncated = self.commits.len() > MAX_COMMITS;
                self.commits.truncate(MAX_COMMITS);
                self.step = Step::Refs;
                let words = ["for-each-ref", "--format=%(objectname) %(refname)"];
                let words = [&words[..], &["refs/heads", "refs/tags"]].concat();
                Ok(Then::Run(git(&words, false), Vec::new()))
            }
            Step::Refs => {
                self.refs = read_refs(&text);
                self.step = Step::Pack;
                let words = [
                    "pack-objects",
                    "--revs",
                    "--stdout",
                    "-q",
                    "--delta-base-offset",
                ];
                let mut input = Vec::new();
                let tips = self.refs.iter().map(|one| &one.id);
                // With a detached HEAD no reference leads to its commits.
                for id in tips.chain(self.commits.iter().map(|commit| &commit.id)) {
                    input.extend_from_slice(id.as_bytes());
                    input.push(b'\n');
                }
                for id in &self.known {
                    input.extend_from_slice(format!("^{id}\n").as_bytes());
                }
                Ok(Then::Run(git(&words, true), input))
            }
            Step::Pack => self.keep(),
        }
    }

    /// Stops here; the commits of the time before stay.
    pub(crate) fn give_up(&mut self, sentence: Option<String>) -> io::Result<Then> {
        if self.pack.take().is_some() {
            fs_err::remove_file(self.partial())?;
        }
        Ok(Then::Done(None, sentence))
    }

    fn keep(&mut self) -> io::Result<Then> {
        let Some(pack) = self.pack.take() else {
            return Ok(Then::Done(None, None));
        };
        pack.file.sync_data()?;
        let refs = CommitRefs {
            version: store::VERSION,
            known: self.known.clone(),
            refs: std::mem::take(&mut self.refs),
            pack: pack.hasher.finish(),
            pack_length: pack.length,
        };
        fs_err::rename(self.partial(), self.dir.join(PACK))?;
        write_refs(&self.dir, &refs)?;
        let sentence = self.truncated.then(|| {
            format!(
                "More than {MAX_COMMITS} commits were made in the machine; the list is cut there"
            )
        });
        Ok(Then::Done(
            Some(std::mem::take(&mut self.commits)),
            sentence,
        ))
    }

    fn partial(&self) -> PathBuf {
        self.dir.join("partial")
    }
}

fn write_refs(dir: &Path, refs: &CommitRefs) -> io::Result<()> {
    let temporary = dir.join("refs.json.new");
    let mut file = fs_err::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(refs)?)?;
    file.sync_data()?;
    fs_err::rename(&temporary, dir.join(REFS))
}

fn git(words: &[&str], stdin: bool) -> Exec {
    let argv = ["git", "--no-pager"].iter().chain(words);
    // None of it is needed for safety, the guest being what it is; it is for the ordinary case.
    let env = [
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("LC_ALL", "C.UTF-8"),
    ];
    Exec {
        argv: argv.map(|word| word.as_bytes().to_vec()).collect(),
        env: env
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect(),
        cwd: Vec::new(),
        user: RunAs::User,
        tty: None,
        stdin,
    }
}

fn read_log(text: &[u8]) -> Vec<Commit> {
    let lines = text.split(|byte| *byte == 0).take(MAX_COMMITS + 1);
    lines
        .filter_map(|line| {
            let (id, subject) = split(line)?;
            let subject = base::escape_line(subject, MAX_SUBJECT);
            Some(Commit { id, subject })
        })
        .collect()
}

fn read_refs(text: &[u8]) -> Vec<Ref> {
    let lines = text.split(|byte| *byte == b'\n').take(MAX_REFS);
    lines
        .filter_map(|line| {
            let (id, name) = split(line)?;
            let name = base::escape_line(name, MAX_REF_NAME);
            Some(Ref { name, id })
        })
        .collect()
}

/// An object id, a space, and the rest.
fn split(line: &[u8]) -> Option<(String, &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let id = std::str::from_utf8(&line[..space]).ok()?;
    is_object_id(id).then(|| (id.to_owned(), &line[space + 1..]))
}

/// SHA-1 or SHA-256 in lower-case hex.
fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

/// The pack's name in a result's `commits/`.
pub const PACK: &str = "commits.pack";
/// What belongs to it.
pub const REFS: &str = "refs.json";
