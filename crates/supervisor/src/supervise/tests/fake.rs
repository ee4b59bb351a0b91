//! A machine without a machine: a thread that speaks the guest's end of the wire as a test wants it to.

use crate::vmm::{Freezer, LaunchError, Launched, Launcher, Memory, Process};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use store::Spec;
use wire::message::{
    Exec, Exit, Failure, FileKind, ListEntry, Ready, Reply, Request, Stat, Tree, Wake, decode,
    encode,
};
use wire::{Event, Mux, Side, StreamId};

/// How long a fake guest waits for the host. Longer than any test may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a test's guest does; returns when the machine ends.
pub(super) type Script = Box<dyn FnOnce(&mut Guest) + Send>;

/// What becomes of freezing a machine into a directory.
pub(super) type Freeze = Arc<dyn Fn(&Path) -> Result<(), LaunchError> + Send + Sync>;

/// Launches scripts, one for each start. None goes on from a snapshot.
pub(super) struct FakeLauncher {
    pub(super) scripts: Vec<Script>,
    pub(super) freeze: Freeze,
}

impl std::fmt::Debug for FakeLauncher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeLauncher").finish_non_exhaustive()
    }
}

impl Launcher for FakeLauncher {
    fn launch(&mut self, _spec: &Spec, _scratch: File) -> Result<Launched, LaunchError> {
        if self.scripts.is_empty() {
            return Err(LaunchError("QEMU is not there".to_owned()));
        }
        let script = self.scripts.remove(0);
        let (control, guests) = UnixStream::pair().unwrap();
        let (ended, alive) = UnixStream::pair().unwrap();
        let (console, prints) = UnixStream::pair().unwrap();
        let plug = guests.try_clone().unwrap();
        guests.set_read_timeout(Some(PATIENCE)).unwrap();
        guests.set_write_timeout(Some(PATIENCE)).unwrap();
        thread::spawn(move || {
            let mut guest = Guest {
                stream: guests,
                console: prints,
                mux: Mux::new(Side::Answerer),
            };
            script(&mut guest);
            drop(guest);
            // Its end is what the supervisor watches for.
            drop(alive);
        });
        Ok(Launched {
            notice: None,
            owns_memory: false,
            control: control.into(),
            console: Some(console.into()),
            complaints: None,
            process: Box::new(FakeProcess {
                ended: ended.into(),
                plug,
                freeze: Arc::clone(&self.freeze),
            }),
            jail: vec!["fake".to_owned()],
            jail_missing: Vec::new(),
        })
    }

    fn resume(
        &mut self,
        _spec: &Spec,
        _directory: &Path,
        _memory: Memory,
        _scratch: &File,
    ) -> Result<Launched, LaunchError> {
        Err(LaunchError("it is of another machine".to_owned()))
    }

    fn format_scratch(&mut self, spec: &Spec, scratch: &File) -> Result<(), LaunchError> {
        scratch
            .set_len(spec.disk.bytes())
            .map_err(|error| LaunchError(error.to_string()))
    }
}

struct FakeProcess {
    ended: OwnedFd,
    plug: UnixStream,
    freeze: Freeze,
}

impl std::fmt::Debug for FakeProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeProcess").finish_non_exhaustive()
    }
}

struct FakeFreezer(Freeze);

impl Freezer for FakeFreezer {
    fn freeze(&mut self, directory: &Path) -> Result<(), LaunchError> {
        (self.0)(directory)
    }
}

impl Process for FakeProcess {
    fn pid(&self) -> Option<u32> {
        Some(4711)
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    fn reap(&mut self) -> Option<String> {
        Some("the fake machine ended".to_owned())
    }

    fn kill(&mut self) {
        self.plug.shutdown(Shutdown::Both).ok();
    }

    fn freezer(&self) -> Option<Box<dyn Freezer>> {
        Some(Box::new(FakeFreezer(Arc::clone(&self.freeze))))
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The guest's end of the wire.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) stream: UnixStream,
    pub(super) console: UnixStream,
    pub(super) mux: Mux,
}

impl Guest {
    /// The next event; `None` once the host is gone or has ended the machine.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            self.flush()?;
            if let Some(event) = self.mux.next_event() {
                return Some(event);
            }
            let mut buffer = [0; 16 * 1024];
            let count = self
                .stream
                .read(&mut buffer)
                .ok()
                .filter(|count| *count > 0)?;
            self.mux.receive(&buffer[..count]).ok()?;
        }
    }

    /// As [`Guest::next`], for one piece of what the host sends, whatever it is.
    pub(super) fn next_ignored(&mut self) -> Option<()> {
        self.flush()?;
        let mut buffer = [0; 16 * 1024];
        let count = self
            .stream
            .read(&mut buffer)
            .ok()
            .filter(|count| *count > 0)?;
        self.mux.receive(&buffer[..count]).ok()?;
        Some(())
    }

    /// Writes what waits.
    pub(super) fn flush(&mut self) -> Option<()> {
        while !self.mux.outgoing().is_empty() {
            let count = self.stream.write(self.mux.outgoing()).ok()?;
            self.mux.wrote(count);
        }
        Some(())
    }

    pub(super) fn reply(&mut self, id: StreamId, reply: &Reply) {
        self.mux.send_message(id, &encode(reply)).ok();
    }

    pub(super) fn answer(&mut self, id: StreamId, reply: &Reply) {
        self.reply(id, reply);
        self.mux.close(id).ok();
    }

    /// Sends all bytes, waiting for credit. `None` once the host is gone.
    pub(super) fn send(&mut self, id: StreamId, channel: u8, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let count = self.mux.send_data(id, channel, bytes).ok()?;
            bytes = &bytes[count..];
            self.flush()?;
            if count == 0 {
                let mut buffer = [0; 16 * 1024];
                let count = self
                    .stream
                    .read(&mut buffer)
                    .ok()
                    .filter(|count| *count > 0)?;
                self.mux.receive(&buffer[..count]).ok()?;
            }
        }
        Some(())
    }
}

/// What a well-behaved guest's command does.
#[derive(Debug, Clone)]
pub(super) enum Does {
    /// Prints, writes files, and ends.
    Ends {
        stdout: Vec<u8>,
        stderr: Vec<u8>,
        writes: Vec<(&'static str, Vec<u8>)>,
        exit: Exit,
    },
    /// Writes files, and runs until it gets a signal, by which it ends.
    Runs {
        writes: Vec<(&'static str, Vec<u8>)>,
    },
    /// Copies standard input to output until its end.
    Cat,
    /// Is not there.
    Missing,
}

/// The files of a fake workspace, shared with its test.
pub(super) type Files = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A guest that does as it should; `command` says what each command does.
pub(super) fn honest(files: Files, command: impl Fn(&Exec) -> Does + Send + 'static) -> Script {
    Box::new(move |guest| {
        let mut honest = Honest {
            files,
            running: BTreeMap::new(),
            hold: None,
        };
        while let Some(event) = guest.next() {
            if honest.event(guest, event, &command).is_none() {
                break;
            }
        }
    })
}

#[derive(Debug)]
struct Honest {
    files: Files,
    running: BTreeMap<StreamId, bool>,
    hold: Option<StreamId>,
}

impl Honest {
    fn event(
        &mut self,
        guest: &mut Guest,
        event: Event,
        command: &impl Fn(&Exec) -> Does,
    ) -> Option<()> {
        match event {
            Event::Opened { id, payload } => match decode::<Request>(&payload).unwrap() {
                Request::Setup(_) => guest.answer(id, &ready()),
                Request::Exec(exec) => self.exec(guest, id, command(&exec))?,
                Request::List { tree, dirs } => {
                    assert_eq!(tree, Tree::Workspace);
                    for (index, dir) in dirs.iter().enumerate() {
                        let entries = self.list(&dir.path);
                        let index = u32::try_from(index).unwrap();
                        guest.reply(
                            id,
                            &Reply::Entries {
                                index,
                                entries,
                                last: true,
                            },
                        );
                    }
                    guest.mux.close(id).ok();
                }
                Request::Read { paths, .. } => {
                    for path in paths {
                        let path = String::from_utf8(path).unwrap();
                        let bytes = self.files.lock().unwrap().get(&path).cloned();
                        match bytes {
                            Some(bytes) => {
                                let stat = stat_of(&bytes);
                                guest.reply(id, &Reply::File(stat.clone()));
                                guest.send(id, 1, &bytes)?;
                                guest.reply(id, &Reply::FileEnd(stat));
                            }
                            None => guest.reply(id, &failed("Opening", 2)),
                        }
                    }
                    guest.mux.close(id).ok();
                }
                Request::EndSessions { .. } => {
                    for (session, _) in std::mem::take(&mut self.running) {
                        guest.answer(session, &Reply::Exited(Exit::Signal(15)));
                    }
                    guest.answer(id, &Reply::Done);
                }
                Request::Hold => {
                    self.hold = Some(id);
                    guest.reply(id, &Reply::Held);
                }
                Request::SetClock { clock_ns } => {
                    assert!(clock_ns > 0);
                    guest.answer(id, &Reply::Done);
                }
                Request::PowerOff => return None,
                other => panic!("the host asks for {other:?}"),
            },
            Event::Data {
                id, payload, cost, ..
            } => {
                if self.running.get(&id) == Some(&true) {
                    guest.send(id, 1, &payload)?;
                }
                guest.mux.consume(id, cost);
            }
            Event::Finished { id, .. } => {
                if self.running.get(&id) == Some(&true) {
                    self.running.remove(&id);
                    guest.answer(id, &Reply::Exited(Exit::Code(0)));
                }
            }
            Event::Message { id, payload, .. } if self.hold == Some(id) => {
                let wake: Wake = decode(&payload).unwrap();
                assert!(wake.seed.len() >= 32 && wake.clock_ns > 0 && wake.hostname.is_none());
                self.hold = None;
                guest.answer(id, &Reply::Done);
            }
            event if self.hold.is_some() => panic!("a machine that is frozen is sent {event:?}"),
            Event::Message { id, payload, cost } => {
                guest.mux.consume(id, cost);
                if let Ok(wire::message::Control::Signal(signal)) = decode(&payload)
                    && self.running.remove(&id).is_some()
                {
                    guest.answer(id, &Reply::Exited(Exit::Signal(signal)));
                }
            }
            Event::Reset { id } => {
                self.running.remove(&id);
            }
            Event::Hello | Event::Closed { .. } => {}
        }
        Some(())
    }

    fn exec(&mut self, guest: &mut Guest, id: StreamId, does: Does) -> Option<()> {
        if let Does::Missing = does {
            guest.answer(id, &failed("Starting `git`", 2));
            return Some(());
        }
        guest.reply(id, &Reply::Started { pid: 7 });
        let mut files = self.files.lock().unwrap();
        match does {
            Does::Missing => {}
            Does::Ends {
                stdout,
                stderr,
                writes,
                exit,
            } => {
                files.extend(
                    writes
                        .into_iter()
                        .map(|(path, bytes)| (path.to_owned(), bytes)),
                );
                drop(files);
                guest.send(id, 1, &stdout)?;
                guest.send(id, 2, &stderr)?;
                guest.answer(id, &Reply::Exited(exit));
            }
            Does::Runs { writes } => {
                files.extend(
                    writes
                        .into_iter()
                        .map(|(path, bytes)| (path.to_owned(), bytes)),
                );
                self.running.insert(id, false);
            }
            Does::Cat => {
                self.running.insert(id, true);
            }
        }
        Some(())
    }

    /// Everything is in the root.
    fn list(&self, path: &[u8]) -> Vec<ListEntry> {
        assert!(path.is_empty(), "there is but one directory");
        let files = self.files.lock().unwrap();
        files
            .iter()
            .map(|(name, bytes)| ListEntry {
                name: name.as_bytes().to_vec(),
                stat: match name.as_str() {
                    ".git" => Stat {
                        kind: FileKind::Dir,
                        ..stat_of(bytes)
                    },
                    _ => stat_of(bytes),
                },
                target: Vec::new(),
            })
            .collect()
    }
}

/// The answer to `Setup`.
pub(super) fn ready() -> Reply {
    Reply::Ready(Ready {
        kernel: b"6.1".to_vec(),
        uptime_ms: 1000,
    })
}

pub(super) fn failed(what: &str, errno: i32) -> Reply {
    Reply::Failed(Failure {
        what: what.as_bytes().to_vec(),
        errno,
    })
}

/// A file's state; another content has another time.
pub(super) fn stat_of(bytes: &[u8]) -> Stat {
    let digest = base::Digest::of(bytes);
    let time = i64::from(u32::from_le_bytes(
        digest.as_bytes()[..4].try_into().unwrap(),
    ));
    Stat {
        kind: FileKind::File,
        mode: 0o644,
        size: bytes.len() as u64,
        ino: 100,
        nlink: 1,
        mtime_ns: time,
        ctime_ns: time,
    }
}
