use base::RelPath;

/// `prefix` and the path as git writes names in a patch (`core.quotePath` as by default): plain where all bytes
/// are printable ASCII, else between quotes with C's escapes.
pub(super) fn quoted(prefix: &str, path: &RelPath) -> Vec<u8> {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    let path = path.as_bytes();
    if path.iter().all(plain) {
        return [prefix.as_bytes(), path].concat();
    }
    let mut out = vec![b'"'];
    out.extend_from_slice(prefix.as_bytes());
    for byte in path {
        match byte {
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0b => out.extend_from_slice(b"\\v"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            byte if plain(byte) => out.push(*byte),
            byte => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    out.push(b'"');
    out
}

/// What follows a name in a `---` or `+++` line: a tab where the name holds a space, so that nothing takes the
/// rest for a time stamp.
pub(super) fn tail(path: &RelPath) -> &'static [u8] {
    if path.as_bytes().contains(&b' ') {
        b"\t"
    } else {
        b""
    }
}
