//! A host's end that is fed whatever a guest could send, with a host that behaves: it opens streams, sends,
//! pays for some of what came, and reads its own errors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use wire::{Event, Mux, OUT_LIMIT, Side, StreamId, WINDOW};

fuzz_target!(|bytes: &[u8]| {
    for side in [Side::Opener, Side::Answerer] {
        drive(side, bytes);
    }
});

fn drive(side: Side, bytes: &[u8]) {
    let mut mux = Mux::new(side);
    if side == Side::Opener {
        for _ in 0..4 {
            let id = mux.open(b"?").expect("there is room for four streams");
            _ = mux.send_data(id, 0, &[0; 100]);
        }
    }
    let mut held = BTreeMap::<StreamId, usize>::new();
    let mut round = 0_usize;
    // Pieces of changing length, so that frames are cut everywhere.
    let mut rest = bytes;
    while !rest.is_empty() {
        round += 1;
        let (piece, later) = rest.split_at(rest.len().min(1 + round * 7 % 61));
        rest = later;
        let result = mux.receive(piece);
        while let Some(event) = mux.next_event() {
            match event {
                Event::Data { id, cost, .. } | Event::Message { id, cost, .. } => {
                    let sum = held.entry(id).or_default();
                    *sum += cost;
                    assert!(*sum <= WINDOW, "more is held than was allowed");
                    if round % 3 == 0 {
                        mux.consume(id, cost);
                        *sum -= cost;
                    }
                }
                Event::Opened { id, payload } => {
                    _ = mux.send_message(id, &payload);
                    _ = mux.close(id);
                }
                Event::Finished { id, channel } => _ = mux.finish(id, channel),
                Event::Closed { id } => _ = mux.close(id),
                Event::Reset { id } => assert!(!mux.is_open(id)),
                Event::Hello => {}
            }
        }
        assert!(mux.outgoing().len() <= 5 * OUT_LIMIT);
        if round % 5 == 0 {
            mux.wrote(mux.outgoing().len() / 2);
        }
        if let Err(error) = result {
            assert_eq!(mux.receive(b"\0"), Err(error));
            return;
        }
    }
}
