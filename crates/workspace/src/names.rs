//! Names that no exported path may have: whatever some file system could take for a git directory.

#[cfg(test)]
mod tests;

use base::RelPath;

/// An exported path has a component that some file system could take for `.git`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` lies in what a file system could take for a git directory")]
pub struct Refused {
    /// The path.
    pub path: RelPath,
}

/// True when some file system of Linux, macOS or Windows could open `.git` by this name: other case, code
/// points that HFS+, APFS and case-folding ext4 ignore, and NTFS's trailing dots and spaces, short names
/// (`git~1`), streams (`.git::$INDEX_ALLOCATION`) and backslashes. It says yes to more names than git's
/// `core.protectHFS` and `core.protectNTFS` do together, on every platform.
pub fn is_git_store_alias(component: &[u8]) -> bool {
    // NTFS parts paths at backslashes too, so each piece counts by itself.
    component.split(|byte| *byte == b'\\').any(is_alias)
}

/// Checks every component of `path` with [`is_git_store_alias`].
pub fn check_exported(path: &RelPath) -> Result<(), Refused> {
    if path.components().any(is_git_store_alias) {
        return Err(Refused { path: path.clone() });
    }
    Ok(())
}

fn is_alias(piece: &[u8]) -> bool {
    // What survives folding fits in a few bytes, or the name is not an alias.
    let mut folded = String::new();
    for chunk in piece.utf8_chunks() {
        for character in chunk.valid().chars() {
            // A colon starts the name of a stream.
            if character == ':' {
                return is_folded_alias(&folded);
            }
            if !is_ignorable(character) {
                folded.extend(character.to_lowercase());
            }
        }
        // git takes the first invalid byte for the end of the name, and so may a lossy file system.
        if !chunk.invalid().is_empty() {
            break;
        }
    }
    is_folded_alias(&folded)
}

fn is_folded_alias(folded: &str) -> bool {
    let stem = folded.trim_end_matches(['.', ' ']);
    stem == ".git"
        || stem
            .strip_prefix("git~")
            .is_some_and(|number| number.len() == 1 && number.as_bytes()[0].is_ascii_digit())
}

/// Code points that a comparison of names may skip: those that HFS+ ignores (git's list), and Unicode's
/// `Default_Ignorable_Code_Point`, which ext4's case folding drops.
fn is_ignorable(character: char) -> bool {
    matches!(u32::from(character),
        0xad | 0x34f | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfff8
        | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}
