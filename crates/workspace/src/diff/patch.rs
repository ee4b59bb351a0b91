use super::binary::write_literal;
use super::lines::{MAX_TEXT, Tag, compare, is_binary};
use super::quote::{quoted, tail};
use super::{Side, Sides, content, git_mode, parts};
use crate::Kind;
use crate::change::{Change, ChangeSet, Node};
use sha2::Digest as _;
use std::io::{self, Write};

/// How a repository names its objects. A patch with binary files must name them all the same way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ObjectFormat {
    /// The usual one, and that of a directory without git.
    #[default]
    Sha1,
    /// `extensions.objectFormat=sha256`.
    Sha256,
}

/// Writes the change set as a patch that `git apply` takes on the baseline. Bytes are raw: this is for files and
/// pipes, never for a terminal.
pub fn write_patch(
    set: &ChangeSet,
    sides: &dyn Sides,
    format: ObjectFormat,
    out: &mut dyn Write,
) -> io::Result<()> {
    for change in set.changes() {
        for part in parts(change) {
            write_part(&part, sides, format, out)?;
        }
    }
    out.flush()
}

fn write_part(
    change: &Change,
    sides: &dyn Sides,
    format: ObjectFormat,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let digest = |node: Option<&Node>| node.and_then(|node| node.digest);
    let same_content = old.is_some() && new.is_some() && digest(old) == digest(new);
    let modes = (old.map(git_mode), new.map(git_mode));
    if same_content && modes.0 == modes.1 {
        // Only bits that git doesn't know.
        return Ok(());
    }
    let names = (quoted("a/", &change.path), quoted("b/", &change.path));
    out.write_all(&[b"diff --git ", names.0.as_slice(), b" ", &names.1, b"\n"].concat())?;
    match modes {
        (Some(old), Some(new)) if old != new => writeln!(out, "old mode {old}\nnew mode {new}")?,
        (Some(old), None) => writeln!(out, "deleted file mode {old}")?,
        (None, Some(new)) => writeln!(out, "new file mode {new}")?,
        _ => {}
    }
    if same_content {
        return Ok(());
    }
    let id = |side| object_id(change, sides, side, format);
    write!(out, "index {}..{}", id(Side::Old)?, id(Side::New)?)?;
    match modes {
        (Some(old), Some(new)) if old == new => writeln!(out, " {old}")?,
        _ => writeln!(out)?,
    }
    let size = |node: Option<&Node>| node.map_or(0, |node| node.size);
    if size(old).max(size(new)) > MAX_TEXT {
        return write_binary(change, sides, out);
    }
    let texts = (
        content(sides, change, Side::Old)?,
        content(sides, change, Side::New)?,
    );
    if is_binary(&texts.0) || is_binary(&texts.1) {
        return write_binary(change, sides, out);
    }
    let hunks = compare(&texts.0, &texts.1).hunks();
    if hunks.is_empty() {
        return Ok(());
    }
    let name = |there: bool, name: &[u8]| {
        if there {
            [name, tail(&change.path)].concat()
        } else {
            b"/dev/null".to_vec()
        }
    };
    out.write_all(&[b"--- ", name(old.is_some(), &names.0).as_slice(), b"\n"].concat())?;
    out.write_all(&[b"+++ ", name(new.is_some(), &names.1).as_slice(), b"\n"].concat())?;
    for hunk in hunks {
        writeln!(out, "{}", hunk.head())?;
        for line in &hunk.lines {
            out.write_all(match line.tag {
                Tag::Context => b" ",
                Tag::Removed => b"-",
                Tag::Added => b"+",
            })?;
            out.write_all(line.text)?;
            if !line.text.ends_with(b"\n") {
                out.write_all(b"\n\\ No newline at end of file\n")?;
            }
        }
    }
    Ok(())
}

fn write_binary(change: &Change, sides: &dyn Sides, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"GIT binary patch\n")?;
    // First the way there, then the way back.
    for side in [Side::New, Side::Old] {
        let size = node(change, side).map_or(0, |node| node.size);
        write_literal(size, |to| copy(change, sides, side, to), out)?;
    }
    Ok(())
}

fn node(change: &Change, side: Side) -> Option<&Node> {
    match side {
        Side::Old => change.old.as_ref(),
        Side::New => change.new.as_ref(),
    }
}

fn copy(change: &Change, sides: &dyn Sides, side: Side, to: &mut dyn Write) -> io::Result<()> {
    match node(change, side) {
        Some(node) if node.kind == Kind::Symlink => to.write_all(&node.target),
        Some(node) => sides.copy(&change.path, node, side, to),
        None => Ok(()),
    }
}

/// The name that git gives the content as a blob; all zeros for an absent side.
fn object_id(
    change: &Change,
    sides: &dyn Sides,
    side: Side,
    format: ObjectFormat,
) -> io::Result<String> {
    let Some(node) = node(change, side) else {
        return Ok("0".repeat(match format {
            ObjectFormat::Sha1 => 40,
            ObjectFormat::Sha256 => 64,
        }));
    };
    let head = format!("blob {}\0", node.size);
    match format {
        ObjectFormat::Sha1 => {
            let mut hasher = Hashing(sha1::Sha1::new_with_prefix(head));
            copy(change, sides, side, &mut hasher)?;
            Ok(hex(&hasher.0.finalize()))
        }
        ObjectFormat::Sha256 => {
            let mut hasher = Hashing(sha2::Sha256::new_with_prefix(head));
            copy(change, sides, side, &mut hasher)?;
            Ok(hex(&hasher.0.finalize()))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        _ = write!(text, "{byte:02x}");
        text
    })
}

struct Hashing<H>(H);

impl<H: sha2::Digest> Write for Hashing<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
