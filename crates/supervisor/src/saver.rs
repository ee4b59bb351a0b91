//! Brings the machine's work out: when, and step by step, on streams of the guest's multiplexer.
//!
//! ```text
//!  resting ──due, asked for──▶ a pass over the workspace ──▶ (when asked for) commits ──▶ resting
//! ```
//!
//! A pass that is under way when the final one is wanted is thrown away: the final one has to start after the
//! last process ended. Its contents stay, and so does what it learned, so that little is read twice.

#[cfg(test)]
mod tests;

use crate::commits::{Retrieval, Then};
use crate::given::{CHECKPOINT_READ, Given, Pass, Reads};
use crate::relay::Queue;
use crate::with_causes;
use std::path::PathBuf;
use std::time::Duration;
use store::Commit;
use wire::message::{Exit, Reply, Request, decode, encode};
use wire::{Event, Mux, StreamId};
use workspace::{ChangeSet, Counts, KnownState};

/// After the command's start to the first pass, and the least between two.
const FIRST: Duration = Duration::from_secs(2);
/// The least between two passes in a kept machine at rest.
const IDLE: Duration = Duration::from_mins(1);
/// A pass keeps the guest busy for about as long as it takes, so one in twenty is 5 % of one processor.
const SHARE: u32 = 20;
/// However long passes take, work of more than this is never at stake (unless a pass itself takes longer).
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// All of git's commands together. They run after the files came out, so nothing else waits for them.
const COMMITS: Duration = Duration::from_secs(45);
/// A pass without a word from the guest for so long is given up (the final one by [`crate::life`]).
const QUIET: Duration = Duration::from_mins(1);

/// What came of a job.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A job has begun.
    Began,
    /// A pass is complete; contents are on disk.
    Changes(ChangeSet, Counts),
    /// Commits are on disk.
    Commits(Vec<Commit>),
    /// Something a person should know.
    Notice(String),
    /// The job is over: true when it brought out all it was to.
    Finished(bool),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Saver {
    given: Given,
    commits_dir: PathBuf,
    /// What passes have learned; a pass under way has it.
    known: KnownState,
    job: Option<Job>,
    due: Option<Duration>,
    /// A session runs; otherwise only what sessions left behind can change something.
    active: bool,
}

#[derive(Debug)]
struct Job {
    started: Duration,
    heard: Duration,
    with_commits: bool,
    /// The upper layer holds something of `.git`: without that no commit can have been made.
    git_touched: bool,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Pass(Box<Pass>, Option<StreamId>),
    Commits {
        retrieval: Box<Retrieval>,
        stream: StreamId,
        stdin: Queue,
        exit: Option<Exit>,
        until: Duration,
    },
}

impl Saver {
    pub(crate) fn new(given: Given, commits_dir: PathBuf) -> Self {
        Self {
            given,
            commits_dir,
            known: KnownState::default(),
            job: None,
            due: None,
            active: false,
        }
    }

    /// Says whether a session runs. What begins or ends one is a reason to look soon.
    pub(crate) fn set_active(&mut self, now: Duration, active: bool) {
        if std::mem::replace(&mut self.active, active) != active {
            self.due = self.due.map(|due| due.min(now + FIRST));
        }
    }

    /// Starts the clock: a process runs that can change something.
    pub(crate) fn schedule(&mut self, now: Duration) {
        if self.due.is_none() {
            self.due = Some(now + FIRST);
        }
    }

    /// Stops it.
    pub(crate) fn rest(&mut self) {
        self.due = None;
    }

    /// When to call [`Saver::tick`].
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.job {
            None => self.due,
            Some(Job {
                step: Step::Commits { until, .. },
                ..
            }) => Some(*until),
            Some(job) => Some(job.heard + QUIET),
        }
    }

    /// Does what time demands.
    pub(crate) fn tick(&mut self, now: Duration, mux: &mut Mux) -> Vec<Outcome> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.job.take() {
            None => self.start(now, mux, false, Reads::Little),
            Some(job) => {
                if let Some(stream) = job.stream() {
                    mux.reset(stream);
                }
                let what = match &job.step {
                    Step::Pass(..) => "the machine did not answer while its changes were read",
                    Step::Commits { .. } => "git in the machine took too long to pack its commits",
                };
                let notice = Outcome::Notice(what.to_owned());
                let complete = matches!(job.step, Step::Commits { .. });
                self.give_up(now, job);
                vec![notice, Outcome::Finished(complete)]
            }
        }
    }

    /// Starts a job that brings out everything; one that runs is thrown away.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        mux: &mut Mux,
        with_commits: bool,
    ) -> Vec<Outcome> {
        self.start(now, mux, with_commits, Reads::Everything)
    }

    fn start(
        &mut self,
        now: Duration,
        mux: &mut Mux,
        with_commits: bool,
        reads: Reads,
    ) -> Vec<Outcome> {
        self.abort(mux);
        match self.given.pass(&mut self.known, reads) {
            Ok(pass) => {
                self.job = Some(Job {
                    started: now,
                    heard: now,
                    with_commits,
                    git_touched: false,
                    step: Step::Pass(Box::new(pass), None),
                });
                let mut outcomes = vec![Outcome::Began];
                outcomes.extend(self.advance(now, mux));
                outcomes
            }
            Err(error) => vec![
                Outcome::Began,
                Outcome::Notice(format!("Changes could not be kept: {error}")),
                Outcome::Finished(false),
            ],
        }
    }

    /// Throws the job away.
    pub(crate) fn abort(&mut self, mux: &mut Mux) {
        let Some(job) = self.job.take() else {
            return;
        };
        if let Some(stream) = job.stream() {
            mux.reset(stream);
        }
        self.remember(job);
    }

    /// Forgets what is known of the machine: it is another one now.
    pub(crate) fn forget(&mut self) {
        self.job = None;
        self.known = KnownState::default();
    }

    pub(crate) fn owns(&self, stream: StreamId) -> bool {
        self.job.as_ref().and_then(Job::stream) == Some(stream)
    }

    /// Takes an event of a stream that it owns.
    pub(crate) fn event(&mut self, now: Duration, mux: &mut Mux, event: Event) -> Vec<Outcome> {
        let Some(job) = &mut self.job else {
            return Vec::new();
        };
        job.heard = now;
        let over = match &mut job.step {
            Step::Pass(pass, stream) => match event {
                Event::Message { id, payload, cost } => {
                    mux.consume(id, cost);
                    match decode::<Reply>(&payload) {
                        Ok(reply) => {
                            job.git_touched |= names_git(&reply);
                            pass.message(reply).map_err(|error| with_causes(&error))
                        }
                        Err(error) => Err(error.to_string()),
                    }
                }
                Event::Data {
                    id, payload, cost, ..
                } => {
                    mux.consume(id, cost);
                    pass.data(&payload).map_err(|error| with_causes(&error))
                }
                Event::Closed { id } => {
                    mux.close(id).ok();
                    *stream = None;
                    pass.closed().map_err(|error| with_causes(&error))
                }
                Event::Reset { .. } => {
                    *stream = None;
                    pass.closed().map_err(|error| with_causes(&error))
                }
                Event::Hello | Event::Opened { .. } | Event::Finished { .. } => Ok(()),
            },
            Step::Commits {
                retrieval, exit, ..
            } => match event {
                Event::Message { id, payload, cost } => {
                    mux.consume(id, cost);
                    if let Ok(Reply::Exited(how)) = decode(&payload) {
                        *exit = Some(how);
                    }
                    Ok(())
                }
                Event::Data {
                    id,
                    channel,
                    payload,
                    cost,
                } => {
                    mux.consume(id, cost);
                    // What git says on standard error is of no use here.
                    let taken = if channel == 1 {
                        retrieval.output(&payload)
                    } else {
                        Ok(true)
                    };
                    match taken {
                        Ok(true) => Ok(()),
                        Ok(false) => {
                            mux.reset(id);
                            let then = retrieval.give_up(Some(TOO_MUCH.to_owned()));
                            return self.commits_go_on(mux, then);
                        }
                        Err(error) => {
                            mux.reset(id);
                            let sentence = format!("Commits could not be kept: {error}");
                            let then = retrieval.give_up(Some(sentence));
                            return self.commits_go_on(mux, then);
                        }
                    }
                }
                Event::Closed { id } => {
                    mux.close(id).ok();
                    let then = retrieval.ended(*exit);
                    return self.commits_go_on(mux, then);
                }
                Event::Reset { .. } => {
                    let then = retrieval.ended(None);
                    return self.commits_go_on(mux, then);
                }
                Event::Hello | Event::Opened { .. } | Event::Finished { .. } => Ok(()),
            },
        };
        match over {
            Ok(()) => self.advance(now, mux),
            Err(sentence) => {
                if let Some(job) = self.job.take() {
                    if let Some(stream) = job.stream() {
                        mux.reset(stream);
                    }
                    self.give_up(now, job);
                }
                vec![Outcome::Notice(sentence), Outcome::Finished(false)]
            }
        }
    }

    /// Hands git its input as far as it takes it.
    pub(crate) fn push(&mut self, mux: &mut Mux) {
        if let Some(Job {
            step: Step::Commits { stream, stdin, .. },
            ..
        }) = &mut self.job
        {
            stdin.push(mux, *stream, &mut 0);
        }
    }

    /// Asks what is to be asked next, or ends the pass.
    fn advance(&mut self, now: Duration, mux: &mut Mux) -> Vec<Outcome> {
        let Some(job) = &mut self.job else {
            return Vec::new();
        };
        let Step::Pass(pass, stream) = &mut job.step else {
            return Vec::new();
        };
        if stream.is_some() {
            return Vec::new();
        }
        match pass.next_request() {
            Ok(Some(request)) => {
                match mux.open(&encode(&request)) {
                    Ok(opened) => *stream = Some(opened),
                    Err(error) => return self.fail(now, error.to_string()),
                }
                return Vec::new();
            }
            Ok(None) => {}
            Err(error) => return self.fail(now, with_causes(&error)),
        }
        if !pass.is_done() {
            return Vec::new();
        }
        let Some(Job {
            started,
            with_commits,
            git_touched,
            step: Step::Pass(pass, _),
            ..
        }) = self.job.take()
        else {
            return Vec::new();
        };
        match pass.finish() {
            Ok((changes, known, counts)) => {
                self.known = known;
                let mut outcomes = Vec::new();
                if counts.deferred > 0 {
                    outcomes.push(Outcome::Notice(format!(
                        "a checkpoint reads {CHECKPOINT_READ} at most; new or changed files left for the next: {}",
                        counts.deferred
                    )));
                }
                let no_room = counts.no_room;
                if no_room > 0 {
                    outcomes.push(Outcome::Notice(format!(
                        "this computer's disk is full; files that were not saved: {no_room}"
                    )));
                }
                outcomes.push(Outcome::Changes(changes, counts));
                let took = now.saturating_sub(started);
                self.next(now, took);
                if no_room > 0 {
                    outcomes.push(Outcome::Finished(false));
                } else if with_commits && git_touched {
                    outcomes.extend(self.begin_commits(now, mux, started));
                } else {
                    outcomes.push(Outcome::Finished(true));
                }
                outcomes
            }
            Err(error) => {
                self.next(now, now.saturating_sub(started));
                vec![
                    Outcome::Notice(with_causes(&error)),
                    Outcome::Finished(false),
                ]
            }
        }
    }

    fn begin_commits(&mut self, now: Duration, mux: &mut Mux, started: Duration) -> Vec<Outcome> {
        let (retrieval, exec) = Retrieval::new(self.commits_dir.clone(), &self.given.known_commits);
        match mux.open(&encode(&Request::Exec(exec))) {
            Ok(stream) => {
                self.job = Some(Job {
                    started,
                    heard: now,
                    with_commits: true,
                    git_touched: true,
                    step: Step::Commits {
                        retrieval: Box::new(retrieval),
                        stream,
                        stdin: Queue::default(),
                        exit: None,
                        until: now + COMMITS,
                    },
                });
                Vec::new()
            }
            Err(error) => vec![
                Outcome::Notice(format!("Commits could not be asked for: {error}")),
                Outcome::Finished(true),
            ],
        }
    }

    fn commits_go_on(&mut self, mux: &mut Mux, then: std::io::Result<Then>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        match then {
            Ok(Then::Run(exec, input)) => {
                let opened = mux.open(&encode(&Request::Exec(exec)));
                if let (
                    Ok(opened),
                    Some(Job {
                        step:
                            Step::Commits {
                                stream,
                                stdin,
                                exit,
                                ..
                            },
                        ..
                    }),
                ) = (opened, &mut self.job)
                {
                    *stream = opened;
                    *exit = None;
                    stdin.clear();
                    if !input.is_empty() {
                        stdin.data(0, input, 0);
                        stdin.finish(0);
                    }
                    return outcomes;
                }
            }
            Ok(Then::Done(commits, notice)) => {
                outcomes.extend(commits.map(Outcome::Commits));
                outcomes.extend(notice.map(Outcome::Notice));
            }
            Err(error) => {
                outcomes.push(Outcome::Notice(format!(
                    "Commits could not be kept: {error}"
                )));
            }
        }
        // The files came out before; commits are a bonus.
        self.job = None;
        outcomes.push(Outcome::Finished(true));
        outcomes
    }

    fn fail(&mut self, now: Duration, sentence: String) -> Vec<Outcome> {
        if let Some(job) = self.job.take() {
            self.give_up(now, job);
        }
        vec![Outcome::Notice(sentence), Outcome::Finished(false)]
    }

    /// A job ends before its time.
    fn give_up(&mut self, now: Duration, job: Job) {
        if matches!(job.step, Step::Pass(..)) {
            self.next(now, now.saturating_sub(job.started));
        }
        self.remember(job);
    }

    /// Keeps what a pass has learned that does not come to its end.
    fn remember(&mut self, job: Job) {
        if let Step::Pass(pass, _) = job.step {
            self.known = pass.abandon();
        }
    }

    fn next(&mut self, now: Duration, took: Duration) {
        if self.due.is_some() {
            let least = if self.active { FIRST } else { IDLE };
            let pause = (took * SHARE).clamp(least, LONGEST_PAUSE.max(took));
            self.due = Some(now + pause);
        }
    }
}

/// An entry that may be the workspace's git directory. One further down is taken for it, too, which costs a look
/// by git and nothing else.
fn names_git(reply: &Reply) -> bool {
    match reply {
        Reply::Entries { entries, .. } => entries.iter().any(|entry| entry.name == b".git"),
        _ => false,
    }
}

impl Job {
    fn stream(&self) -> Option<StreamId> {
        match &self.step {
            Step::Pass(_, stream) => *stream,
            Step::Commits { stream, .. } => Some(*stream),
        }
    }
}

const TOO_MUCH: &str = "the commits made in the machine are too large to keep (512 MiB)";
