use crate::client::{Got, shell};
use crate::{Guarded, start};
use wire::StreamId;
use wire::message::{Control, Exec, Exit, Reply, Request, TtySize};

fn on_terminal(script: &str) -> Exec {
    let mut exec = shell(script);
    exec.tty = Some(TtySize { rows: 33, cols: 99 });
    exec.stdin = true;
    exec
}

/// Starts a script on a terminal, and waits until it has printed `ready`.
#[track_caller]
fn begin(guarded: &mut Guarded, script: &str) -> StreamId {
    let id = guarded.client.open(&Request::Exec(on_terminal(script)));
    assert!(matches!(guarded.client.reply(id), Reply::Started { .. }));
    expect(guarded, id, "ready\r\n");
    id
}

/// Reads until `wanted` was printed.
#[track_caller]
fn expect(guarded: &mut Guarded, id: StreamId, wanted: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        match guarded.client.next(id) {
            Got::Data(1, bytes) => seen.extend_from_slice(&bytes),
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&seen)),
        }
    }
}

#[test]
fn a_terminal_has_its_size_and_belongs_to_the_user() {
    let mut guarded = start();
    let script = "stty size; echo $TERM; stat -c %U:%G:%a $(tty); stty -a | grep -o ' iutf8'";
    let outcome = guarded.client.run(&on_terminal(script));
    let text = String::from_utf8(outcome.stdout).unwrap();
    assert_eq!(text, "33 99\r\nxterm\r\neva:tty:620\r\n iutf8\r\n");
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn it_is_the_controlling_terminal() {
    let mut guarded = start();
    let outcome = guarded.client.run(&on_terminal(
        "exec </dev/null >/dev/null 2>&1; echo yes >/dev/tty",
    ));
    assert_eq!(outcome.stdout, b"yes\r\n");
}

#[test]
fn a_new_size_is_told_to_the_command() {
    let mut guarded = start();
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let id = begin(&mut guarded, script);
    let size = TtySize {
        rows: 50,
        cols: 120,
    };
    guarded.client.say(id, &Control::Resize(size));
    assert_eq!(guarded.client.outcome(id).stdout, b"50 120\r\n");
}

#[test]
fn control_c_interrupts_the_foreground() {
    let mut guarded = start();
    // Without a fork: dash can lose an interrupt that comes while it forks.
    let id = begin(&mut guarded, "echo ready; exec sleep 1000");
    guarded.client.send(id, b"\x03");
    assert_eq!(guarded.client.outcome(id).end, Ok(Exit::Signal(2)));
}

/// A shell with job control has moved its child to the foreground: that one gets the signal, not the shell.
#[test]
fn signals_go_to_the_foreground_group() {
    let mut guarded = start();
    let script = "set -m; trap '' INT; (trap - INT; echo ready; exec sleep 1000); echo \"code $?\"";
    let id = begin(&mut guarded, script);
    guarded.client.say(id, &Control::Signal(15));
    let outcome = guarded.client.outcome(id);
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(text.contains("code 143"), "{text}");
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn typed_lines_are_read_and_control_d_ends_them() {
    let mut guarded = start();
    let id = begin(&mut guarded, "stty -echo; echo ready; cat");
    guarded.client.send(id, b"a line\n");
    expect(&mut guarded, id, "a line\r\n");
    guarded.client.send(id, b"\x04");
    assert_eq!(guarded.client.outcome(id).end, Ok(Exit::Code(0)));
}

#[test]
fn all_output_of_a_terminal_comes_before_its_end() {
    let mut guarded = start();
    let outcome = guarded
        .client
        .run(&on_terminal("stty -opost; head -c 2000000 /dev/zero"));
    assert_eq!(outcome.stdout.len(), 2_000_000);
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn a_background_process_on_the_terminal_does_not_hold_up_the_end() {
    let mut guarded = start();
    let outcome = guarded
        .client
        .run(&on_terminal("trap '' HUP; sleep 1000 & echo done"));
    assert_eq!(outcome.stdout, b"done\r\n");
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn a_script_without_an_interpreter_line_has_its_terminal() {
    let mut guarded = start();
    guarded.sh("echo 'tty >/dev/null && echo yes >/dev/tty' > script; chmod +x script");
    let mut exec = on_terminal("");
    exec.argv = vec![b"./script".to_vec()];
    let outcome = guarded.client.run(&exec);
    assert_eq!(outcome.stdout, b"yes\r\n");
}

#[test]
fn a_reset_hangs_the_terminal_up() {
    let mut guarded = start();
    let id = begin(
        &mut guarded,
        "trap 'echo hup > ~/told; exit' HUP; echo ready; while :; do sleep 0.05; done",
    );
    guarded.client.mux.reset(id);
    guarded.wait_for("cat ~/told 2>/dev/null || true", "hup\n");
}
