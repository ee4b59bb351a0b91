//! `kill -9` of each part in mid-run: the result holds the work up to the last checkpoint, nothing is left running,
//! and the next command works.

use super::run::wait_for;
use crate::env;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use testkit::Env;

/// Starts a run that has made a file which a checkpoint holds, and goes on.
struct Running<'a> {
    env: &'a Env,
    root: std::path::PathBuf,
    child: Child,
    supervisor: Pid,
    vmm: Pid,
}

fn running(env: &Env) -> Running<'_> {
    let root = env.repository("shop");
    let mut child = env.start(
        &root,
        &[
            "run",
            "--name",
            "mid",
            "--",
            "sh",
            "-c",
            "echo early > early; echo up; while :; do sleep 0.2; done",
        ],
    );
    wait_for(child.stdout.as_mut().unwrap(), "up\n");
    let head = env.data().join("results/mid/changes.json");
    until("a checkpoint", || {
        fs::read_to_string(&head).is_ok_and(|text| text.contains("early"))
    });
    let inspect: serde_json::Value =
        serde_json::from_str(&env.efimera(&root, &["inspect", "mid"]).ok()).unwrap();
    let pid = |key: &str| {
        Pid::from_raw(i32::try_from(inspect["sandbox"][key].as_i64().unwrap()).unwrap()).unwrap()
    };
    Running {
        env,
        root,
        child,
        supervisor: pid("supervisor_pid"),
        vmm: pid("vmm_pid"),
    }
}

impl Running<'_> {
    /// Nothing runs any more, the result holds the checkpoint, and another run works.
    fn check(mut self, completeness: &[&str]) {
        until("the end of the processes", || {
            gone(self.supervisor) && gone(self.vmm)
        });
        self.child.wait().unwrap();
        let results: serde_json::Value =
            serde_json::from_str(&self.env.efimera(&self.root, &["results", "--json"]).ok())
                .unwrap();
        let state = results[0]["state"].as_str().unwrap();
        assert!(completeness.contains(&state), "{state}");
        assert_eq!(
            self.env
                .efimera(&self.root, &["diff", "mid", "--name-only"])
                .ok(),
            "early\n"
        );
        assert_eq!(
            self.env
                .efimera(&self.root, &["ls", "-a", "--json"])
                .ok()
                .trim(),
            "[]"
        );
        let ran = self
            .env
            .efimera(&self.root, &["run", "-q", "--", "echo", "again"]);
        assert_eq!(ran.ok(), "again\n");
        assert!(empty(&self.env.data().join("run")), "no socket is left");
        assert!(
            empty(&self.env.data().join("sandboxes")),
            "no sandbox is left"
        );
    }
}

#[test]
fn qemu_is_killed() {
    let env = env();
    let mut running = running(&env);
    kill_process(running.vmm, Signal::KILL).unwrap();
    let code = running.child.wait().unwrap().code();
    assert_eq!(code, Some(125));
    running.check(&["checkpoint"]);
}

#[test]
fn the_supervisor_is_killed() {
    let env = env();
    let mut running = running(&env);
    kill_process(running.supervisor, Signal::KILL).unwrap();
    let code = running.child.wait().unwrap().code();
    assert_eq!(code, Some(125));
    running.check(&["checkpoint"]);
}

#[test]
fn the_command_line_is_killed() {
    let env = env();
    let mut running = running(&env);
    running.child.kill().unwrap();
    running.check(&["complete"]);
}

fn gone(pid: Pid) -> bool {
    let zombie = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| stat.contains(") Z "));
    zombie || test_kill_process(pid).is_err()
}

fn empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Looks until it holds; what is waited for has no descriptor to poll.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}
