use super::{ARCHITECTURE, REFUSED, X32_BIT, number, program};
use libc::{c_long, sock_filter};

const OWN: u32 = 4711;

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Allowed,
    Refused,
    Killed,
}

/// What becomes of a call, by the rules of `seccomp(2)` for the few instructions that the filter has.
fn fate(architecture: u32, call: u32, first_argument: u64) -> Fate {
    let program = program(OWN);
    let mut loaded = 0;
    let mut at = 0;
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |test: bool| usize::from(if test { jt } else { jf });
        match code {
            0x20 => {
                loaded = match k {
                    0 => call,
                    4 => architecture,
                    16 => u32::try_from(first_argument & 0xffff_ffff).unwrap(),
                    other => panic!("there is nothing at {other}"),
                };
            }
            0x15 => at += jump(loaded == k),
            0x35 => at += jump(loaded >= k),
            0x06 => {
                return match k {
                    0x7fff_0000 => Fate::Allowed,
                    0x0005_0001 => Fate::Refused, // errno 1, EPERM
                    0x8000_0000 => Fate::Killed,
                    other => panic!("unknown action {other:#x}"),
                };
            }
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

fn native(call: c_long, first_argument: u64) -> Fate {
    fate(ARCHITECTURE, number(call), first_argument)
}

#[test]
fn every_listed_call_is_refused() {
    for &call in REFUSED {
        assert_eq!(native(call, 0), Fate::Refused, "{call}");
        assert_eq!(native(call, OWN.into()), Fate::Refused, "{call}");
    }
}

#[test]
fn no_call_is_listed_twice() {
    let mut calls = REFUSED.to_vec();
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(calls.len(), REFUSED.len());
}

#[test]
fn what_a_vmm_lives_on_is_allowed() {
    for call in [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_openat,
        libc::SYS_close,
        libc::SYS_mmap,
        libc::SYS_ioctl,
        libc::SYS_futex,
        libc::SYS_clone,
        libc::SYS_execve,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_ppoll,
        libc::SYS_fallocate,
        libc::SYS_exit_group,
    ] {
        assert_eq!(native(call, 3), Fate::Allowed, "{call}");
    }
}

#[test]
fn signals_reach_this_process_alone() {
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        assert_eq!(native(call, OWN.into()), Fate::Allowed, "{call}");
        // Another process, every process of the group, every process, a process group.
        for target in [
            u64::from(OWN) + 1,
            0,
            u64::MAX,
            u64::from(OWN.wrapping_neg()),
        ] {
            assert_eq!(native(call, target), Fate::Refused, "{call} {target:#x}");
        }
    }
}

#[test]
fn limits_of_others_are_out_of_reach() {
    assert_eq!(native(libc::SYS_prlimit64, 0), Fate::Allowed);
    assert_eq!(native(libc::SYS_prlimit64, 1), Fate::Refused);
}

#[test]
fn other_architectures_are_the_end() {
    // i386, whose call 11 is execve where ours is munmap.
    assert_eq!(fate(0x4000_0003, 11, 0), Fate::Killed);
    assert_eq!(fate(ARCHITECTURE, X32_BIT, 0), Fate::Killed);
    assert_eq!(
        fate(ARCHITECTURE, X32_BIT | number(libc::SYS_socket), 0),
        Fate::Killed
    );
    assert_eq!(fate(ARCHITECTURE, u32::MAX, 0), Fate::Killed);
}
