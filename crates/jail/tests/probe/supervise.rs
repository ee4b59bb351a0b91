//! The supervisor's part.

use crate::plan::Plan;
use base::Size;
use jail::{Confinement, SpawnError};
use rustix::fd::AsFd as _;
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;
use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

/// Starts the attacker in a jail and prints the posture and its report; or the refusal, and fails.
pub(crate) fn attack(plan: &Plan) -> ExitCode {
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    let number = theirs.as_raw_fd();
    let plan = Plan {
        report: number,
        required: plan.required.clone(),
        ..clone(plan)
    };
    let arguments = vec![
        "attack".to_owned(),
        serde_json::to_string(&plan).expect("a plan is JSON"),
    ];
    match jail::spawn(
        &role(),
        confinement(arguments, plan.required),
        &[theirs.as_fd()],
        Stdio::inherit(),
    ) {
        Ok(mut confined) => {
            drop(theirs);
            let mut report = String::new();
            ours.read_to_string(&mut report)
                .expect("the report is text");
            let status = confined.child.wait().expect("the attacker ends");
            assert!(status.success(), "the attacker ended with {status}");
            let posture = serde_json::to_string(&confined.posture).expect("a posture is JSON");
            println!("{posture}\n{report}\n{number}");
            ExitCode::SUCCESS
        }
        Err(SpawnError::Refused { reason, .. }) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Starts a program that never ends in a jail, prints its process id, and never ends either.
pub(crate) fn hang() -> ExitCode {
    let confined = jail::spawn(
        &role(),
        confinement(vec!["hang".to_owned()], BTreeSet::new()),
        &[],
        Stdio::inherit(),
    )
    .expect("the jail works");
    println!("{}", confined.child.id());
    io::stdout().flush().expect("the test reads");
    loop {
        rustix::event::pause();
    }
}

/// Runs the attacker without any jail, to show that each attempt works there.
pub(crate) fn unconfined(plan: &str) -> ExitCode {
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    let inheritable = rustix::io::dup(&theirs).expect("a descriptor");
    let plan = Plan {
        report: inheritable.as_raw_fd(),
        ..crate::parse(plan)
    };
    let mut child = Command::new("/proc/self/exe")
        .args([
            "attack",
            &serde_json::to_string(&plan).expect("a plan is JSON"),
        ])
        .spawn()
        .expect("it runs itself");
    drop((theirs, inheritable));
    let mut report = String::new();
    ours.read_to_string(&mut report)
        .expect("the report is text");
    assert!(child.wait().expect("the attacker ends").success());
    println!("{report}");
    ExitCode::SUCCESS
}

/// Uses up the depth of user namespaces (32, see `user_namespaces(7)`) and gives all capabilities away, so that this
/// process can make no namespace: like a host that forbids them.
pub(crate) fn forbid_namespaces() {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    while unshare_user().is_ok() {
        fs_err::write("/proc/self/setgroups", "deny").expect("a fresh namespace takes it");
        fs_err::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
            .expect("a fresh namespace takes it");
        fs_err::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
            .expect("a fresh namespace takes it");
    }
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    // Without this, user 0 gets them all back when it executes the role.
    rustix::thread::set_capabilities_secure_bits(rustix::thread::CapabilitiesSecureBits::NO_ROOT)
        .expect("the namespace's first process may");
    rustix::thread::set_capabilities(None, sets).expect("giving away is allowed");
}

#[expect(unsafe_code, reason = "unshare is unsafe in rustix")]
pub(crate) fn unshare_user() -> io::Result<()> {
    // SAFETY: CLONE_FILES isn't asked for.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

fn role() -> [std::ffi::OsString; 2] {
    ["/proc/self/exe".into(), "__vmm".into()]
}

fn confinement(arguments: Vec<String>, required: BTreeSet<jail::Layer>) -> Confinement {
    let program = std::env::current_exe().expect("it runs from a file");
    let files = jail::program_files(&program).expect("it has libraries");
    Confinement {
        program,
        arguments: arguments.into_iter().map(Into::into).collect(),
        executable_files: files.executable,
        readable_files: files.readable,
        devices: Vec::new(),
        max_file_size: Some(Size::mib(1)),
        max_open_files: 64,
        required,
    }
}

fn clone(plan: &Plan) -> Plan {
    crate::parse(&serde_json::to_string(plan).expect("a plan is JSON"))
}
