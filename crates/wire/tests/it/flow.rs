use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use wire::{Event, MAX_PAYLOAD, Mux, OUT_LIMIT, OVERHEAD, SendError, Side, StreamId, WINDOW};

/// One thing that happens. Streams are picked among those that are open.
#[derive(Debug, Clone)]
enum Step {
    Open,
    Message {
        end: usize,
        stream: usize,
        length: usize,
    },
    Data {
        end: usize,
        stream: usize,
        channel: u8,
        length: usize,
    },
    Finish {
        end: usize,
        stream: usize,
        channel: u8,
    },
    Close {
        end: usize,
        stream: usize,
    },
    /// So many bytes get across from this end to the other.
    Carry {
        end: usize,
        length: usize,
    },
    /// This end deals with so many of the things that came to it.
    Consume {
        end: usize,
        count: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0..2_usize;
    let stream = 0..4_usize;
    let channel = 0..4_u8;
    prop_oneof![
        1 => Just(Step::Open),
        2 => (end.clone(), stream.clone(), 0..5000_usize)
            .prop_map(|(end, stream, length)| Step::Message { end, stream, length }),
        6 => (end.clone(), stream.clone(), channel.clone(), 1..200_000_usize)
            .prop_map(|(end, stream, channel, length)| Step::Data { end, stream, channel, length }),
        1 => (end.clone(), stream.clone(), channel)
            .prop_map(|(end, stream, channel)| Step::Finish { end, stream, channel }),
        1 => (end.clone(), stream).prop_map(|(end, stream)| Step::Close { end, stream }),
        6 => (end.clone(), prop_oneof![1..40_usize, 1..100_000_usize])
            .prop_map(|(end, length)| Step::Carry { end, length }),
        4 => (end, 0..40_usize).prop_map(|(end, count)| Step::Consume { end, count }),
    ]
}

/// What one end sent on a stream, or the other received from it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    data: BTreeMap<u8, Vec<u8>>,
    messages: Vec<Vec<u8>>,
    finished: Vec<u8>,
    closed: bool,
}

struct Pair {
    ends: [Mux; 2],
    sent: [BTreeMap<StreamId, Record>; 2],
    got: [BTreeMap<StreamId, Record>; 2],
    /// Not dealt with yet.
    held: [VecDeque<(StreamId, usize)>; 2],
    opened: Vec<StreamId>,
    next_byte: u8,
}

impl Pair {
    fn new() -> Self {
        Self {
            ends: [Mux::new(Side::Opener), Mux::new(Side::Answerer)],
            sent: Default::default(),
            got: Default::default(),
            held: Default::default(),
            opened: Vec::new(),
            next_byte: 0,
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length)
            .map(|_| {
                self.next_byte = self.next_byte.wrapping_add(31);
                self.next_byte
            })
            .collect()
    }

    /// An open stream on this end; the answerer knows it only once the request came.
    fn pick(&self, end: usize, index: usize) -> Option<StreamId> {
        let open: Vec<_> = self
            .opened
            .iter()
            .filter(|id| self.ends[end].is_open(**id))
            .collect();
        open.get(index % open.len().max(1)).map(|id| **id)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Open => {
                if let Ok(id) = self.ends[0].open(b"request") {
                    self.opened.push(id);
                }
            }
            Step::Message {
                end,
                stream,
                length,
            } => {
                let Some(id) = self.pick(end, stream) else {
                    return;
                };
                let message = self.bytes(length);
                match self.ends[end].send_message(id, &message) {
                    Ok(()) => self.sent(end, id).messages.push(message),
                    Err(error) => assert_ne!(error, SendError::TooLong),
                }
            }
            Step::Data {
                end,
                stream,
                channel,
                length,
            } => {
                let Some(id) = self.pick(end, stream) else {
                    return;
                };
                let bytes = self.bytes(length);
                let room = self.ends[end].room(id);
                if let Ok(sent @ 1..) = self.ends[end].send_data(id, channel, &bytes) {
                    assert!(
                        sent >= room.min(length).min(MAX_PAYLOAD),
                        "room was promised"
                    );
                    let sent = bytes[..sent].to_vec();
                    let data = &mut self.sent(end, id).data;
                    data.entry(channel).or_default().extend(sent);
                }
            }
            Step::Finish {
                end,
                stream,
                channel,
            } => {
                let Some(id) = self.pick(end, stream) else {
                    return;
                };
                if self.ends[end].finish(id, channel).is_ok() {
                    self.sent(end, id).finished.push(channel);
                }
            }
            Step::Close { end, stream } => {
                let Some(id) = self.pick(end, stream) else {
                    return;
                };
                if self.ends[end].close(id).is_ok() {
                    self.sent(end, id).closed = true;
                }
            }
            Step::Carry { end, length } => {
                self.carry(end, length);
            }
            Step::Consume { end, count } => {
                for _ in 0..count {
                    let Some((id, cost)) = self.held[end].pop_front() else {
                        break;
                    };
                    self.ends[end].consume(id, cost);
                }
            }
        }
    }

    fn sent(&mut self, end: usize, id: StreamId) -> &mut Record {
        self.sent[end].entry(id).or_default()
    }

    fn carry(&mut self, end: usize, length: usize) -> bool {
        let waiting = self.ends[end].outgoing();
        assert!(
            waiting.len() < OUT_LIMIT + 4 * WINDOW,
            "data stops at the limit"
        );
        let bytes = waiting[..waiting.len().min(length)].to_vec();
        self.ends[end].wrote(bytes.len());
        let other = 1 - end;
        self.ends[other].receive(&bytes).unwrap();
        while let Some(event) = self.ends[other].next_event() {
            let got = &mut self.got[end];
            match event {
                Event::Hello => {}
                Event::Opened { id, payload } => {
                    assert_eq!(payload, b"request");
                    assert!(self.opened.contains(&id));
                }
                Event::Message { id, payload, cost } => {
                    got.entry(id).or_default().messages.push(payload);
                    self.held[other].push_back((id, cost));
                }
                Event::Data {
                    id,
                    channel,
                    payload,
                    cost,
                } => {
                    assert_eq!(cost, payload.len() + OVERHEAD);
                    let data = &mut got.entry(id).or_default().data;
                    data.entry(channel).or_default().extend(payload);
                    self.held[other].push_back((id, cost));
                }
                Event::Finished { id, channel } => {
                    got.entry(id).or_default().finished.push(channel);
                }
                Event::Closed { id } => got.entry(id).or_default().closed = true,
                Event::Reset { id } => panic!("nobody reset {id:?}"),
            }
        }
        for id in &self.opened {
            let held = self.held[other].iter().filter(|(held, _)| held == id);
            let held: usize = held.map(|(_, cost)| cost).sum();
            assert!(held <= WINDOW, "{held} bytes are held for one stream");
        }
        !bytes.is_empty()
    }

    /// Carries and consumes until nothing moves any more.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                self.apply(&Step::Consume {
                    end,
                    count: usize::MAX,
                });
                moved |= self.carry(end, usize::MAX);
            }
            if !moved {
                return;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn everything_arrives_in_order_and_nothing_piles_up(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.apply(step);
        }
        pair.settle();
        prop_assert!(pair.sent == pair.got);
    }
}

/// Ten windows both ways at once, with a receiver that pays only for what it has taken: no deadlock, and every
/// byte comes.
#[test]
fn a_long_transfer_never_stalls() {
    let mut pair = Pair::new();
    pair.apply(&Step::Open);
    pair.settle();
    let id = pair.opened[0];
    let total = 10 * WINDOW;
    let mut sent = [0; 2];
    while sent != [total; 2] {
        let before = sent;
        for (end, sent) in sent.iter_mut().enumerate() {
            let length = (total - *sent).min(50_000);
            let bytes = pair.bytes(length);
            let count = pair.ends[end].send_data(id, 1, &bytes).unwrap();
            let data = &mut pair.sent(end, id).data;
            data.entry(1).or_default().extend(&bytes[..count]);
            *sent += count;
            pair.carry(end, 9_999);
            pair.apply(&Step::Consume { end, count: 3 });
        }
        if before == sent {
            pair.settle();
        }
    }
    pair.settle();
    assert!(pair.sent == pair.got);
}

/// The smallest splits: one byte at a time, both ways.
#[test]
fn splits_do_not_matter() {
    let mut pair = Pair::new();
    let carry = |pair: &mut Pair| {
        while pair.carry(0, 1) | pair.carry(1, 1) {}
    };
    carry(&mut pair);
    pair.apply(&Step::Open);
    carry(&mut pair);
    let id = pair.opened[0];
    for end in 0..2 {
        pair.ends[end].send_data(id, 2, b"data").unwrap();
        pair.ends[end].send_message(id, b"message").unwrap();
        pair.ends[end].finish(id, 2).unwrap();
        pair.ends[end].close(id).unwrap();
        let sent = pair.sent(end, id);
        sent.data.insert(2, b"data".to_vec());
        sent.messages.push(b"message".to_vec());
        sent.finished.push(2);
        sent.closed = true;
    }
    carry(&mut pair);
    assert_eq!(pair.sent, pair.got);
    assert!(!pair.ends[0].is_open(id) && !pair.ends[1].is_open(id));
}
