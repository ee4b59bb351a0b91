//! The clients' side of the loop.

use super::guest::end_of;
use super::{Client, MAX_CLIENTS, Relay, Supervisor, Waiter, Wants};
use crate::control::{Command, Note, Status};
use crate::error::RunError;
use crate::life::Event as LifeEvent;
use crate::pipe::Pipe;
use crate::relay::{Queue, Role, is_control};
use rustix::net::sockopt::socket_peercred;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use store::Ending;
use wire::message::{Request, decode, encode};
use wire::{Event, Side, StreamId};

impl Supervisor<'_> {
    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let Ok((stream, _)) = listener.accept() else {
            // Gone again, or no descriptors left at the moment: the next one may do better.
            return;
        };
        let us = rustix::process::geteuid();
        let ours = socket_peercred(&stream).is_ok_and(|peer| peer.uid == us || peer.uid.is_root());
        if ours && self.clients.len() < MAX_CLIENTS {
            // A socket that can't be set up is dropped, which its client notices.
            self.adopt(stream.into()).ok();
        }
    }

    pub(super) fn adopt(&mut self, stream: OwnedFd) -> Result<u64, RunError> {
        let pipe = Pipe::new(stream, Side::Answerer).map_err(|source| RunError::Io {
            what: "client's socket",
            source,
        })?;
        let id = self.new_id();
        let uses = HashMap::new();
        self.clients.insert(id, Client { pipe, uses });
        Ok(id)
    }

    pub(super) fn read_client(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let read = client.pipe.read(&mut self.buffer);
        while let Some(event) = self
            .clients
            .get_mut(&id)
            .and_then(|client| client.pipe.next_event())
        {
            self.client_event(id, event);
        }
        let ended = self
            .clients
            .get(&id)
            .is_none_or(|client| client.pipe.ended());
        if read.is_err() || ended {
            self.lose_client(id);
        }
    }

    pub(super) fn write_clients(&mut self) {
        let broken: Vec<u64> = self
            .clients
            .iter_mut()
            .filter_map(|(id, client)| client.pipe.write().is_err().then_some(*id))
            .collect();
        for id in broken {
            self.lose_client(id);
        }
    }

    fn lose_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.waiters.retain(|waiter| waiter.client != id);
        for relay in client.uses.into_values() {
            self.client_left_relay(relay);
        }
        if self.owner == Some(id) {
            self.owner = None;
            self.step(LifeEvent::ClientLost);
        }
    }

    /// Nobody listens to a session any more. The sandbox's own command goes on as far as that goes; others are
    /// hung up, as with ssh.
    pub(super) fn client_left_relay(&mut self, id: u64) {
        let Some(relay) = self.relays.get_mut(&id) else {
            return;
        };
        if let Some((client, stream)) = relay.client.take()
            && let Some(client) = self.clients.get_mut(&client)
        {
            client.uses.remove(&stream);
        }
        let owed = relay.to_client.clear();
        // What the client had sent is still for the command; its end is not known, so none is told.
        let guest = relay.guest;
        let hang_up = relay.role != Role::Main;
        if hang_up {
            relay.over = true;
            relay.request = None;
        }
        if let (Some(machine), Some(guest)) = (&mut self.machine, guest) {
            if hang_up {
                machine.guest.mux.reset(guest);
            } else {
                machine.guest.mux.consume(guest, owed);
            }
        }
        if hang_up {
            self.forget_relay(id);
        }
    }

    fn client_event(&mut self, client: u64, event: Event) {
        match event {
            // Closed: it sends nothing more, but answers still go to it.
            Event::Hello | Event::Closed { .. } => {}
            Event::Opened { id, payload } => match decode(&payload) {
                Ok(command) => self.command(client, id, command),
                Err(error) => self.refuse(client, id, &error.to_string(), None),
            },
            Event::Message { id, payload, cost } => match self.relay_of(client, id) {
                Some(relay) if relay.role != Role::Files && is_control(&payload) => {
                    relay.to_guest.message(payload, cost);
                }
                _ => self.pay(client, id, cost),
            },
            Event::Data {
                id,
                channel,
                payload,
                cost,
            } => match self.relay_of(client, id) {
                Some(relay) if channel == 0 && !relay.over => {
                    relay.to_guest.data(channel, payload, cost);
                }
                _ => self.pay(client, id, cost),
            },
            Event::Finished { id, channel } => {
                if let Some(relay) = self.relay_of(client, id)
                    && channel == 0
                    && !relay.over
                {
                    relay.to_guest.finish(channel);
                }
            }
            Event::Reset { id } => {
                self.waiters
                    .retain(|waiter| (waiter.client, waiter.stream) != (client, id));
                let relay = self
                    .clients
                    .get_mut(&client)
                    .and_then(|client| client.uses.remove(&id));
                if let Some(relay) = relay {
                    self.client_left_relay(relay);
                    if self.main == Some(relay) && self.owner == Some(client) {
                        self.owner = None;
                        self.step(LifeEvent::ClientLost);
                    }
                }
            }
        }
    }

    fn relay_of(&mut self, client: u64, stream: StreamId) -> Option<&mut Relay> {
        let relay = self.clients.get(&client)?.uses.get(&stream)?;
        self.relays.get_mut(relay)
    }

    fn pay(&mut self, client: u64, stream: StreamId, cost: usize) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.pipe.mux.consume(stream, cost);
        }
    }

    pub(super) fn refuse(
        &mut self,
        client: u64,
        stream: StreamId,
        message: &str,
        hint: Option<&str>,
    ) {
        let note = Note::Failed {
            message: message.to_owned(),
            hint: hint.map(str::to_owned),
        };
        self.note(client, stream, &note, true);
    }

    fn command(&mut self, client: u64, stream: StreamId, command: Command) {
        if self.owner == Some(client) {
            self.owner_is_silent = false;
        }
        if let Some((ending, saved)) = self.concluded.clone() {
            return self.answer_late(client, stream, &command, &ending, &saved);
        }
        match command {
            Command::Run { exec, detach } => {
                if !self.life.awaits_main() {
                    let message = "This sandbox's command was started before, or it is ending";
                    return self.refuse(client, stream, message, Some("efimera exec NAME COMMAND"));
                }
                let request = encode(&Request::Exec(exec));
                let id = self.add_relay(Role::Main, client, stream, request, detach);
                self.main = Some(id);
                self.owner = Some(client);
                self.step(LifeEvent::Asked);
            }
            Command::Exec(exec) => {
                let request = encode(&Request::Exec(exec));
                self.ask_guest(Role::Exec, client, stream, request);
            }
            Command::Files(
                request @ (Request::List { .. }
                | Request::Read { .. }
                | Request::Write { .. }
                | Request::Spin { .. }),
            ) => {
                self.ask_guest(Role::Files, client, stream, encode(&request));
            }
            Command::Files(_) => {
                self.refuse(client, stream, "This is not a request for files", None);
            }
            Command::Wait => match &self.main_ended {
                Some(ending) => {
                    let note = Note::Exited(end_of(ending));
                    self.note(client, stream, &note, true);
                }
                None => self.wait_for(client, stream, Wants::MainEnd),
            },
            Command::Checkpoint => self.checkpoint(client, stream),
            Command::Stop { grace_ms, remove } => {
                self.wait_for(client, stream, Wants::Conclusion);
                self.step(LifeEvent::Stop { grace_ms, remove });
            }
            Command::Snapshot(label) => self.begin_snapshot(client, stream, label),
            Command::Restore(label) => self.restore(client, stream, &label),
            Command::Status => {
                let note = Note::Status(self.status());
                self.note(client, stream, &note, true);
            }
            Command::Ready if self.life.is_up() => {
                self.note(client, stream, &Note::Started, true);
            }
            Command::Ready if self.life.is_coming_up() => {
                self.note(client, stream, &Note::Booting, false);
                self.wait_for(client, stream, Wants::Ready);
            }
            Command::Ready => self.refuse(client, stream, ENDING, None),
        }
    }

    /// Answers a request that comes after the end.
    fn answer_late(
        &mut self,
        client: u64,
        stream: StreamId,
        command: &Command,
        ending: &Ending,
        saved: &Note,
    ) {
        let exited = Note::Exited(end_of(ending));
        match command {
            Command::Run { .. } => {
                self.note(client, stream, &exited, false);
                self.note(client, stream, saved, true);
            }
            Command::Wait => self.note(client, stream, &exited, true),
            Command::Stop { .. } | Command::Checkpoint => self.note(client, stream, saved, true),
            Command::Exec(_)
            | Command::Files(_)
            | Command::Status
            | Command::Snapshot(_)
            | Command::Restore(_)
            | Command::Ready => {
                self.refuse(client, stream, &why_not(ending), None);
            }
        }
    }

    fn wait_for(&mut self, client: u64, stream: StreamId, wants: Wants) {
        self.waiters.push(Waiter {
            client,
            stream,
            wants,
        });
    }

    fn add_relay(
        &mut self,
        role: Role,
        client: u64,
        stream: StreamId,
        request: Vec<u8>,
        detach: bool,
    ) -> u64 {
        let id = self.new_id();
        let mut to_client = Queue::default();
        if !self.life.is_up() {
            to_client.note(&Note::Booting, 0);
        }
        self.relays.insert(
            id,
            Relay {
                role,
                client: Some((client, stream)),
                guest: None,
                request: Some(request),
                to_client,
                to_guest: Queue::default(),
                detach,
                told: false,
                over: false,
            },
        );
        if let Some(client) = self.clients.get_mut(&client) {
            client.uses.insert(stream, id);
        }
        id
    }

    fn ask_guest(&mut self, role: Role, client: u64, stream: StreamId, request: Vec<u8>) {
        let up = self.life.is_up();
        if !up && !self.life.is_coming_up() {
            return self.refuse(client, stream, ENDING, None);
        }
        let id = self.add_relay(role, client, stream, request, false);
        if up {
            self.open_relay(id);
        }
    }

    fn checkpoint(&mut self, client: u64, stream: StreamId) {
        if self.life.is_coming_up() {
            // Nothing ran, so nothing changed.
            return self.note(client, stream, &Note::Saved, true);
        }
        if !self.life.is_up() {
            return self.wait_for(client, stream, Wants::Conclusion);
        }
        self.wait_for(client, stream, Wants::Checkpoint);
        self.take_checkpoint();
    }

    /// Ends a request for files with a sentence.
    pub(super) fn fail_relay(&mut self, id: u64, message: &str) {
        if let Some(relay) = self.relays.get_mut(&id) {
            relay.over = true;
            relay.told = true;
            let note = Note::Failed {
                message: message.to_owned(),
                hint: None,
            };
            relay.to_client.note(&note, 0);
            relay.to_client.close();
        }
    }

    pub(super) fn tell_ready(&mut self) {
        for waiter in self.take_waiters(Wants::Ready) {
            self.note(waiter.client, waiter.stream, &Note::Started, true);
        }
    }

    pub(super) fn take_waiters(&mut self, wants: Wants) -> Vec<Waiter> {
        let (taken, left) = self
            .waiters
            .drain(..)
            .partition(|waiter| waiter.wants == wants);
        self.waiters = left;
        taken
    }

    fn status(&self) -> Status {
        let sessions = self
            .relays
            .values()
            .filter(|relay| relay.role != Role::Files && relay.guest.is_some());
        let console = self.console.bytes();
        let tail = console.len().saturating_sub(STATUS_CONSOLE);
        Status {
            vmm_pid: self.record.vmm_pid,
            boot_ms: self.boot_ms,
            clients: u32::try_from(self.clients.len()).unwrap_or(u32::MAX),
            sessions: u32::try_from(sessions.count()).unwrap_or(u32::MAX),
            checkpoint_age: self
                .saved
                .map(|saved| self.now().saturating_sub(saved).as_secs()),
            console: console[tail..].to_vec(),
        }
    }
}

/// Why a machine can't be asked any more.
pub(super) fn why_not(ending: &Ending) -> String {
    match ending {
        Ending::Crashed(why) => format!("The machine is gone: {why}"),
        _ => ENDING.to_owned(),
    }
}

pub(super) const ENDING: &str = "The machine is ending";
/// A status has to fit one frame.
const STATUS_CONSOLE: usize = 16 * 1024;
