use crate::{Baseline, Entry};
use base::RelPath;
use std::sync::Arc;

/// The baseline's entries, sorted by path (bytewise), one for each path.
pub trait Listing {
    /// The entries.
    fn entries(&self) -> &[Entry];

    /// The entry of `path`, if there is one.
    fn find(&self, path: &RelPath) -> Option<&Entry> {
        let entries = self.entries();
        let at = entries.binary_search_by(|entry| entry.path.cmp(path));
        at.ok().map(|at| &entries[at])
    }

    /// The entries strictly below `path`.
    fn below(&self, path: &RelPath) -> &[Entry] {
        let entries = self.entries();
        if path.is_root() {
            return entries;
        }
        // In bytewise order everything below `a` lies between `a/` and `a0`, the byte after the slash.
        let bound = |last: u8| {
            let bound = [path.as_bytes(), &[last]].concat();
            entries.partition_point(|entry| entry.path.as_bytes() < bound.as_slice())
        };
        &entries[bound(b'/')..bound(b'/' + 1)]
    }

    /// The names directly in `path`. Looks at each name once, however much lies below it.
    fn children<'a>(&'a self, path: &RelPath) -> Vec<&'a [u8]> {
        let skip = if path.is_root() {
            0
        } else {
            path.as_bytes().len() + 1
        };
        let mut rest = self.below(path);
        let mut names: Vec<&[u8]> = Vec::new();
        while let Some((entry, more)) = rest.split_first() {
            let tail = &entry.path.as_bytes()[skip..];
            rest = match tail.iter().position(|byte| *byte == b'/') {
                None => {
                    names.push(tail);
                    more
                }
                Some(slash) => {
                    let end = [&entry.path.as_bytes()[..skip + slash], &[b'/' + 1]].concat();
                    let past = rest.partition_point(|entry| entry.path.as_bytes() < end.as_slice());
                    &rest[past..]
                }
            };
        }
        names
    }
}

impl Listing for Baseline {
    fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Listing for [Entry] {
    fn entries(&self) -> &[Entry] {
        self
    }
}

impl Listing for Vec<Entry> {
    fn entries(&self) -> &[Entry] {
        self
    }
}

impl<T: Listing + ?Sized> Listing for &T {
    fn entries(&self) -> &[Entry] {
        (**self).entries()
    }
}

impl<T: Listing + ?Sized> Listing for Arc<T> {
    fn entries(&self) -> &[Entry] {
        (**self).entries()
    }
}
