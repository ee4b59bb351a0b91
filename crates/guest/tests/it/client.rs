//! The host's end of a port, as simple as it can be: everything that comes is kept by stream.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use wire::message::{Exec, Exit, Failure, Reply, Request, RunAs, Wake, decode, encode};
use wire::{AtRest, Event, Mux, Side, StreamId};

/// No test waits longer than this for one thing.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Got {
    Reply(Reply),
    Data(u8, Vec<u8>),
    Finished(u8),
    Closed,
    Reset,
}

pub(crate) struct Client {
    port: UnixStream,
    pub(crate) mux: Mux,
    got: HashMap<StreamId, VecDeque<Got>>,
    /// Streams whose data is not paid for, so that the guest runs out of credit.
    pub(crate) stingy: bool,
    owed: Vec<(StreamId, usize)>,
    pub(crate) limit: Duration,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) end: Result<Exit, Failure>,
}

impl Client {
    pub(crate) fn new(port: UnixStream) -> Self {
        port.set_nonblocking(true).unwrap();
        Self {
            port,
            mux: Mux::new(Side::Opener),
            got: HashMap::new(),
            stingy: false,
            owed: Vec::new(),
            limit: LIMIT,
        }
    }

    /// A host that takes up a saved machine.
    pub(crate) fn resumed(port: UnixStream, rest: AtRest) -> Self {
        Self {
            mux: Mux::resume(rest),
            ..Self::new(port)
        }
    }

    /// Streams that another client opened.
    pub(crate) fn adopt(&mut self, streams: &[StreamId]) {
        for id in streams {
            self.got.entry(*id).or_default();
        }
    }

    /// Has the guest hold still.
    #[track_caller]
    pub(crate) fn hold(&mut self) -> (StreamId, AtRest) {
        let id = self.mux.hold(&encode(&Request::Hold)).unwrap();
        self.adopt(&[id]);
        assert_eq!(self.reply(id), Reply::Held);
        (id, self.mux.at_rest().unwrap())
    }

    /// Has it go on.
    #[track_caller]
    pub(crate) fn wake(&mut self, id: StreamId, wake: &Wake) {
        self.mux.release(id, &encode(wake)).unwrap();
        assert_eq!(self.reply(id), Reply::Done);
        assert_eq!(self.next(id), Got::Closed);
        self.mux.close(id).unwrap();
    }

    pub(crate) fn open(&mut self, request: &Request) -> StreamId {
        let id = self.mux.open(&encode(request)).unwrap();
        self.got.insert(id, VecDeque::new());
        self.pump(Duration::ZERO);
        id
    }

    pub(crate) fn say<T: serde::Serialize>(&mut self, id: StreamId, message: &T) {
        self.mux.send_message(id, &encode(message)).unwrap();
        self.pump(Duration::ZERO);
    }

    /// Sends all of `bytes`, as the guest gives credit.
    pub(crate) fn send(&mut self, id: StreamId, mut bytes: &[u8]) {
        let deadline = Instant::now() + self.limit;
        while !bytes.is_empty() {
            let sent = self.mux.send_data(id, 0, bytes).unwrap();
            bytes = &bytes[sent..];
            if !bytes.is_empty() {
                assert!(Instant::now() < deadline, "the guest gives no credit");
                self.pump(Duration::from_millis(100));
            }
        }
        self.pump(Duration::ZERO);
    }

    /// The next thing on this stream.
    #[track_caller]
    pub(crate) fn next(&mut self, id: StreamId) -> Got {
        let deadline = Instant::now() + self.limit;
        loop {
            if let Some(got) = self.got.get_mut(&id).and_then(VecDeque::pop_front) {
                return got;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing came on {id:?} in time");
            self.pump(left);
        }
    }

    /// What has come on this stream, without waiting for more than one turn.
    pub(crate) fn peek(&mut self, id: StreamId, wait: Duration) -> Option<Got> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(got) = self.got.get_mut(&id).and_then(VecDeque::pop_front) {
                return Some(got);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.pump(left);
        }
    }

    #[track_caller]
    pub(crate) fn reply(&mut self, id: StreamId) -> Reply {
        match self.next(id) {
            Got::Reply(reply) => reply,
            other => panic!("expected a reply, got {other:?}"),
        }
    }

    /// The only answer to a request.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &Request) -> Reply {
        let id = self.open(request);
        let reply = self.reply(id);
        assert_eq!(self.next(id), Got::Closed);
        self.mux.close(id).unwrap();
        reply
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(crate) fn run(&mut self, exec: &Exec) -> Outcome {
        let id = self.open(&Request::Exec(exec.clone()));
        self.outcome(id)
    }

    #[track_caller]
    pub(crate) fn outcome(&mut self, id: StreamId) -> Outcome {
        let mut outcome = Outcome {
            stdout: Vec::new(),
            stderr: Vec::new(),
            end: Err(Failure {
                what: Vec::new(),
                errno: 0,
            }),
        };
        let mut ended = false;
        loop {
            match self.next(id) {
                Got::Reply(Reply::Started { .. }) | Got::Finished(_) => {}
                Got::Data(1, bytes) => outcome.stdout.extend_from_slice(&bytes),
                Got::Data(_, bytes) => outcome.stderr.extend_from_slice(&bytes),
                Got::Reply(Reply::Exited(exit)) => {
                    outcome.end = Ok(exit);
                    ended = true;
                }
                Got::Reply(Reply::Failed(failure)) => {
                    outcome.end = Err(failure);
                    ended = true;
                }
                Got::Closed => {
                    assert!(ended, "the stream closed before the command's end");
                    _ = self.mux.close(id);
                    self.pump(Duration::ZERO);
                    return outcome;
                }
                other => panic!("a command can't give {other:?}"),
            }
        }
    }

    /// Pays for everything that was held back.
    pub(crate) fn pay(&mut self) {
        self.stingy = false;
        for (id, cost) in std::mem::take(&mut self.owed) {
            self.mux.consume(id, cost);
        }
        self.pump(Duration::ZERO);
    }

    /// Writes and reads once, waiting at most `wait` for something to read.
    pub(crate) fn pump(&mut self, wait: Duration) {
        let flags = if self.mux.outgoing().is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        let mut fds = [PollFd::new(&self.port, flags)];
        let wait = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap(),
            tv_nsec: wait.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&wait)).unwrap();
        if !self.mux.outgoing().is_empty() {
            match (&self.port).write(self.mux.outgoing()) {
                Ok(count) => self.mux.wrote(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("the port can't be written: {error}"),
            }
        }
        let mut buffer = vec![0; 64 * 1024];
        match (&self.port).read(&mut buffer) {
            Ok(0) => panic!("the guest closed the port"),
            Ok(count) => self.mux.receive(&buffer[..count]).unwrap(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("the port can't be read: {error}"),
        }
        while let Some(event) = self.mux.next_event() {
            self.sort(event);
        }
    }

    /// Gives the port up, for another client to begin anew on it. The guest has to have closed its streams.
    pub(crate) fn take_port(&mut self) -> UnixStream {
        while !self.mux.outgoing().is_empty() {
            self.pump(Duration::ZERO);
        }
        self.port.try_clone().unwrap()
    }

    /// Whether something comes on a port.
    pub(crate) fn is_readable(port: &UnixStream, wait: Duration) -> bool {
        let mut fds = [PollFd::new(port, PollFlags::IN)];
        poll(&mut fds, Some(&wait.try_into().unwrap())).unwrap() > 0
    }

    /// True once the guest has closed its end.
    pub(crate) fn is_gone(&mut self, wait: Duration) -> bool {
        let mut fds = [PollFd::new(&self.port, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap(),
            tv_nsec: wait.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&wait)).unwrap();
        matches!((&self.port).read(&mut [0; 1]), Ok(0))
    }

    fn sort(&mut self, event: Event) {
        let (id, got, cost) = match event {
            Event::Hello => return,
            Event::Opened { .. } => panic!("the guest opened a stream"),
            Event::Message { id, payload, cost } => {
                (id, Got::Reply(decode(&payload).unwrap()), cost)
            }
            Event::Data {
                id,
                channel,
                payload,
                cost,
            } => (id, Got::Data(channel, payload), cost),
            Event::Finished { id, channel } => (id, Got::Finished(channel), 0),
            Event::Closed { id } => (id, Got::Closed, 0),
            Event::Reset { id } => (id, Got::Reset, 0),
        };
        if self.stingy {
            self.owed.push((id, cost));
        } else {
            self.mux.consume(id, cost);
        }
        self.got.entry(id).or_default().push_back(got);
    }
}

/// A command as the workspace's user, without a terminal or input.
pub(crate) fn command(argv: &[&str]) -> Exec {
    Exec {
        argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: Vec::new(),
        cwd: Vec::new(),
        user: RunAs::User,
        tty: None,
        stdin: false,
    }
}

/// `sh -c script`.
pub(crate) fn shell(script: &str) -> Exec {
    command(&["sh", "-c", script])
}
