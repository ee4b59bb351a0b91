use crate::raw::{Victim, frame, greeting};
use proptest::prelude::*;
use wire::{Event, Mux, OUT_LIMIT, Side, StreamId, WINDOW};

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Opener), Just(Side::Answerer)]
}

/// A frame that is well formed, and mostly makes sense.
fn likely_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..8),
        1 => prop::collection::vec(any::<u8>(), 1000..2000),
        1 => Just(vec![0, 0, 0, 0]),
        1 => Just(vec![0, 16, 0, 0]),
    ];
    (1..8_u8, 0..12_u32, 0..4_u8, payload)
        .prop_map(|(kind, stream, channel, payload)| frame(kind, stream, channel, &payload))
}

/// Gives `bytes` to an end in pieces, as a careless user of it would: nothing is ever paid for.
fn feed(mux: &mut Mux, bytes: &[u8], piece: usize) {
    let mut held = std::collections::BTreeMap::<StreamId, usize>::new();
    for piece in bytes.chunks(piece) {
        let result = mux.receive(piece);
        while let Some(event) = mux.next_event() {
            match event {
                Event::Message { id, payload, cost }
                | Event::Data {
                    id, payload, cost, ..
                } => {
                    assert!(cost > payload.len());
                    *held.entry(id).or_default() += cost;
                    assert!(held[&id] <= WINDOW);
                }
                Event::Opened { id, .. } => {
                    _ = mux.send_message(id, b"answer");
                    _ = mux.send_data(id, 1, b"bytes");
                }
                _ => {}
            }
        }
        assert!(mux.outgoing().len() < 5 * OUT_LIMIT);
        if let Err(error) = result {
            assert_eq!(mux.receive(b"more"), Err(error));
            return;
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(
        side in side(),
        greeted: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        piece in 1..200_usize,
    ) {
        let mut mux = Mux::new(side);
        if greeted {
            mux.receive(&greeting()).unwrap();
        }
        feed(&mut mux, &bytes, piece);
    }

    #[test]
    fn likely_frames_do_no_harm(
        side in side(),
        frames in prop::collection::vec(likely_frame(), 0..300),
        piece in 1..5000_usize,
    ) {
        let mut victim = Victim::new(side, 6);
        feed(&mut victim.mux, &frames.concat(), piece);
    }

    /// A conversation that two honest ends had, with a few bytes changed, left out or doubled.
    #[test]
    fn a_changed_conversation_does_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..6),
        piece in 1..5000_usize,
    ) {
        let mut opener = Mux::new(Side::Opener);
        for _ in 0..3 {
            let id = opener.open(b"request").unwrap();
            opener.send_data(id, 0, &[5; 3000]).unwrap();
            opener.send_message(id, b"message").unwrap();
            opener.finish(id, 0).unwrap();
            opener.close(id).unwrap();
        }
        let mut bytes = opener.outgoing().to_vec();
        for (at, value, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = value,
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, value),
            }
        }
        feed(&mut Mux::new(Side::Answerer), &bytes, piece);
    }
}
