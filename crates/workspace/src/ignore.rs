//! gitignore's rules, exactly as git reads them: on bytes, so that names that are not UTF-8 match too, and with
//! git's own notion of what a pattern with or without a slash means (gitignore(5)).
//!
//! The same patterns serve `--include`, `--exclude` and the list of likely secrets, so that a person learns one
//! language only.

mod wildmatch;

use crate::{IgnoreFile, IgnoreRules};
use base::RelPath;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use wildmatch::Slashes;
pub(crate) use wildmatch::is_well_formed;

/// A file of rules that is larger than this is not read: git's own limit is 100 MiB, and no one wrote more than a
/// few kilobytes by hand.
pub(crate) const MAX_RULES_BYTES: u64 = 16 << 20;

/// All the rules of a workspace, those of nested repositories included.
#[derive(Debug, Clone, Default)]
pub struct Ignore {
    /// From the weakest to the strongest: the user's own file, `info/exclude`, then `.gitignore` from the top down.
    lists: Vec<RuleList>,
    /// Roots of nested repositories, where the rules from above end.
    nested: HashSet<RelPath>,
}

impl Ignore {
    /// Rules from `files`, the weakest first (of two that match, the later one decides), with `nested` as the roots
    /// of repositories below the workspace's own: rules from outside don't reach into them.
    pub fn new(files: &[IgnoreFile], nested: impl IntoIterator<Item = RelPath>) -> Self {
        let lists = files
            .iter()
            .map(|file| RuleList::parse(&file.dir, &file.rules))
            .collect();
        Self {
            lists,
            nested: nested.into_iter().collect(),
        }
    }

    /// True when the path or a directory above it is ignored. That a path is tracked counts nothing here: whoever
    /// asks knows better what the baseline holds.
    pub fn is_ignored_within(&self, path: &RelPath, is_dir: bool) -> bool {
        let mut repository = RelPath::root();
        let mut above = RelPath::root();
        let last = path.components().count();
        for (at, name) in path.components().enumerate() {
            // The start of a path is a path.
            let Ok(prefix) = above.join(name) else {
                return false;
            };
            if self.is_ignored_in(&repository, &prefix, is_dir || at + 1 < last) {
                return true;
            }
            if self.nested.contains(&prefix) {
                repository = prefix.clone();
            }
            above = prefix;
        }
        false
    }

    fn is_ignored_in(&self, repository: &RelPath, path: &RelPath, is_dir: bool) -> bool {
        let mut rules = self
            .lists
            .iter()
            .filter(|list| list.dir.is_within(repository));
        verdict(&mut rules, path.as_bytes(), is_dir) == Some(true)
    }
}

impl IgnoreRules for Ignore {
    fn is_ignored(&self, path: &RelPath, is_dir: bool) -> bool {
        let mut repository = path.parent();
        while let Some(above) =
            repository.take_if(|above| !above.is_root() && !self.nested.contains(above))
        {
            repository = above.parent();
        }
        self.is_ignored_in(&repository.unwrap_or_default(), path, is_dir)
    }
}

/// What the strongest of `lists` (the weakest first) that speaks of `path` says: true for "ignored". Directories
/// above `path` are not looked at.
pub(crate) fn verdict(
    lists: &mut dyn DoubleEndedIterator<Item = &RuleList>,
    path: &[u8],
    is_dir: bool,
) -> Option<bool> {
    lists.rev().find_map(|list| list.verdict(path, is_dir))
}

/// The rules of one file.
#[derive(Debug, Clone)]
pub(crate) struct RuleList {
    dir: RelPath,
    patterns: Vec<Pattern>,
    /// Where the patterns that are plain names stand in the list, by their name.
    by_name: HashMap<Vec<u8>, Vec<usize>>,
    /// Where those of the form `*.ext` stand, by what follows their last dot.
    by_extension: HashMap<Vec<u8>, Vec<usize>>,
    /// Where all others stand.
    others: Vec<usize>,
}

impl RuleList {
    /// Reads rules that speak of the content of `dir`. Whatever the bytes, something comes out: git too ignores what
    /// it can't understand.
    pub(crate) fn parse(dir: &RelPath, rules: &[u8]) -> Self {
        let rules = rules.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rules);
        let patterns: Vec<Pattern> = rules
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| !line.is_empty() && line[0] != b'#')
            .filter_map(|line| Pattern::parse(trim_trailing_spaces(line)))
            .collect();
        let mut list = Self {
            dir: dir.clone(),
            by_name: HashMap::new(),
            by_extension: HashMap::new(),
            others: Vec::new(),
            patterns,
        };
        for (at, pattern) in list.patterns.iter().enumerate() {
            let place = if pattern.basename && pattern.literal == pattern.text.len() {
                list.by_name.entry(pattern.text.clone()).or_default()
            } else if pattern.basename && pattern.suffix && pattern.text.contains(&b'.') {
                let extension = extension(&pattern.text).to_vec();
                list.by_extension.entry(extension).or_default()
            } else {
                &mut list.others
            };
            place.push(at);
        }
        list
    }

    /// True without a single rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// What the last rule that matches says of `path` (below the workspace's root): true for "ignored".
    pub(crate) fn verdict(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let below = match self.dir.as_bytes() {
            [] => path,
            dir => path.strip_prefix(dir)?.strip_prefix(b"/")?,
        };
        let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or(below);
        let matches = |at: &&usize| self.patterns[**at].matches(below, name, is_dir);
        let last = |list: &Vec<usize>| list.iter().rev().find(matches).copied();
        let named = self.by_name.get(name).and_then(last);
        let extended = self.by_extension.get(extension(name)).and_then(last);
        let best = named.max(extended);
        let mut stronger = self.others.iter().rev().take_while(|at| Some(**at) > best);
        let found = stronger.find(matches).copied().or(best)?;
        Some(!self.patterns[found].negative)
    }

    /// True when some rule could match a path below the directory `dir` (given below this list's own directory):
    /// asked before a walk leaves a directory out. May err on the side of true.
    pub(crate) fn may_match_below(&self, dir: &[u8]) -> bool {
        self.patterns
            .iter()
            .any(|pattern| !pattern.negative && pattern.may_match_below(dir))
    }
}

/// One rule.
#[derive(Debug, Clone)]
struct Pattern {
    /// Without `!`, the leading slash and the one at the end.
    text: Vec<u8>,
    /// Bytes at the start without any special character.
    literal: usize,
    negative: bool,
    dir_only: bool,
    /// No slash within: matches the last component, at any depth.
    basename: bool,
    /// `*` and then only literal bytes.
    suffix: bool,
    /// A part of `text` that is in everything that matches; empty where none is known. Most names don't have it, and
    /// looking for it costs a fraction of a match.
    needed: Range<usize>,
}

impl Pattern {
    fn parse(line: &[u8]) -> Option<Self> {
        let (negative, line) = line
            .strip_prefix(b"!")
            .map_or((false, line), |rest| (true, rest));
        let (dir_only, line) = line
            .strip_suffix(b"/")
            .map_or((false, line), |rest| (true, rest));
        let basename = !line.contains(&b'/');
        let text = line.strip_prefix(b"/").unwrap_or(line);
        if text.is_empty() {
            return None;
        }
        let literal = literal_length(text);
        let suffix = text[0] == b'*' && literal_length(&text[1..]) == text.len() - 1;
        Some(Self {
            text: text.to_vec(),
            literal,
            negative,
            dir_only,
            basename,
            suffix,
            needed: needed(text),
        })
    }

    fn matches(&self, below: &[u8], name: &[u8], is_dir: bool) -> bool {
        if self.dir_only && !is_dir {
            return false;
        }
        if self.basename {
            return if self.literal == self.text.len() {
                name == self.text
            } else if self.suffix {
                name.ends_with(&self.text[1..])
            } else {
                self.may_match(name) && wildmatch::matches(&self.text, name, Slashes::Ordinary)
            };
        }
        if !self.may_match(below) {
            return false;
        }
        // As git does it: the part without wildcards is compared, and only the rest is a pattern of its own, which
        // is why a `**` straight after it has its special meaning.
        let (literal, rest) = self.text.split_at(self.literal);
        below.strip_prefix(literal).is_some_and(|below| {
            if rest.is_empty() {
                below.is_empty()
            } else {
                wildmatch::matches(rest, below, Slashes::Special)
            }
        })
    }

    fn may_match(&self, text: &[u8]) -> bool {
        let needed = &self.text[self.needed.clone()];
        // The first byte is rarely the right one, and asking for it by itself spares the call that compares.
        needed.first().is_none_or(|first| {
            text.windows(needed.len())
                .any(|part| part[0] == *first && part == needed)
        })
    }

    fn may_match_below(&self, dir: &[u8]) -> bool {
        if self.basename {
            return true;
        }
        let literal = &self.text[..self.literal];
        // Either the pattern's fixed start reaches below the directory, or its wildcards begin above it.
        if literal.len() > dir.len() {
            literal
                .strip_prefix(dir)
                .is_some_and(|rest| rest[0] == b'/')
        } else {
            dir.starts_with(literal) && self.literal < self.text.len()
        }
    }
}

/// What follows the last dot; all of it when there is none.
fn extension(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b'.').next().unwrap_or(name)
}

/// How many bytes at the start of `text` have no special meaning.
fn literal_length(text: &[u8]) -> usize {
    text.iter()
        .position(|byte| b"*?[\\".contains(byte))
        .unwrap_or(text.len())
}

/// Where the longest part of `text` is that stands for itself and is in all that `text` matches.
fn needed(text: &[u8]) -> Range<usize> {
    // What a bracket begins has rules of its own, and one that is never closed matches nothing.
    if text.contains(&b'[') {
        return 0..0;
    }
    let mut longest = 0..0;
    let mut start = 0;
    for at in 0..=text.len() {
        if text.get(at).is_some_and(|byte| !b"*?\\".contains(byte)) {
            continue;
        }
        // A `**` between slashes stands for no directory at all, too, and then one of the slashes is gone.
        let first = (start..at).find(|at| text[*at] != b'/').unwrap_or(at);
        if at - first > longest.len() {
            longest = first..at;
        }
        start = at + 1;
    }
    longest
}

/// Spaces at the end don't count, unless a backslash stands before them.
fn trim_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut first_space = None;
    let mut at = 0;
    while at < line.len() {
        match line[at] {
            b' ' => first_space = first_space.or(Some(at)),
            b'\\' => {
                at += 1;
                if at == line.len() {
                    return line;
                }
                first_space = None;
            }
            _ => first_space = None,
        }
        at += 1;
    }
    &line[..first_space.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests;
