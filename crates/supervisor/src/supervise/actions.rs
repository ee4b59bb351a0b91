//! What the life of a sandbox demands, done.

use super::clients::{ENDING, why_not};
use super::guest::end_of;
use super::{Supervisor, Use, Wants};
use crate::control::{End, Note};
use crate::error::RunError;
use crate::life::{Action, Conclusion, Event as LifeEvent};
use crate::relay::Role;
use crate::saver::Outcome;
use crate::with_causes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{Completeness, Ending, OutputLog, ResultHead, State, StoreError};
use wire::message::{Control, Request, encode};
use workspace::{ChangeSet, Counts, Reason};

/// Lines of the console that are told with a crash.
const CONSOLE_LINES: usize = 12;
/// What Linux prints before the reason of a panic.
const PANIC: &[u8] = b"Kernel panic";

impl Supervisor<'_> {
    /// Lets the life take an event, and does what follows.
    pub(super) fn step(&mut self, event: LifeEvent) {
        let now = self.now();
        for action in self.life.step(now, event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Record(state) => {
                self.record.state = state;
                self.write_record();
            }
            Action::StartMain => {
                self.open_log();
                if let Some(main) = self.main {
                    self.open_relay(main);
                }
            }
            Action::SignalMain(signal) => {
                let main = self.main.and_then(|main| self.relays.get(&main));
                if let (Some(stream), Some(machine)) =
                    (main.and_then(|main| main.guest), &mut self.machine)
                {
                    let control = encode(&Control::Signal(signal));
                    machine.guest.mux.send_message(stream, &control).ok();
                }
            }
            Action::TellMain(ending) => self.tell_main(&ending),
            Action::Checkpoint => self.take_checkpoint(),
            Action::EndSessions { grace_ms } => {
                self.saver.rest();
                if let Some(machine) = &mut self.machine {
                    // While it ends its sessions the guest refuses everything else, and a pass would take that
                    // for files that can't be read.
                    self.saver.abort(&mut machine.guest.mux);
                }
                let request = Request::EndSessions { grace_ms };
                if self.open_in_guest(&request, Use::EndSessions).is_none() {
                    self.step(LifeEvent::SessionsEnded);
                }
            }
            Action::SaveFinal => {
                self.saver.rest();
                self.write_failed = false;
                if let Some(machine) = &mut self.machine {
                    let outcomes = self.saver.begin(now, &mut machine.guest.mux, true);
                    self.saved(outcomes);
                }
            }
            Action::AbortSave => {
                if let Some(machine) = &mut self.machine {
                    self.saver.abort(&mut machine.guest.mux);
                }
                self.notice("the machine took too long to give its last changes".to_owned());
            }
            Action::PowerOff => {
                if let Some(machine) = &mut self.machine {
                    machine.guest.mux.open(&encode(&Request::PowerOff)).ok();
                }
            }
            Action::Kill => {
                if let Some(machine) = &mut self.machine {
                    machine.process.kill();
                }
            }
            Action::Conclude(conclusion) => self.conclude(&conclusion),
        }
    }

    pub(super) fn write_record(&mut self) {
        if let Err(error) = self.store.update(&self.record) {
            self.notice(format!(
                "the record could not be written: {}",
                with_causes(&error)
            ));
        }
    }

    /// Takes a checkpoint now, commits included.
    pub(super) fn take_checkpoint(&mut self) {
        let now = self.now();
        if let Some(machine) = &mut self.machine {
            let outcomes = self.saver.begin(now, &mut machine.guest.mux, true);
            self.saved(outcomes);
        }
    }

    /// Writes what was brought out.
    pub(super) fn saved(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Changes(changes, counts) => self.write_changes(&changes, &counts),
                Outcome::Commits(commits) => {
                    self.update_head(|head| head.commits = commits);
                }
                Outcome::Began => self.pass_notices.clear(),
                Outcome::Notice(sentence) => self.pass_notices.push(sentence),
                Outcome::Finished(complete) => {
                    let complete = complete && !self.write_failed;
                    self.tell_checkpoint(complete);
                    self.step(LifeEvent::Saved(complete));
                }
            }
        }
    }

    fn write_changes(&mut self, changes: &ChangeSet, counts: &Counts) {
        self.write_failed = false;
        let digest = changes.digest();
        if self.last_changes != Some(digest) {
            if let Err(error) = self.store.write_changes(&self.name, changes) {
                self.write_failed = true;
                self.notice(with_causes(&error));
                return;
            }
            self.last_changes = Some(digest);
            // Contents of older checkpoints; should it fail, they only take room.
            let blobs = self.store.result_dir(&self.name).blobs();
            workspace::BlobDir::open(blobs)
                .and_then(|mut blobs| blobs.retain(&changes.contents()))
                .ok();
        }
        self.saved = Some(self.now());
        if counts.special_bits > 0 {
            self.pass_notices.push(format!(
                "set-user-id, set-group-id and sticky bits don't come out; files that have one: {}",
                counts.special_bits
            ));
        }
        self.update_head(|head| {
            head.saved = seconds();
            head.ignored = counts.ignored;
            head.refused_count = counts.left_out_count;
            // An attempt at a git directory is what a person has to see first.
            let mut refused: Vec<_> = counts.left_out.iter().collect();
            refused.sort_by_key(|refusal| refusal.reason != Reason::GitStore);
            head.refused = refused
                .into_iter()
                .map(|refusal| format!("{} ({})", refusal.path, reason(refusal.reason)))
                .collect();
        });
    }

    /// Changes the result's head, and takes the sentences so far along.
    fn update_head(&mut self, change: impl FnOnce(&mut ResultHead)) -> bool {
        let notices = [&self.notices[..], &self.pass_notices[..]].concat();
        let updated = self.store.update_result(&self.name, |head| {
            change(head);
            head.limits = notices;
        });
        match updated {
            Ok(_) => true,
            Err(error) => {
                self.write_failed = true;
                self.notice(with_causes(&error));
                false
            }
        }
    }

    /// The command runs again: the result is one in the making.
    pub(super) fn write_unfinished(&mut self) {
        self.update_head(|head| {
            head.ending = None;
            head.ended = 0;
            head.completeness = Completeness::Running;
        });
        if self.log.is_none() {
            self.open_log();
        }
    }

    fn tell_checkpoint(&mut self, complete: bool) {
        let note = if complete {
            Note::Saved
        } else {
            Note::Failed {
                message: match self.pass_notices.last().or(self.notices.last()) {
                    Some(why) => format!("The checkpoint failed: {why}"),
                    None => "The checkpoint failed".to_owned(),
                },
                hint: None,
            }
        };
        for waiter in self.take_waiters(Wants::Checkpoint) {
            self.note(waiter.client, waiter.stream, &note, true);
        }
    }

    /// The command is over.
    fn tell_main(&mut self, ending: &Ending) {
        let ending = self.with_console(ending);
        self.main_ended = Some(ending.clone());
        self.update_head(|head| {
            head.ending.get_or_insert_with(|| ending.clone());
        });
        let note = Note::Exited(end_of(&ending));
        let kept = self.record.spec.keep;
        if let Some(relay) = self.main.and_then(|main| self.relays.get_mut(&main)) {
            relay.told = true;
            relay.to_client.note(&note, 0);
            if kept {
                relay.to_client.close();
            }
        }
        for waiter in self.take_waiters(Wants::MainEnd) {
            self.note(waiter.client, waiter.stream, &note, true);
        }
    }

    /// A crash is told with what the console said last: often it says why.
    fn with_console(&self, ending: &Ending) -> Ending {
        let Ending::Crashed(why) = ending else {
            return ending.clone();
        };
        let mut text = why.clone();
        for (source, ring) in [("QEMU", &self.complaints), ("console", &self.console)] {
            let bytes = ring.bytes();
            let lines: Vec<&[u8]> = bytes
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.trim_ascii().is_empty())
                .collect();
            // A panic says its reason first, and then prints its stack.
            let last = lines.len().saturating_sub(CONSOLE_LINES);
            let panics = lines[..last]
                .iter()
                .rfind(|line| line.windows(PANIC.len()).any(|part| part == PANIC));
            for line in panics.into_iter().chain(&lines[last..]) {
                let line = base::escape_line(line.trim_ascii(), 200);
                text.extend(["\n  ", source, ": ", &line]);
            }
        }
        Ending::Crashed(text)
    }

    pub(super) fn log(&mut self, channel: u8, bytes: &[u8]) {
        let Some(log) = &mut self.log else {
            return;
        };
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Err(error) = log.write(channel, time, bytes) {
            self.log = None;
            self.notice(format!(
                "the log of the command's output ends early: {}",
                with_causes(&error)
            ));
        }
    }

    fn open_log(&mut self) {
        match OutputLog::open(&self.store.result_dir(&self.name).output()) {
            Ok(log) => self.log = Some(log),
            Err(error) => {
                self.notice(format!(
                    "there is no log of the command's output: {}",
                    with_causes(&error)
                ));
            }
        }
    }

    /// The end of everything.
    fn conclude(&mut self, conclusion: &Conclusion) {
        // A process that is still there at this point is stuck in the kernel; dropping it kills it again.
        self.machine = None;
        // Its files must not be written any more when the directory goes.
        self.end_snapshot(Err("the sandbox ended meanwhile".to_owned()));
        self.uses.clear();
        self.log = None;
        let ending = self
            .main_ended
            .clone()
            .unwrap_or_else(|| self.with_console(&conclusion.ending));
        let complete = conclusion.complete;
        let written = self.update_head(|head| {
            head.ending.get_or_insert_with(|| ending.clone());
            head.ended = seconds();
            head.completeness = match (complete, head.saved) {
                (true, _) => Completeness::Complete,
                (false, 0) => Completeness::Nothing,
                (false, _) => Completeness::Checkpoint,
            };
        });
        let mut outcome = if written {
            self.leave_directory(conclusion.keep)
        } else {
            // The directory stays: whoever sees it next heals the result, when there is room again.
            self.store.remove_socket(&self.name)
        };
        if !written {
            let sentence = self.notices.last().cloned().unwrap_or_default();
            outcome = outcome.and(Ok(()));
            self.failure = Some(RunError::Unsaved(sentence));
        }
        if let Err(error) = outcome {
            self.failure.get_or_insert(error.into());
        }
        self.listener = None;
        // From here on somebody else may start the sandbox anew or remove it; clients are told after that.
        self.lock = None;
        self.tell_conclusion(&ending);
    }

    fn leave_directory(&mut self, keep: bool) -> Result<(), StoreError> {
        if keep {
            self.record.state = State::Stopped;
            self.record.supervisor_pid = None;
            self.record.vmm_pid = None;
            self.store.update(&self.record)?;
            return self.store.remove_socket(&self.name);
        }
        match &self.lock {
            Some(lock) => self.store.remove(&self.name, lock),
            None => Ok(()),
        }
    }

    fn tell_conclusion(&mut self, ending: &Ending) {
        let saved = match &self.failure {
            None => Note::Saved,
            Some(error) => Note::Failed {
                message: with_causes(error),
                hint: None,
            },
        };
        self.concluded = Some((ending.clone(), saved.clone()));
        let ids: Vec<u64> = self.relays.keys().copied().collect();
        for id in ids {
            let Some(relay) = self.relays.get_mut(&id) else {
                continue;
            };
            relay.guest = None;
            let over = std::mem::replace(&mut relay.over, true);
            match relay.role {
                Role::Main if self.record.spec.keep => {}
                Role::Main => {
                    relay.to_client.note(&saved, 0);
                    relay.to_client.close();
                }
                _ if over => {}
                Role::Exec => {
                    if !relay.told {
                        let end = match end_of(ending) {
                            crashed @ End::Crashed(_) => crashed,
                            _ => End::Stopped,
                        };
                        relay.to_client.note(&Note::Exited(end), 0);
                    }
                    relay.to_client.close();
                }
                Role::Files => self.fail_relay(id, ENDING),
            }
        }
        for waiter in std::mem::take(&mut self.waiters) {
            let note = match waiter.wants {
                Wants::Ready => Note::Failed {
                    message: why_not(ending),
                    hint: None,
                },
                Wants::MainEnd => Note::Exited(end_of(ending)),
                Wants::Checkpoint | Wants::Conclusion => saved.clone(),
            };
            self.note(waiter.client, waiter.stream, &note, true);
        }
    }
}

fn seconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::GitStore => "a git directory",
        Reason::BadName => "not a file name",
        Reason::TooDeep => "too deep or too long",
        Reason::BadTarget => "a link without a usable target",
        Reason::Special => "a device, FIFO or socket",
        Reason::TooLarge => "too large",
        Reason::OverTotal => "over the limit of all files together",
        Reason::Unreadable => "could not be read",
        Reason::NoRoom => "no room on this computer",
    }
}
