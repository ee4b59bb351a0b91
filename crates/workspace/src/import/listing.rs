use crate::{Baseline, BaselineError, Entry};
use base::RelPath;
use std::sync::Arc;

/// The baseline's entries, sorted by path (bytewise), one for each path.
pub trait Listing {
    /// Hands the entries to `visit`, in their order, from the first whose path is not before `start`, until it
    /// answers false.
    ///
    /// Fails when they can't be read.
    fn scan(&self, start: &[u8], visit: &mut dyn FnMut(Entry) -> bool)
    -> Result<(), BaselineError>;

    /// The entry of `path`, if there is one.
    fn find(&self, path: &RelPath) -> Result<Option<Entry>, BaselineError> {
        let mut found = None;
        self.scan(path.as_bytes(), &mut |entry| {
            found = Some(entry).filter(|entry| entry.path == *path);
            false
        })?;
        Ok(found)
    }

    /// The entries strictly below `path`.
    fn below(&self, path: &RelPath) -> Result<Vec<Entry>, BaselineError> {
        let mut below = Vec::new();
        self.scan(&start_below(path), &mut |entry| {
            let is_below = entry.path.is_within(path);
            if is_below {
                below.push(entry);
            }
            is_below
        })?;
        Ok(below)
    }

    /// The names directly in `path`. Looks at each name once, however much lies below it.
    fn children(&self, path: &RelPath) -> Result<Vec<Vec<u8>>, BaselineError> {
        let mut start = start_below(path);
        let skip = start.len();
        let mut names: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut past = None;
            self.scan(&start, &mut |entry| {
                if !entry.path.is_within(path) {
                    return false;
                }
                let tail = &entry.path.as_bytes()[skip..];
                match tail.iter().position(|byte| *byte == b'/') {
                    None => {
                        names.push(tail.to_vec());
                        true
                    }
                    // Everything below `a` lies between `a/` and `a0`, the byte after the slash.
                    Some(slash) => {
                        let dir = &entry.path.as_bytes()[..skip + slash];
                        past = Some([dir, &[b'/' + 1]].concat());
                        false
                    }
                }
            })?;
            match past {
                Some(past) => start = past,
                None => return Ok(names),
            }
        }
    }
}

/// What comes before everything below `path`. Between `a` and what lies in it there may be `a-b`.
fn start_below(path: &RelPath) -> Vec<u8> {
    if path.is_root() {
        return Vec::new();
    }
    [path.as_bytes(), b"/"].concat()
}

impl Listing for Baseline {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        self.entries.scan(start, visit)
    }
}

impl Listing for [Entry] {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        let at = self.partition_point(|entry| entry.path.as_bytes() < start);
        let mut rest = self[at..].iter();
        rest.all(|entry| visit(entry.clone()));
        Ok(())
    }
}

impl Listing for Vec<Entry> {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        self.as_slice().scan(start, visit)
    }
}

impl<T: Listing + ?Sized> Listing for &T {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        (**self).scan(start, visit)
    }
}

impl<T: Listing + ?Sized> Listing for Arc<T> {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        (**self).scan(start, visit)
    }
}

/// `None` has no entry.
impl<T: Listing> Listing for Option<T> {
    fn scan(
        &self,
        start: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), BaselineError> {
        self.as_ref()
            .map_or(Ok(()), |listing| listing.scan(start, visit))
    }
}
