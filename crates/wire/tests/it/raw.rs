//! Frames written by hand, as somebody who has only read the description would.

use wire::{Event, Mux, PREAMBLE, ProtocolError, Side, VERSION};

pub(crate) const HELLO: u8 = 0;
pub(crate) const OPEN: u8 = 1;
pub(crate) const MESSAGE: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const FINISH: u8 = 4;
pub(crate) const CLOSE: u8 = 5;
pub(crate) const CREDIT: u8 = 6;
pub(crate) const RESET: u8 = 7;

pub(crate) fn frame(kind: u8, stream: u32, channel: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&stream.to_le_bytes());
    bytes.extend_from_slice(&[kind, channel, 0, 0]);
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn greeting() -> Vec<u8> {
    [
        PREAMBLE.to_vec(),
        frame(HELLO, 0, 0, &VERSION.to_le_bytes()),
    ]
    .concat()
}

/// One end, and what somebody without manners sends to it.
pub(crate) struct Victim {
    pub(crate) mux: Mux,
}

impl Victim {
    /// An end that was greeted, and has `streams` streams (opened by it, or by its peer).
    pub(crate) fn new(side: Side, streams: u32) -> Self {
        let mut victim = Self {
            mux: Mux::new(side),
        };
        victim.mux.receive(&greeting()).unwrap();
        for id in 1..=streams {
            match side {
                Side::Opener => {
                    victim.mux.open(b"?").unwrap();
                }
                Side::Answerer => victim.mux.receive(&frame(OPEN, id, 0, b"?")).unwrap(),
            }
        }
        victim.events();
        victim.swallow();
        victim
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.mux.receive(bytes)
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.mux.next_event()).collect()
    }

    /// Takes what waits to be written, and throws it away.
    pub(crate) fn swallow(&mut self) {
        self.mux.wrote(self.mux.outgoing().len());
    }
}
