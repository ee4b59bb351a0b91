use imara_diff::{Algorithm, Diff, InternedInput};
use std::ops::Range;

/// The most bytes that a side may have to be compared line by line.
pub const MAX_TEXT: u64 = 16 * 1024 * 1024;
/// Lines around a change.
const CONTEXT: usize = 3;

/// Which side a line is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// Both.
    Context,
    /// The baseline only.
    Removed,
    /// The machine only.
    Added,
}

/// One line of a hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Which side it is on.
    pub tag: Tag,
    /// Its bytes, with the newline where it has one.
    pub text: &'a [u8],
}

/// Lines that differ, with some context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk<'a> {
    /// First line and number of lines in the baseline, as the hunk's head says it.
    pub old: (usize, usize),
    /// The same in the machine.
    pub new: (usize, usize),
    /// The lines.
    pub lines: Vec<Line<'a>>,
}

/// How two texts differ.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    old: Vec<&'a [u8]>,
    new: Vec<&'a [u8]>,
    /// Lines that were replaced, from the top down.
    changes: Vec<(Range<usize>, Range<usize>)>,
}

/// True for what is no text: it holds a NUL.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes.contains(&0)
}

/// Compares line by line. The answer is the same each time, and takes little more than linear time: where texts
/// have next to nothing in common, the algorithm settles for a coarser one.
pub(super) fn compare<'a>(old: &'a [u8], new: &'a [u8]) -> Comparison<'a> {
    let input = InternedInput::new(old, new);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    // Moves a change to where a person would put it: to a blank line, or the start of a block.
    diff.postprocess_lines(&input);
    let lines = |range: Range<u32>| range.start as usize..range.end as usize;
    let changes = diff
        .hunks()
        .map(|hunk| (lines(hunk.before), lines(hunk.after)))
        .collect();
    Comparison {
        old: split(old),
        new: split(new),
        changes,
    }
}

impl<'a> Comparison<'a> {
    /// Lines added and removed.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.changes
            .iter()
            .fold((0, 0), |(added, removed), (old, new)| {
                (added + new.len() as u64, removed + old.len() as u64)
            })
    }

    /// Changes with the lines around them; those whose lines around meet are one.
    pub(super) fn hunks(&self) -> Vec<Hunk<'a>> {
        let near =
            |a: &(Range<usize>, _), b: &(Range<usize>, _)| b.0.start - a.0.end <= 2 * CONTEXT;
        self.changes
            .chunk_by(near)
            .map(|group| self.hunk(group))
            .collect()
    }

    fn hunk(&self, group: &[(Range<usize>, Range<usize>)]) -> Hunk<'a> {
        let mut lines = Vec::new();
        let mut push =
            |tag, texts: &[&'a [u8]]| lines.extend(texts.iter().map(|text| Line { tag, text }));
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let before = first.0.start.min(CONTEXT);
        let after = (self.old.len() - last.0.end).min(CONTEXT);
        let mut at = first.0.start - before;
        for (old, new) in group {
            push(Tag::Context, &self.old[at..old.start]);
            push(Tag::Removed, &self.old[old.clone()]);
            push(Tag::Added, &self.new[new.clone()]);
            at = old.end;
        }
        push(Tag::Context, &self.old[at..at + after]);
        let span = |start: usize, end: usize| {
            let count = end - start;
            // A hunk without lines on one side names the line before it.
            (if count == 0 { start } else { start + 1 }, count)
        };
        Hunk {
            old: span(first.0.start - before, last.0.end + after),
            new: span(first.1.start - before, last.1.end + after),
            lines,
        }
    }
}

impl Hunk<'_> {
    /// `@@ -1,3 +1,4 @@`
    pub fn head(&self) -> String {
        let span = |(start, count): (usize, usize)| match count {
            1 => start.to_string(),
            _ => format!("{start},{count}"),
        };
        format!("@@ -{} +{} @@", span(self.old), span(self.new))
    }
}

fn split(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}
