//! The keys that a session with a terminal keeps for itself: `Ctrl-]` and then a letter. All others are the
//! command's, as with telnet, whose escape this is: few programs use it, and none of the shells.

/// `Ctrl-]`.
const PREFIX: u8 = 0x1d;

/// What a person asked for by keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// `d`: leave, and let the machine go on.
    Detach,
    /// `s`: stop the machine; its result is saved.
    Stop,
}

/// Watches what is typed.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The prefix was the last byte so far.
    prefixed: bool,
}

impl Keys {
    /// Takes our keys out of `bytes`. The prefix twice is the prefix once; before any other key both go on to the
    /// command.
    pub(crate) fn take(&mut self, bytes: &mut Vec<u8>) -> Vec<Key> {
        if !self.prefixed && !bytes.contains(&PREFIX) {
            return Vec::new();
        }
        let mut keys = Vec::new();
        let mut others = Vec::with_capacity(bytes.len() + 1);
        for &byte in &*bytes {
            match (std::mem::take(&mut self.prefixed), byte) {
                (false, PREFIX) => self.prefixed = true,
                (false, byte) | (true, byte @ PREFIX) => others.push(byte),
                (true, b'd') => keys.push(Key::Detach),
                (true, b's') => keys.push(Key::Stop),
                (true, byte) => others.extend([PREFIX, byte]),
            }
        }
        *bytes = others;
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Keys};

    fn typed(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Key>) {
        let mut keys = Keys::default();
        let (mut passed, mut found) = (Vec::new(), Vec::new());
        for piece in pieces {
            let mut bytes = piece.to_vec();
            found.extend(keys.take(&mut bytes));
            passed.extend(bytes);
        }
        (passed, found)
    }

    #[test]
    fn keys_are_found_wherever_the_bytes_are_cut() {
        assert_eq!(typed(&[b"ls\r"]), (b"ls\r".to_vec(), vec![]));
        assert_eq!(typed(&[b"a\x1ddb"]), (b"ab".to_vec(), vec![Key::Detach]));
        assert_eq!(typed(&[b"a\x1d", b"sb"]), (b"ab".to_vec(), vec![Key::Stop]));
    }

    #[test]
    fn other_keys_are_the_commands() {
        assert_eq!(typed(&[b"\x1d\x1dd"]), (b"\x1dd".to_vec(), vec![]));
        assert_eq!(typed(&[b"\x1d", b"x"]), (b"\x1dx".to_vec(), vec![]));
        assert_eq!(typed(&[b"\x1d[A"]), (b"\x1d[A".to_vec(), vec![]));
    }
}
