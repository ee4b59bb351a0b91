//! Guests that break off, lie or flood, and machines that never come up.

use super::*;

/// A guest that does `attack` once a first checkpoint of one file is out.
fn attacker(
    attack: impl FnOnce(&mut Guest, StreamId) + Send + 'static,
) -> impl FnOnce(Files) -> Script {
    move |_| {
        Box::new(move |guest| {
            let main = reach_exec(guest);
            let bytes = b"precious".to_vec();
            let mut read = false;
            while let Some(event) = guest.next() {
                let Event::Opened { id, payload } = event else {
                    continue;
                };
                match decode::<Request>(&payload).unwrap() {
                    Request::List { .. } if read => return attack(guest, main),
                    Request::List { .. } => {
                        let entry = wire::message::ListEntry {
                            name: b"work".to_vec(),
                            stat: stat_of(&bytes),
                            target: Vec::new(),
                        };
                        let entries = vec![entry];
                        guest.answer(
                            id,
                            &Reply::Entries {
                                index: 0,
                                entries,
                                last: true,
                            },
                        );
                    }
                    Request::Read { .. } => {
                        read = true;
                        guest.reply(id, &Reply::File(stat_of(&bytes)));
                        guest.send(id, 1, &bytes).unwrap();
                        guest.answer(id, &Reply::FileEnd(stat_of(&bytes)));
                    }
                    _ => guest.answer(id, &failed("No", 2)),
                }
            }
        })
    }
}

/// The end of a machine that broke off after its first checkpoint: the work up to there is kept.
fn check_broken_off(bed: &Bed, client: &mut Connection, stream: StreamId, why: &str) {
    let (notes, _, _) = drain(client, stream);
    let crash = notes.iter().find_map(|note| match note {
        Note::Exited(End::Crashed(why)) => Some(why.clone()),
        _ => None,
    });
    assert!(
        crash.as_ref().is_some_and(|text| text.contains(why)),
        "{notes:?}"
    );
    assert_eq!(notes.last(), Some(&Note::Saved));
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Checkpoint);
    assert!(matches!(head.ending, Some(Ending::Crashed(_))));
    assert_eq!(
        bed.changes(),
        BTreeMap::from([("work".to_owned(), Some(b"precious".to_vec()))])
    );
}

#[test]
fn a_killed_machine_keeps_its_last_checkpoint() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            guest
                .console
                .write_all(b"Kernel panic - \x1b[31mnot syncing\n")
                .unwrap();
            guest.console.write_all(&b"  frame\n".repeat(40)).unwrap();
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "the fake machine ended");
    // The console's last words are told, and can do nothing to a terminal.
    let Some(Ending::Crashed(text)) = bed.head().ending else {
        panic!("it crashed");
    };
    assert!(
        text.contains("Kernel panic - \\x1b[31mnot syncing"),
        "{text}"
    );
}

#[test]
fn garbage_from_the_guest_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            // The host may be quicker to hang up than we are to write it all.
            guest.stream.write_all(&[0xff; 4096]).ok();
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "broke the protocol");
}

#[test]
fn a_message_out_of_order_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, main| {
            guest.reply(main, &Reply::Done);
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "does not belong there");
}

#[test]
fn a_flood_without_credit_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, main| {
            let mut frame = Vec::new();
            frame.extend_from_slice(&16_384u32.to_le_bytes());
            frame.extend_from_slice(&main.0.to_le_bytes());
            frame.extend_from_slice(&[3, 1, 0, 0]);
            frame.extend_from_slice(&[b'y'; 16_384]);
            while guest.stream.write_all(&frame).is_ok() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "more than it had credit for");
}

#[test]
fn a_port_that_is_closed_ends_the_machine() {
    let (bed, mut client) = Bed::start(
        |_| {},
        attacker(|guest, _| {
            guest.stream.shutdown(std::net::Shutdown::Write).unwrap();
            while guest.next().is_some() {}
        }),
    );
    let stream = client.open(&run("x")).unwrap();
    check_broken_off(&bed, &mut client, stream, "closed its control port");
}

#[test]
fn an_endless_or_lying_listing_costs_the_checkpoint_and_nothing_else() {
    let script = |_: Files| -> Script {
        Box::new(|guest: &mut Guest| {
            let main = reach_exec(guest);
            let mut number = 0u64;
            while let Some(event) = guest.next() {
                let Event::Opened { id, payload } = event else {
                    continue;
                };
                match decode::<Request>(&payload).unwrap() {
                    Request::List { .. } if number > 0 => {
                        let (index, entries) = (5, Vec::new());
                        guest.answer(
                            id,
                            &Reply::Entries {
                                index,
                                entries,
                                last: true,
                            },
                        );
                    }
                    Request::EndSessions { .. } => guest.answer(id, &Reply::Done),
                    Request::PowerOff => return,
                    Request::List { .. } => {
                        // Names without end: the host has to stop this.
                        loop {
                            let entries = (0..100)
                                .map(|_| {
                                    number += 1;
                                    wire::message::ListEntry {
                                        name: format!("{number}").into_bytes(),
                                        stat: stat_of(b""),
                                        target: Vec::new(),
                                    }
                                })
                                .collect();
                            let part = Reply::Entries {
                                index: 0,
                                entries,
                                last: false,
                            };
                            let part = wire::message::encode(&part);
                            while guest.mux.is_open(id) && guest.mux.room(id) < part.len() {
                                if guest.next_ignored().is_none() {
                                    return;
                                }
                            }
                            if guest.mux.send_message(id, &part).is_err() {
                                break;
                            }
                            guest.flush().unwrap();
                        }
                        // It was stopped, and nothing else.
                        guest.answer(main, &Reply::Exited(Exit::Code(0)));
                    }
                    _ => guest.answer(id, &failed("No", 2)),
                }
            }
        })
    };
    let (bed, mut client) = Bed::start(|_| {}, script);
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)), "{notes:?}");
    let head = bed.finish_clean();
    assert_eq!(head.completeness, Completeness::Nothing);
    assert_eq!(head.ending, Some(Ending::Exited(0)));
    assert_eq!(head.limits, ["The guest answered a listing out of order"]);
}

#[test]
fn a_machine_that_cannot_be_started_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = Store::open(Dirs {
        data: at("d"),
        cache: at("c"),
        run: at("r"),
    })
    .unwrap();
    let name: Name = "calm-owl".parse().unwrap();
    let lock = store.create(spec(&name)).unwrap().lock;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut client = Connection::new(ours).unwrap();
    let stream = client.open(&run("x")).unwrap();
    let (done, finished) = mpsc::channel();
    let start = Start {
        store: store.clone(),
        name: name.clone(),
        lock,
        first_client: Some(theirs),
        timezone: String::new(),
        resume: None,
    };
    let given = Given::nothing(store.result_dir(&name).blobs());
    thread::spawn(move || {
        let mut launcher = FakeLauncher {
            scripts: Vec::new(),
            freeze: Arc::new(|_| Ok(())),
        };
        done.send(supervise(start, given, &mut launcher, None)).ok();
    });
    let (notes, _, _) = drain(&mut client, stream);
    assert!(
        notes.contains(&Note::Exited(End::Crashed("QEMU is not there".to_owned()))),
        "{notes:?}"
    );
    finished.recv_timeout(PATIENCE).unwrap().unwrap();
    let head = store.result(&name).unwrap();
    assert_eq!(head.completeness, Completeness::Nothing);
}

#[test]
fn a_guest_that_cannot_set_up_is_told() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |_| {
            Box::new(|guest: &mut Guest| {
                while let Some(event) = guest.next() {
                    if let Event::Opened { id, .. } = event {
                        guest.answer(id, &failed("Mounting `/dev/vda`", 5));
                    }
                }
            })
        },
    );
    let stream = client.open(&run("x")).unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    let told = format!("{notes:?}");
    assert!(
        told.contains("could not be set up: Mounting `/dev/vda`: Input/output error"),
        "{told}"
    );
    assert_eq!(bed.finish_clean().completeness, Completeness::Nothing);
}
