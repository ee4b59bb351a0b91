//! The guest program as a process of this host: sessions, files and set-up, without a machine. What only a real
//! kernel of its own can show is shown by the tests that boot machines.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests panic with what went wrong"
)]

mod client;
mod ends;
mod files;
mod hold;
mod lists;
mod sessions;
mod setup;
mod template;
mod terminal;
mod writes;

use client::{Client, shell};
use std::path::Path;
use testkit::guest::Guest;
use wire::message::{Exit, Reply, Request, Setup, User};

const WORKSPACE: &str = "/home/eva/code/shop";

/// A guest program and the connection to it.
struct Guarded {
    client: Client,
    guest: Guest,
}

/// Before [`Request::Setup`].
fn start_bare(workspace: Option<&Path>, prepare: &str) -> Guarded {
    let program = env!("CARGO_BIN_EXE_efimera-guest");
    let (guest, port) = Guest::start(program, workspace, prepare);
    Guarded {
        client: Client::new(port),
        guest,
    }
}

/// Set up, with an empty workspace.
fn start() -> Guarded {
    start_with(None)
}

fn start_with(workspace: Option<&Path>) -> Guarded {
    let mut guarded = start_bare(workspace, "");
    guarded.set_up(setup(WORKSPACE));
    guarded
}

fn setup(workspace: &str) -> Setup {
    Setup {
        hostname: b"brisk-heron".to_vec(),
        user: User {
            name: b"eva".to_vec(),
            uid: 1000,
            gid: 1000,
            home: b"/home/eva".to_vec(),
        },
        workspace: workspace.as_bytes().to_vec(),
        clock_ns: 0,
        seed: vec![1; 32],
        timezone: Vec::new(),
        give_back: false,
        network: false,
    }
}

impl Guarded {
    #[track_caller]
    fn set_up(&mut self, setup: Setup) {
        match self.client.ask(&Request::Setup(setup)) {
            Reply::Ready(ready) => assert!(!ready.kernel.is_empty()),
            other => panic!("not ready: {other:?}"),
        }
    }

    /// What a script prints; it has to succeed.
    #[track_caller]
    fn sh(&mut self, script: &str) -> String {
        let outcome = self.client.run(&shell(script));
        let stderr = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.end, Ok(Exit::Code(0)), "{script}: {stderr}");
        String::from_utf8(outcome.stdout).unwrap()
    }

    /// Runs a script until it prints `wanted`.
    #[track_caller]
    fn wait_for(&mut self, script: &str, wanted: &str) {
        let deadline = std::time::Instant::now() + client::LIMIT;
        while self.sh(script) != wanted {
            assert!(
                std::time::Instant::now() < deadline,
                "{script}: not {wanted:?}"
            );
        }
    }
}
