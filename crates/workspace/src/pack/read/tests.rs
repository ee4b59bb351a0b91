use super::is_before_tick;

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
