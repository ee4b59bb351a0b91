use super::*;

#[test]
fn a_range_belongs_to_a_name_or_a_number_and_is_large_enough() {
    let text = "me:100000:65536\n1001:165536:65536\nsmall:300000:1000\nbroken\nbad:x:y\n";
    assert!(has_range(text, "me", 1000));
    assert!(has_range(text, "other", 1001));
    assert!(!has_range(text, "small", 1002));
    assert!(!has_range(text, "bad", 1003));
    assert!(!has_range("", "me", 1000));
}

#[test]
fn a_new_range_starts_behind_all_others() {
    assert_eq!(free_start(&["", ""]), 100_000);
    assert_eq!(
        free_start(&["a:100000:65536\n", "a:300000:10\nb:1:1"]),
        300_010
    );
    assert_eq!(free_start(&["a:18446744073709551615:65536"]), u64::MAX);
}
