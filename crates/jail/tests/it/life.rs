use crate::stage::{Stage, users};
use jail::{Confinement, SpawnError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

#[test]
fn it_dies_with_its_supervisor() {
    for user in users() {
        let stage = Stage::new(user);
        let mut supervisor = stage
            .probe(&["supervise-hang"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let confined = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let confined = pidfd_open(confined, PidfdFlags::empty()).unwrap();

        supervisor.kill().unwrap();
        supervisor.wait().unwrap();

        let deadline = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut ended = [PollFd::new(&confined, PollFlags::IN)];
        assert_eq!(
            poll(&mut ended, Some(&deadline)).unwrap(),
            1,
            "{user:?}: still alive"
        );
    }
}

fn refusal(confinement: Confinement) -> String {
    let role = [env!("CARGO_BIN_EXE_jail-probe").into(), "__vmm".into()];
    match jail::spawn(&role, confinement, &[], Stdio::inherit()) {
        Err(SpawnError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn confinement(program: &Path) -> Confinement {
    Confinement {
        program: program.to_path_buf(),
        arguments: Vec::new(),
        executable_files: vec![program.to_path_buf()],
        readable_files: Vec::new(),
        devices: Vec::new(),
        max_file_size: None,
        max_open_files: 64,
        required: BTreeSet::new(),
    }
}

#[test]
fn a_missing_program_is_named() {
    let reason = refusal(confinement(Path::new("/nowhere/qemu")));
    assert!(reason.contains("Can't allow `/nowhere/qemu`"), "{reason}");
}

#[test]
fn a_program_that_may_not_be_executed_is_named() {
    let reason = refusal(Confinement {
        executable_files: Vec::new(),
        ..confinement(Path::new("/bin/sh"))
    });
    assert_eq!(
        reason,
        "Can't execute `/bin/sh`: Permission denied (os error 13)"
    );
}

#[test]
fn a_role_that_is_no_role_is_an_error() {
    let outcome = jail::spawn(
        &["/bin/true".into()],
        confinement(Path::new("/bin/sh")),
        &[],
        Stdio::null(),
    );
    assert!(
        matches!(outcome, Err(SpawnError::Channel { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_role_that_does_not_exist_is_an_error() {
    let outcome = jail::spawn(
        &["/nowhere/efimera".into()],
        confinement(Path::new("/bin/sh")),
        &[],
        Stdio::null(),
    );
    assert!(
        matches!(outcome, Err(SpawnError::Start { .. })),
        "{outcome:?}"
    );
}
