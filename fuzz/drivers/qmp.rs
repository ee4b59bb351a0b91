//! Feeds a monitor's client, which has asked for things, with what QEMU says. Used by the fuzzer, and by the replay of
//! its seeds in every ordinary run.

use machine::{Command, Event, MAX_LINE, Qmp, QmpError};

/// What is asked for, in this order, so that answers 0 to 5 have a question.
const ASKED: [Command; 6] = [
    Command::QueryStatus,
    Command::Stop,
    Command::SetCapabilities,
    Command::GetFd,
    Command::Migrate,
    Command::QueryMigrate,
];

/// All events up to the end or the first error. Panics where the client doesn't keep to its word.
pub(crate) fn drive(bytes: &[u8]) -> (Vec<Event>, Result<(), QmpError>) {
    let mut qmp = Qmp::new();
    for command in ASKED {
        qmp.execute(command).expect("there is room for six");
    }
    let mut events = Vec::new();
    let mut answers = 0;
    let mut round = 0_usize;
    let mut rest = bytes;
    while !rest.is_empty() {
        round += 1;
        // Pieces of changing length, so that lines are cut everywhere.
        let (piece, later) = rest.split_at(rest.len().min(1 + round * 7 % 61));
        rest = later;
        match qmp.feed(piece) {
            Ok(new) => events.extend(new),
            Err(error) => {
                // It is dead from here on, and says nothing more.
                assert_eq!(qmp.feed(b"{\"event\": \"STOP\"}\n"), Ok(Vec::new()));
                assert!(qmp.output().is_empty());
                return (events, Err(error));
            }
        }
        assert!(qmp.output().len() <= MAX_LINE, "it asks without end");
        if round.is_multiple_of(3) {
            qmp.sent(qmp.output().len() / 2 + 1);
        }
    }
    for event in &events {
        match event {
            Event::Done { status: text, .. } => {
                answers += 1;
                check_text(text.as_deref().unwrap_or_default());
            }
            Event::Failed { reason: text, .. } => {
                answers += 1;
                check_text(text);
            }
            Event::Shutdown { reason: text, .. } | Event::Other(text) => check_text(text),
            _ => {}
        }
    }
    assert!(answers <= ASKED.len(), "more answers than questions");
    (events, Ok(()))
}

/// What goes to a terminal is printable, and no longer than a line.
fn check_text(text: &str) {
    assert!(text.len() <= 1024, "{}", text.len());
    assert!(
        !text.contains(|letter: char| letter.is_control()),
        "{text:?}"
    );
}
