//! Git directories by another name: a bare repository that the guest made, or edited, as ordinary files. git
//! started in one would run what its configuration names, so nothing in it comes out.

use super::{Counts, Listing, Reason};
use crate::BaselineError;
use crate::change::Change;
use base::RelPath;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

/// Drops the changes in each directory that would be a git directory for git, and names the directory.
pub(super) fn leave_out(
    changes: &mut BTreeMap<RelPath, Change>,
    baseline: &impl Listing,
    counts: &mut Counts,
) -> Result<(), BaselineError> {
    let mut verdicts: HashMap<RelPath, bool> = HashMap::new();
    let mut found: Vec<RelPath> = Vec::new();
    for path in changes.keys() {
        let mut above = path.parent();
        while let Some(dir) = above {
            if verdicts.contains_key(&dir) {
                break;
            }
            let failure = Cell::new(None);
            let verdict = is_git_directory(|name| {
                let Ok(path) = dir.join(name) else {
                    return false;
                };
                match changes.get(&path) {
                    Some(change) => change.new.is_some(),
                    None => baseline.find(&path).map_or_else(
                        |error| {
                            failure.set(Some(error));
                            false
                        },
                        |entry| entry.is_some(),
                    ),
                }
            });
            if let Some(error) = failure.take() {
                return Err(error);
            }
            if verdict {
                found.push(dir.clone());
            }
            above = dir.parent();
            verdicts.insert(dir, verdict);
        }
    }
    for dir in &found {
        let shown = if dir.is_root() {
            b"HEAD"
        } else {
            dir.as_bytes()
        };
        counts.leave_out(shown, Reason::GitStore);
    }
    if !found.is_empty() {
        // The root keeps all but what makes it one.
        let makes_root_one = |path: &RelPath| {
            path.as_bytes().eq_ignore_ascii_case(b"HEAD") || path.as_bytes() == b"commondir"
        };
        changes.retain(|path, _| {
            !found.iter().any(|dir| {
                if dir.is_root() {
                    makes_root_one(path)
                } else {
                    path.is_within(dir)
                }
            })
        });
    }
    Ok(())
}

/// git's own test (`is_git_directory`), with a worktree's directory as git makes it.
pub(crate) fn is_git_directory(has: impl Fn(&[u8]) -> bool) -> bool {
    let any = |names: &[&[u8]]| names.iter().any(|name| has(name));
    // Lower case for file systems that fold it.
    any(&[b"HEAD", b"head"])
        && (any(&[b"commondir"]) || (any(&[b"objects", b"OBJECTS"]) && any(&[b"refs", b"REFS"])))
}
