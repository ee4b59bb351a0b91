//! The loop: one thread, one `poll`, one owner of all state. What to do is decided by [`crate::life`]; here it is
//! done.
//!
//! ```text
//!  clients ◀─ Pipe, Relay ─▶ ┌──────────┐ ◀─ Pipe, Saver ─▶ guest (through QEMU's control port)
//!  SIGTERM ────────────────▶ │   loop   │ ◀─ console, complaints, end of the process ── QEMU
//!                            └──────────┘ ──▶ record, result, output log
//! ```
//!
//! It never blocks on a client, the guest or QEMU: descriptors don't block, queues are bounded by credit, and
//! every wait has a deadline. What blocks is writing to the disk.

mod actions;
mod clients;
mod guest;
mod scratch;
mod snapshot;
#[cfg(test)]
mod tests;
use self::snapshot::Snapshotting;
use crate::clock::ClockWatch;
use crate::control::Note;
use crate::error::RunError;
use crate::given::Given;
use crate::life::{Event as LifeEvent, Life, Rules};
use crate::pipe::{Pipe, PipeError};
use crate::relay::{Pushed, Queue, Role};
use crate::saver::Saver;
use crate::vmm::{Launched, Launcher, Process};
use crate::{Resume, Start};
use base::{Digest, Name};
use machine::Console;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use store::{Ending, Lock, OutputLog, Record, State, Store};
use wire::{AtRest, Side, StreamId};

/// Clients at the same time.
const MAX_CLIENTS: usize = 64;
/// Hardware-backed guests are up in a second or two.
const BOOT_HARDWARE: Duration = Duration::from_secs(30);
/// Emulated ones in five, on an idle computer.
const BOOT_EMULATED: Duration = Duration::from_mins(3);
/// QEMU closes its sockets a moment before it ends; longer means that it lives on without its guest's port.
const END_OF_PORT: Duration = Duration::from_secs(2);
/// A client that takes nothing for so long at the end is left.
const FAREWELL: Duration = Duration::from_mins(5);
/// A first client asks at once.
const SILENCE: Duration = Duration::from_secs(10);
/// What a person should know of one run: so many sentences, all different.
const MAX_NOTICES: usize = 16;

/// Something that the loop woke up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Terminate,
    Accept,
    Guest,
    Console,
    Complaints,
    MonitorEnded,
    Copied,
    ClockJumped,
    Client(u64),
}

/// See the module.
pub(crate) struct Supervisor<'a> {
    store: Store,
    name: Name,
    lock: Option<Lock>,
    record: Record,
    timezone: String,
    launcher: &'a mut dyn Launcher,
    terminate: Option<BorrowedFd<'a>>,
    started: Instant,
    clock: ClockWatch,
    life: Life,
    listener: Option<UnixListener>,
    machine: Option<Machine>,
    /// What the guest's streams are for.
    uses: HashMap<StreamId, Use>,
    console: Console,
    complaints: Console,
    clients: BTreeMap<u64, Client>,
    next_id: u64,
    relays: BTreeMap<u64, Relay>,
    /// The relay of the sandbox's own command.
    main: Option<u64>,
    main_ended: Option<Ending>,
    /// The client whose loss matters: the one that gave the command, or is about to.
    owner: Option<u64>,
    /// The first client has not said yet what it wants.
    owner_is_silent: bool,
    /// What is told to whoever asks after the end: how it ended, and whether all is saved.
    concluded: Option<(Ending, Note)>,
    waiters: Vec<Waiter>,
    saver: Saver,
    snapshotting: Option<Snapshotting>,
    /// Where the first machine goes on from.
    resume: Option<Resume>,
    /// Tells this supervisor's relays from those of another one before it.
    era: u64,
    last_changes: Option<Digest>,
    log: Option<OutputLog>,
    boot_ms: u64,
    saved: Option<Duration>,
    write_failed: bool,
    notices: Vec<String>,
    /// As `notices`, of the last pass alone: the next one may do better.
    pass_notices: Vec<String>,
    buffer: Vec<u8>,
    failure: Option<RunError>,
}

/// The machine while its process lives.
#[derive(Debug)]
struct Machine {
    guest: Pipe,
    process: Box<dyn Process>,
    owns_memory: bool,
    console: Option<OwnedFd>,
    complaints: Option<OwnedFd>,
    /// The guest's end was closed: until when the process may go on.
    port_ended: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Setup,
    Hold,
    EndSessions,
    SetClock,
    Relay(u64),
}

#[derive(Debug)]
struct Client {
    pipe: Pipe,
    uses: HashMap<StreamId, u64>,
}

/// One session or request of a client in the guest.
#[derive(Debug)]
struct Relay {
    role: Role,
    client: Option<(u64, StreamId)>,
    guest: Option<StreamId>,
    /// The encoded request, until the guest has it.
    request: Option<Vec<u8>>,
    to_client: Queue,
    to_guest: Queue,
    /// The client is to hear nothing after the start (`-d`).
    detach: bool,
    /// How the command ended was said.
    told: bool,
    /// Nothing more comes from the guest.
    over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Ready,
    MainEnd,
    Checkpoint,
    Conclusion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiter {
    client: u64,
    stream: StreamId,
    wants: Wants,
}

impl std::fmt::Debug for Supervisor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("name", &self.name)
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

/// Takes over a sandbox, and returns at its end.
pub(crate) fn supervise(
    start: Start,
    given: Given,
    launcher: &mut dyn Launcher,
    terminate: Option<BorrowedFd<'_>>,
) -> Result<(), RunError> {
    let mut supervisor = Supervisor::new(start, given, launcher, terminate)?;
    supervisor.launch();
    while !supervisor.life.is_done() {
        supervisor.turn()?;
    }
    supervisor.farewell()
}

impl<'a> Supervisor<'a> {
    fn new(
        start: Start,
        given: Given,
        launcher: &'a mut dyn Launcher,
        terminate: Option<BorrowedFd<'a>>,
    ) -> Result<Self, RunError> {
        let Start {
            store,
            name,
            lock,
            first_client,
            timezone,
            resume,
        } = start;
        let mut record = store.record(&name)?;
        let again = record.state != State::Created || resume.is_some();
        record.state = State::Booting;
        record.supervisor_pid = Some(std::process::id());
        record.vmm_pid = None;
        store.update(&record)?;
        store.ensure_result(&record.spec)?;
        let listener = store::bind(&store.socket_path(&name))?;
        listener
            .set_nonblocking(true)
            .map_err(|source| RunError::Io {
                what: "socket",
                source,
            })?;
        let spec = &record.spec;
        let rules = Rules {
            keep: spec.keep,
            tty: spec.tty,
            detached: spec.detached,
            linger: Duration::from_secs(spec.linger),
            timeout: (spec.timeout > 0).then(|| Duration::from_secs(spec.timeout)),
            again,
            boot: if spec.accel == "kvm" {
                BOOT_HARDWARE
            } else {
                BOOT_EMULATED
            },
        };
        let commits = store.result_dir(&name).commits();
        let mut supervisor = Self {
            saver: Saver::new(given, commits),
            life: Life::new(rules),
            store,
            name,
            lock: Some(lock),
            record,
            timezone,
            launcher,
            terminate,
            started: Instant::now(),
            clock: ClockWatch::new().map_err(|source| RunError::Io {
                what: "clock",
                source,
            })?,
            listener: Some(listener),
            machine: None,
            uses: HashMap::new(),
            console: Console::new(),
            complaints: Console::new(),
            clients: BTreeMap::new(),
            next_id: 1,
            relays: BTreeMap::new(),
            main: None,
            main_ended: None,
            owner: None,
            owner_is_silent: false,
            concluded: None,
            waiters: Vec::new(),
            snapshotting: None,
            resume,
            era: snapshot::era(),
            last_changes: None,
            log: None,
            boot_ms: 0,
            saved: None,
            write_failed: false,
            notices: Vec::new(),
            pass_notices: Vec::new(),
            buffer: Vec::new(),
            failure: None,
        };
        supervisor.store.update_result(&supervisor.name, |head| {
            head.completeness = store::Completeness::Running;
        })?;
        if let Some(stream) = first_client {
            let id = supervisor.adopt(stream.into())?;
            supervisor.owner = Some(id);
            supervisor.owner_is_silent = true;
        }
        Ok(supervisor)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Starts the machine.
    fn launch(&mut self) {
        let launched = match self.resume.take() {
            Some(resume) => self.resume_first(&resume),
            None => self.start_machine(),
        };
        match launched {
            Ok(()) => {
                self.write_record();
                self.step(LifeEvent::Launched);
            }
            Err(why) => self.step(LifeEvent::LaunchFailed(why)),
        }
    }

    fn start_machine(&mut self) -> Result<(), String> {
        let scratch = self.open_scratch()?;
        let launched = self.launcher.launch(&self.record.spec, scratch);
        let launched = launched.map_err(|error| error.to_string())?;
        self.machine = Some(self.take_machine(launched, None)?);
        Ok(())
    }

    /// A machine that was started, or goes on in the middle of a connection.
    fn take_machine(
        &mut self,
        launched: Launched,
        rest: Option<AtRest>,
    ) -> Result<Machine, String> {
        let guest = match rest {
            None => Pipe::new(launched.control, Side::Opener),
            Some(rest) => Pipe::resumed(launched.control, rest),
        };
        let guest = guest.map_err(|error| error.to_string())?;
        self.record.vmm_pid = launched.process.pid();
        if let Some(notice) = launched.notice {
            self.notice(notice);
        }
        self.record.jail = launched.jail;
        self.record.jail_missing = launched.jail_missing;
        let mut quiet = |fd: OwnedFd| {
            rustix::io::ioctl_fionbio(&fd, true).map_err(|error| error.to_string())?;
            Ok::<_, String>(fd)
        };
        Ok(Machine {
            guest,
            console: launched.console.map(&mut quiet).transpose()?,
            complaints: launched.complaints.map(&mut quiet).transpose()?,
            process: launched.process,
            owns_memory: launched.owns_memory,
            port_ended: None,
        })
    }

    /// One turn of the loop.
    fn turn(&mut self) -> Result<(), RunError> {
        for wake in self.wait()? {
            self.handle(wake);
        }
        self.settle();
        Ok(())
    }

    /// Waits until something is ready, or a deadline.
    fn wait(&self) -> Result<Vec<Wake>, RunError> {
        let interests = self.interests();
        let mut fds: Vec<PollFd<'_>> = interests
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let timeout = self.deadline().map(|deadline| {
            let left = deadline.saturating_sub(self.now());
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i64::from(i32::MAX),
                tv_nsec: 0,
            })
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => {
                return Err(RunError::Io {
                    what: "waiting",
                    source: error.into(),
                });
            }
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let wakes = interests.iter().map(|(wake, _, _)| *wake);
        Ok(wakes
            .zip(ready)
            .filter_map(|(wake, ready)| ready.then_some(wake))
            .collect())
    }

    fn interests(&self) -> Vec<(Wake, BorrowedFd<'_>, PollFlags)> {
        let snapshotting = self.snapshotting.as_ref();
        let mut interests = Vec::new();
        // One that comes up is told once it is up; one that is held still hears the time when it goes on.
        if self.life.is_up() && snapshotting.is_none() {
            interests.push((Wake::ClockJumped, self.clock.as_fd(), PollFlags::IN));
        }
        if let Some(done) = snapshotting.and_then(Snapshotting::copied_fd) {
            interests.push((Wake::Copied, done, PollFlags::IN));
        }
        if let Some(fd) = self.terminate.filter(|_| snapshotting.is_none()) {
            interests.push((Wake::Terminate, fd, PollFlags::IN));
        }
        if let Some(listener) = self.listener.as_ref().filter(|_| snapshotting.is_none()) {
            interests.push((Wake::Accept, listener.as_fd(), PollFlags::IN));
        }
        if let Some(machine) = &self.machine {
            interests.push((
                Wake::MonitorEnded,
                machine.process.ended_fd(),
                PollFlags::IN,
            ));
            if machine.port_ended.is_none() {
                interests.push((Wake::Guest, machine.guest.as_fd(), flags_of(&machine.guest)));
            }
            if let Some(console) = &machine.console {
                interests.push((Wake::Console, console.as_fd(), PollFlags::IN));
            }
            if let Some(complaints) = &machine.complaints {
                interests.push((Wake::Complaints, complaints.as_fd(), PollFlags::IN));
            }
        }
        for (id, client) in &self.clients {
            let flags = flags_of(&client.pipe);
            // Nothing new is begun while the machine is being frozen: it waits in its socket.
            let flags = match snapshotting {
                Some(_) => flags - PollFlags::IN,
                None => flags,
            };
            interests.push((Wake::Client(*id), client.pipe.as_fd(), flags));
        }
        interests
    }

    fn deadline(&self) -> Option<Duration> {
        let machine = self.machine.as_ref();
        let port = machine.and_then(|machine| machine.port_ended);
        if let Some(snapshotting) = &self.snapshotting {
            return snapshotting.deadline();
        }
        let saver = machine.and_then(|_| self.saver.deadline());
        [self.life.deadline(), saver, port]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle(&mut self, wake: Wake) {
        match wake {
            Wake::Terminate => {
                // Once is enough: the descriptor stays readable.
                self.terminate = None;
                self.step(LifeEvent::Stop {
                    grace_ms: TERMINATE_GRACE_MS,
                    remove: false,
                });
            }
            Wake::Accept => self.accept(),
            Wake::Guest => self.read_guest(),
            Wake::Console => self.read_console(),
            Wake::Complaints => self.read_complaints(),
            Wake::MonitorEnded => self.reap_monitor(),
            Wake::Copied => self.copied(),
            Wake::ClockJumped => self.set_guests_clock(),
            Wake::Client(id) => self.read_client(id),
        }
    }

    /// After the events: what time demands, and what can be moved on.
    fn settle(&mut self) {
        if self.snapshotting.is_some() {
            self.watch_snapshot();
            self.push_relays();
            self.write_guest();
            return self.write_clients();
        }
        let now = self.now();
        let sessions = |relay: &Relay| relay.role != Role::Files && relay.guest.is_some();
        self.saver
            .set_active(now, self.relays.values().any(sessions));
        if let Some(machine) = &mut self.machine {
            let outcomes = self.saver.tick(now, &mut machine.guest.mux);
            self.saver.push(&mut machine.guest.mux);
            self.saved(outcomes);
        }
        let port_ended = self.machine.as_ref().and_then(|machine| machine.port_ended);
        if port_ended.is_some_and(|until| until <= now) {
            self.step(LifeEvent::GuestBroke(
                "the machine closed its control port".to_owned(),
            ));
            if let Some(machine) = &mut self.machine {
                machine.port_ended = Some(Duration::MAX);
            }
        }
        self.step(LifeEvent::Tick);
        self.push_relays();
        self.write_guest();
        self.write_clients();
    }

    /// Moves on what waits between clients and the guest.
    fn push_relays(&mut self) {
        let ids: Vec<u64> = self.relays.keys().copied().collect();
        for id in ids {
            self.push_to_client(id);
            self.push_to_guest(id);
            let done = self.relays.get(&id).is_some_and(|relay| {
                relay.over && (relay.client.is_none() || relay.told && relay.to_client.is_empty())
            });
            if done && self.main != Some(id) {
                self.forget_relay(id);
            }
        }
    }

    fn push_to_client(&mut self, id: u64) {
        let Some(relay) = self.relays.get_mut(&id) else {
            return;
        };
        let Some((client_id, stream)) = relay.client else {
            return;
        };
        let Some(client) = self.clients.get_mut(&client_id) else {
            return;
        };
        let mut owed = 0;
        let pushed = relay
            .to_client
            .push(&mut client.pipe.mux, stream, &mut owed);
        if pushed != Pushed::Going {
            owed += relay.to_client.clear();
            relay.client = None;
            client.uses.remove(&stream);
        }
        if let (Some(guest), Some(machine)) = (relay.guest, &mut self.machine) {
            machine.guest.mux.consume(guest, owed);
        }
        if pushed == Pushed::Gone {
            self.client_left_relay(id);
        }
    }

    fn push_to_guest(&mut self, id: u64) {
        let Some(relay) = self.relays.get_mut(&id) else {
            return;
        };
        let mut owed = 0;
        let mut takes_more = !relay.over;
        if let (Some(guest), Some(machine)) = (relay.guest, &mut self.machine) {
            let mux = &mut machine.guest.mux;
            takes_more = relay.to_guest.push(mux, guest, &mut owed) != Pushed::Gone;
        }
        if !takes_more {
            owed += relay.to_guest.clear();
        }
        if let Some((client, stream)) = relay.client
            && let Some(client) = self.clients.get_mut(&client)
        {
            client.pipe.mux.consume(stream, owed);
        }
    }

    fn forget_relay(&mut self, id: u64) {
        if let Some(relay) = self.relays.remove(&id) {
            if let Some((client, stream)) = relay.client
                && let Some(client) = self.clients.get_mut(&client)
            {
                client.uses.remove(&stream);
            }
            if let Some(guest) = relay.guest {
                self.uses.remove(&guest);
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Keeps a sentence for the result.
    fn notice(&mut self, sentence: String) {
        if self.notices.len() < MAX_NOTICES && !self.notices.contains(&sentence) {
            self.notices.push(sentence);
        }
    }

    /// Sends a note on a client's stream; one that is gone misses nothing.
    fn note(&mut self, client: u64, stream: StreamId, note: &Note, close: bool) {
        if let Some(client) = self.clients.get_mut(&client) {
            let mux = &mut client.pipe.mux;
            mux.send_message(stream, &wire::message::encode(note)).ok();
            if close {
                mux.close(stream).ok();
            }
        }
    }

    /// After the end: what clients have not read yet is still theirs.
    fn farewell(mut self) -> Result<(), RunError> {
        let mut heard = self.now();
        loop {
            self.push_relays();
            self.write_clients();
            let waiting = self
                .clients
                .values()
                .any(|client| client.pipe.wants_write())
                || self
                    .relays
                    .values()
                    .any(|relay| relay.client.is_some() && !relay.to_client.is_empty());
            // A machine that could not even be started ends before its client has asked for anything.
            let silent = self.owner_is_silent && self.owner.is_some();
            let patience = if waiting { FAREWELL } else { SILENCE };
            let now = self.now();
            if !(waiting || silent) || now >= heard + patience {
                break;
            }
            let interests = self.interests();
            let mut fds: Vec<PollFd<'_>> = interests
                .iter()
                .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
                .collect();
            let timeout = Timespec::try_from((heard + patience).saturating_sub(now)).ok();
            rustix::event::poll(&mut fds, timeout.as_ref()).ok();
            let ready: Vec<Wake> = interests
                .iter()
                .zip(&fds)
                .filter_map(|((wake, _, _), fd)| (!fd.revents().is_empty()).then_some(*wake))
                .collect();
            drop(fds);
            for wake in ready {
                if let Wake::Client(id) = wake {
                    heard = self.now();
                    self.read_client(id);
                }
            }
        }
        self.failure.map_or(Ok(()), Err)
    }
}

fn flags_of(pipe: &Pipe) -> PollFlags {
    if pipe.wants_write() {
        PollFlags::IN | PollFlags::OUT
    } else {
        PollFlags::IN
    }
}

/// Reads what a descriptor that doesn't block has at the moment, up to 64 KiB; false at its end.
fn drain(fd: &OwnedFd, into: &mut Console) -> bool {
    let mut buffer = [0; 4096];
    for _ in 0..16 {
        match rustix::io::read(fd, &mut buffer[..]) {
            Ok(0) => return false,
            Ok(count) => into.push(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// SIGTERM to the supervisor: a shutdown of the host leaves some ten seconds for everything.
const TERMINATE_GRACE_MS: u32 = 2_000;
