use super::{BATCH, BLOCK, Job, SMALL, batches, is_before_tick};
use crate::{Found, Kind};
use base::RelPath;
use proptest::prelude::*;

#[test]
fn a_block_is_a_block() {
    assert_eq!(BLOCK as u64, erofs::BLOCK);
}

proptest! {
    /// Batches are all jobs in their order, and none is larger than it has to be.
    #[test]
    fn jobs_travel_together(sizes in prop::collection::vec(prop_oneof![0..20_000_u64, 0..3 * SMALL], 0..60)) {
        let found: Vec<Found> = sizes
            .iter()
            .map(|size| Found {
                path: RelPath::new("a").unwrap(),
                kind: Kind::File,
                mode: 0o644,
                size: *size,
                mtime: (0, 0),
                ctime: (0, 0),
                ino: 1,
                target: Vec::new(),
            })
            .collect();
        let jobs: Vec<Job<'_>> = found.iter().enumerate().map(|(at, found)| Job { at, found, blob: None }).collect();
        let batches = batches(&jobs);
        let all: Vec<usize> = batches.iter().cloned().flatten().collect();
        prop_assert_eq!(all, (0..jobs.len()).collect::<Vec<_>>());
        let blocks = |range: std::ops::Range<usize>| -> u64 {
            sizes[range].iter().map(|size| size.next_multiple_of(erofs::BLOCK)).sum()
        };
        for (at, batch) in batches.iter().enumerate() {
            prop_assert!(batch.len() == 1 || blocks(batch.clone()) <= BATCH);
            if let Some(next) = batches.get(at + 1) {
                prop_assert!(blocks(batch.start..next.start + 1) > BATCH, "one that had room");
            }
        }
    }
}

#[test]
fn times_that_could_still_repeat() {
    let changed = (1000, 500_000_000);
    assert!(!is_before_tick(changed, (1000, 500_000_001)));
    assert!(
        !is_before_tick(changed, (1000, 540_000_000)),
        "within a tick of the file system's clock"
    );
    assert!(is_before_tick(changed, (1000, 540_000_001)));
    assert!(
        !is_before_tick((1000, 0), (1001, 999_999_999)),
        "a file system that counts whole seconds"
    );
    assert!(is_before_tick((1000, 0), (1002, 1)));
    assert!(
        !is_before_tick((2000, 1), (1000, 0)),
        "a file from the future is never settled"
    );
}
