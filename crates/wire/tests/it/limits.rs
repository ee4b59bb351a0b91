//! Each limit, at exactly what it allows and one beyond.

use crate::raw::{
    CLOSE, CREDIT, DATA, FINISH, HELLO, MESSAGE, OPEN, RESET, Victim, frame, greeting,
};
use wire::{
    Event, MAX_MESSAGE, MAX_PAYLOAD, MAX_PENDING, MAX_STREAMS, Mux, OUT_LIMIT, OVERHEAD, PREAMBLE,
    ProtocolError, SendError, Side, StreamId, VERSION, WINDOW,
};

const ONE: StreamId = StreamId(1);

/// What one end makes of `frames` after a greeting and one open stream.
#[track_caller]
#[allow(clippy::needless_pass_by_value, reason = "shorter cases")]
fn check(side: Side, frames: &[Vec<u8>], expect: Result<(), ProtocolError>) {
    let mut victim = Victim::new(side, 1);
    assert_eq!(victim.receive(&frames.concat()), expect);
    if expect.is_err() {
        // Dead is dead.
        assert_eq!(victim.receive(&frame(CLOSE, 1, 0, b"")), expect);
    }
}

fn header(text: &'static str) -> Result<(), ProtocolError> {
    Err(ProtocolError::Header(text))
}

fn state(text: &'static str) -> Result<(), ProtocolError> {
    Err(ProtocolError::State(text))
}

#[test]
fn the_longest_payload() {
    let full = vec![7; MAX_PAYLOAD];
    check(Side::Opener, &[frame(DATA, 1, 1, &full)], Ok(()));
    let more = vec![7; MAX_PAYLOAD + 1];
    check(
        Side::Opener,
        &[frame(DATA, 1, 1, &more)],
        header("payload too long"),
    );
    let full = vec![7; MAX_MESSAGE];
    check(Side::Opener, &[frame(MESSAGE, 1, 0, &full)], Ok(()));
    check(Side::Answerer, &[frame(OPEN, 2, 0, &full)], Ok(()));
    let more = vec![7; MAX_MESSAGE + 1];
    for (side, kind) in [(Side::Opener, MESSAGE), (Side::Answerer, OPEN)] {
        check(
            side,
            &[frame(kind, 2, 0, &more)],
            header("payload too long"),
        );
    }
    let mut mux = Mux::new(Side::Opener);
    assert_eq!(mux.open(&more), Err(SendError::TooLong));
    let id = mux.open(&full).unwrap();
    assert_eq!(mux.send_message(id, &more), Err(SendError::TooLong));
    assert_eq!(mux.send_message(id, &full), Ok(()));
}

/// The length is judged by the header alone: a peer can't make us wait for, or hold, what it will never send.
#[test]
fn a_huge_length_is_refused_before_its_bytes() {
    let mut bytes = frame(DATA, 1, 1, b"");
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    check(Side::Opener, &[bytes], header("payload too long"));
}

#[test]
fn malformed_headers() {
    for at in [10, 11] {
        let mut bytes = frame(DATA, 1, 1, b"x");
        bytes[at] = 1;
        check(
            Side::Opener,
            &[bytes],
            header("reserved bytes are not zero"),
        );
    }
    check(Side::Opener, &[frame(8, 1, 0, b"")], header("unknown kind"));
    check(
        Side::Opener,
        &[frame(255, 1, 0, b"")],
        header("unknown kind"),
    );
    check(Side::Opener, &[frame(DATA, 1, 3, b"x")], Ok(()));
    for bytes in [
        frame(DATA, 1, 4, b"x"),
        frame(FINISH, 1, 4, b""),
        frame(MESSAGE, 1, 1, b"x"),
        frame(CLOSE, 1, 1, b""),
    ] {
        check(Side::Opener, &[bytes], header("no such channel"));
    }
    for bytes in [
        frame(DATA, 1, 1, b""),
        frame(FINISH, 1, 1, b"x"),
        frame(CLOSE, 1, 0, b"x"),
        frame(RESET, 1, 0, b"x"),
    ] {
        let text = "a payload where none belongs, or none";
        check(Side::Opener, &[bytes], header(text));
    }
    for payload in [b"".as_slice(), b"abc", b"abcde"] {
        let text = "credit has four bytes";
        check(Side::Opener, &[frame(CREDIT, 1, 0, payload)], header(text));
    }
}

#[test]
fn the_window() {
    // Data that uses the window up to the last byte.
    let rest = WINDOW % (MAX_PAYLOAD + OVERHEAD);
    let mut frames =
        vec![frame(DATA, 1, 1, &vec![0; MAX_PAYLOAD]); WINDOW / (MAX_PAYLOAD + OVERHEAD)];
    frames.push(frame(DATA, 1, 1, &vec![0; rest - OVERHEAD]));
    check(Side::Opener, &frames, Ok(()));
    frames.push(frame(DATA, 1, 1, b"x"));
    check(Side::Opener, &frames, Err(ProtocolError::Overrun));
    frames.pop();
    frames.push(frame(MESSAGE, 1, 0, b""));
    check(Side::Opener, &frames, Err(ProtocolError::Overrun));
}

#[test]
fn tiny_frames_are_no_way_around_the_window() {
    let frames = vec![frame(DATA, 1, 1, b"x"); WINDOW / (OVERHEAD + 1)];
    check(Side::Opener, &frames, Ok(()));
    let held = size_of::<Event>() * frames.len();
    assert!(held <= WINDOW, "{held}");
    let more = vec![frame(DATA, 1, 1, b"x"); WINDOW / (OVERHEAD + 1) + 1];
    check(Side::Opener, &more, Err(ProtocolError::Overrun));
}

#[test]
fn a_sender_stops_at_the_window_and_goes_on_with_credit() {
    let mut victim = Victim::new(Side::Opener, 1);
    let plenty = vec![1; 2 * WINDOW];
    let sent = victim.mux.send_data(ONE, 0, &plenty).unwrap();
    assert!(
        sent <= WINDOW - OVERHEAD && sent > WINDOW * 9 / 10,
        "{sent}"
    );
    assert_eq!(victim.mux.send_data(ONE, 0, &plenty), Ok(0));
    assert_eq!(victim.mux.room(ONE), 0);
    let credit = u32::try_from(OVERHEAD + 5).unwrap().to_le_bytes();
    victim.receive(&frame(CREDIT, 1, 0, &credit)).unwrap();
    assert_eq!(victim.mux.room(ONE), 5);
    assert_eq!(victim.mux.send_data(ONE, 0, &plenty), Ok(5));
}

#[test]
fn more_credit_than_the_window_is_a_lie() {
    let text = "more credit than the window";
    let credit = |amount: u32| frame(CREDIT, 1, 0, &amount.to_le_bytes());
    check(Side::Opener, &[credit(0)], Ok(()));
    check(Side::Opener, &[credit(1)], state(text));
    check(Side::Opener, &[credit(u32::MAX)], state(text));
}

#[test]
fn credit_comes_back_in_quarters_and_never_too_much() {
    let mut victim = Victim::new(Side::Opener, 1);
    let data = vec![0; MAX_PAYLOAD];
    victim.receive(&frame(DATA, 1, 1, &data)).unwrap();
    victim.mux.consume(ONE, MAX_PAYLOAD + OVERHEAD);
    assert!(victim.mux.outgoing().is_empty(), "less than a quarter");
    victim.receive(&frame(DATA, 1, 1, &data)).unwrap();
    // Somebody counts wrong: still no more than was used.
    victim.mux.consume(ONE, 10 * WINDOW);
    let used = u32::try_from(2 * (MAX_PAYLOAD + OVERHEAD)).unwrap();
    assert_eq!(
        victim.mux.outgoing(),
        frame(CREDIT, 1, 0, &used.to_le_bytes())
    );
    victim.mux.consume(StreamId(99), 1);
}

#[test]
fn streams_at_a_time() {
    let count = u32::try_from(MAX_STREAMS).unwrap();
    let mut victim = Victim::new(Side::Answerer, count);
    let next = frame(OPEN, count + 1, 0, b"?");
    assert_eq!(victim.receive(&next), Err(ProtocolError::Streams));
    // One that is gone makes room for one.
    let mut victim = Victim::new(Side::Answerer, count);
    victim.receive(&frame(RESET, 7, 0, b"")).unwrap();
    victim.receive(&next).unwrap();

    let mut victim = Victim::new(Side::Opener, count);
    assert_eq!(victim.mux.open(b"?"), Err(SendError::Full));
    victim.mux.reset(ONE);
    victim.mux.open(b"?").unwrap();
}

#[test]
fn messages_that_wait() {
    let mut victim = Victim::new(Side::Opener, 1);
    // Use up the credit, so that messages wait.
    while victim.mux.send_data(ONE, 0, &vec![0; WINDOW]).unwrap() > 0 {}
    victim.swallow();
    for _ in 0..MAX_PENDING {
        victim.mux.send_message(ONE, &[1; OVERHEAD]).unwrap();
    }
    assert_eq!(victim.mux.send_message(ONE, b"x"), Err(SendError::Full));
    assert_eq!(victim.mux.finish(ONE, 0), Err(SendError::Full));
    assert_eq!(victim.mux.close(ONE), Err(SendError::Full));
    assert!(victim.mux.outgoing().is_empty());
    assert_eq!(
        victim.mux.send_data(ONE, 0, b"x"),
        Ok(0),
        "data keeps its place"
    );
    let credit = u32::try_from(WINDOW / 2).unwrap().to_le_bytes();
    victim.receive(&frame(CREDIT, 1, 0, &credit)).unwrap();
    assert!(
        victim
            .mux
            .outgoing()
            .starts_with(&frame(MESSAGE, 1, 0, &[1; OVERHEAD]))
    );
    assert_eq!(victim.mux.close(ONE), Ok(()));
    assert!(victim.mux.outgoing().ends_with(&frame(CLOSE, 1, 0, b"")));
}

#[test]
fn bytes_that_wait_to_be_written() {
    let mut victim = Victim::new(Side::Opener, 8);
    let mut total = 0;
    for id in 1..=8 {
        total += victim
            .mux
            .send_data(StreamId(id), 0, &vec![0; WINDOW])
            .unwrap();
    }
    assert!(total < 8 * (WINDOW - MAX_PAYLOAD));
    let waiting = victim.mux.outgoing().len();
    assert!(
        (OUT_LIMIT..OUT_LIMIT + 12 + OVERHEAD).contains(&waiting),
        "{waiting}"
    );
    assert_eq!(victim.mux.room(StreamId(8)), 0);
    victim.mux.wrote(1000);
    assert!(victim.mux.room(StreamId(8)) > 0);
    victim.mux.wrote(usize::MAX);
    assert!(victim.mux.outgoing().is_empty());
}

#[test]
fn a_peer_that_sends_without_reading_gets_no_more_credit() {
    let mut victim = Victim::new(Side::Opener, 8);
    for id in 1..=8 {
        _ = victim.mux.send_data(StreamId(id), 0, &vec![0; WINDOW]);
    }
    let waiting = victim.mux.outgoing().len();
    let data = frame(DATA, 1, 1, &vec![0; MAX_PAYLOAD]);
    for _ in 0..WINDOW / (MAX_PAYLOAD + OVERHEAD) {
        victim.receive(&data).unwrap();
        victim.mux.consume(ONE, MAX_PAYLOAD + OVERHEAD);
    }
    assert_eq!(victim.mux.outgoing().len(), waiting, "nothing was added");
    assert_eq!(victim.receive(&data), Err(ProtocolError::Overrun));

    // One that reads again gets what it is owed.
    let mut victim = Victim::new(Side::Opener, 8);
    for id in 1..=8 {
        _ = victim.mux.send_data(StreamId(id), 0, &vec![0; WINDOW]);
    }
    for _ in 0..3 {
        victim.receive(&data).unwrap();
        victim.mux.consume(ONE, MAX_PAYLOAD + OVERHEAD);
    }
    victim.swallow();
    let used = u32::try_from(3 * (MAX_PAYLOAD + OVERHEAD)).unwrap();
    assert_eq!(
        victim.mux.outgoing(),
        frame(CREDIT, 1, 0, &used.to_le_bytes())
    );
}

#[test]
fn a_peer_that_asks_and_never_reads_is_cut_off() {
    let mut victim = Victim::new(Side::Answerer, 0);
    let answer = vec![0; MAX_PAYLOAD];
    let mut most = 0;
    for id in 1.. {
        let opened = victim.receive(&frame(OPEN, id, 0, b"?"));
        most = most.max(victim.mux.outgoing().len());
        if let Err(error) = opened {
            assert_eq!(error, ProtocolError::Deaf);
            break;
        }
        // Answered and forgotten, as a failure is.
        victim.mux.send_message(StreamId(id), &answer).unwrap();
        victim.mux.close(StreamId(id)).unwrap();
        victim.receive(&frame(CLOSE, id, 0, b"")).unwrap();
        victim.events();
    }
    assert!(most < 5 * OUT_LIMIT, "{most}");
}

#[test]
fn what_comes_before_the_preamble() {
    const LIMIT: usize = 1024 * 1024;
    let mut mux = Mux::new(Side::Opener);
    mux.receive(&vec![0; LIMIT]).unwrap();
    mux.receive(&greeting()).unwrap();
    assert_eq!(mux.next_event(), Some(Event::Hello));

    let mut mux = Mux::new(Side::Opener);
    let error = mux.receive(&vec![0; LIMIT + PREAMBLE.len()]);
    assert_eq!(error, Err(ProtocolError::NoPreamble));

    // A preamble that starts anew in the middle of another.
    let mut mux = Mux::new(Side::Opener);
    mux.receive(&PREAMBLE[..9]).unwrap();
    mux.receive(&greeting()).unwrap();
    assert_eq!(mux.next_event(), Some(Event::Hello));
}

#[test]
fn greetings() {
    let hello = |version: &[u8]| [PREAMBLE.to_vec(), frame(HELLO, 0, 0, version)].concat();
    let other = Mux::new(Side::Opener).receive(&hello(&(VERSION + 1).to_le_bytes()));
    let expect = ProtocolError::Version {
        ours: VERSION,
        theirs: VERSION + 1,
    };
    assert_eq!(other, Err(expect));
    for version in [b"".as_slice(), b"\x01", b"\x01\x00\x00"] {
        let result = Mux::new(Side::Opener).receive(&hello(version));
        assert_eq!(result, Err(ProtocolError::Greeting));
    }
    let early = [PREAMBLE.to_vec(), frame(OPEN, 1, 0, b"?")].concat();
    let result = Mux::new(Side::Answerer).receive(&early);
    assert_eq!(result, Err(ProtocolError::Greeting));
    check(
        Side::Opener,
        &[frame(HELLO, 0, 0, &VERSION.to_le_bytes())],
        Err(ProtocolError::Greeting),
    );
}

#[test]
fn frames_that_do_not_fit_their_stream() {
    let data = frame(DATA, 1, 1, b"x");
    let finish = frame(FINISH, 1, 1, b"");
    let close = frame(CLOSE, 1, 0, b"");
    let never = state("no such stream");
    check(Side::Opener, &[frame(DATA, 2, 1, b"x")], never.clone());
    check(Side::Answerer, &[frame(DATA, 2, 1, b"x")], never.clone());
    check(Side::Opener, &[frame(RESET, 77, 0, b"")], never);
    check(
        Side::Opener,
        &[frame(OPEN, 2, 0, b"?")],
        state("the answerer opened a stream"),
    );
    let twice = state("a stream number was used twice");
    check(Side::Answerer, &[frame(OPEN, 1, 0, b"?")], twice.clone());
    check(Side::Answerer, &[frame(OPEN, 0, 0, b"?")], twice.clone());
    check(Side::Answerer, &[frame(OPEN, u32::MAX, 0, b"?")], twice);
    check(
        Side::Opener,
        &[finish.clone(), data.clone()],
        state("data after the channel's end"),
    );
    check(
        Side::Opener,
        &[finish.clone(), frame(DATA, 1, 2, b"x")],
        Ok(()),
    );
    check(
        Side::Opener,
        &[finish.clone(), finish.clone()],
        state("a channel ended twice"),
    );
    let closed = state("it was closed before");
    for late in [&data, &finish, &close, &frame(MESSAGE, 1, 0, b"")] {
        check(Side::Opener, &[close.clone(), late.clone()], closed.clone());
    }
    check(Side::Opener, &[close, frame(CREDIT, 1, 0, &[0; 4])], Ok(()));
    // Frames that were under way when the stream was reset are nobody's fault.
    check(Side::Opener, &[frame(RESET, 1, 0, b""), data], Ok(()));
}

#[test]
fn nothing_is_sent_after_an_end() {
    let mut victim = Victim::new(Side::Opener, 1);
    victim.mux.finish(ONE, 0).unwrap();
    assert_eq!(victim.mux.finish(ONE, 0), Err(SendError::Closed));
    assert_eq!(victim.mux.send_data(ONE, 0, b"x"), Err(SendError::Closed));
    assert_eq!(victim.mux.send_data(ONE, 4, b"x"), Err(SendError::Closed));
    assert_eq!(victim.mux.finish(ONE, 4), Err(SendError::Closed));
    assert_eq!(victim.mux.send_data(ONE, 1, b"x"), Ok(1));
    victim.mux.close(ONE).unwrap();
    assert_eq!(victim.mux.close(ONE), Err(SendError::Closed));
    assert_eq!(victim.mux.send_data(ONE, 1, b"x"), Err(SendError::Closed));
    assert_eq!(victim.mux.send_message(ONE, b"x"), Err(SendError::Closed));
    assert!(victim.mux.is_open(ONE), "the peer has not closed it");
    victim.receive(&frame(CLOSE, 1, 0, b"")).unwrap();
    assert!(!victim.mux.is_open(ONE));
    assert_eq!(
        victim.mux.send_data(StreamId(9), 0, b"x"),
        Err(SendError::Closed)
    );
    assert_eq!(victim.mux.room(StreamId(9)), 0);
}
