//! The loop: one thread waits for the port, for children, and for the descriptors of sessions.

use crate::boot;
use crate::console::say;
use crate::fault::Fault;
use crate::files::Transfer;
use crate::freeze::Frozen;
use crate::place::Place;
use crate::port::{Input, Port};
use crate::process::{self, Reaped};
use crate::session::Session;
use crate::setup::{self, Identified, set_up};
use crate::template::{self, Warming};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};
use wire::message::{Exec, Ready, Reply, Request, Wake, decode, encode};
use wire::{Event, MAX_PAYLOAD, Mux, Side, StreamId};

/// How long a machine that could not boot waits for the host to ask, so that it can say why.
const BROKEN_LIMIT: Duration = Duration::from_mins(1);
/// How long processes get to die at power-off. One that hangs in the kernel is no reason to stay.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How often what has survived SIGKILL is killed again.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// How long after its set-up a machine begins to give memory back: to bind the driver takes an emulated one a tenth of
/// a second, which its first command would wait for.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(2);

/// The whole life of a machine, up to the moment before its power goes.
pub(crate) fn boot_and_serve() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(boot::UMASK));
    // Every stream may be a session with three pipes; sessions get limits of their own.
    let limit = Rlimit {
        current: Some(4096),
        maximum: Some(1_048_576),
    };
    if let Err(errno) = rustix::process::setrlimit(Resource::Nofile, limit) {
        say(format!("Raising the limit of open files: {errno}"));
    }
    let (announcements, port) = match boot::prepare() {
        Ok(prepared) => prepared,
        Err(fault) => return say(fault),
    };
    crate::balloon::give_back(false);
    let place = boot::enter_root(&announcements);
    drop(announcements);
    if let Err(fault) = &place {
        say(fault);
    }
    match process::child_events() {
        Ok(children) => Guest::new(port, children, place).serve(),
        Err(errno) => say(format!("Watching for children: {errno}")),
    }
}

/// PID 1 with everything that it holds.
#[derive(Debug)]
pub(crate) struct Guest {
    port: Port,
    children: OwnedFd,
    mux: Mux,
    place: Result<Place, Fault>,
    machine: Option<Identified>,
    sessions: BTreeMap<StreamId, Session>,
    transfers: BTreeMap<StreamId, Transfer>,
    ending: Option<Ending>,
    warming: Option<Warming>,
    frozen: Option<Frozen>,
    /// When memory is given back from.
    give_back: Option<Instant>,
    host: Host,
    /// When a machine that could not boot gives up.
    give_up: Option<Instant>,
    power_off: bool,
    buffer: Vec<u8>,
}

/// What is known of the other end of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// It is there, or will be: our greeting waits for it.
    Here,
    /// It leaves when it has what is still to be written.
    Leaving,
    /// The machine is about to be a template. Nothing is said before a clone's host has spoken: it would be said to
    /// the one that is leaving.
    Awaited,
    /// Nothing more is sent but what waits already, and nothing is taken but the word on this stream: the machine is
    /// being saved.
    Holding(StreamId),
}

/// Every process is being ended.
#[derive(Debug)]
struct Ending {
    id: StreamId,
    kill_at: Instant,
}

impl Guest {
    pub(crate) fn new(port: Port, children: OwnedFd, place: Result<Place, Fault>) -> Self {
        let give_up = place.is_err().then(|| Instant::now() + BROKEN_LIMIT);
        Self {
            port,
            children,
            mux: Mux::new(Side::Answerer),
            place,
            machine: None,
            sessions: BTreeMap::new(),
            transfers: BTreeMap::new(),
            ending: None,
            warming: None,
            frozen: None,
            give_back: None,
            host: Host::Here,
            give_up,
            power_off: false,
            buffer: vec![0; MAX_PAYLOAD],
        }
    }

    /// Serves until the machine is to be powered off; then nothing runs any more and the disk is settled.
    pub(crate) fn serve(mut self) {
        while !self.power_off {
            self.wait();
            self.take_input();
            if !self.is_holding() {
                self.take_children();
                self.advance();
            }
            if self.host != Host::Awaited {
                let written = self.port.write(self.mux.outgoing());
                self.mux.wrote(written);
            }
            if self.host == Host::Leaving && self.mux.outgoing().is_empty() {
                self.forget_host();
                self.host = Host::Awaited;
            }
            if self.give_up.is_some_and(|at| Instant::now() >= at) {
                break;
            }
        }
        process::kill_everyone(&self.children, KILL_LIMIT);
        self.sessions.clear();
        self.machine = None;
        if let Ok(place) = &self.place {
            place.settle();
        }
    }

    fn is_holding(&self) -> bool {
        matches!(self.host, Host::Holding(_))
    }

    fn wait(&mut self) {
        if self.is_holding() {
            let (fd, flags) = self.port.interest(!self.mux.outgoing().is_empty());
            _ = poll(&mut [PollFd::from_borrowed_fd(fd, flags)], None);
            return;
        }
        let mut fds = vec![PollFd::from_borrowed_fd(
            self.children.as_fd(),
            PollFlags::IN,
        )];
        let speaks = self.host != Host::Awaited && !self.mux.outgoing().is_empty();
        let (fd, flags) = self.port.interest(speaks);
        fds.push(PollFd::from_borrowed_fd(fd, flags));
        for session in self.sessions.values() {
            for (fd, flags) in session.interests(&self.mux) {
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let busy = self
            .transfers
            .iter()
            .any(|(id, transfer)| transfer.can_step(*id, &self.mux));
        let deadlines = self.sessions.values().filter_map(Session::deadline);
        let deadlines = deadlines
            .chain(self.ending.as_ref().map(|ending| ending.kill_at))
            .chain(self.warming.as_ref().and_then(Warming::deadline))
            .chain(self.give_back)
            .chain(self.give_up);
        let now = Instant::now();
        let timeout = if busy {
            Some(Duration::ZERO)
        } else {
            deadlines.min().map(|at| at.saturating_duration_since(now))
        };
        let timeout = timeout.map(process::timespec);
        // What is ready is found by trying: descriptors don't block. Errors leave nothing to do but that.
        _ = poll(&mut fds, timeout.as_ref());
    }

    fn take_input(&mut self) {
        match self.port.read(&mut self.buffer) {
            Input::Nothing => {}
            // A clone's host may come a moment after the clone.
            Input::Gone if self.is_holding() => {}
            Input::Gone => self.forget_host(),
            Input::Bytes(count) => {
                let received = self.mux.receive(&self.buffer[..count]);
                while let Some(event) = self.mux.next_event() {
                    self.handle(event);
                }
                if let Err(error) = received {
                    // The host and this program come out of one build; there is nothing to fall back to.
                    say(error);
                    self.power_off = true;
                }
            }
        }
    }

    /// The host's end was closed. Whoever comes next starts anew; nobody can take up the old streams.
    fn forget_host(&mut self) {
        self.mux = Mux::new(Side::Answerer);
        self.transfers.clear();
        self.ending = None;
        for (_, session) in std::mem::take(&mut self.sessions) {
            session.hang_up();
        }
    }

    fn take_children(&mut self) {
        process::drain(&self.children);
        loop {
            match process::reap() {
                Reaped::Child(pid, status) => {
                    if let Some(warming) = &mut self.warming {
                        warming.ended(pid, status);
                    }
                    let session = self
                        .sessions
                        .values_mut()
                        .find(|session| session.is_running_as(pid));
                    if let Some(session) = session {
                        session.ended(status);
                    }
                }
                Reaped::Waiting => break,
                Reaped::Nobody => {
                    // Sessions that still have output to send don't hold this up: it is in our pipes.
                    if let Some(ending) = self.ending.take() {
                        self.reply(ending.id, &Reply::Done);
                    }
                    break;
                }
            }
        }
        if let Some(ending) = &mut self.ending
            && Instant::now() >= ending.kill_at
        {
            process::signal_everyone(Signal::KILL);
            ending.kill_at = Instant::now() + KILL_AGAIN;
        }
    }

    fn advance(&mut self) {
        if let Some(warming) = &mut self.warming {
            warming.watch();
            if warming.is_over() {
                let id = warming.id();
                self.warming = None;
                self.reply(id, &Reply::Done);
            }
        }
        if self.give_back.is_some_and(|at| Instant::now() >= at) {
            self.give_back = None;
            crate::balloon::give_back(true);
        }
        let (mux, buffer) = (&mut self.mux, &mut self.buffer);
        self.sessions
            .retain(|_, session| !session.turn(mux, buffer));
        self.transfers
            .retain(|id, transfer| !transfer.step(*id, mux, buffer));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Opened { id, payload } => match decode::<Request>(&payload) {
                Ok(request) => self.start(id, request),
                Err(error) => self.fail(id, &Fault::new(error.to_string(), Errno::INVAL)),
            },
            Event::Message { id, payload, cost } => {
                if self.host == Host::Holding(id) {
                    self.wake(id, &payload);
                } else if let Some(session) = self.sessions.get_mut(&id) {
                    session.control(&payload);
                }
                self.mux.consume(id, cost);
            }
            Event::Data {
                id,
                channel,
                payload,
                cost,
            } => {
                if let Some(session) = self.sessions.get_mut(&id).filter(|_| channel == 0) {
                    session.feed(&mut self.mux, payload, cost);
                    return;
                }
                if let Some(transfer) = self.transfers.get_mut(&id).filter(|_| channel == 0) {
                    transfer.feed(&payload);
                }
                self.mux.consume(id, cost);
            }
            Event::Finished { id, channel: 0 } => self.end_input(id),
            // Not before it has greeted: the last bytes of the one before may come late, and are skipped as what
            // they are.
            Event::Hello => self.host = Host::Here,
            Event::Finished { .. } => {}
            Event::Closed { id } => {
                self.end_input_by_close(id);
            }
            Event::Reset { id } => {
                self.transfers.remove(&id);
                if let Some(session) = self.sessions.remove(&id) {
                    session.hang_up();
                }
                if self.ending.as_ref().is_some_and(|ending| ending.id == id) {
                    self.ending = None;
                }
            }
        }
    }

    fn end_input(&mut self, id: StreamId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.end_input();
        }
        if let Some(transfer) = self.transfers.get_mut(&id) {
            transfer.end_input();
        }
    }

    /// The host sends nothing more on this stream: a command reads the end of its input, and half a file is none.
    fn end_input_by_close(&mut self, id: StreamId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.end_input();
        }
        let cut = self
            .transfers
            .get_mut(&id)
            .is_some_and(Transfer::close_input);
        if cut {
            self.transfers.remove(&id);
            self.fail(
                id,
                &Fault::new("A file's bytes ended too early", Errno::PIPE),
            );
        }
    }

    fn start(&mut self, id: StreamId, request: Request) {
        let result = match request {
            Request::Setup(setup) => self.start_setup(id, setup),
            Request::PowerOff => {
                self.power_off = true;
                Ok(())
            }
            Request::Spin { rounds } => {
                let start = Instant::now();
                let value = wire::spin(rounds);
                let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.reply(id, &Reply::Spun { nanos, value });
                Ok(())
            }
            Request::Warm { commands } => self.before_setup().map(|()| {
                self.warming = Some(Warming::start(id, commands));
            }),
            Request::Freeze => self.before_setup().map(|()| {
                template::clear_free_memory();
                self.reply(id, &Reply::Done);
                self.host = Host::Leaving;
            }),
            Request::Hold => self.hold(id),
            Request::SetClock { clock_ns } => self.set_clock(id, clock_ns),
            Request::EndSessions { grace_ms } => self.start_ending(id, grace_ms),
            Request::Exec(exec) => self.start_session(id, &exec),
            other => self.start_transfer(id, other),
        };
        if let Err(fault) = result {
            self.fail(id, &fault);
        }
    }

    fn start_setup(&mut self, id: StreamId, setup: wire::message::Setup) -> Result<(), Fault> {
        let place = self.place.as_ref().map_err(Clone::clone)?;
        if self.machine.is_some() {
            return Err(Fault::new("The machine is set up already", Errno::ALREADY));
        }
        let give_back = place.is_real() && setup.give_back;
        self.machine = Some(set_up(place, setup)?);
        // A machine begins without.
        self.give_back = give_back.then(|| Instant::now() + GIVE_BACK_AFTER);
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ready = Ready {
            kernel: rustix::system::uname().release().to_bytes().to_vec(),
            uptime_ms: u64::try_from(uptime.tv_sec * 1000 + uptime.tv_nsec / 1_000_000)
                .unwrap_or_default(),
        };
        self.reply(id, &Reply::Ready(ready));
        Ok(())
    }

    fn set_clock(&mut self, id: StreamId, clock_ns: u64) -> Result<(), Fault> {
        machine(self.machine.as_ref())?;
        let place = self.place.as_ref().map_err(Clone::clone)?;
        if place.is_real() {
            setup::set_clock(clock_ns)?;
        }
        self.reply(id, &Reply::Done);
        Ok(())
    }

    /// Nothing runs and nothing is said until the host wakes us.
    fn hold(&mut self, id: StreamId) -> Result<(), Fault> {
        machine(self.machine.as_ref())?;
        let place = self.place.as_ref().map_err(Clone::clone)?;
        if place.is_real() {
            self.frozen = Some(Frozen::freeze()?);
        }
        _ = self.mux.send_message(id, &encode(&Reply::Held));
        self.host = Host::Holding(id);
        Ok(())
    }

    /// The machine goes on, here or as a clone.
    fn wake(&mut self, id: StreamId, message: &[u8]) {
        self.host = Host::Here;
        // The wake says it anew.
        self.give_back = None;
        let woken = decode::<Wake>(message)
            .map_err(|error| Fault::new(error.to_string(), Errno::INVAL))
            .and_then(|wake| {
                let place = self.place.as_ref().map_err(Clone::clone)?;
                setup::wake(place, &wake)
            });
        // Whoever was stopped finds the new keys.
        self.frozen = None;
        match woken {
            Ok(()) => self.reply(id, &Reply::Done),
            Err(fault) => self.fail(id, &fault),
        }
    }

    /// What makes a template is asked of a machine that is nobody's yet.
    fn before_setup(&self) -> Result<(), Fault> {
        self.place.as_ref().map_err(Clone::clone)?;
        if self.machine.is_some() || self.warming.is_some() {
            return Err(Fault::plain("The machine can't become a template any more"));
        }
        Ok(())
    }

    fn start_session(&mut self, id: StreamId, exec: &Exec) -> Result<(), Fault> {
        if self.ending.is_some() {
            return Err(Fault::new(
                "The machine is ending its sessions",
                Errno::SHUTDOWN,
            ));
        }
        let session = Session::start(id, exec, machine(self.machine.as_ref())?)?;
        let pid = u32::try_from(session.pid().as_raw_pid()).unwrap_or_default();
        _ = self.mux.send_message(id, &encode(&Reply::Started { pid }));
        self.sessions.insert(id, session);
        Ok(())
    }

    fn start_transfer(&mut self, id: StreamId, request: Request) -> Result<(), Fault> {
        let transfer = Transfer::start(request, machine(self.machine.as_ref())?)
            .unwrap_or_else(|| Err(Fault::new("The request is not known", Errno::NOSYS)))?;
        self.transfers.insert(id, transfer);
        Ok(())
    }

    fn start_ending(&mut self, id: StreamId, grace_ms: u32) -> Result<(), Fault> {
        if self.ending.is_some() {
            return Err(Fault::new(
                "Sessions are being ended already",
                Errno::ALREADY,
            ));
        }
        process::signal_everyone(Signal::TERM);
        // A stopped process takes no signal but this one and SIGKILL.
        process::signal_everyone(Signal::CONT);
        self.ending = Some(Ending {
            id,
            kill_at: Instant::now() + Duration::from_millis(u64::from(grace_ms)),
        });
        Ok(())
    }

    /// The one answer to a request.
    fn reply(&mut self, id: StreamId, reply: &Reply) {
        // The stream can be gone; then nobody waits for the answer.
        _ = self.mux.send_message(id, &encode(reply));
        _ = self.mux.close(id);
    }

    fn fail(&mut self, id: StreamId, fault: &Fault) {
        self.reply(id, &Reply::Failed(fault.to_failure()));
        if self.place.is_err() {
            // The host knows what happened, and nothing can be done in here.
            self.give_up = Some(Instant::now() + Duration::from_secs(1));
        }
    }
}

fn machine(machine: Option<&Identified>) -> Result<&Identified, Fault> {
    machine.ok_or_else(|| Fault::new("The machine is not set up yet", Errno::AGAIN))
}
