//! What a machine does before it is frozen into a template, and what a clone's host finds.

use crate::client::Client;
use crate::{WORKSPACE, setup, start, start_bare};
use std::time::Duration;
use wire::message::{Reply, Request};

fn warm(commands: &[&[&str]]) -> Request {
    let words = |command: &&[&str]| {
        command
            .iter()
            .map(|word| word.as_bytes().to_vec())
            .collect()
    };
    Request::Warm {
        commands: commands.iter().map(words).collect(),
    }
}

#[test]
fn programs_are_run_in_order_whatever_becomes_of_them() {
    let mut guarded = start_bare(None, "");
    let reply = guarded.client.ask(&warm(&[
        &["sh", "-c", "echo one >> /tmp/warmed; exit 3"],
        &["no-such-program"],
        &[],
        &["sh", "-c", "kill -9 $$"],
        &[
            "sh",
            "-c",
            "echo two >> /tmp/warmed; cat; env > /tmp/variables",
        ],
    ]));
    assert_eq!(reply, Reply::Done);
    assert_eq!(guarded.client.ask(&warm(&[])), Reply::Done);
    guarded.set_up(setup(WORKSPACE));
    assert_eq!(guarded.sh("cat /tmp/warmed"), "one\ntwo\n");
    assert!(!guarded.sh("cat /tmp/variables").contains("USER"));
}

#[test]
fn a_frozen_machine_waits_for_a_host_that_speaks_first() {
    let mut guarded = start_bare(None, "");
    assert_eq!(guarded.client.ask(&Request::Freeze), Reply::Done);
    // What a template's maker does not see, no clone's host would.
    let silence = Duration::from_millis(300);
    let port = guarded.client.take_port();
    assert!(!Client::is_readable(&port, silence), "it said something");
    guarded.client = Client::new(port);
    guarded.set_up(setup(WORKSPACE));
    assert_eq!(guarded.sh("echo $PWD"), format!("{WORKSPACE}\n"));
}

#[test]
fn a_machine_that_is_somebodys_becomes_no_template() {
    let mut guarded = start();
    for request in [warm(&[&["true"]]), Request::Freeze] {
        let Reply::Failed(failure) = guarded.client.ask(&request) else {
            panic!("{request:?} was done");
        };
        assert_eq!(
            failure.what,
            b"The machine can't become a template any more"
        );
    }
    assert_eq!(guarded.sh("echo on"), "on\n", "the connection goes on");
}
