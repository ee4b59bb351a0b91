//! Commands, their clients, and how they end.

use super::*;

#[test]
fn a_command_runs_and_its_work_comes_out() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| {
            honest(
                files,
                only(Does::Ends {
                    stdout: b"made\n".to_vec(),
                    stderr: b"careful\n".to_vec(),
                    writes: vec![("report.txt", b"fine".to_vec())],
                    exit: Exit::Code(3),
                }),
            )
        },
    );
    let stream = client.open(&run("make")).unwrap();
    let (notes, stdout, stderr) = drain(&mut client, stream);
    let notes: Vec<_> = notes
        .into_iter()
        .filter(|note| *note != Note::Booting)
        .collect();
    assert_eq!(notes, [Note::Started, exited(3), Note::Saved]);
    assert_eq!(
        (stdout.as_slice(), stderr.as_slice()),
        (b"made\n".as_slice(), b"careful\n".as_slice())
    );

    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Exited(3)));
    assert_eq!(head.completeness, Completeness::Complete);
    assert!(head.saved > 0 && head.ended >= head.saved);
    assert_eq!(head.limits, Vec::<String>::new());
    assert_eq!(
        bed.changes(),
        BTreeMap::from([("report.txt".to_owned(), Some(b"fine".to_vec()))])
    );
    assert_eq!(bed.output(), b"made\ncareful\n");
}

#[test]
fn endings_are_told_as_they_are() {
    for (does, end, ending) in [
        (
            ends(b"", vec![], Exit::Code(0)),
            End::Exit(Exit::Code(0)),
            Ending::Exited(0),
        ),
        (
            ends(b"", vec![], Exit::Signal(9)),
            End::Exit(Exit::Signal(9)),
            Ending::Signalled(9),
        ),
        // A signal's number that would make an exit code above 255.
        (
            ends(b"", vec![], Exit::Signal(250)),
            End::Exit(Exit::Signal(127)),
            Ending::Signalled(127),
        ),
    ] {
        let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(does)));
        let stream = client.open(&run("x")).unwrap();
        let (notes, _, _) = drain(&mut client, stream);
        assert!(notes.contains(&Note::Exited(end)), "{notes:?}");
        assert_eq!(bed.finish_clean().ending, Some(ending));
    }
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Missing)));
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    let sentence = "Starting `git`: No such file or directory (os error 2)".to_owned();
    assert!(
        notes.contains(&Note::Exited(End::NotStarted(127, sentence.clone()))),
        "{notes:?}"
    );
    assert_eq!(
        bed.finish_clean().ending,
        Some(Ending::NotStarted(127, sentence))
    );
}

/// Keeps all output and notes.
struct Collect(Vec<u8>, Vec<Note>);
impl Handler for Collect {
    fn output(&mut self, _channel: u8, bytes: &[u8]) -> std::io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    fn note(&mut self, note: Note) -> Next {
        self.1.push(note);
        Next::Go
    }
    fn woken(&mut self) -> Vec<Order> {
        Vec::new()
    }
}

#[test]
fn input_reaches_the_command_and_its_echo_comes_back() {
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Cat)));
    let stream = client.open(&run("cat")).unwrap();
    // More than the windows of both ways together, so credit has to go round.
    let input: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7 % 251) as u8).collect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let sent = input.clone();
    let feeder = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut collect = Collect(Vec::new(), Vec::new());
    let pumped = client
        .pump(stream, Some(reader.as_fd()), None, &mut collect)
        .unwrap();
    feeder.join().unwrap();
    assert_eq!(pumped, Pumped::Closed);
    assert!(
        collect.0 == input,
        "{} of {} bytes",
        collect.0.len(),
        input.len()
    );
    assert!(collect.1.contains(&exited(0)));
    assert_eq!(bed.finish_clean().completeness, Completeness::Complete);
    assert!(bed.output() == input);
}

#[test]
fn a_lost_client_ends_a_run_without_a_terminal() {
    let writes = vec![("a", b"1".to_vec())];
    let (bed, mut client) = Bed::start(|_| {}, |files| honest(files, only(Does::Runs { writes })));
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Stopped));
    assert_eq!(head.completeness, Completeness::Complete);
    assert_eq!(bed.changes().len(), 1);
}

#[test]
fn a_lost_terminal_does_not_end_the_work() {
    let (bed, mut client) = Bed::start(
        |spec| spec.tty = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    // It is still there, and can be talked to by name.
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let wait = other.open(&Command::Wait).unwrap();
    bed.files
        .lock()
        .unwrap()
        .insert("late".to_owned(), b"x".to_vec());
    bed.until(&mut other, |head| head.saved > 0);
    assert_eq!(bed.head().completeness, Completeness::Running);
    let stop = Command::Stop {
        grace_ms: 1000,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(
        other.next_note(wait, soon()).unwrap(),
        Some(Note::Exited(End::Stopped))
    );
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Stopped), Completeness::Complete)
    );
    assert!(bed.changes().contains_key("late"));
}

#[test]
fn linger_is_as_long_as_was_asked_for() {
    let (bed, mut client) = Bed::start(
        |spec| {
            spec.tty = true;
            spec.linger = 0;
        },
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    drop(client);
    assert_eq!(bed.finish_clean().ending, Some(Ending::Stopped));
}

#[test]
fn a_detached_run_needs_nobody() {
    let (bed, mut client) = Bed::start(
        |spec| spec.detached = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client
        .open(&Command::Run {
            exec: exec("serve"),
            detach: true,
        })
        .unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&Note::Started));
    drop(client);
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let wait = other.open(&Command::Wait).unwrap();
    let Note::Status(status) = other.ask(&Command::Status, soon()).unwrap() else {
        panic!("a status is wanted");
    };
    assert_eq!((status.sessions, status.vmm_pid), (1, Some(4711)));
    let stop = Command::Stop {
        grace_ms: 1000,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(
        other.next_note(wait, soon()).unwrap(),
        Some(Note::Exited(End::Stopped))
    );
    assert_eq!(bed.finish_clean().ending, Some(Ending::Stopped));
}

#[test]
fn a_timeout_ends_the_command() {
    let writes = vec![("half", b"done".to_vec())];
    let (bed, mut client) = Bed::start(
        |spec| spec.timeout = 1,
        |files| honest(files, only(Does::Runs { writes })),
    );
    let stream = client.open(&run("slow")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&Note::Exited(End::TimedOut)), "{notes:?}");
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::TimedOut), Completeness::Complete)
    );
    assert!(bed.changes().contains_key("half"));
}

#[test]
fn sigterm_saves_and_goes() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    bed.terminate.as_ref().unwrap().write_all(b"x").unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes, [Note::Exited(End::Stopped), Note::Saved]);
    assert_eq!(bed.finish_clean().completeness, Completeness::Complete);
}

#[test]
fn a_signal_passes_through() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("serve")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    client.control(stream, Control::Signal(2)).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes[0], Note::Exited(End::Exit(Exit::Signal(2))));
    assert_eq!(bed.finish_clean().ending, Some(Ending::Signalled(2)));
}

#[test]
fn a_kept_sandbox_stays_and_starts_again() {
    let files_of = |exec: &Exec| match exec.argv[0].as_slice() {
        b"git" => Does::Missing,
        b"cat" => Does::Cat,
        word => ends(word, vec![], Exit::Code(0)),
    };
    let (mut bed, mut client) =
        Bed::start(|spec| spec.keep = true, |files| honest(files, files_of));
    let stream = client.open(&run("make")).unwrap();
    let (notes, stdout, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&exited(0)));
    assert_eq!(stdout, b"make");
    drop(client);

    let mut other = connect(&bed.store, &bed.name).unwrap();
    assert_eq!(bed.state(), State::Idle);
    assert_eq!(other.ask(&Command::Wait, soon()).unwrap(), exited(0));
    let again = other.open(&run("make")).unwrap();
    assert!(matches!(
        drain(&mut other, again).0[..],
        [Note::Failed { .. }]
    ));
    let stream = other.open(&Command::Exec(exec("hello"))).unwrap();
    let (notes, stdout, _) = drain(&mut other, stream);
    assert_eq!(
        (notes, stdout),
        (vec![Note::Started, exited(0)], b"hello".to_vec())
    );
    bed.files
        .lock()
        .unwrap()
        .insert("new".to_owned(), b"1".to_vec());
    assert_eq!(
        other.ask(&Command::Checkpoint, soon()).unwrap(),
        Note::Saved
    );
    assert!(bed.changes().contains_key("new"));
    assert_eq!(bed.head().ending, Some(Ending::Exited(0)));
    assert_eq!(bed.head().completeness, Completeness::Running);

    let stop = Command::Stop {
        grace_ms: 0,
        remove: false,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    bed.finish().unwrap();
    assert_eq!(bed.state(), State::Stopped);
    assert_eq!(bed.head().completeness, Completeness::Complete);
    assert!(bed.store.scratch_path(&bed.name).exists());
    assert!(matches!(
        connect(&bed.store, &bed.name),
        Err(ClientError::NotRunning(_))
    ));
    assert_eq!(bed.store.heal(&bed.name).unwrap(), Healed::AtRest);

    let lock = bed.store.lock(&bed.name).unwrap();
    let script = honest(Arc::clone(&bed.files), files_of);
    let mut client = bed.supervise(lock, vec![script]);
    assert_eq!(client.ask(&Command::Ready, soon()).unwrap(), Note::Started);
    assert_eq!(bed.state(), State::Idle);
    drop(client);
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let stop = Command::Stop {
        grace_ms: 0,
        remove: true,
    };
    assert_eq!(other.ask(&stop, soon()).unwrap(), Note::Saved);
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Exited(0)), Completeness::Complete)
    );
}

#[test]
fn a_timeout_in_a_kept_sandbox_ends_the_command_alone() {
    let (bed, mut client) = Bed::start(
        |spec| {
            spec.keep = true;
            spec.timeout = 1;
        },
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    let stream = client.open(&run("slow")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert_eq!(notes.last(), Some(&Note::Exited(End::TimedOut)));
    assert_eq!(bed.state(), State::Idle);
    let stop = Command::Stop {
        grace_ms: 0,
        remove: true,
    };
    assert_eq!(client.ask(&stop, soon()).unwrap(), Note::Saved);
    assert_eq!(bed.finish_clean().ending, Some(Ending::TimedOut));
}

#[test]
fn a_client_that_does_not_read_makes_the_command_wait() {
    const TOTAL: usize = 24 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (stalled, stall) = UnixStream::pair().unwrap();
    let script = move |_: Files| -> Script {
        Box::new(move |guest: &mut Guest| {
            let id = reach_exec(guest);
            let chunk = [b'y'; 16 * 1024];
            guest
                .stream
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let mut told = false;
            while counter.load(Ordering::SeqCst) < TOTAL {
                let room = guest.mux.room(id);
                if room == 0 {
                    guest.flush().unwrap();
                    let mut buffer = [0; 4096];
                    match std::io::Read::read(&mut guest.stream, &mut buffer) {
                        Ok(count) => guest.mux.receive(&buffer[..count]).unwrap(),
                        // Two seconds without credit: everything between here and the client is full.
                        Err(_) if !told => {
                            told = true;
                            (&stall).write_all(b"x").unwrap();
                        }
                        Err(_) => {}
                    }
                    continue;
                }
                let count = guest
                    .mux
                    .send_data(id, 1, &chunk[..room.min(chunk.len())])
                    .unwrap();
                counter.fetch_add(count, Ordering::SeqCst);
                guest.flush().unwrap();
            }
            guest.answer(id, &Reply::Exited(Exit::Code(0)));
            serve_end(guest);
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("yes")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    let mut fds = [PollFd::new(&stalled, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap(),
        1,
        "the guest was never made to wait"
    );
    let before = sent.load(Ordering::SeqCst);
    // Windows of both ways, and what the sockets hold.
    assert!(before < 3 << 20, "{before} bytes were taken from the guest");
    let (notes, stdout, _) = drain(&mut client, stream);
    assert_eq!(stdout.len(), sent.load(Ordering::SeqCst));
    assert!(notes.contains(&exited(0)));
    bed.finish_clean();
}

#[test]
fn a_client_that_leaves_before_its_command_leaves_nothing() {
    let (bed, client) = Bed::start(
        |spec| spec.keep = true,
        |files| honest(files, only(Does::Runs { writes: vec![] })),
    );
    drop(client);
    let head = bed.finish_clean();
    assert_eq!(
        (head.ending, head.completeness),
        (Some(Ending::Stopped), Completeness::Nothing)
    );
}

#[test]
fn a_result_that_cannot_be_written_is_not_called_complete() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| {
            honest(
                files,
                only(ends(b"", vec![("a", b"1".to_vec())], Exit::Code(0))),
            )
        },
    );
    // No file can be renamed over a directory that holds something.
    fs_err::create_dir_all(bed.result_dir().join("changes.json/in-the-way")).unwrap();
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)));
    let head = bed.finish_clean();
    assert_eq!(head.ending, Some(Ending::Exited(0)));
    assert_eq!(head.completeness, Completeness::Nothing);
    assert!(
        head.limits
            .iter()
            .any(|limit| limit.contains("changes.json")),
        "{head:?}"
    );
}

#[test]
fn a_session_of_a_lost_client_is_hung_up() {
    let (hung, hang) = UnixStream::pair().unwrap();
    let script = move |_: Files| -> Script {
        Box::new(move |guest: &mut Guest| {
            let main = reach_exec(guest);
            let mut second = None;
            while let Some(event) = guest.next() {
                match event {
                    Event::Opened { id, payload } => match decode::<Request>(&payload).unwrap() {
                        Request::Exec(exec) if exec.argv[0] == b"git" => {
                            guest.answer(id, &failed("No", 2));
                        }
                        Request::Exec(_) => {
                            second = Some(id);
                            guest.reply(id, &Reply::Started { pid: 3 });
                        }
                        Request::List { .. } => {
                            guest.answer(
                                id,
                                &Reply::Entries {
                                    index: 0,
                                    entries: Vec::new(),
                                    last: true,
                                },
                            );
                        }
                        Request::EndSessions { .. } => guest.answer(id, &Reply::Done),
                        Request::PowerOff => return,
                        other => panic!("{other:?}"),
                    },
                    Event::Reset { id } if Some(id) == second => {
                        (&hang).write_all(b"x").unwrap();
                        guest.answer(main, &Reply::Exited(Exit::Code(0)));
                    }
                    _ => {}
                }
            }
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("x")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    let mut other = connect(&bed.store, &bed.name).unwrap();
    let second = other.open(&Command::Exec(exec("shell"))).unwrap();
    assert_eq!(
        other.next_note(second, soon()).unwrap(),
        Some(Note::Started)
    );
    drop(other);
    let mut fds = [PollFd::new(&hung, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1);
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)));
    bed.finish_clean();
}
