//! A machine that is saved while it works, and what goes on afterwards.

use crate::client::{Client, Got};
use crate::{WORKSPACE, setup, start, start_bare};
use std::time::Duration;
use wire::StreamId;
use wire::message::{Exec, Reply, Request, RunAs, Wake};

const STILL_ITSELF: Wake = Wake {
    clock_ns: 0,
    seed: Vec::new(),
    hostname: None,
    give_back: false,
};

fn cat() -> Exec {
    Exec {
        argv: vec![b"cat".to_vec()],
        env: Vec::new(),
        cwd: Vec::new(),
        user: RunAs::User,
        tty: None,
        stdin: true,
    }
}

fn started(client: &mut Client, exec: Exec) -> StreamId {
    let id = client.open(&Request::Exec(exec));
    assert!(matches!(client.reply(id), Reply::Started { .. }));
    id
}

#[test]
fn a_held_machine_is_silent_and_goes_on_where_it_was() {
    let mut guarded = start();
    let client = &mut guarded.client;
    let echo = started(client, cat());
    let counting = Exec {
        argv: ["sh", "-c", "while :; do echo x; done"]
            .map(|word| word.as_bytes().to_vec())
            .to_vec(),
        stdin: false,
        ..cat()
    };
    let flood = started(client, counting);
    assert!(matches!(client.next(flood), Got::Data(1, _)));

    let (hold, _) = client.hold();
    let port = client.take_port();
    assert!(
        !Client::is_readable(&port, Duration::from_millis(300)),
        "a saved machine would have lost what it said"
    );
    assert_eq!(
        client.mux.send_data(echo, 0, b"early").unwrap(),
        0,
        "and what it was told"
    );
    client.wake(hold, &STILL_ITSELF);
    client.send(echo, b"hello");
    assert_eq!(client.next(echo), Got::Data(1, b"hello".to_vec()));
    client.mux.reset(flood);
    assert_eq!(guarded.sh("echo on"), "on\n");
}

#[test]
fn another_host_takes_up_the_streams() {
    let mut guarded = start();
    let client = &mut guarded.client;
    let echo = started(client, cat());
    // More than the guest has credit for: what was not paid for must be, by the one who comes.
    client.stingy = true;
    let many = Exec {
        argv: ["sh", "-c", "head -c 1000000 /dev/zero; sleep 60"]
            .map(|word| word.as_bytes().to_vec())
            .to_vec(),
        stdin: false,
        ..cat()
    };
    let flood = client.open(&Request::Exec(many));
    let mut came = 0;
    while came < 200_000 {
        if let Got::Data(1, bytes) = client.next(flood) {
            came += bytes.len();
        }
    }
    let (hold, rest) = client.hold();
    while let Some(Got::Data(_, bytes)) = client.peek(flood, Duration::ZERO) {
        came += bytes.len();
    }
    let port = client.take_port();
    guarded.client = Client::resumed(port, rest);
    let client = &mut guarded.client;
    client.adopt(&[hold, echo, flood]);
    let name = Wake {
        hostname: Some(b"bold-wolf".to_vec()),
        ..STILL_ITSELF
    };
    client.wake(hold, &name);
    client.send(echo, b"hello");
    assert_eq!(client.next(echo), Got::Data(1, b"hello".to_vec()));
    while came < 1_000_000 {
        if let Got::Data(1, bytes) = client.next(flood) {
            came += bytes.len();
        }
    }
    assert_eq!(came, 1_000_000);
    client.mux.reset(flood);
    assert_eq!(guarded.sh("cat /etc/hostname"), "bold-wolf\n");
}

#[test]
fn only_a_clone_gets_another_machine_id() {
    let mut guarded = start();
    let before = guarded.sh("cat /etc/machine-id");
    let (hold, _) = guarded.client.hold();
    guarded.client.wake(hold, &STILL_ITSELF);
    assert_eq!(guarded.sh("cat /etc/machine-id"), before);
    let (hold, _) = guarded.client.hold();
    let clone = Wake {
        hostname: Some(b"x".to_vec()),
        ..STILL_ITSELF
    };
    guarded.client.wake(hold, &clone);
    let after = guarded.sh("cat /etc/machine-id");
    assert_eq!(after.len(), before.len());
    assert_ne!(after, before);
}

#[test]
fn a_command_that_ends_meanwhile_is_told_afterwards() {
    let mut guarded = start();
    let short = Exec {
        argv: ["sh", "-c", "read line; exit 7"]
            .map(|word| word.as_bytes().to_vec())
            .to_vec(),
        ..cat()
    };
    let id = started(&mut guarded.client, short);
    guarded.client.send(id, b"go\n");
    let (hold, _) = guarded.client.hold();
    guarded.client.wake(hold, &STILL_ITSELF);
    let outcome = guarded.client.outcome(id);
    assert_eq!(outcome.end, Ok(wire::message::Exit::Code(7)));
}

#[test]
fn a_machine_that_is_nobodys_yet_is_not_held() {
    let mut guarded = start_bare(None, "");
    let reply = guarded.client.ask(&Request::Hold);
    assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
    guarded.set_up(setup(WORKSPACE));
    assert_eq!(guarded.sh("echo on"), "on\n");
}
