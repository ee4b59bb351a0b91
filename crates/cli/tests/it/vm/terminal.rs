//! A machine on a person's terminal.

use crate::env;
use testkit::{Env, Terminal};

fn start(env: &Env, words: &[&str]) -> Terminal {
    let root = env.repository("shop");
    Terminal::start(&env.efimera_command(&root, words), 30, 100)
}

#[test]
fn size_keys_and_settings_are_the_terminals() {
    let env = env();
    let script = "stty size; read line; echo got:$line; trap 'stty size; exit 7' WINCH; echo ready; while :; do read -r _ || true; done";
    let mut terminal = start(&env, &["run", "--", "bash", "-c", script]);
    let before = terminal.settings();
    terminal.wait_for("30 100");
    terminal.send(b"h\x1d\x1dello\r");
    terminal.wait_for("got:h\x1dello");
    terminal.wait_for("ready");
    terminal.resize(40, 120);
    terminal.wait_for("40 120");
    terminal.wait_for("the machine is gone");
    let after = terminal.settings();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    assert_eq!(terminal.end().0, 7);
}

#[test]
fn control_c_is_the_commands_own() {
    let env = env();
    let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do read -r _ || true; done";
    let mut terminal = start(&env, &["run", "--", "bash", "-c", script]);
    terminal.wait_for("ready");
    terminal.send(b"\x03");
    terminal.wait_for("caught");
    assert_eq!(terminal.end().0, 3);
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
