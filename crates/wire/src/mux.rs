use crate::frame::{
    HEADER, Header, HeaderFault, Kind, MAX_MESSAGE, MAX_PAYLOAD, PREAMBLE, VERSION,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Streams that may be open at the same time.
pub const MAX_STREAMS: usize = 256;
/// Credit of one stream in bytes: what a peer may send on it before it is given credit again. A frame costs its
/// payload and [`OVERHEAD`].
pub const WINDOW: usize = 256 * 1024;
/// What a frame costs beyond its payload, in bytes: no less than what it makes the receiver hold for it, so that a
/// flood of one-byte frames is no way around [`WINDOW`].
pub const OVERHEAD: usize = 128;
/// Messages and ends that wait for credit on one stream.
pub const MAX_PENDING: usize = 64;
/// Bytes that may wait to be written; above it [`Mux::send_data`] takes nothing more.
pub const OUT_LIMIT: usize = 1024 * 1024;
/// Bytes that may wait to be written while the peer still opens streams: far beyond what a peer that reads ever
/// lets wait.
const DEAF_LIMIT: usize = 4 * OUT_LIMIT;
/// Bytes that a reader skips in search of the preamble.
const MAX_SKIPPED: usize = 1024 * 1024;
/// Channels of one stream: standard input, output and error, and one to spare.
const MAX_CHANNELS: u8 = 4;

/// Which end of the pipe this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Opens streams: the host towards a guest, the command line towards a supervisor.
    Opener,
    /// Answers on streams that the other side opened.
    Answerer,
}

/// A stream's number, unique in the life of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// What has come from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer is there and speaks our version.
    Hello,
    /// The peer opened a stream with this request (answerer only).
    Opened {
        /// The new stream.
        id: StreamId,
        /// An encoded request.
        payload: Vec<u8>,
    },
    /// An encoded message.
    Message {
        /// Where.
        id: StreamId,
        /// The message.
        payload: Vec<u8>,
        /// What to give to [`Mux::consume`] once it is dealt with.
        cost: usize,
    },
    /// Raw bytes of one channel.
    Data {
        /// Where.
        id: StreamId,
        /// 0 standard input, 1 output, 2 error.
        channel: u8,
        /// The bytes.
        payload: Vec<u8>,
        /// What to give to [`Mux::consume`] once they are dealt with.
        cost: usize,
    },
    /// No more bytes come on this channel.
    Finished {
        /// Where.
        id: StreamId,
        /// Which channel.
        channel: u8,
    },
    /// The peer sends nothing more on this stream.
    Closed {
        /// Where.
        id: StreamId,
    },
    /// The peer has thrown the stream away.
    Reset {
        /// Where.
        id: StreamId,
    },
}

/// The peer broke the protocol; nothing that it sends can be believed from here on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No preamble within the first MiB.
    #[error("The peer doesn't speak this protocol")]
    NoPreamble,
    /// Another version.
    #[error("The peer speaks version {theirs} of the protocol, this is version {ours}")]
    Version {
        /// Our [`VERSION`].
        ours: u16,
        /// What the peer said.
        theirs: u16,
    },
    /// A frame before the greeting, or a second greeting.
    #[error("The peer's greeting is missing or repeated")]
    Greeting,
    /// A header that can't be.
    #[error("A frame's header is malformed: {0}")]
    Header(&'static str),
    /// More bytes than there was credit for.
    #[error("The peer sent more than it had credit for")]
    Overrun,
    /// A frame that doesn't fit the state of its stream.
    #[error("A frame doesn't fit its stream: {0}")]
    State(&'static str),
    /// Too many streams at a time.
    #[error("The peer opened more than {MAX_STREAMS} streams at a time")]
    Streams,
    /// It goes on asking, and takes no answers.
    #[error("The peer doesn't read what it is sent")]
    Deaf,
}

/// Why something could not be sent; the connection itself is fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No such stream or channel (any more), or it is closed or finished on our side.
    #[error("The stream is closed")]
    Closed,
    /// [`MAX_PENDING`] messages wait already, or [`MAX_STREAMS`] streams are open.
    #[error("Too much is waiting to be sent")]
    Full,
    /// Longer than [`MAX_MESSAGE`].
    #[error("The message is too long for one frame")]
    TooLong,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    input: Vec<u8>,
    skipped: usize,
    synced: bool,
    greeted: bool,
    dead: Option<ProtocolError>,
    events: VecDeque<Event>,
    out: Vec<u8>,
    written: usize,
    /// In a map without random state: a machine frozen into a template holds one of these, and clones must share
    /// no secret of it.
    streams: BTreeMap<u32, Stream>,
    /// The opener's next number; the answerer's smallest number that was not opened yet.
    next: u32,
    /// Credit is held back, since too much waits to be written already.
    withheld: bool,
    /// Nothing is sent at all ([`Mux::hold`]).
    held: bool,
}

/// One end of a connection that stands still, to be written down ([`Mux::at_rest`]) and taken up again later
/// ([`Mux::resume`]), by another process or more than one: the peer is cloned with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtRest {
    streams: BTreeMap<u32, Stream>,
    next: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stream {
    /// What the peer may still send.
    receive_credit: usize,
    /// Used up by us, and not yet given back.
    owed: usize,
    /// What we may still send.
    send_credit: usize,
    pending: VecDeque<Pending>,
    finished_here: [bool; MAX_CHANNELS as usize],
    finished_there: [bool; MAX_CHANNELS as usize],
    closed_here: bool,
    closed_there: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Pending {
    Message(Vec<u8>),
    Finish(u8),
    Close,
}

impl Stream {
    fn new() -> Self {
        Self {
            receive_credit: WINDOW,
            owed: 0,
            send_credit: WINDOW,
            pending: VecDeque::new(),
            finished_here: [false; MAX_CHANNELS as usize],
            finished_there: [false; MAX_CHANNELS as usize],
            closed_here: false,
            closed_there: false,
        }
    }
}

impl Mux {
    /// A connection at its start; the greeting waits in [`Mux::outgoing`].
    pub fn new(side: Side) -> Self {
        let mut out = PREAMBLE.to_vec();
        Header::emit(Kind::Hello, 0, 0, &VERSION.to_le_bytes(), &mut out);
        Self {
            side,
            input: Vec::new(),
            skipped: 0,
            synced: false,
            greeted: false,
            dead: None,
            events: VecDeque::new(),
            out,
            written: 0,
            streams: BTreeMap::new(),
            next: 1,
            withheld: false,
            held: false,
        }
    }

    /// Opens a stream with an encoded request, and sends nothing more until [`Mux::release`]: what is sent meanwhile
    /// waits, as without credit, and no other stream can be opened.
    pub fn hold(&mut self, request: &[u8]) -> Result<StreamId, SendError> {
        let id = self.open(request)?;
        self.held = true;
        Ok(id)
    }

    /// Ends the silence: with an encoded message on the stream that began it.
    pub fn release(&mut self, id: StreamId, message: &[u8]) -> Result<(), SendError> {
        self.held = false;
        let sent = self.send_message(id, message);
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            self.consume(StreamId(id), 0);
            self.flush(id);
            self.forget_if_done(id);
        }
        sent
    }

    /// What this end is, if no byte is under way: nothing waits to be written, and no frame has come by half.
    pub fn at_rest(&self) -> Option<AtRest> {
        let still = self.greeted
            && self.dead.is_none()
            && self.input.is_empty()
            && self.events.is_empty()
            && self.outgoing().is_empty();
        still.then(|| AtRest {
            streams: self.streams.clone(),
            next: self.next,
        })
    }

    /// Takes up an opener's end. What was received and not yet dealt with then is taken as dealt with: the peer gets
    /// its credit back. It is silent until [`Mux::release`].
    pub fn resume(rest: AtRest) -> Self {
        let mut mux = Self::new(Side::Opener);
        // Both have said it already.
        mux.out.clear();
        mux.synced = true;
        mux.greeted = true;
        mux.streams = rest.streams;
        mux.next = rest.next;
        mux.held = true;
        let ids: Vec<u32> = mux.streams.keys().copied().collect();
        for id in ids {
            mux.consume(StreamId(id), WINDOW);
        }
        mux
    }

    /// Takes bytes from the peer. After an error every call gives the same error; events that came before it
    /// can still be taken.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        let result = self.take_in(bytes);
        if let Err(error) = &result {
            self.dead = Some(error.clone());
            self.input = Vec::new();
        }
        result
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes to write to the pipe; tell [`Mux::wrote`] how many went.
    pub fn outgoing(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// `count` bytes of [`Mux::outgoing`] were written.
    pub fn wrote(&mut self, count: usize) {
        self.written = self.written.saturating_add(count).min(self.out.len());
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        } else if self.written > OUT_LIMIT / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
        if self.withheld && self.waiting() < OUT_LIMIT {
            self.withheld = false;
            let ids: Vec<u32> = self.streams.keys().copied().collect();
            for id in ids {
                self.consume(StreamId(id), 0);
            }
        }
    }

    /// Opens a stream with an encoded request.
    pub fn open(&mut self, request: &[u8]) -> Result<StreamId, SendError> {
        debug_assert_eq!(self.side, Side::Opener, "only the opener opens");
        if request.len() > MAX_MESSAGE {
            return Err(SendError::TooLong);
        }
        if self.held || self.streams.len() >= MAX_STREAMS || self.next == u32::MAX {
            return Err(SendError::Full);
        }
        let id = self.next;
        self.next += 1;
        self.streams.insert(id, Stream::new());
        Header::emit(Kind::Open, id, 0, request, &mut self.out);
        Ok(StreamId(id))
    }

    /// Sends an encoded message, now or as soon as there is credit, in order with data and ends.
    pub fn send_message(&mut self, id: StreamId, message: &[u8]) -> Result<(), SendError> {
        if message.len() > MAX_MESSAGE {
            return Err(SendError::TooLong);
        }
        self.enqueue(id, Pending::Message(message.to_vec()))
    }

    /// Sends as much of `bytes` as credit and [`OUT_LIMIT`] allow, and says how much that was.
    pub fn send_data(
        &mut self,
        id: StreamId,
        channel: u8,
        bytes: &[u8],
    ) -> Result<usize, SendError> {
        let mut room = self.room(id);
        let stream = self
            .streams
            .get_mut(&id.0)
            .filter(|stream| {
                !stream.closed_here
                    && stream.finished_here.get(usize::from(channel)) == Some(&false)
            })
            .ok_or(SendError::Closed)?;
        let mut sent = 0;
        while sent < bytes.len() && room > 0 {
            let part = (bytes.len() - sent).min(room).min(MAX_PAYLOAD);
            Header::emit(
                Kind::Data,
                id.0,
                channel,
                &bytes[sent..sent + part],
                &mut self.out,
            );
            stream.send_credit -= part + OVERHEAD;
            sent += part;
            room = stream
                .send_credit
                .saturating_sub(OVERHEAD)
                .min(OUT_LIMIT.saturating_sub(self.out.len() - self.written));
        }
        Ok(sent)
    }

    /// How many bytes [`Mux::send_data`] would take at least in one frame; 0 for a stream that is gone.
    pub fn room(&self, id: StreamId) -> usize {
        match self.streams.get(&id.0) {
            Some(_) if self.held => 0,
            Some(stream) if !stream.closed_here && stream.pending.is_empty() => stream
                .send_credit
                .saturating_sub(OVERHEAD)
                .min(OUT_LIMIT.saturating_sub(self.waiting())),
            _ => 0,
        }
    }

    /// Says that no more bytes follow on `channel`; once, a second time is [`SendError::Closed`].
    pub fn finish(&mut self, id: StreamId, channel: u8) -> Result<(), SendError> {
        let finished = |mux: &Self| {
            let stream = mux.streams.get(&id.0)?;
            stream.finished_here.get(usize::from(channel)).copied()
        };
        if finished(self) != Some(false) {
            return Err(SendError::Closed);
        }
        self.enqueue(id, Pending::Finish(channel))?;
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.finished_here[usize::from(channel)] = true;
        }
        Ok(())
    }

    /// Says that nothing more follows on this stream.
    pub fn close(&mut self, id: StreamId) -> Result<(), SendError> {
        self.enqueue(id, Pending::Close)?;
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.closed_here = true;
        }
        self.forget_if_done(id.0);
        Ok(())
    }

    /// Throws the stream away on both sides. What it still had to send or to be read is lost.
    pub fn reset(&mut self, id: StreamId) {
        if self.streams.remove(&id.0).is_some() {
            Header::emit(Kind::Reset, id.0, 0, &[], &mut self.out);
        }
    }

    /// Gives back credit for data or a message that has been dealt with. Unknown streams are ignored: they may
    /// have ended in between.
    pub fn consume(&mut self, id: StreamId, cost: usize) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.owed = (stream.owed + cost).min(WINDOW - stream.receive_credit);
        // Small steps would double the number of frames; a quarter keeps the peer busy.
        if self.held || stream.owed < WINDOW / 4 || stream.closed_there {
            return;
        }
        if self.out.len() - self.written >= OUT_LIMIT {
            // A peer that sends without reading would make this grow without end.
            self.withheld = true;
        } else {
            let owed = u32::try_from(stream.owed).unwrap_or(u32::MAX);
            stream.receive_credit += stream.owed;
            stream.owed = 0;
            Header::emit(Kind::Credit, id.0, 0, &owed.to_le_bytes(), &mut self.out);
        }
    }

    /// True while the stream is known on this side.
    pub fn is_open(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id.0)
    }

    fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    fn enqueue(&mut self, id: StreamId, item: Pending) -> Result<(), SendError> {
        let stream = self
            .streams
            .get_mut(&id.0)
            .filter(|stream| !stream.closed_here)
            .ok_or(SendError::Closed)?;
        if stream.pending.len() >= MAX_PENDING {
            return Err(SendError::Full);
        }
        stream.pending.push_back(item);
        self.flush(id.0);
        Ok(())
    }

    /// Sends what waits on a stream, as far as its credit goes.
    fn flush(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id).filter(|_| !self.held) else {
            return;
        };
        while let Some(item) = stream.pending.front() {
            match item {
                Pending::Message(message) => {
                    let cost = message.len() + OVERHEAD;
                    if stream.send_credit < cost {
                        return;
                    }
                    stream.send_credit -= cost;
                    Header::emit(Kind::Message, id, 0, message, &mut self.out);
                }
                Pending::Finish(channel) => {
                    Header::emit(Kind::Finish, id, *channel, &[], &mut self.out);
                }
                Pending::Close => Header::emit(Kind::Close, id, 0, &[], &mut self.out),
            }
            stream.pending.pop_front();
        }
    }

    fn forget_if_done(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(&id)
            && stream.closed_here
            && stream.closed_there
            && stream.pending.is_empty()
        {
            self.streams.remove(&id);
        }
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            // The input buffer never holds more than one frame (or one preamble's worth of searching).
            let room = (HEADER + MAX_MESSAGE)
                .saturating_sub(self.input.len())
                .max(1);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.input.extend_from_slice(now);
            bytes = later;
            self.drain_input()?;
        }
        Ok(())
    }

    fn drain_input(&mut self) -> Result<(), ProtocolError> {
        if !self.synced && !self.find_preamble()? {
            return Ok(());
        }
        let mut at = 0;
        while let Some(header) = self.input[at..].first_chunk::<HEADER>() {
            let header = Header::parse(*header).map_err(|fault| {
                ProtocolError::Header(match fault {
                    HeaderFault::Kind(_) => "unknown kind",
                    HeaderFault::Length(_) => "payload too long",
                    HeaderFault::Padding => "reserved bytes are not zero",
                })
            })?;
            let start = at + HEADER;
            let Some(payload) = self.input.get(start..start + header.length) else {
                break;
            };
            let payload = payload.to_vec();
            at = start + header.length;
            self.handle(header, payload)?;
        }
        self.input.drain(..at);
        Ok(())
    }

    /// Drops bytes up to and including the preamble. False while it has not come.
    fn find_preamble(&mut self) -> Result<bool, ProtocolError> {
        if let Some(at) = self
            .input
            .windows(PREAMBLE.len())
            .position(|window| window == PREAMBLE)
        {
            self.input.drain(..at + PREAMBLE.len());
            self.synced = true;
            return Ok(true);
        }
        let drop = self.input.len().saturating_sub(PREAMBLE.len() - 1);
        self.skipped += drop;
        self.input.drain(..drop);
        if self.skipped > MAX_SKIPPED {
            Err(ProtocolError::NoPreamble)
        } else {
            Ok(false)
        }
    }

    fn handle(&mut self, header: Header, payload: Vec<u8>) -> Result<(), ProtocolError> {
        if header.kind == Kind::Hello {
            return self.handle_hello(&payload);
        }
        if !self.greeted {
            return Err(ProtocolError::Greeting);
        }
        let id = StreamId(header.stream);
        if header.kind == Kind::Open {
            return self.handle_open(id, payload);
        }
        let channels = match header.kind {
            Kind::Data | Kind::Finish => MAX_CHANNELS,
            _ => 1,
        };
        if header.channel >= channels {
            return Err(ProtocolError::Header("no such channel"));
        }
        let fits = match header.kind {
            Kind::Data => !payload.is_empty(),
            Kind::Finish | Kind::Close | Kind::Reset => payload.is_empty(),
            _ => true,
        };
        if !fits {
            return Err(ProtocolError::Header(
                "a payload where none belongs, or none",
            ));
        }
        let Some(stream) = self.streams.get_mut(&id.0) else {
            // Frames of a stream that we have just reset are still under way; one that never was is a lie.
            return if id.0 < self.next {
                Ok(())
            } else {
                Err(ProtocolError::State("no such stream"))
            };
        };
        if stream.closed_there && !matches!(header.kind, Kind::Credit | Kind::Reset) {
            return Err(ProtocolError::State("it was closed before"));
        }
        match header.kind {
            Kind::Message | Kind::Data => {
                let cost = payload.len() + OVERHEAD;
                stream.receive_credit = stream
                    .receive_credit
                    .checked_sub(cost)
                    .ok_or(ProtocolError::Overrun)?;
                if header.kind == Kind::Message {
                    self.events.push_back(Event::Message { id, payload, cost });
                } else if stream.finished_there[usize::from(header.channel)] {
                    return Err(ProtocolError::State("data after the channel's end"));
                } else {
                    self.events.push_back(Event::Data {
                        id,
                        channel: header.channel,
                        payload,
                        cost,
                    });
                }
            }
            Kind::Finish => {
                let finished = &mut stream.finished_there[usize::from(header.channel)];
                if std::mem::replace(finished, true) {
                    return Err(ProtocolError::State("a channel ended twice"));
                }
                self.events.push_back(Event::Finished {
                    id,
                    channel: header.channel,
                });
            }
            Kind::Credit => {
                let amount: [u8; 4] = payload
                    .try_into()
                    .map_err(|_| ProtocolError::Header("credit has four bytes"))?;
                stream.send_credit = stream
                    .send_credit
                    .saturating_add(u32::from_le_bytes(amount) as usize);
                if stream.send_credit > WINDOW {
                    return Err(ProtocolError::State("more credit than the window"));
                }
                self.flush(id.0);
                self.forget_if_done(id.0);
            }
            Kind::Close => {
                stream.closed_there = true;
                self.events.push_back(Event::Closed { id });
                self.forget_if_done(id.0);
            }
            Kind::Reset => {
                self.streams.remove(&id.0);
                self.events.push_back(Event::Reset { id });
            }
            Kind::Hello | Kind::Open => {}
        }
        Ok(())
    }

    fn handle_hello(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        let theirs: [u8; 2] = payload.try_into().map_err(|_| ProtocolError::Greeting)?;
        let theirs = u16::from_le_bytes(theirs);
        if theirs != VERSION {
            return Err(ProtocolError::Version {
                ours: VERSION,
                theirs,
            });
        }
        if std::mem::replace(&mut self.greeted, true) {
            return Err(ProtocolError::Greeting);
        }
        self.events.push_back(Event::Hello);
        Ok(())
    }

    fn handle_open(&mut self, id: StreamId, payload: Vec<u8>) -> Result<(), ProtocolError> {
        if self.side == Side::Opener {
            return Err(ProtocolError::State("the answerer opened a stream"));
        }
        if id.0 < self.next || id.0 == u32::MAX {
            return Err(ProtocolError::State("a stream number was used twice"));
        }
        if self.streams.len() >= MAX_STREAMS {
            return Err(ProtocolError::Streams);
        }
        if self.waiting() > DEAF_LIMIT {
            return Err(ProtocolError::Deaf);
        }
        self.next = id.0 + 1;
        self.streams.insert(id.0, Stream::new());
        self.events.push_back(Event::Opened { id, payload });
        Ok(())
    }
}
