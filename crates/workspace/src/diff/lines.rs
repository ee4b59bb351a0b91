use similar::{Algorithm, DiffOp, DiffTag};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The most bytes that a side may have to be compared line by line.
pub const MAX_TEXT: u64 = 16 * 1024 * 1024;
/// Lines around a change.
const CONTEXT: usize = 3;
/// How long one file is compared. After it what is left counts as replaced as a whole: correct, and coarse.
const PATIENCE: Duration = Duration::from_secs(3);

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
    ops: Vec<DiffOp>,
}

/// True for what is no text: it holds a NUL.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes.contains(&0)
}

/// Compares line by line.
pub(super) fn compare<'a>(old: &'a [u8], new: &'a [u8]) -> Comparison<'a> {
    let (old, new) = (split(old), split(new));
    // Numbers compare faster than lines.
    let mut numbers: HashMap<&[u8], u32> = HashMap::new();
    let mut number = |line: &&'a [u8]| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(line).or_insert(next)
    };
    let old_numbers: Vec<u32> = old.iter().map(&mut number).collect();
    let new_numbers: Vec<u32> = new.iter().map(&mut number).collect();
    let deadline = Some(Instant::now() + PATIENCE);
    let ops = similar::capture_diff_slices_deadline(
        Algorithm::Myers,
        &old_numbers,
        &new_numbers,
        deadline,
    );
    Comparison { old, new, ops }
}

impl<'a> Comparison<'a> {
    /// Lines added and removed.
    pub(super) fn counts(&self) -> (u64, u64) {
        let changed = self.ops.iter().filter(|op| op.tag() != DiffTag::Equal);
        changed.fold((0, 0), |(added, removed), op| {
            (
                added + op.new_range().len() as u64,
                removed + op.old_range().len() as u64,
            )
        })
    }

    pub(super) fn hunks(&self) -> Vec<Hunk<'a>> {
        similar::group_diff_ops(self.ops.clone(), CONTEXT)
            .iter()
            .map(|group| self.hunk(group))
            .collect()
    }

    fn hunk(&self, group: &[DiffOp]) -> Hunk<'a> {
        let mut lines = Vec::new();
        let mut push =
            |tag, texts: &[&'a [u8]]| lines.extend(texts.iter().map(|text| Line { tag, text }));
        for op in group {
            let (old, new) = (&self.old[op.old_range()], &self.new[op.new_range()]);
            if op.tag() == DiffTag::Equal {
                push(Tag::Context, old);
            } else {
                push(Tag::Removed, old);
                push(Tag::Added, new);
            }
        }
        let span = |start: usize, end: usize| {
            let count = end - start;
            // A hunk without lines on one side names the line before it.
            (if count == 0 { start } else { start + 1 }, count)
        };
        let (first, last) = (group.first(), group.last());
        let old = (
            first.map_or(0, |op| op.old_range().start),
            last.map_or(0, |op| op.old_range().end),
        );
        let new = (
            first.map_or(0, |op| op.new_range().start),
            last.map_or(0, |op| op.new_range().end),
        );
        Hunk {
            old: span(old.0, old.1),
            new: span(new.0, new.1),
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
