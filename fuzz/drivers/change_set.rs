//! A change set from anybody's JSON: what is taken holds the rules, and comes back the same.

use workspace::{ChangeSet, check_exported};

/// Returns the set, if the bytes are one.
pub(crate) fn drive(bytes: &[u8]) -> Option<ChangeSet> {
    let set: ChangeSet = serde_json::from_slice(bytes).ok()?;
    let mut last = None;
    for change in set.changes() {
        assert!(last < Some(&change.path), "sorted, and each path once");
        last = Some(&change.path);
        assert!(!change.path.is_root());
        check_exported(&change.path).expect("no path lies in a git directory");
        assert_ne!(change.old, change.new);
    }
    let text = serde_json::to_vec(&set).expect("a set can be written");
    let back: ChangeSet = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(back.digest(), set.digest());
    assert_eq!(back, set);
    let stat = set.stat();
    let renames = set.renames();
    assert!(renames.len() as u64 <= stat.changed);
    Some(set)
}
