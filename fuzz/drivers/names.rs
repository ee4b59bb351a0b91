//! Names: an alias of a git directory stays one under every disguise that file systems see through.

use base::RelPath;
use workspace::{check_exported, is_git_store_alias};

/// Returns whether the bytes are such a name.
pub(crate) fn drive(bytes: &[u8]) -> bool {
    let alias = is_git_store_alias(bytes);
    assert_eq!(
        alias,
        is_git_store_alias(&bytes.to_ascii_uppercase()),
        "letter case means nothing"
    );
    if alias {
        for tail in [&b"."[..], b" ", b":stream", b"\\x"] {
            assert!(is_git_store_alias(&[bytes, tail].concat()));
        }
        for lead in ["\u{200c}", "\u{feff}"] {
            assert!(is_git_store_alias(&[lead.as_bytes(), bytes].concat()));
        }
    }
    if let Ok(path) = RelPath::new(bytes) {
        let any = path.components().any(is_git_store_alias);
        assert_eq!(check_exported(&path).is_err(), any);
    }
    alias
}
