/// The version of frames and messages together. Both ends come out of one build, so a mismatch means that a
/// sandbox outlived an update of efimera: it is refused with both numbers, never guessed at.
pub const VERSION: u16 = 1;

/// What each side sends before its first frame. A reader skips everything up to it, so that bytes left over in
/// a serial port from an earlier life can't be taken for frames.
pub const PREAMBLE: [u8; 16] = *b"\x00\xffefimera wire\r\n";

/// Bytes of a frame's header: payload length (u32), stream (u32), kind (u8), channel (u8), zero (u16), all
/// little endian.
pub const HEADER: usize = 12;

/// The longest payload of a frame with data, in bytes: what a loop handles between two looks at the clock.
pub const MAX_PAYLOAD: usize = 32 * 1024;

/// The longest request or message in bytes. They are rare and go in one piece, so a frame of theirs may be longer:
/// the longest single argument that Linux takes (128 KiB) fits, with variables beside it. Less than a stream's
/// credit, or it could never be sent.
pub const MAX_MESSAGE: usize = 192 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Open,
    Message,
    Data,
    Finish,
    Close,
    Credit,
    Reset,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Hello,
            1 => Self::Open,
            2 => Self::Message,
            3 => Self::Data,
            4 => Self::Finish,
            5 => Self::Close,
            6 => Self::Credit,
            7 => Self::Reset,
            _ => return None,
        })
    }

    /// The longest payload of a frame of this kind, in bytes.
    fn longest(self) -> usize {
        match self {
            Self::Open | Self::Message => MAX_MESSAGE,
            _ => MAX_PAYLOAD,
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Hello => 0,
            Self::Open => 1,
            Self::Message => 2,
            Self::Data => 3,
            Self::Finish => 4,
            Self::Close => 5,
            Self::Credit => 6,
            Self::Reset => 7,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: usize,
    pub(crate) stream: u32,
    pub(crate) kind: Kind,
    pub(crate) channel: u8,
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Kind(u8),
    Length(u32),
    Padding,
}

impl Header {
    pub(crate) fn parse(bytes: [u8; HEADER]) -> Result<Self, HeaderFault> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let length = word(0);
        if bytes[10] != 0 || bytes[11] != 0 {
            return Err(HeaderFault::Padding);
        }
        let kind = Kind::from_byte(bytes[8]).ok_or(HeaderFault::Kind(bytes[8]))?;
        if length as usize > kind.longest() {
            return Err(HeaderFault::Length(length));
        }
        Ok(Self {
            length: length as usize,
            stream: word(4),
            kind,
            channel: bytes[9],
        })
    }

    /// Appends the header and `payload`, which the caller has kept within the limit of its kind.
    pub(crate) fn emit(kind: Kind, stream: u32, channel: u8, payload: &[u8], out: &mut Vec<u8>) {
        debug_assert!(
            payload.len() <= kind.longest(),
            "a frame's payload is cut before it is sent"
        );
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&stream.to_le_bytes());
        out.extend_from_slice(&[kind.to_byte(), channel, 0, 0]);
        out.extend_from_slice(payload);
    }
}
