use machine::probe::{PROBE_LIMIT, Verdict, probe};
use std::time::{Duration, Instant};

/// Whatever this host is: the probe ends in time, and its verdict fits what is known without measuring.
#[test]
fn it_comes_to_a_verdict_in_time() {
    let start = Instant::now();
    let verdict = probe(&[
        env!("CARGO_BIN_EXE_machine-role").into(),
        "__probe-kvm".into(),
    ]);
    // Starting and ending a process on a loaded host takes its time, too.
    assert!(
        start.elapsed() < PROBE_LIMIT + Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );

    let cpuinfo = fs_err::read_to_string("/proc/cpuinfo").unwrap();
    let mut words = cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .flat_map(str::split_whitespace);
    let has_flag = words.any(|word| word == "vmx" || word == "svm");
    let opens = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    let sentence = verdict.describe();
    match verdict {
        Verdict::Fast { .. } => assert!(has_flag && opens, "{sentence}"),
        Verdict::Slow { .. } | Verdict::Broken { .. } => assert!(opens, "{sentence}"),
        _ => assert!(!opens, "{sentence}"),
    }
}
