use super::{Group, Machine, Row, Spread, page, table};
use std::time::Duration;

fn times(millis: &[u64]) -> Vec<Duration> {
    millis.iter().copied().map(Duration::from_millis).collect()
}

#[test]
fn the_median_counts_and_the_spread_is_kept() {
    let check = |given: &[u64], median, least, most| {
        let expected = Spread {
            median,
            least,
            most,
        };
        assert_eq!(Spread::of(&times(given)), expected, "{given:?}");
    };
    check(&[30, 10, 200], 30.0, 10.0, 200.0);
    check(&[80, 10, 20, 40], 30.0, 10.0, 80.0);
    check(&[7], 7.0, 7.0, 7.0);
}

#[test]
fn a_row_is_judged_by_its_limit() {
    let row = |limit| Row::ratio("x", &times(&[150]), &times(&[100]), limit);
    assert_eq!(row(1.5).verdict(), "ok");
    assert_eq!(row(1.4).verdict(), "over");
    assert_eq!(Row::value("x", 20.5, "MiB", 20.0).verdict(), "over");
    assert_eq!(Row::value("x", 20.0, "MiB", 20.0).verdict(), "ok");
}

#[test]
fn what_was_not_run_never_reads_as_passed() {
    let row = Row::not_run("KVM", "no device");
    assert_eq!(row.verdict(), "not run");
    assert_eq!(row.as_json()["verdict"], "not run");
    assert_eq!(
        table(&[row]).lines().last(),
        Some("KVM: not run (no device)")
    );
}

#[test]
fn the_table_has_columns() {
    let rows = [
        Row::ratio("pack", &times(&[150]), &times(&[100]), 2.0),
        Row::value("memory", 7.25, "MiB", 20.0),
    ];
    assert_eq!(
        table(&rows),
        "what    measured          against           ratio  limit\n\
         pack    150 (150…150) ms  100 (100…100) ms  1.50   2.00    ok\n\
         memory  7.2 MiB                                    20 MiB  ok\n"
    );
}

#[test]
fn without_a_limit_nothing_is_judged() {
    let row = Row::ratio("x", &times(&[150]), &times(&[100]), f64::INFINITY);
    assert_eq!(row.verdict(), "");
    assert_eq!(row.cells()[4], "");
    assert_eq!(row.as_json()["limit"], serde_json::Value::Null);
}

#[test]
fn the_page_has_a_table_for_each_part() {
    let machine = Machine {
        computer: "2 cores".to_owned(),
        kernel: "6.1.0-of-someone".to_owned(),
        qemu: "QEMU 7.2.0".to_owned(),
        mode: "emulated machines",
    };
    let groups = [Group {
        about: "Packing, against `tar`.",
        rows: vec![
            Row::ratio("pack / tar | cat", &times(&[150]), &times(&[100]), 2.0),
            Row::not_run("other", "get it so"),
        ],
    }];
    let lacking = [Row::not_run("KVM", "no device")];
    assert_eq!(
        page(&machine, &groups, &lacking, "Made by `x`."),
        "# Performance\n\n\
         Each row holds two things against each other that one computer did by turns, or one number against its limit. \
         Made by `x`.\n\n\
         The computer: 2 cores, kernel 6.1.0. Machines: QEMU 7.2.0, emulated machines.\n\n\
         Packing, against `tar`.\n\n\
         | What | Measured | Against | Ratio | Limit | |\n\
         | --- | --- | --- | --- | --- | --- |\n\
         | pack / tar \\| cat | 150 (150…150) ms | 100 (100…100) ms | 1.50 | 2.00 | ok |\n\n\
         - other: not run (get it so)\n\n\
         - KVM: not run (no device)\n"
    );
}
