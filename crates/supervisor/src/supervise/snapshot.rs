//! Freezing the machine with all that runs in it, and putting a frozen one in its place.
//!
//! ```text
//!  client          supervisor                    guest                 QEMU
//!  Snapshot ─────▶ Hold ───────────────────────▶ says nothing more
//!                  what the streams are ◀─ Held ─┘
//!                  thread: ──────────────────────────────────────────▶ stop, save, copy, go on
//!  Saved ◀──────── Wake ───────────────────────▶ time, random keys
//! ```
//!
//! Both directions of the guest's port are empty when the machine is frozen, so that the streams can be written down
//! ([`wire::AtRest`]), and whoever resumes the machine takes them up where they were. While this goes on the loop
//! takes nothing new: what clients ask waits in their sockets, for as long as the machine stands still anyway.

use super::guest::{NO_SEED, OUT_OF_ORDER, clock_ns, seed};
use super::{Relay, Supervisor, Use};
use crate::Resume;
use crate::control::{End, Note};
use crate::life::Event as LifeEvent;
use crate::relay::{Queue, Role, failure_sentence};
use crate::vmm::{LaunchError, Memory};
use crate::with_causes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;
use store::{Label, NewSnapshot};
use wire::message::{Reply, Request, Wake, decode, encode};
use wire::{AtRest, Event, StreamId};

/// A snapshot on its way.
#[derive(Debug)]
pub(super) struct Snapshotting {
    client: (u64, StreamId),
    new: NewSnapshot,
    hold: StreamId,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The guest was asked to hold still, until then.
    Asked(Duration),
    /// A thread copies; the socket ends with it.
    Copying {
        ends: UnixStream,
        thread: JoinHandle<Result<(), LaunchError>>,
    },
}

/// `streams.json`: the host's end of the guest's connection, and what its streams are for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Streams {
    /// Of the supervisor whose relays these are.
    era: u64,
    rest: AtRest,
    hold: u32,
    /// By stream.
    relays: BTreeMap<u32, Known>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    relay: u64,
    role: Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kept {
    Main,
    Exec,
    Files,
}

/// A guest finishes what it is at first, which under an emulator on a loaded host takes a while.
const HOLD: Duration = Duration::from_secs(20);

/// A number that no other supervisor has.
pub(super) fn era() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes no machine starts; this is only read by one that did.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
    u64::from_le_bytes(bytes)
}

impl Snapshotting {
    /// Readable once the copy is there, or has failed.
    pub(super) fn copied_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Asked(_) => None,
            Stage::Copying { ends, .. } => Some(ends.as_fd()),
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Asked(until) => Some(until),
            Stage::Copying { .. } => None,
        }
    }
}

impl Supervisor<'_> {
    pub(super) fn begin_snapshot(&mut self, client: u64, stream: StreamId, label: Label) {
        let begun = self.try_begin_snapshot((client, stream), label);
        if let Err((message, hint)) = begun {
            self.refuse(client, stream, &message, hint.as_deref());
        }
    }

    fn try_begin_snapshot(
        &mut self,
        client: (u64, StreamId),
        label: Label,
    ) -> Result<(), (String, Option<String>)> {
        if !self.life.is_up() {
            return Err(("The machine is starting or ending".to_owned(), None));
        }
        let runs = self.main.is_some() && self.main_ended.is_none();
        if !runs && !self.record.spec.keep {
            let message = "The sandbox's command doesn't run yet".to_owned();
            return Err((message, None));
        }
        let new = match self.store.new_snapshot(&self.name, label) {
            Err(error @ store::StoreError::LabelTaken(..)) => {
                let hint = format!("`efimera snapshot rm {}:LABEL` removes it", self.name);
                return Err((with_causes(&error), Some(hint)));
            }
            other => other.map_err(|error| (with_causes(&error), None))?,
        };
        let now = self.now();
        let gone = || ("The machine is gone".to_owned(), None);
        let machine = self.machine.as_mut().ok_or_else(gone)?;
        // Its streams would be in the snapshot, with nobody to take them up.
        self.saver.abort(&mut machine.guest.mux);
        let hold = machine.guest.mux.hold(&encode(&Request::Hold));
        let hold = hold.map_err(|error| (with_causes(&error), None))?;
        self.uses.insert(hold, Use::Hold);
        self.snapshotting = Some(Snapshotting {
            client,
            new,
            hold,
            stage: Stage::Asked(now + HOLD),
        });
        Ok(())
    }

    /// What the guest says on the stream by which it was asked to hold still, or goes on.
    pub(super) fn hold_event(&mut self, id: StreamId, event: &Event) {
        let payload = match event {
            Event::Message { payload, cost, .. } => {
                self.consume(id, *cost);
                payload
            }
            Event::Closed { .. } | Event::Reset { .. } => return self.close_in_guest(id),
            _ => return self.step(LifeEvent::GuestBroke(OUT_OF_ORDER.to_owned())),
        };
        match decode(payload) {
            Ok(Reply::Held) => {
                if let Err(why) = self.copy() {
                    self.end_snapshot(Err(why));
                }
            }
            Ok(Reply::Done) => {
                if self.life.is_coming_up() {
                    let running = self.main.is_some();
                    self.is_up(LifeEvent::Resumed { running });
                }
            }
            // A clone must not go on as its original.
            Ok(Reply::Failed(failure)) if self.life.is_coming_up() => {
                let sentence = failure_sentence(&failure);
                let why = format!("the machine could not be set up: {sentence}");
                self.step(LifeEvent::GuestBroke(why));
            }
            Ok(Reply::Failed(failure)) if self.snapshotting.is_some() => {
                let why = failure_sentence(&failure);
                self.end_snapshot(Err(why));
            }
            Ok(Reply::Failed(failure)) => {
                let sentence = failure_sentence(&failure);
                let why = format!("the machine can't go on: {sentence}");
                self.step(LifeEvent::GuestBroke(why));
            }
            _ => self.step(LifeEvent::GuestBroke(OUT_OF_ORDER.to_owned())),
        }
    }

    /// The guest holds still: writes down what its streams are for, and has a thread copy.
    fn copy(&mut self) -> Result<(), String> {
        let Some(snapshotting) = &mut self.snapshotting else {
            return Ok(());
        };
        if !matches!(snapshotting.stage, Stage::Asked(_)) {
            return Err(OUT_OF_ORDER.to_owned());
        }
        let machine = self.machine.as_ref().ok_or("the machine is gone")?;
        let rest = machine.guest.mux.at_rest();
        let rest = rest.ok_or("the machine doesn't hold still")?;
        let mut freezer = machine
            .process
            .freezer()
            .ok_or("this machine can't be frozen")?;
        let streams = Streams {
            era: self.era,
            rest,
            hold: snapshotting.hold.0,
            relays: known(&self.relays),
        };
        let directory = snapshotting.new.path().to_path_buf();
        let bytes = serde_json::to_vec(&streams).map_err(|error| error.to_string())?;
        fs_err::write(directory.join(STREAMS), bytes).map_err(|error| error.to_string())?;
        let (ends, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        let thread = std::thread::Builder::new()
            .name("freeze".to_owned())
            .spawn(move || {
                let frozen = freezer.freeze(&directory);
                drop(theirs);
                frozen
            })
            .map_err(|error| error.to_string())?;
        snapshotting.stage = Stage::Copying { ends, thread };
        Ok(())
    }

    /// The thread has ended.
    pub(super) fn copied(&mut self) {
        self.end_snapshot(Ok(()));
    }

    pub(super) fn watch_snapshot(&mut self) {
        let deadline = self.snapshotting.as_ref().and_then(Snapshotting::deadline);
        if deadline.is_some_and(|deadline| deadline <= self.now()) {
            self.end_snapshot(Err("the machine doesn't answer".to_owned()));
        }
    }

    /// Has the guest go on, and answers the client.
    pub(super) fn end_snapshot(&mut self, outcome: Result<(), String>) {
        let Some(snapshotting) = self.snapshotting.take() else {
            return;
        };
        let Snapshotting {
            client: (client, stream),
            new,
            hold,
            stage,
        } = snapshotting;
        let copied = match stage {
            Stage::Asked(_) => outcome,
            Stage::Copying { thread, .. } => match thread.join() {
                Ok(frozen) => outcome.and(frozen.map_err(|error| error.0)),
                Err(_) => Err("the thread that copies it has failed".to_owned()),
            },
        };
        self.wake_guest(hold, None);
        let runs = self.main.is_some() && self.main_ended.is_none();
        let created = i64::try_from(clock_ns()).unwrap_or(i64::MAX);
        let finished = copied.and_then(|()| {
            new.finish(created, runs)
                .map_err(|error| with_causes(&error))
        });
        match finished {
            Ok(_) => self.note(client, stream, &Note::Saved, true),
            Err(why) => {
                let message = format!("The snapshot failed: {why}");
                let hint = "the machine goes on; older snapshots are as they were";
                self.refuse(client, stream, &message, Some(hint));
            }
        }
        // One that was given up for this.
        if self
            .waiters
            .iter()
            .any(|waiter| waiter.wants == super::Wants::Checkpoint)
        {
            self.take_checkpoint();
        }
    }

    fn wake_guest(&mut self, hold: StreamId, hostname: Option<Vec<u8>>) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let Some(seed) = seed() else {
            return self.step(LifeEvent::GuestBroke(NO_SEED.to_owned()));
        };
        let wake = Wake {
            clock_ns: clock_ns(),
            seed,
            hostname,
            give_back: machine.owns_memory,
        };
        // A stream that is gone was thrown away by a guest that lies; it won't be heard of again.
        machine.guest.mux.release(hold, &encode(&wake)).ok();
    }

    /// Starts the first machine from a snapshot.
    pub(super) fn resume_first(&mut self, resume: &Resume) -> Result<(), String> {
        let memory = if resume.fork {
            Memory::Shared
        } else {
            Memory::Own
        };
        let hostname = resume.fork.then(|| self.name.as_str().as_bytes().to_vec());
        self.resume(&resume.directory, memory, hostname)?;
        if self.main.is_some() {
            self.reopen();
        }
        Ok(())
    }

    /// Puts a frozen machine in the place of the one that runs, which goes on if that can't be done.
    pub(super) fn restore(&mut self, client: u64, stream: StreamId, label: &Label) {
        if !self.life.is_up() {
            let message = "The machine is starting or ending";
            return self.refuse(client, stream, message, None);
        }
        let found = self.store.snapshot(&self.name, label);
        let message = match found {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!(
                "The sandbox `{}` has no snapshot `{label}`",
                self.name
            )),
            Err(error) => Some(with_causes(&error)),
        };
        if let Some(message) = message {
            let hint = format!("`efimera snapshot ls {}` lists them", self.name);
            return self.refuse(client, stream, &message, Some(&hint));
        }
        let directory = self.store.snapshot_dir(&self.name, label);
        match self.resume(&directory, Memory::Own, None) {
            Ok(()) => {
                let running = self.main.is_some();
                self.write_record();
                self.step(LifeEvent::Resumed { running });
                if running {
                    self.reopen();
                }
                self.note(client, stream, &Note::Saved, true);
            }
            Err(why) => {
                let message = format!("`{label}` can't be restored: {why}");
                let hint = "the machine that runs goes on; `efimera stop` and `efimera start` boot it anew from its disk";
                self.refuse(client, stream, &message, Some(hint));
            }
        }
    }

    /// The command runs (again), so the result is an unfinished one.
    fn reopen(&mut self) {
        self.main_ended = None;
        self.write_unfinished();
    }

    fn resume(
        &mut self,
        directory: &Path,
        memory: Memory,
        hostname: Option<Vec<u8>>,
    ) -> Result<(), String> {
        let streams = read_streams(directory)?;
        let new = self.new_scratch()?;
        let launched = self
            .launcher
            .resume(&self.record.spec, directory, memory, &new.file)
            .map_err(|error| error.0)?;
        let machine = self.take_machine(launched, Some(streams.rest))?;
        // Only now: the new one stands, and nothing can keep it from going on.
        self.machine = None;
        new.finish()?;
        self.machine = Some(machine);
        self.saver.forget();
        self.last_changes = None;
        self.uses.clear();
        let hold = StreamId(streams.hold);
        self.uses.insert(hold, Use::Hold);
        let known = (streams.era == self.era).then_some(&streams.relays);
        self.drop_relays(known);
        self.main = None;
        self.wake_guest(hold, hostname);
        for (stream, found) in streams.relays {
            self.take_up(StreamId(stream), &found);
        }
        let now = self.now();
        self.saver.schedule(now);
        Ok(())
    }

    /// Ends all sessions but those that the other machine has, too.
    fn drop_relays(&mut self, known: Option<&BTreeMap<u32, Known>>) {
        let stays = |id: u64, relay: &Relay| {
            let found = relay.guest.and_then(|guest| known?.get(&guest.0));
            relay.request.is_some()
                || found.is_some_and(|found| found.relay == id && found.role != Kept::Files)
        };
        let dropped: Vec<u64> = self
            .relays
            .iter()
            .filter(|(id, relay)| !stays(**id, relay))
            .map(|(id, _)| *id)
            .collect();
        for id in dropped {
            let Some(relay) = self.relays.get_mut(&id) else {
                continue;
            };
            relay.guest = None;
            if std::mem::replace(&mut relay.over, true) {
                continue;
            }
            if relay.role == Role::Files {
                self.fail_relay(id, "The sandbox was restored");
                continue;
            }
            if !std::mem::replace(&mut relay.told, true) {
                relay.to_client.note(&Note::Exited(End::Stopped), 0);
            }
            relay.to_client.close();
        }
    }

    /// Carries on a session of the machine that goes on: with its client, if that is here.
    fn take_up(&mut self, stream: StreamId, known: &Known) {
        let role = match known.role {
            Kept::Main => Role::Main,
            Kept::Exec => Role::Exec,
            Kept::Files => {
                if let Some(machine) = &mut self.machine {
                    machine.guest.mux.reset(stream);
                }
                return;
            }
        };
        let here = self
            .relays
            .get(&known.relay)
            .is_some_and(|relay| relay.guest == Some(stream));
        let id = if here { known.relay } else { self.new_id() };
        if !here {
            let relay = Relay {
                role,
                client: None,
                guest: Some(stream),
                request: None,
                to_client: Queue::default(),
                to_guest: Queue::default(),
                detach: true,
                told: false,
                over: false,
            };
            self.relays.insert(id, relay);
        }
        self.uses.insert(stream, Use::Relay(id));
        if role == Role::Main {
            self.main = Some(id);
        }
    }
}

/// What the streams of the guest are for.
fn known(relays: &BTreeMap<u64, Relay>) -> BTreeMap<u32, Known> {
    let known = relays.iter().filter_map(|(id, relay)| {
        let role = match relay.role {
            Role::Main => Kept::Main,
            Role::Exec => Kept::Exec,
            Role::Files => Kept::Files,
        };
        Some((relay.guest?.0, Known { relay: *id, role }))
    });
    known.collect()
}

fn read_streams(directory: &Path) -> Result<Streams, String> {
    let path = directory.join(STREAMS);
    fs_err::read(&path)
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other))
        .map_err(|error| with_causes(&error))
}

const STREAMS: &str = "streams.json";
