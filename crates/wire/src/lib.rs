//! The protocol between host and guest, and between the command line and a supervisor: frames on one byte
//! pipe, many streams on it, each with credit. No IO, no clock: bytes in, events out, bytes out.
//!
//! The peer is hostile. Every length is checked before memory is set aside; what a peer can make us hold is at
//! most [`MAX_STREAMS`] × [`WINDOW`] bytes; anything out of order is a [`ProtocolError`], after which the
//! connection is dead.
//!
//! ```text
//!  PREAMBLE Hello(version)            each side, once, first
//!  Open(request)  ─▶                  opener only (the host, or the command line)
//!  Message / Data(channel) / Finish(channel)   both ways, paid for with credit
//!  Credit(bytes)                      receiver gives back what it has used up
//!  Close                              "I send nothing more here"; both closed: the stream is gone
//!  Reset                              gone at once, for both
//! ```

mod frame;
pub mod link;
pub mod message;
mod mux;
mod spin;

pub use frame::{HEADER, MAX_MESSAGE, MAX_PAYLOAD, PREAMBLE, VERSION};
pub use mux::{
    AtRest, Event, MAX_PENDING, MAX_STREAMS, Mux, OUT_LIMIT, OVERHEAD, ProtocolError, SendError,
    Side, StreamId, WINDOW,
};
pub use spin::spin;
