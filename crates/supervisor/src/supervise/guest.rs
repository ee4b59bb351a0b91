//! The guest's side of the loop.

use super::{END_OF_PORT, PipeError, Supervisor, Use, drain};
use crate::control::{End, Note};
use crate::life::Event as LifeEvent;
use crate::relay::{FromGuest, Role, failure_sentence, session_message};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{SystemTime, UNIX_EPOCH};
use store::Ending;
use wire::message::{Exit, Reply, Request, Setup, User, decode, encode};
use wire::{Event, StreamId};

impl Supervisor<'_> {
    pub(super) fn read_guest(&mut self) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let read = machine.guest.read(&mut self.buffer);
        // What came before an error is still true, as far as anything of a guest is.
        while let Some(event) = self
            .machine
            .as_mut()
            .and_then(|machine| machine.guest.next_event())
        {
            self.guest_event(event);
        }
        self.guest_failed(read.map(drop));
        let now = self.now();
        if let Some(machine) = &mut self.machine
            && machine.guest.ended()
            && machine.port_ended.is_none()
        {
            machine.port_ended = Some(now + END_OF_PORT);
        }
    }

    pub(super) fn write_guest(&mut self) {
        if let Some(machine) = &mut self.machine {
            let written = machine.guest.write();
            self.guest_failed(written);
        }
    }

    fn guest_failed(&mut self, result: Result<(), PipeError>) {
        let Err(error) = result else {
            return;
        };
        let why = match error {
            PipeError::Protocol(error) => format!("the machine broke the protocol: {error}"),
            PipeError::Io(error) => format!("the machine's control port failed: {error}"),
        };
        // Nothing more is read from it.
        if let Some(machine) = &mut self.machine {
            machine.port_ended = Some(std::time::Duration::MAX);
        }
        self.step(LifeEvent::GuestBroke(why));
    }

    fn guest_event(&mut self, event: Event) {
        let id = match &event {
            Event::Hello => return self.set_up(),
            Event::Opened { id, .. }
            | Event::Message { id, .. }
            | Event::Data { id, .. }
            | Event::Finished { id, .. }
            | Event::Closed { id }
            | Event::Reset { id } => *id,
        };
        let now = self.now();
        if self.saver.owns(id) {
            if let Some(machine) = &mut self.machine {
                let outcomes = self.saver.event(now, &mut machine.guest.mux, event);
                self.step(LifeEvent::Progress);
                self.saved(outcomes);
            }
            return;
        }
        match self.uses.get(&id).copied() {
            Some(Use::Setup) => self.setup_event(id, &event),
            Some(Use::Hold) => self.hold_event(id, &event),
            Some(Use::EndSessions) => self.end_sessions_event(id, &event),
            Some(Use::SetClock) => self.set_clock_event(id, &event),
            Some(Use::Relay(relay)) => self.relay_event(relay, id, event),
            // A stream that was reset a moment ago.
            None => {}
        }
    }

    /// The guest is there: tell it who it is.
    fn set_up(&mut self) {
        let Some(seed) = seed() else {
            return self.step(LifeEvent::GuestBroke(NO_SEED.to_owned()));
        };
        let Some(machine) = &self.machine else {
            return;
        };
        let spec = &self.record.spec;
        let setup = Setup {
            hostname: self.name.as_str().as_bytes().to_vec(),
            user: User {
                name: spec.user.name.clone().into_bytes(),
                uid: spec.user.uid,
                gid: spec.user.gid,
                home: format!("/home/{}", spec.user.name).into_bytes(),
            },
            workspace: spec.workspace.as_os_str().as_bytes().to_vec(),
            clock_ns: clock_ns(),
            seed,
            timezone: self.timezone.clone().into_bytes(),
            give_back: machine.owns_memory,
            network: false,
        };
        self.open_in_guest(&Request::Setup(setup), Use::Setup);
    }

    /// Opens a stream in the guest.
    pub(super) fn open_in_guest(&mut self, request: &Request, what: Use) -> Option<StreamId> {
        self.open_encoded_in_guest(&encode(request), what)
    }

    pub(super) fn open_encoded_in_guest(&mut self, request: &[u8], what: Use) -> Option<StreamId> {
        let opened = self.machine.as_mut()?.guest.mux.open(request).ok()?;
        self.uses.insert(opened, what);
        Some(opened)
    }

    /// Ends a stream of ours that the guest has closed.
    pub(super) fn close_in_guest(&mut self, id: StreamId) {
        self.uses.remove(&id);
        if let Some(machine) = &mut self.machine {
            machine.guest.mux.close(id).ok();
        }
    }

    pub(super) fn consume(&mut self, id: StreamId, cost: usize) {
        if let Some(machine) = &mut self.machine {
            machine.guest.mux.consume(id, cost);
        }
    }

    fn setup_event(&mut self, id: StreamId, event: &Event) {
        match event {
            Event::Message { payload, cost, .. } => {
                self.consume(id, *cost);
                match decode(payload) {
                    Ok(Reply::Ready(_)) => self.is_up(LifeEvent::GuestReady),
                    Ok(Reply::Failed(failure)) => {
                        let sentence = failure_sentence(&failure);
                        self.step(LifeEvent::GuestBroke(format!(
                            "the machine could not be set up: {sentence}"
                        )));
                    }
                    _ => self.step(LifeEvent::GuestBroke(OUT_OF_ORDER.to_owned())),
                }
            }
            Event::Closed { .. } => self.close_in_guest(id),
            _ => self.step(LifeEvent::GuestBroke(OUT_OF_ORDER.to_owned())),
        }
    }

    /// The machine can be used from now on.
    pub(super) fn is_up(&mut self, event: LifeEvent) {
        self.boot_ms = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX);
        self.step(event);
        self.open_waiting_relays();
        self.tell_ready();
    }

    fn end_sessions_event(&mut self, id: StreamId, event: &Event) {
        match event {
            Event::Message { cost, .. } => {
                self.consume(id, *cost);
                // Done, or it could not be done: in both cases the work is brought out now.
                self.step(LifeEvent::SessionsEnded);
            }
            Event::Closed { .. } => {
                self.close_in_guest(id);
                self.step(LifeEvent::SessionsEnded);
            }
            Event::Data { cost, .. } => self.consume(id, *cost),
            Event::Reset { .. } => self.step(LifeEvent::SessionsEnded),
            Event::Hello | Event::Opened { .. } | Event::Finished { .. } => {}
        }
    }

    /// The host's clock has jumped.
    pub(super) fn set_guests_clock(&mut self) {
        if self.clock.jumped() {
            let clock_ns = clock_ns();
            self.open_in_guest(&Request::SetClock { clock_ns }, Use::SetClock);
        }
    }

    /// However it went: a machine with a wrong clock is no reason to end its work.
    fn set_clock_event(&mut self, id: StreamId, event: &Event) {
        match event {
            Event::Message { cost, .. } | Event::Data { cost, .. } => self.consume(id, *cost),
            Event::Closed { .. } | Event::Reset { .. } => self.close_in_guest(id),
            Event::Hello | Event::Opened { .. } | Event::Finished { .. } => {}
        }
    }

    fn relay_event(&mut self, relay_id: u64, id: StreamId, event: Event) {
        let Some(relay) = self.relays.get_mut(&relay_id) else {
            return self.close_in_guest(id);
        };
        match event {
            Event::Data {
                channel,
                payload,
                cost,
                ..
            } => {
                let role = relay.role;
                if relay.client.is_some() && !relay.detach {
                    if role == Role::Main {
                        self.log(channel, &payload);
                    }
                    if let Some(relay) = self.relays.get_mut(&relay_id) {
                        relay.to_client.data(channel, payload, cost);
                    }
                } else {
                    if role == Role::Main {
                        self.log(channel, &payload);
                    }
                    self.consume(id, cost);
                }
            }
            Event::Message { payload, cost, .. } if relay.role == Role::Files => {
                if relay.client.is_some() {
                    relay.to_client.note(&Note::Reply(payload), cost);
                } else {
                    self.consume(id, cost);
                }
            }
            Event::Message { payload, cost, .. } => {
                self.consume(id, cost);
                self.session_said(relay_id, session_message(&payload));
            }
            Event::Finished { channel, .. } => {
                if !relay.detach {
                    relay.to_client.finish(channel);
                }
            }
            Event::Closed { .. } | Event::Reset { .. } => {
                self.close_in_guest(id);
                self.session_over(relay_id);
            }
            Event::Hello | Event::Opened { .. } => {}
        }
    }

    fn session_said(&mut self, relay_id: u64, said: FromGuest) {
        let Some(relay) = self.relays.get_mut(&relay_id) else {
            return;
        };
        match (said, relay.role) {
            (FromGuest::Started, role) => {
                relay.to_client.note(&Note::Started, 0);
                if relay.detach {
                    relay.to_client.close();
                }
                if role == Role::Main {
                    self.step(LifeEvent::MainStarted);
                }
            }
            (FromGuest::Ended(end), Role::Main) => {
                relay.told = true;
                self.step(LifeEvent::MainEnded(ending_of(end)));
            }
            (FromGuest::Ended(end), _) => {
                relay.told = true;
                relay.to_client.note(&Note::Exited(end), 0);
            }
            (FromGuest::Nonsense, _) => {
                self.step(LifeEvent::GuestBroke(OUT_OF_ORDER.to_owned()));
            }
        }
    }

    /// The guest's side of a session is closed.
    fn session_over(&mut self, relay_id: u64) {
        let Some(relay) = self.relays.get_mut(&relay_id) else {
            return;
        };
        relay.guest = None;
        relay.over = true;
        let untold = !std::mem::replace(&mut relay.told, true);
        match relay.role {
            Role::Main => {
                if untold {
                    self.step(LifeEvent::MainEnded(Ending::Crashed(UNSAID.to_owned())));
                }
            }
            Role::Exec => {
                if untold {
                    let end = End::Crashed(UNSAID.to_owned());
                    relay.to_client.note(&Note::Exited(end), 0);
                }
                relay.to_client.close();
            }
            Role::Files => relay.to_client.close(),
        }
    }

    /// Hands the guest what was asked before it was up.
    fn open_waiting_relays(&mut self) {
        let ids: Vec<u64> = self.relays.keys().copied().collect();
        for id in ids {
            if self.main != Some(id) {
                self.open_relay(id);
            }
        }
    }

    /// Hands the guest one session's request.
    pub(super) fn open_relay(&mut self, id: u64) {
        let Some(relay) = self.relays.get_mut(&id) else {
            return;
        };
        let Some(request) = relay.request.take() else {
            return;
        };
        let role = relay.role;
        let opened = self.open_encoded_in_guest(&request, Use::Relay(id));
        if let Some(relay) = self.relays.get_mut(&id) {
            relay.guest = opened;
        }
        if opened.is_some() {
            let now = self.now();
            self.saver.schedule(now);
        } else if role == Role::Files {
            self.fail_relay(id, "Too much is being asked of the machine at once");
        } else {
            self.session_said(
                id,
                FromGuest::Ended(End::NotStarted(126, TOO_MANY.to_owned())),
            );
            self.session_over(id);
        }
    }

    pub(super) fn read_console(&mut self) {
        if let Some(machine) = &mut self.machine
            && let Some(fd) = &machine.console
            && !drain(fd, &mut self.console)
        {
            machine.console = None;
        }
    }

    pub(super) fn read_complaints(&mut self) {
        if let Some(machine) = &mut self.machine
            && let Some(fd) = &machine.complaints
            && !drain(fd, &mut self.complaints)
        {
            machine.complaints = None;
        }
    }

    pub(super) fn reap_monitor(&mut self) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let Some(how) = machine.process.reap() else {
            return;
        };
        // Its last words, and the guest's, came before its end.
        self.read_guest();
        self.read_console();
        self.read_complaints();
        self.machine = None;
        self.uses.clear();
        self.end_snapshot(Err("the machine ended meanwhile".to_owned()));
        self.step(LifeEvent::MonitorEnded(format!(
            "the machine is gone: {how}"
        )));
    }
}

/// Fresh random bytes for a guest.
pub(super) fn seed() -> Option<Vec<u8>> {
    let mut seed = vec![0; 64];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(seed)
}

/// The time for a guest.
pub(super) fn clock_ns() -> u64 {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn ending_of(end: End) -> Ending {
    match end {
        End::Exit(Exit::Code(code)) => Ending::Exited(code),
        End::Exit(Exit::Signal(signal)) => Ending::Signalled(signal),
        End::NotStarted(code, why) => Ending::NotStarted(code, why),
        End::TimedOut => Ending::TimedOut,
        End::Stopped => Ending::Stopped,
        End::Crashed(why) => Ending::Crashed(why),
    }
}

pub(super) fn end_of(ending: &Ending) -> End {
    match ending.clone() {
        Ending::Exited(code) => End::Exit(Exit::Code(code)),
        Ending::Signalled(signal) => End::Exit(Exit::Signal(signal)),
        Ending::NotStarted(code, why) => End::NotStarted(code, why),
        Ending::TimedOut => End::TimedOut,
        Ending::Stopped => End::Stopped,
        Ending::Crashed(why) => End::Crashed(why),
    }
}

pub(super) const NO_SEED: &str = "there are no random bytes for the machine";
pub(super) const OUT_OF_ORDER: &str = "the machine sent a message that does not belong there";
const UNSAID: &str = "the machine did not say how the command ended";
const TOO_MANY: &str = "Too many commands run in the machine at once";
