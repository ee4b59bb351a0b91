//! A machine on a person's terminal.

use crate::env;
use testkit::{Env, Terminal};

fn start(env: &Env, words: &[&str]) -> Terminal {
    let root = env.repository("shop");
    Terminal::start(&env.efimera_command(&root, words), 30, 100)
}

/// Tells of a signal that is waited for, so that none comes too early or too late.
const WAITING: &str = "import os, signal, sys
wanted = {signal.SIGWINCH, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print('ready', flush=True)
print('got', signal.sigwait(wanted).name, *reversed(os.get_terminal_size()), flush=True)
sys.exit(7)";

#[test]
fn size_keys_and_settings_are_the_terminals() {
    let env = env();
    let script = format!("stty size; read line; echo got:$line; exec python3 -c \"{WAITING}\"");
    let mut terminal = start(&env, &["run", "--", "bash", "-c", &script]);
    let before = terminal.settings();
    terminal.wait_for("30 100");
    terminal.send(b"h\x1d\x1dello\r");
    terminal.wait_for("got:h\x1dello");
    terminal.wait_for("ready");
    terminal.resize(40, 120);
    terminal.wait_for("got SIGWINCH 40 120");
    terminal.wait_for("the machine is gone");
    let after = terminal.settings();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    assert_eq!(terminal.end().0, 7);
}

#[test]
fn control_c_is_the_commands_own() {
    let env = env();
    let mut terminal = start(&env, &["run", "--", "python3", "-c", WAITING]);
    terminal.wait_for("ready");
    terminal.send(b"\x03");
    terminal.wait_for("got SIGINT");
    assert_eq!(terminal.end().0, 7);
}

#[test]
fn a_key_leaves_the_machine_and_a_key_stops_it() {
    let env = env();
    let script = "echo work > made; echo ready; while :; do read -r _ || true; done";
    let mut terminal = start(&env, &["run", "--name", "left", "--", "bash", "-c", script]);
    terminal.wait_for("ready");
    terminal.send(b"\x1dd");
    terminal.wait_for("goes on without this terminal");
    assert_eq!(terminal.end().0, 0);
    let work = env.work().join("shop");
    let listed = env.efimera(&work, &["ls", "--json"]).ok();
    assert!(listed.contains("\"running\""), "{listed}");
    env.efimera(&work, &["stop", "-t", "1s", "left"]).ok();
    let diff = env.efimera(&work, &["diff", "left", "--name-only"]).ok();
    assert_eq!(diff, "made\n");

    let words = ["run", "--name", "stopped", "--", "bash", "-c", script];
    let mut terminal = Terminal::start(&env.efimera_command(&work, &words), 24, 80);
    terminal.wait_for("ready");
    terminal.send(b"\x1ds");
    terminal.wait_for("the machine is gone");
    assert_eq!(terminal.end().0, 128 + 15);
    let diff = env.efimera(&work, &["diff", "stopped", "--name-only"]).ok();
    assert_eq!(diff, "made\n");
}
