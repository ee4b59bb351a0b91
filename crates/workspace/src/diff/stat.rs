use super::lines::{MAX_TEXT, compare, is_binary};
use super::{Side, Sides, content};
use crate::Kind;
use crate::change::{Change, ChangeSet, Node, Stat};
use base::RelPath;
use serde::Serialize;
use std::collections::HashMap;
use std::io;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It is new.
    Added,
    /// Its content differs.
    Modified,
    /// It is gone.
    Deleted,
    /// It is of another kind.
    TypeChanged,
    /// Only its permission bits differ.
    ModeChanged,
    /// It is the file that was at `from`.
    Renamed,
}

/// One path in numbers; the entry of the JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileStat {
    /// The path.
    pub path: RelPath,
    /// What happened.
    pub status: Status,
    /// Where a renamed file was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<RelPath>,
    /// The baseline's side.
    pub old: Option<Node>,
    /// The machine's side.
    pub new: Option<Node>,
    /// Lines added; `None` when it is not compared line by line (binary, too large, a directory).
    pub added: Option<u64>,
    /// Lines removed.
    pub removed: Option<u64>,
    /// A side is not text.
    pub binary: bool,
    /// The file kept changing while it was read.
    pub torn: bool,
}

impl FileStat {
    /// A directory, on the sides where it is.
    pub fn is_dir(&self) -> bool {
        [&self.old, &self.new]
            .into_iter()
            .flatten()
            .all(|node| node.kind == Kind::Dir)
    }
}

/// A change set in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// One for each path, sorted by path. The deleted side of a rename is not listed by itself.
    pub files: Vec<FileStat>,
    /// The paths, counted.
    #[serde(flatten)]
    pub stat: Stat,
    /// Lines added in all texts.
    pub lines_added: u64,
    /// Lines removed in all texts.
    pub lines_removed: u64,
}

/// Counts files and lines. Files that moved without a change of content count as renamed.
pub fn summarize(set: &ChangeSet, sides: &dyn Sides) -> io::Result<Summary> {
    let renames = set.renames();
    let from: HashMap<&RelPath, &RelPath> = renames.iter().map(|r| (&r.to, &r.from)).collect();
    let moved: std::collections::HashSet<&RelPath> = renames.iter().map(|r| &r.from).collect();
    let mut summary = Summary::default();
    for change in set.changes() {
        if moved.contains(&change.path) {
            continue;
        }
        let source = from.get(&change.path).copied();
        let file = file_stat(change, source, set, sides)?;
        summary.lines_added += file.added.unwrap_or(0);
        summary.lines_removed += file.removed.unwrap_or(0);
        summary.files.push(file);
    }
    summary.stat = set.stat();
    Ok(summary)
}

fn file_stat(
    change: &Change,
    source: Option<&RelPath>,
    set: &ChangeSet,
    sides: &dyn Sides,
) -> io::Result<FileStat> {
    let mut stat = FileStat {
        path: change.path.clone(),
        status: status(change),
        from: None,
        old: change.old.clone(),
        new: change.new.clone(),
        added: None,
        removed: None,
        binary: false,
        torn: change.torn,
    };
    if let Some(source) = source {
        stat.status = Status::Renamed;
        stat.old = set.get(source).and_then(|change| change.old.clone());
        stat.from = Some(source.clone());
        (stat.added, stat.removed) = (Some(0), Some(0));
        return Ok(stat);
    }
    let digests = [&change.old, &change.new].map(|node| node.as_ref().and_then(|n| n.digest));
    let sizes = [&change.old, &change.new].map(|node| node.as_ref().map_or(0, |n| n.size));
    if digests == [None, None] {
        return Ok(stat);
    }
    if digests[0] == digests[1] {
        (stat.added, stat.removed) = (Some(0), Some(0));
        return Ok(stat);
    }
    if sizes.into_iter().max() > Some(MAX_TEXT) {
        stat.binary = true;
        return Ok(stat);
    }
    let texts = [
        content(sides, change, Side::Old)?,
        content(sides, change, Side::New)?,
    ];
    if texts.iter().any(|text| is_binary(text)) {
        stat.binary = true;
        return Ok(stat);
    }
    let (added, removed) = compare(&texts[0], &texts[1]).counts();
    (stat.added, stat.removed) = (Some(added), Some(removed));
    Ok(stat)
}

fn status(change: &Change) -> Status {
    match (&change.old, &change.new) {
        (None, _) => Status::Added,
        (_, None) => Status::Deleted,
        (Some(old), Some(new)) if old.kind != new.kind => Status::TypeChanged,
        (Some(old), Some(new)) if old.digest == new.digest => Status::ModeChanged,
        _ => Status::Modified,
    }
}
