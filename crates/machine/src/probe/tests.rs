use super::{Answer, KeptVerdict, Verdict, ask, without_device};
use crate::{Accel, AccelRequest};
use std::time::Instant;

fn shell(script: &str) -> [std::ffi::OsString; 3] {
    ["/bin/sh".into(), "-c".into(), script.into()]
}

#[test]
fn the_child_s_answer_is_read() {
    let answer = ask(&shell(r#"echo '{"took":{"nanoseconds":7}}'"#)).unwrap();
    assert_eq!(answer, Some(Answer::Took { nanoseconds: 7 }));
}

#[test]
fn a_child_that_hangs_is_killed_at_the_limit() {
    let start = Instant::now();
    assert_eq!(ask(&shell("exec sleep 1000")).unwrap(), None);
    assert!(start.elapsed() >= super::PROBE_LIMIT);
}

#[test]
fn garbage_is_no_answer() {
    ask(&shell("echo fast")).unwrap_err();
    ask(&shell("kill -9 $$")).unwrap_err();
    ask(&["/nowhere/efimera".into()]).unwrap_err();
}

fn cpuinfo(flags: &str) -> String {
    format!("processor\t: 0\nflags\t\t: fpu {flags} lm\nbugs\t\t: svm\n")
}

#[test]
fn the_processor_s_flags_tell_why_there_is_no_device() {
    let check = |flags: &str, loaded: bool, expect: Verdict| {
        assert_eq!(
            without_device(cpuinfo(flags).as_bytes(), loaded),
            expect,
            "{flags} {loaded}"
        );
    };
    check(
        "vmx",
        false,
        Verdict::NoModule {
            module: "kvm_intel".to_owned(),
        },
    );
    check(
        "svm hypervisor",
        false,
        Verdict::NoModule {
            module: "kvm_amd".to_owned(),
        },
    );
    check("svm", true, Verdict::NoDevice);
    check("hypervisor", false, Verdict::NotNested);
    check("svm_lock", false, Verdict::OffInFirmware);
}

#[test]
fn every_verdict_is_one_sentence_with_its_cure() {
    let check = |verdict: Verdict, expect: &str| assert_eq!(verdict.describe(), expect);
    check(
        Verdict::NoPermission,
        "This user may not open `/dev/kvm`; to cure it: sudo usermod -aG kvm $USER, then log out and in again",
    );
    check(
        Verdict::Slow {
            nanoseconds: Some(412_345_678),
        },
        "`/dev/kvm` is there but isn't backed by hardware: the probe took 412.3 ms, hardware needs about 2 ms",
    );
    check(
        Verdict::Fast {
            nanoseconds: 1_980_000,
        },
        "Hardware virtualisation works (the probe took 1.9 ms)",
    );
}

#[test]
fn auto_takes_hardware_only_where_it_is_fast() {
    let fast = Verdict::Fast { nanoseconds: 1 };
    let slow = Verdict::Slow { nanoseconds: None };
    assert_eq!(Accel::choose(AccelRequest::Auto, &fast), Ok(Accel::Kvm));
    assert_eq!(Accel::choose(AccelRequest::Auto, &slow), Ok(Accel::Tcg));
    assert_eq!(Accel::choose(AccelRequest::Tcg, &fast), Ok(Accel::Tcg));
    assert_eq!(Accel::choose(AccelRequest::Kvm, &fast), Ok(Accel::Kvm));
    let error = Accel::choose(AccelRequest::Kvm, &Verdict::NoPermission).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Hardware virtualisation is demanded, but this user may not open `/dev/kvm`"
    );
}

#[test]
fn a_kept_verdict_holds_for_one_boot_and_only_if_it_was_measured() {
    let kept = |verdict| KeptVerdict {
        boot_id: "one".to_owned(),
        verdict,
    };
    assert!(kept(Verdict::Slow { nanoseconds: None }).holds("one"));
    assert!(!kept(Verdict::Slow { nanoseconds: None }).holds("two"));
    assert!(!kept(Verdict::NoPermission).holds("one"));
}
