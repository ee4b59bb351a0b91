use super::lines::{MAX_TEXT, Tag, compare, is_binary};
use super::{Side, Sides, content};
use crate::Kind;
use crate::change::{Change, ChangeSet, Node, Rename};
use base::{RelPath, Size};
use std::collections::{HashMap, HashSet};
use std::io;

/// Bytes of one line that are shown; of a longer one it is said how much is left out.
pub const MAX_SHOWN_LINE: usize = 4096;

/// What a piece of text is, so that whoever prints can colour it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line on both sides.
    Context,
    /// Head of a file.
    Header,
    /// Head of a hunk.
    Hunk,
    /// A line of the machine only.
    Added,
    /// A line of the baseline only.
    Removed,
    /// A character that would not show, or would do something: what stands for it.
    Escaped,
    /// Something that we say: a binary file, a missing newline.
    Note,
}

/// Gives the change set piece by piece, for a terminal: nothing of it is a control character but newlines and
/// tabs, whatever the files and their names hold. Files that moved unchanged are shown as renamed.
pub fn display(
    set: &ChangeSet,
    sides: &dyn Sides,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    let renames = set.renames();
    let to: HashMap<&RelPath, &Rename> =
        renames.iter().map(|rename| (&rename.to, rename)).collect();
    let gone: HashSet<&RelPath> = renames.iter().map(|rename| &rename.from).collect();
    for change in set.changes() {
        if gone.contains(&change.path) {
            continue;
        }
        match to.get(&change.path) {
            Some(rename) => show_rename(rename, set, change, out)?,
            None => show_change(change, sides, out)?,
        }
    }
    Ok(())
}

fn show_rename(
    rename: &Rename,
    set: &ChangeSet,
    change: &Change,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    out(
        Style::Header,
        &format!("renamed {} => {}", rename.from, rename.to),
    )?;
    let old = set.get(&rename.from).and_then(|change| change.old.as_ref());
    show_modes(old, change.new.as_ref(), out)?;
    out(Style::Context, "\n")
}

fn show_change(
    change: &Change,
    sides: &dyn Sides,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let head = match (old, new) {
        (None, Some(new)) => format!("new {} {}", noun(new), change.path),
        (Some(old), None) => format!("deleted {} {}", noun(old), change.path),
        (Some(old), Some(new)) if old.kind != new.kind => {
            format!("{} became {} {}", noun(old), noun(new), change.path)
        }
        (_, new) => format!("changed {} {}", new.map_or("file", noun), change.path),
    };
    out(Style::Header, &head)?;
    show_modes(old, new, out)?;
    if change.torn {
        out(Style::Note, " (it kept changing while it was read)")?;
    }
    out(Style::Context, "\n")?;
    let digest = |node: Option<&Node>| node.and_then(|node| node.digest);
    if digest(old) == digest(new) {
        return Ok(());
    }
    let size = |node: Option<&Node>| node.map_or(0, |node| node.size);
    let sizes = || format!("{} => {}", Size(size(old)), Size(size(new)));
    if size(old).max(size(new)) > MAX_TEXT {
        return out(
            Style::Note,
            &format!("too large to compare here, {}\n", sizes()),
        );
    }
    let texts = (
        content(sides, change, Side::Old)?,
        content(sides, change, Side::New)?,
    );
    if is_binary(&texts.0) || is_binary(&texts.1) {
        return out(Style::Note, &format!("binary, {}\n", sizes()));
    }
    for hunk in compare(&texts.0, &texts.1).hunks() {
        out(Style::Hunk, &hunk.head())?;
        out(Style::Context, "\n")?;
        for line in &hunk.lines {
            let (style, sign) = match line.tag {
                Tag::Context => (Style::Context, " "),
                Tag::Removed => (Style::Removed, "-"),
                Tag::Added => (Style::Added, "+"),
            };
            out(style, sign)?;
            let (text, ended) = match line.text.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (line.text, false),
            };
            show_line(text, style, out)?;
            out(style, "\n")?;
            if !ended {
                out(Style::Note, "\\ No newline at end of file\n")?;
            }
        }
    }
    Ok(())
}

fn show_modes(
    old: Option<&Node>,
    new: Option<&Node>,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    match (old, new) {
        (Some(old), Some(new)) if old.mode != new.mode && old.kind == new.kind => out(
            Style::Header,
            &format!(" (mode {:o} => {:o})", old.mode, new.mode),
        ),
        (None, Some(new)) if new.kind == Kind::File && new.mode & 0o111 != 0 => out(
            Style::Header,
            &format!(" (executable, mode {:o})", new.mode),
        ),
        _ => Ok(()),
    }
}

fn noun(node: &Node) -> &'static str {
    match node.kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "link",
    }
}

/// One line without its newline. Tabs and backslashes stay, what can't be seen is escaped in its own style.
fn show_line(
    line: &[u8],
    style: Style,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    let shown = &line[..line.len().min(MAX_SHOWN_LINE)];
    let mut plain = String::new();
    for chunk in shown.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let text = character.encode_utf8(&mut bytes);
            let is_plain = matches!(character, ' '..='~' | '\t');
            let escaped = if is_plain {
                String::new()
            } else {
                base::escape(text.as_bytes())
            };
            if is_plain || *escaped == *text {
                plain.push(character);
            } else {
                flush(&mut plain, style, out)?;
                out(Style::Escaped, &escaped)?;
            }
        }
        if !chunk.invalid().is_empty() {
            flush(&mut plain, style, out)?;
            out(Style::Escaped, &base::escape(chunk.invalid()))?;
        }
    }
    flush(&mut plain, style, out)?;
    if shown.len() < line.len() {
        out(
            Style::Note,
            &format!("… ({} more bytes)", line.len() - shown.len()),
        )?;
    }
    Ok(())
}

fn flush(
    plain: &mut String,
    style: Style,
    out: &mut dyn FnMut(Style, &str) -> io::Result<()>,
) -> io::Result<()> {
    if plain.is_empty() {
        return Ok(());
    }
    out(style, &std::mem::take(plain))
}
