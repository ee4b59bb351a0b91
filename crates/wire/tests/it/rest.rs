//! Connections that are written down and taken up again.

use wire::{Event, MAX_PENDING, Mux, SendError, Side, WINDOW};

/// Carries everything that waits, both ways.
fn settle(one: &mut Mux, other: &mut Mux) {
    while !(one.outgoing().is_empty() && other.outgoing().is_empty()) {
        let bytes = one.outgoing().to_vec();
        other.receive(&bytes).unwrap();
        one.wrote(bytes.len());
        let bytes = other.outgoing().to_vec();
        one.receive(&bytes).unwrap();
        other.wrote(bytes.len());
    }
}

fn drain(mux: &mut Mux) -> Vec<Event> {
    std::iter::from_fn(|| mux.next_event()).collect()
}

fn pair() -> (Mux, Mux) {
    let (mut host, mut guest) = (Mux::new(Side::Opener), Mux::new(Side::Answerer));
    settle(&mut host, &mut guest);
    drain(&mut host);
    drain(&mut guest);
    (host, guest)
}

#[test]
fn only_a_connection_without_a_byte_under_way_is_at_rest() {
    let mut fresh = Mux::new(Side::Opener);
    assert!(fresh.at_rest().is_none(), "nobody has greeted");
    let (mut host, mut guest) = pair();
    assert!(host.at_rest().is_some());
    let id = host.open(b"request").unwrap();
    assert!(host.at_rest().is_none(), "it waits to be written");
    settle(&mut host, &mut guest);
    assert!(host.at_rest().is_some());
    guest.send_message(id, b"answer").unwrap();
    let bytes = guest.outgoing().to_vec();
    host.receive(&bytes[..bytes.len() - 1]).unwrap();
    assert!(host.at_rest().is_none(), "half a frame has come");
    host.receive(&bytes[bytes.len() - 1..]).unwrap();
    assert!(host.at_rest().is_none(), "nobody has looked at it");
    drain(&mut host);
    assert!(host.at_rest().is_some());
    fresh.receive(b"x").ok();
}

#[test]
fn a_held_end_says_nothing_until_it_is_released() {
    let (mut host, mut guest) = pair();
    let id = host.open(b"request").unwrap();
    let hold = host.hold(b"hold").unwrap();
    settle(&mut host, &mut guest);
    drain(&mut guest);
    assert_eq!(host.send_data(id, 0, b"data"), Ok(0));
    assert_eq!(host.open(b"another"), Err(SendError::Full));
    host.send_message(id, b"later").unwrap();
    host.finish(id, 0).unwrap();
    host.consume(id, WINDOW);
    assert!(host.outgoing().is_empty());
    assert!(host.at_rest().is_some());
    host.release(hold, b"wake").unwrap();
    assert_eq!(host.send_data(id, 1, b"data"), Ok(4));
    settle(&mut host, &mut guest);
    let events = drain(&mut guest);
    let said: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Message { payload, .. } | Event::Data { payload, .. } => Some(payload.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        said,
        [b"wake".to_vec(), b"later".to_vec(), b"data".to_vec()]
    );
    host.hold(b"hold").unwrap();
    for _ in 0..MAX_PENDING {
        host.send_message(id, b"x").unwrap();
    }
    assert_eq!(host.send_message(id, b"x"), Err(SendError::Full));
}

#[test]
fn whoever_takes_it_up_gives_back_all_credit_and_sends_what_waited() {
    let (mut host, mut guest) = pair();
    let id = host.open(b"request").unwrap();
    settle(&mut host, &mut guest);
    drain(&mut guest);
    // All of the credit is used, and nothing of it was given back.
    let mut sent = 0;
    while guest.room(id) > 0 {
        sent += guest.send_data(id, 1, &[7; 10_000]).unwrap();
        settle(&mut host, &mut guest);
    }
    assert!(sent > WINDOW / 2);
    drain(&mut host);
    let hold = host.hold(b"hold").unwrap();
    settle(&mut host, &mut guest);
    drain(&mut guest);
    host.send_message(id, b"pending").unwrap();
    let rest = host.at_rest().unwrap();
    let written = postcard::to_stdvec(&rest).unwrap();
    for _ in 0..2 {
        let mut another = Mux::resume(postcard::from_bytes(&written).unwrap());
        assert!(another.outgoing().is_empty());
        assert!(another.is_open(id) && another.is_open(hold));
        assert_eq!(another.at_rest().map(|_| ()), Some(()));
        another.release(hold, b"wake").unwrap();
        assert!(!another.outgoing().is_empty());
    }
    let mut another = Mux::resume(rest);
    another.release(hold, b"wake").unwrap();
    settle(&mut another, &mut guest);
    assert_eq!(drain(&mut guest).len(), 2, "wake and pending");
    let mut more = 0;
    while guest.room(id) > 0 {
        more += guest.send_data(id, 1, &[7; 10_000]).unwrap();
        settle(&mut another, &mut guest);
    }
    assert!(more >= sent, "{more} {sent}");
    let next = another.open(b"next").unwrap();
    assert!(next > hold);
}
