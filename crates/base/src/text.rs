use std::fmt::Write as _;

/// Makes foreign bytes printable on any terminal: valid, visible UTF-8 stays as it is; control characters,
/// invisible and bidirectional characters, private-use and tag characters, and bytes that are not UTF-8 become
/// `\n`, `\t`, `\u{202e}` or `\x9b`. A backslash becomes `\\`, so the form is unambiguous.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                hidden if is_hidden(hidden) => {
                    let code = u32::from(hidden);
                    // Writing to a String can't fail.
                    _ = if code < 0x100 {
                        write!(out, "\\x{code:02x}")
                    } else {
                        write!(out, "\\u{{{code:x}}}")
                    };
                }
                visible => out.push(visible),
            }
        }
        for byte in chunk.invalid() {
            _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// As [`escape`], cut to about `max` characters with `…` at the end where something was cut.
pub fn escape_line(bytes: &[u8], max: usize) -> String {
    let whole = escape(&bytes[..bytes.len().min(max.saturating_mul(4))]);
    match whole.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &whole[..end]),
        None => whole,
    }
}

/// Characters that a terminal acts on or a reader can't see (Unicode categories Cc, Cf, Co, Zl, Zp, the tag
/// and variation-selector blocks, fillers that print as nothing).
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(u32::from(character),
            0xad | 0x34f | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x8e2 | 0x115f | 0x1160 | 0x17b4 | 0x17b5
            | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0x3164
            | 0xe000..=0xf8ff | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffb
            | 0x110bd | 0x110cd | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff | 0xf_0000..)
}
