use crate::plan::Host;
use crate::stage::{Stage, users};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[test]
fn a_machine_boots_in_the_jail_and_powers_off() {
    let stage = Stage::new();
    for user in users() {
        let plan = stage.plan("power-off", Host::Wait);
        let report = stage.supervise(user, &plan).report();
        assert_eq!(
            report.control,
            "up root=the root's bytes overwritten=0 cpus=1 random=virtio_rng.0 aslr=0\n",
            "{user:?}: {report:#?}"
        );
        assert_eq!(stage.written(), b"written by guest", "{user:?}");
        assert!(stage.root_is_intact(), "{user:?}");
        assert_eq!(report.exit, "exit status: 0", "{user:?}: {report:#?}");
        assert_eq!(report.stderr, "", "{user:?}");
        assert!(
            report
                .events
                .contains(&"Shutdown { by_guest: true, reason: \"guest-shutdown\" }".to_owned()),
            "{user:?}: {report:#?}"
        );

        // The host's view of the process while it ran.
        // Parts of Landlock may be newer than the host's kernel; nothing else may be missing.
        let missing: Vec<_> = report
            .missing_layers
            .iter()
            .filter(|layer| !layer.contains(": needs Linux "))
            .collect();
        assert!(missing.is_empty(), "{user:?}: {missing:?}");
        assert_eq!(report.environment, "", "{user:?}");
        assert!(
            !report
                .command_line
                .contains(stage.directory.path().to_str().unwrap()),
            "{report:#?}"
        );
        assert!(
            report.status.contains("\nSeccomp:\t2\n"),
            "{user:?}: {report:#?}"
        );
        assert!(
            report.status.contains("\nNoNewPrivs:\t1\n"),
            "{user:?}: {report:#?}"
        );
        assert!(
            report.status.contains("\nCapPrm:\t0000000000000000\n"),
            "{user:?}: {report:#?}"
        );
        // Not even loopback is up: the table of a new network namespace has `lo` without traffic and nothing else.
        let devices: Vec<&str> = report
            .network_devices
            .lines()
            .skip(2)
            .map(str::trim_start)
            .collect();
        assert!(
            devices.iter().all(|device| device.starts_with("lo:")),
            "{user:?}: {devices:?}"
        );
    }
}

#[test]
fn several_processors_are_seen() {
    let stage = Stage::new();
    let plan = crate::plan::Plan {
        cpus: 2,
        ..stage.plan("power-off", Host::Wait)
    };
    let report = stage.supervise(users()[0], &plan).report();
    assert!(report.control.contains(" cpus=2 "), "{report:#?}");
}

#[test]
fn the_monitor_answers_and_quits() {
    let stage = Stage::new();
    let report = stage
        .supervise(users()[0], &stage.plan("wait", Host::Quit))
        .report();
    assert_eq!(report.exit, "exit status: 0", "{report:#?}");
    for event in [
        "Ready",
        "Done { command: QueryStatus, status: Some(\"running\") }",
        "Done { command: Quit, status: None }",
        "Shutdown { by_guest: false, reason: \"host-qmp-quit\" }",
    ] {
        assert!(
            report.events.iter().any(|seen| seen == event),
            "{event}: {report:#?}"
        );
    }
}

#[test]
fn a_panic_ends_the_machine_and_its_words_are_kept() {
    let stage = Stage::new();
    let report = stage
        .supervise(users()[0], &stage.plan("panic", Host::Wait))
        .report();
    assert_eq!(report.exit, "exit status: 0", "{report:#?}");
    assert!(
        report
            .console
            .contains("Kernel panic - not syncing: Attempted to kill init!"),
        "{report:#?}"
    );
    assert!(
        report
            .events
            .contains(&"Shutdown { by_guest: true, reason: \"guest-reset\" }".to_owned()),
        "{report:#?}"
    );
}

#[test]
fn a_flooded_console_stays_small() {
    let stage = Stage::new();
    let report = stage
        .supervise(users()[0], &stage.plan("flood", Host::Wait))
        .report();
    assert_eq!(report.exit, "exit status: 0", "{report:#?}");
    // The guest writes 300,000 bytes, of which 80 KiB are kept; the last few KiB may go with QEMU.
    assert!(
        report.console_dropped >= 200_000,
        "{}",
        report.console_dropped
    );
    assert!(report.console.len() < 90_000, "{}", report.console.len());
}

#[test]
fn a_killed_supervisor_leaves_no_machine() {
    let stage = Stage::new();
    for user in users() {
        let mut supervisor = stage.supervise(user, &stage.plan("wait", Host::Linger));
        let report = supervisor.report();
        let qemu = Pid::from_raw(report.qemu.cast_signed()).unwrap();
        let qemu = pidfd_open(qemu, PidfdFlags::empty()).unwrap();

        supervisor.kill();

        let deadline = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut ended = [PollFd::new(&qemu, PollFlags::IN)];
        assert_eq!(
            poll(&mut ended, Some(&deadline)).unwrap(),
            1,
            "{user:?}: QEMU still runs"
        );
    }
}
