//! Snapshots of machines that behave, and of those that don't.

use super::fake::{Does, Freeze, Guest, Script, honest, ready};
use super::{Bed, drain, ends, exec, exited, only, run, soon};
use crate::client::{Connection, connect};
use crate::control::{Command, Note};
use crate::vmm::LaunchError;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use wire::Event;
use wire::message::{Exit, Reply, Request, decode};

fn snapshot(label: &str) -> Command {
    Command::Snapshot(label.parse().unwrap())
}

/// A kept machine whose command runs until its input ends.
fn running(script: impl FnOnce(super::Files) -> Script, freeze: Freeze) -> (Bed, Connection) {
    let (bed, mut client) = Bed::start_with(|spec| spec.keep = true, script, freeze);
    let stream = client.open(&run("cat")).unwrap();
    while client.next_note(stream, soon()).unwrap() != Some(Note::Started) {}
    (bed, client)
}

fn other(bed: &Bed) -> Connection {
    connect(&bed.store, &bed.name).unwrap()
}

fn refusal(note: Note) -> String {
    match note {
        Note::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn directories(bed: &Bed) -> Vec<String> {
    let path = bed.store.sandbox_dir(&bed.name).join("snapshots");
    let entries = fs_err::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn what_is_asked_meanwhile_waits_and_a_label_is_given_once() {
    let (begun, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let gate = Mutex::new((begun, goes));
    let freeze: Freeze = Arc::new(move |directory| {
        let gate = gate.lock().unwrap();
        gate.0
            .send(directory.join("streams.json").exists())
            .unwrap();
        // The sender is gone when the second one comes.
        gate.1.recv().ok();
        Ok(())
    });
    let (bed, _client) = running(|files| honest(files, only(Does::Cat)), freeze);
    let (mut first, mut second) = (other(&bed), other(&bed));
    std::thread::scope(|scope| {
        let frozen = scope.spawn(|| first.ask(&snapshot("a"), soon()).unwrap());
        assert!(begins.recv().unwrap(), "the streams are written down first");
        // This would be sent to the guest, which takes nothing now (it says so by a panic).
        let saved = scope.spawn(|| second.ask(&Command::Checkpoint, soon()).unwrap());
        go.send(()).unwrap();
        assert_eq!(frozen.join().unwrap(), Note::Saved);
        assert_eq!(saved.join().unwrap(), Note::Saved);
    });
    drop(go);
    let again = first.ask(&snapshot("a"), soon()).unwrap();
    assert!(refusal(again).contains("has a snapshot `a` already"));
    assert_eq!(first.ask(&snapshot("b"), soon()).unwrap(), Note::Saved);
    assert_eq!(bed.store.snapshots(&bed.name).unwrap().len(), 2);
}

#[test]
fn a_failure_leaves_nothing_and_the_machine_goes_on() {
    let freeze: Freeze = Arc::new(|directory| {
        fs_err::write(directory.join("ram"), "half").unwrap();
        Err(LaunchError("the disk is full".to_owned()))
    });
    let (bed, _client) = running(|files| honest(files, only(Does::Cat)), freeze);
    let mut client = other(&bed);
    let message = refusal(client.ask(&snapshot("a"), soon()).unwrap());
    assert_eq!(message, "The snapshot failed: the disk is full");
    assert_eq!(directories(&bed), Vec::<String>::new());
    assert_eq!(
        client.ask(&Command::Checkpoint, soon()).unwrap(),
        Note::Saved
    );
}

#[test]
fn a_snapshot_that_cannot_go_on_is_refused_and_the_machine_goes_on() {
    let (bed, _client) = running(|files| honest(files, only(Does::Cat)), Arc::new(|_| Ok(())));
    let mut client = other(&bed);
    let restore = |label: &str| Command::Restore(label.parse().unwrap());
    let message = refusal(client.ask(&restore("a"), soon()).unwrap());
    assert!(message.contains("has no snapshot `a`"), "{message}");
    assert_eq!(client.ask(&snapshot("a"), soon()).unwrap(), Note::Saved);
    let message = refusal(client.ask(&restore("a"), soon()).unwrap());
    assert_eq!(message, "`a` can't be restored: it is of another machine");
    assert_eq!(
        client.ask(&Command::Checkpoint, soon()).unwrap(),
        Note::Saved
    );
    assert!(
        !bed.store
            .scratch_path(&bed.name)
            .with_extension("new")
            .exists()
    );
}

/// A guest that starts every command, and does something else when it is to hold still.
fn when_held(does: impl Fn(&mut Guest, wire::StreamId) + Send + 'static) -> Script {
    Box::new(move |guest| {
        let mut hold = None;
        while let Some(event) = guest.next() {
            match event {
                Event::Opened { id, payload } => match decode(&payload).unwrap() {
                    Request::Setup(_) => guest.answer(id, &ready()),
                    Request::Exec(_) => guest.reply(id, &Reply::Started { pid: 1 }),
                    Request::Hold => {
                        hold = Some(id);
                        does(guest, id);
                    }
                    _ => guest.answer(id, &Reply::Done),
                },
                Event::Message { id, .. } if hold == Some(id) => {
                    guest.answer(id, &Reply::Done);
                }
                _ => {}
            }
        }
    })
}

#[test]
fn a_guest_that_lies_about_holding_still_harms_nobody_else() {
    // It says more in the same breath.
    let script = |_| {
        when_held(|guest, id| {
            guest.reply(id, &Reply::Held);
            guest.reply(id, &Reply::Held);
        })
    };
    let (bed, _client) = running(script, Arc::new(|_| Ok(())));
    let mut client = other(&bed);
    let message = refusal(client.ask(&snapshot("a"), soon()).unwrap());
    assert!(
        message.starts_with("The snapshot failed: the machine "),
        "{message}"
    );
    assert!(bed.store.snapshots(&bed.name).unwrap().is_empty());

    let script = |_| when_held(|guest, id| guest.answer(id, &super::fake::failed("Holding", 5)));
    let (bed, _client) = running(script, Arc::new(|_| Ok(())));
    let mut client = other(&bed);
    let message = refusal(client.ask(&snapshot("a"), soon()).unwrap());
    assert!(message.contains("Holding: "), "{message}");
    let status = client.ask(&Command::Status, soon()).unwrap();
    assert!(matches!(status, Note::Status(_)));
}

#[test]
fn a_machine_that_ends_over_it_is_a_crash_like_any_other() {
    let (ended, ends) = mpsc::channel::<()>();
    let ended = Mutex::new(Some(ended));
    let ends = Mutex::new(ends);
    let script = move |_| {
        when_held(move |guest, id| {
            guest.reply(id, &Reply::Held);
            guest.flush();
            // The machine's end is seen before the copy's.
            guest.stream.shutdown(std::net::Shutdown::Both).ok();
            drop(ended.lock().unwrap().take());
        })
    };
    let freeze: Freeze = Arc::new(move |_| {
        ends.lock().unwrap().recv().ok();
        Err(LaunchError("QEMU has ended".to_owned()))
    });
    let (bed, _client) = running(script, freeze);
    let mut client = other(&bed);
    let answer = client.ask(&snapshot("a"), soon());
    assert!(
        answer.is_err() || matches!(answer, Ok(Note::Failed { .. })),
        "{answer:?}"
    );
    bed.finish().unwrap();
    assert!(bed.store.snapshots(&bed.name).unwrap().is_empty());
    assert_eq!(directories(&bed), Vec::<String>::new());
}

#[test]
fn nothing_is_frozen_before_there_is_something() {
    let (bed, mut client) = Bed::start(
        |_| {},
        |files| honest(files, only(ends(b"", vec![], Exit::Code(0)))),
    );
    let answer = client.ask(&snapshot("a"), soon()).unwrap();
    let message = refusal(answer);
    assert!(
        message.contains("doesn't run yet") || message.contains("starting"),
        "{message}"
    );
    let stream = client
        .open(&Command::Run {
            exec: exec("x"),
            detach: false,
        })
        .unwrap();
    let (notes, _, _) = drain(&mut client, stream);
    assert!(notes.contains(&exited(0)));
    bed.finish_clean();
}
