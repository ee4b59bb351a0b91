use super::{FromGuest, Pushed, Queue, failure_sentence, is_control, session_message};
use crate::control::End;
use proptest::prelude::*;
use wire::message::{Control, Exit, Failure, Reply, TtySize, encode};
use wire::{Event, Mux, Side, StreamId};

#[derive(Debug, Clone)]
enum Piece {
    Data(u8, Vec<u8>),
    Message(Vec<u8>),
    Finish(u8),
}

fn any_piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        8 => (1..3u8, 1..30_000usize, any::<u8>())
            .prop_map(|(channel, length, byte)| Piece::Data(channel, vec![byte; length])),
        2 => (0..20_000usize, any::<u8>())
            .prop_map(|(length, byte)| Piece::Message(vec![byte; length])),
        1 => (0..4u8).prop_map(Piece::Finish),
    ]
}

fn pair() -> (Mux, Mux, StreamId) {
    let (mut opener, answerer) = (Mux::new(Side::Opener), Mux::new(Side::Answerer));
    let id = opener.open(b"x").unwrap();
    (opener, answerer, id)
}

/// Carries bytes one way and the other.
fn exchange(one: &mut Mux, other: &mut Mux) {
    for _ in 0..2 {
        let bytes = one.outgoing().to_vec();
        one.wrote(bytes.len());
        other.receive(&bytes).unwrap();
        std::mem::swap(one, other);
    }
}

proptest! {
    // A case moves up to a megabyte through two multiplexers, byte by byte compared.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is queued arrives whole and in order, the sender is owed exactly what it paid, and never for
    /// something that was not handed on.
    #[test]
    fn a_queue_loses_nothing(
        pieces in proptest::collection::vec(any_piece(), 0..60),
        reads in proptest::collection::vec(any::<bool>(), 1..20),
    ) {
        let (mut to, mut end, id) = pair();
        let mut queue = Queue::default();
        let (mut want, mut paid) = (Vec::new(), 0);
        let mut finished = [false; 4];
        for piece in pieces {
            match piece {
                Piece::Data(channel, bytes) if !finished[usize::from(channel)] => {
                    paid += bytes.len();
                    queue.data(channel, bytes.clone(), bytes.len());
                    want.extend(bytes.into_iter().map(|byte| (channel, byte)));
                }
                Piece::Message(bytes) => {
                    paid += 7;
                    queue.message(bytes.clone(), 7);
                    want.extend(bytes.into_iter().map(|byte| (100, byte)));
                }
                Piece::Finish(channel) if !finished[usize::from(channel)] => {
                    finished[usize::from(channel)] = true;
                    queue.finish(channel);
                    want.push((200, channel));
                }
                _ => {}
            }
        }
        queue.close();
        let (mut got, mut owed, mut closed) = (Vec::new(), 0, false);
        let mut reads = reads.into_iter().chain(std::iter::repeat(true));
        for _ in 0..10_000 {
            let pushed = queue.push(&mut to, id, &mut owed);
            prop_assert_ne!(pushed, Pushed::Gone);
            exchange(&mut to, &mut end);
            // A reader that doesn't read now and then.
            if !reads.next().unwrap_or(true) {
                continue;
            }
            while let Some(event) = end.next_event() {
                match event {
                    Event::Data { id, channel, payload, cost } => {
                        got.extend(payload.into_iter().map(|byte| (channel, byte)));
                        end.consume(id, cost);
                    }
                    Event::Message { id, payload, cost } => {
                        got.extend(payload.into_iter().map(|byte| (100, byte)));
                        end.consume(id, cost);
                    }
                    Event::Finished { channel, .. } => got.push((200, channel)),
                    Event::Closed { .. } => closed = true,
                    _ => {}
                }
            }
            exchange(&mut end, &mut to);
            if pushed == Pushed::Ended && closed {
                break;
            }
        }
        prop_assert!(closed);
        prop_assert!(got == want, "{} of {} arrived", got.len(), want.len());
        prop_assert_eq!(owed, paid);
        prop_assert!(queue.is_empty());
    }
}

#[test]
fn nothing_is_owed_for_what_waits() {
    let (mut to, _end, id) = pair();
    let mut queue = Queue::default();
    for _ in 0..100 {
        queue.data(1, vec![0; 10_000], 10_000);
    }
    let mut owed = 0;
    assert_eq!(queue.push(&mut to, id, &mut owed), Pushed::Going);
    assert!(owed < wire::WINDOW, "{owed}");
    // A receiver that goes away leaves all of the rest to be paid back.
    to.reset(id);
    assert_eq!(queue.push(&mut to, id, &mut owed), Pushed::Gone);
    assert_eq!(owed + queue.clear(), 1_000_000);
}

#[test]
fn only_what_belongs_to_a_session_is_believed() {
    let end = |reply: &Reply| session_message(&encode(reply));
    assert_eq!(end(&Reply::Started { pid: 1 }), FromGuest::Started);
    assert_eq!(
        end(&Reply::Exited(Exit::Signal(200))),
        FromGuest::Ended(End::Exit(Exit::Signal(127)))
    );
    assert_eq!(end(&Reply::Done), FromGuest::Nonsense);
    assert_eq!(session_message(b"\xff\xff\xff"), FromGuest::Nonsense);
    assert!(is_control(&encode(&Control::Resize(TtySize {
        rows: 1,
        cols: 2
    }))));
    assert!(!is_control(b"\xff"));
    assert!(!is_control(
        &[encode(&Control::Signal(2)), vec![0]].concat()
    ));
}

#[test]
fn a_failure_is_a_printable_sentence() {
    let failure = |what: &[u8], errno| {
        failure_sentence(&Failure {
            what: what.to_vec(),
            errno,
        })
    };
    assert_eq!(
        failure(b"Starting `x`", 2),
        "Starting `x`: No such file or directory (os error 2)"
    );
    assert_eq!(failure(b"It\x1b[2J is\n", 0), "It\\x1b[2J is\\n");
    // Numbers that are none must not panic.
    for errno in [i32::MIN, -1, i32::MAX] {
        assert!(failure(b"x", errno).starts_with("x: "));
    }
    assert!(failure(&vec![b'a'; 100_000], 0).len() < 1_000);
}
