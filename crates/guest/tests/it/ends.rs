use crate::client::{Client, Got, LIMIT, shell};
use crate::{WORKSPACE, setup, start, start_bare};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use wire::message::{Exit, Reply, Request};
use wire::{Mux, Side};

#[test]
fn everything_is_ended_politely_first() {
    let mut guarded = start();
    let script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let id = guarded.client.open(&Request::Exec(shell(script)));
    guarded.client.next(id);
    assert_eq!(guarded.client.next(id), Got::Data(1, b"ready\n".to_vec()));
    let grace_ms = u32::try_from(LIMIT.as_millis()).unwrap();
    let done = guarded.client.ask(&Request::EndSessions { grace_ms });
    assert_eq!(done, Reply::Done);
    let outcome = guarded.client.outcome(id);
    assert_eq!(outcome.stdout, b"bye\n");
    assert_eq!(outcome.end, Ok(Exit::Code(5)));
}

#[test]
fn what_does_not_listen_is_killed_and_nothing_is_left() {
    let mut guarded = start();
    let script =
        "trap '' TERM HUP; (setsid sh -c \"trap '' TERM; sleep 1000\" &); echo ready; sleep 1000";
    let id = guarded.client.open(&Request::Exec(shell(script)));
    guarded.client.next(id);
    assert_eq!(guarded.client.next(id), Got::Data(1, b"ready\n".to_vec()));
    // A stopped one, too.
    guarded.sh("sleep 1000 & kill -STOP $!");
    let ending = guarded.client.open(&Request::EndSessions { grace_ms: 100 });
    let refused = guarded.client.run(&shell("true")).end;
    assert_eq!(
        refused.unwrap_err().what,
        b"The machine is ending its sessions"
    );
    assert_eq!(guarded.client.reply(ending), Reply::Done);
    assert_eq!(guarded.client.outcome(id).end, Ok(Exit::Signal(9)));
    // PID 1, and the shell and its helpers that ask.
    assert_eq!(
        guarded.sh("grep -Lsx -e sh -e grep -e wc /proc/[0-9]*/comm | wc -l"),
        "1\n"
    );
    // And nothing to end is an end, too.
    let done = guarded.client.ask(&Request::EndSessions { grace_ms: 0 });
    assert_eq!(done, Reply::Done);
}

#[test]
fn power_off_takes_everything_with_it() {
    let mut guarded = start();
    guarded.sh("trap '' TERM HUP; sleep 1000 >/dev/null 2>&1 &");
    guarded.client.open(&Request::PowerOff);
    assert!(guarded.client.is_gone(LIMIT));
    assert!(guarded.guest.wait());
}

#[test]
fn a_request_that_is_none_is_refused() {
    let mut guarded = start();
    let id = guarded.client.mux.open(b"\xff\xff\xff\xff\x0f").unwrap();
    match guarded.client.reply(id) {
        Reply::Failed(failure) => assert_eq!(failure.errno, 22),
        other => panic!("{other:?}"),
    }
    assert_eq!(guarded.sh("echo on"), "on\n");
}

#[test]
fn a_machine_is_set_up_once() {
    let mut guarded = start();
    match guarded.client.ask(&Request::Setup(setup(WORKSPACE))) {
        Reply::Failed(failure) => assert_eq!(failure.what, b"The machine is set up already"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_up_that_failed_can_be_tried_again() {
    let mut guarded = start_bare(None, "");
    let bad = guarded.client.ask(&Request::Setup(setup("relative")));
    assert!(matches!(bad, Reply::Failed(_)));
    guarded.set_up(setup(WORKSPACE));
    assert_eq!(guarded.sh("pwd"), format!("{WORKSPACE}\n"));
}

#[test]
fn a_spin_takes_time_and_gives_our_own_result() {
    let mut guarded = start();
    match guarded.client.ask(&Request::Spin { rounds: 100_000 }) {
        Reply::Spun { nanos, value } => {
            assert!(nanos > 0);
            assert_eq!(value, wire::spin(100_000));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn waiting_costs_no_processor_time() {
    let mut guarded = start();
    let id = guarded.client.open(&Request::Exec(shell("sleep 1000")));
    guarded.client.reply(id);
    let before = guarded.guest.ticks();
    assert_eq!(guarded.client.peek(id, Duration::from_secs(1)), None);
    assert!(guarded.guest.ticks() - before <= 5);
}

/// A port without a host is readable for ever: waiting for the next host must not spin, and what the last one ran
/// is hung up.
#[test]
fn a_host_that_left_is_waited_for_in_peace() {
    let mut guarded = start();
    let (told, hears) = mpsc::channel::<()>();
    let id = guarded
        .client
        .open(&Request::Exec(shell("echo ready; sleep 1000")));
    guarded.client.next(id);
    assert_eq!(guarded.client.next(id), Got::Data(1, b"ready\n".to_vec()));
    let (unused, _end) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut guarded.client, Client::new(unused)));
    let wait = |time: u64| {
        // Nobody tells: this is a wait with a limit.
        assert!(hears.recv_timeout(Duration::from_millis(time)).is_err());
    };
    let deadline = Instant::now() + LIMIT;
    loop {
        let before = guarded.guest.ticks();
        wait(500);
        if guarded.guest.ticks() - before <= 5 {
            break;
        }
        assert!(Instant::now() < deadline, "it spins");
    }
    drop(told);
}

/// Bytes that are no frames end the guest: there is nothing to fall back to.
#[test]
fn a_broken_host_ends_the_guest() {
    use std::io::Write as _;
    let program = env!("CARGO_BIN_EXE_efimera-guest");
    let (mut guest, mut port) = testkit::guest::Guest::start(program, None, "");
    port.write_all(Mux::new(Side::Opener).outgoing()).unwrap();
    port.write_all(&[0xff; 64]).unwrap();
    assert!(guest.wait());
}

#[test]
fn in_the_first_namespace_it_does_nothing() {
    for words in [&[][..], &["--test-port", "--root", "/"], &["--test-port"]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_efimera-guest"))
            .args(words)
            .output()
            .unwrap();
        assert!(output.stderr.starts_with(b"efimera-guest: "));
        assert!(output.stdout.is_empty());
    }
}
