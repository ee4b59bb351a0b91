//! Machines that are frozen in the middle of their work, taken back, and forked.

use super::crash::until;
use super::run::wait_for;
use crate::env;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use testkit::{Env, Terminal};

/// A service with state in memory, on the disk, and on a port: each request counts in both.
const SERVICE: &str = r#"
import http.server, sqlite3
disk = sqlite3.connect("/var/tmp/count.db")
disk.execute("create table if not exists hits (at integer primary key, body text)")
disk.commit()
memory = 0
class Count(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global memory
        memory += 1
        disk.execute("insert into hits values (?, ?)", (memory, "x" * 3000))
        disk.commit()
        self.answer(str(memory))
    def do_GET(self):
        rows, last = disk.execute("select count(*), coalesce(max(at), 0) from hits").fetchone()
        whole = disk.execute("pragma integrity_check").fetchone()[0]
        self.answer(f"{memory} {rows} {last} {whole}")
    def answer(self, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 8000), Count)
print("serving", flush=True)
server.serve_forever()
"#;

/// Writes to the service for ever.
const LOAD: &str = r#"
import http.client
while True:
    connection = http.client.HTTPConnection("127.0.0.1", 8000)
    for _ in range(20):
        connection.request("POST", "/")
        connection.getresponse().read()
    connection.close()
"#;

/// Asks it, without the time that a program takes to start.
const ASK: &str =
    "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; tail -n 1 <&3";

struct Service {
    env: Env,
    root: PathBuf,
}

impl Service {
    fn start() -> Self {
        let env = env();
        let root = env.repository("shop");
        fs::write(root.join("service.py"), SERVICE).unwrap();
        fs::write(root.join("load.py"), LOAD).unwrap();
        let words = [
            "run",
            "-d",
            "--name",
            "web",
            "--",
            "python3",
            "-u",
            "service.py",
        ];
        env.efimera(&root, &words).ok();
        let service = Self { env, root };
        until("the service", || {
            service.run(&["logs", "web"]).contains("serving")
        });
        service
    }

    fn run(&self, words: &[&str]) -> String {
        self.env.efimera(&self.root, words).ok()
    }

    /// The count, of which memory and disk must know the same.
    fn count(&self, name: &str) -> u64 {
        let answer = self.run(&["exec", name, "bash", "-c", ASK]);
        let words: Vec<&str> = answer.split_whitespace().collect();
        let [memory, rows, last, "ok"] = words[..] else {
            panic!("{name}: {answer}")
        };
        assert_eq!((memory, memory), (rows, last), "{name}: {answer}");
        memory.parse().unwrap()
    }

    fn load(&self, name: &str) {
        let script = "setsid python3 load.py >/dev/null 2>&1 & echo $! > /tmp/load";
        self.run(&["exec", name, "sh", "-c", script]);
    }

    /// Ends what writes, so that two counts can be compared.
    fn rest(&self, name: &str) {
        let script = "kill -9 $(cat /tmp/load)";
        self.run(&["exec", name, "sh", "-c", script]);
    }
}

#[test]
fn a_service_under_load_is_taken_back_and_forked_with_memory_and_disk_of_one_moment() {
    let service = Service::start();
    service.load("web");
    until("some load", || service.count("web") > 5);
    let label = service.run(&["snapshot", "web", "early"]);
    assert_eq!(label, "web:early\n");
    let after = service.count("web");
    until("more load", || service.count("web") > after + 5);
    service.rest("web");
    service.run(&["exec", "web", "touch", "/var/tmp/later"]);

    let forks = service.run(&["fork", "web:early", "-n", "2"]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2);
    for name in &forks {
        // The writer goes on in each, for itself.
        let first = service.count(name);
        until("load in the fork", || service.count(name) > first);
        service.rest(name);
    }
    service.run(&["restore", "web:early"]);
    service.rest("web");
    let back = service.count("web");
    let later = ["exec", "web", "test", "-e", "/var/tmp/later"];
    assert_eq!(service.env.efimera(&service.root, &later).code, 1);
    // A snapshot is used as often as one likes, and a newer one doesn't disturb it.
    service.run(&["snapshot", "web"]);
    service.run(&["restore", "web:early"]);
    service.rest("web");
    service.count("web");
    service.run(&["restore", "web:1"]);
    assert_eq!(service.count("web"), back);
    let listed = service.run(&["snapshot", "ls", "web", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let labels: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["early", "1"]);
    for name in forks {
        assert!(service.count(name) > 0, "a fork outlives what it came from");
        service.run(&["rm", "--force", name]);
    }
    service.run(&["rm", "--force", "web"]);
    assert!(!service.env.data().join("sandboxes/web").exists());
}

#[test]
fn forks_have_nothing_secret_in_common() {
    let env = env();
    let root = env.repository("shop");
    // What has random state of its own, in the kernel and in a program, before and after.
    let script = "import os, ssl, sys, uuid, socket
print('ready', flush=True)
sys.stdin.readline()
out, into = ssl.MemoryBIO(), ssl.MemoryBIO()
hello = ssl.create_default_context().wrap_bio(into, out, server_hostname='example.com')
try: hello.do_handshake()
except ssl.SSLWantReadError: pass
machine = open('/etc/machine-id').read().strip()
print(out.read()[11:43].hex(), os.getrandom(16).hex(), uuid.uuid4(), machine, socket.gethostname())";
    fs::write(root.join("values.py"), script).unwrap();
    let name = "mother";
    let words = [
        "run", "-d", "--keep", "--name", name, "--", "sleep", "infinity",
    ];
    env.efimera(&root, &words).ok();
    env.efimera(&root, &["exec", name, "mkfifo", "/tmp/go"])
        .ok();
    // The program has started when it is forked, and its random state is made afterwards.
    let waits = "(python3 values.py < /tmp/go > /tmp/values 2>&1 &); exec 3> /tmp/go; until grep -q ready /tmp/values; do sleep 0.1; done; setsid sleep infinity <&- >/dev/null 2>&1 3>&3 & ";
    env.efimera(&root, &["exec", name, "bash", "-c", waits])
        .ok();
    let forks = env.efimera(&root, &["fork", name, "-n", "8"]).ok();
    let mut all = vec![Vec::new(); 5];
    for fork in forks.lines().chain([name]) {
        let go = "echo > /tmp/go; until test $(wc -l < /tmp/values) -ge 2; do sleep 0.1; done; tail -n 1 /tmp/values";
        let values = env.efimera(&root, &["exec", fork, "bash", "-c", go]).ok();
        let values: Vec<&str> = values.split_whitespace().collect();
        assert_eq!(values.len(), 5, "{values:?}");
        assert_eq!(values[4], fork);
        for (all, value) in all.iter_mut().zip(values) {
            all.push(value.to_owned());
        }
    }
    for values in all {
        let distinct: BTreeSet<&String> = values.iter().collect();
        assert_eq!(distinct.len(), 9, "{values:?}");
    }
    assert!(
        env.efimera(&root, &["snapshot", "ls", name])
            .ok()
            .lines()
            .count()
            == 1,
        "what was frozen for the forks alone is gone"
    );
    for fork in forks.lines().chain([name]) {
        env.efimera(&root, &["rm", "--force", fork]).ok();
    }
}

#[test]
fn an_attached_terminal_goes_on() {
    let env = env();
    let root = env.repository("shop");
    let script = "n=0; echo ready; while read -r line; do n=$((n+1)); echo \"$n:$line\"; done";
    let words = ["run", "--name", "term", "--", "bash", "-c", script];
    let mut terminal = Terminal::start(&env.efimera_command(&root, &words), 24, 80);
    terminal.wait_for("ready");
    terminal.send(b"one\r");
    terminal.wait_for("1:one");
    env.efimera(&root, &["snapshot", "term", "here"]).ok();
    terminal.send(b"two\r");
    terminal.wait_for("2:two");
    terminal.send(b"three\r");
    terminal.wait_for("3:three");
    env.efimera(&root, &["restore", "term:here"]).ok();
    terminal.send(b"again\r");
    terminal.wait_for("2:again");
    // The fork's own command waits for a terminal that it hasn't got.
    let fork = env
        .efimera(&root, &["fork", "term:here", "--name", "twin"])
        .ok();
    assert_eq!(fork, "twin\n");
    env.efimera(&root, &["stop", "-t", "0s", "twin"]).ok();
    terminal.send(b"\x04");
    terminal.wait_for("the machine is gone");
    assert_eq!(terminal.end().0, 0);
}

fn kept(env: &Env, root: &Path, name: &str) {
    let words = ["run", "--keep", "--name", name, "--", "true"];
    env.efimera(root, &words).ok();
}

fn read(env: &Env, root: &Path, name: &str, path: &str) -> String {
    env.efimera(root, &["exec", name, "cat", path]).ok()
}

fn write(env: &Env, root: &Path, name: &str, text: &str) {
    let script = format!("echo {text} > /tmp/state; echo {text} > note");
    env.efimera(root, &["exec", name, "sh", "-c", &script]).ok();
}

#[test]
fn what_is_damaged_or_missing_is_refused_and_the_machine_goes_on() {
    let env = env();
    let root = env.repository("shop");
    kept(&env, &root, "box");
    write(&env, &root, "box", "one");
    env.efimera(&root, &["snapshot", "box", "a"]).ok();
    let again = env.efimera(&root, &["snapshot", "box", "a"]);
    assert_eq!(again.code, 1);
    assert!(
        again.stderr.contains("has a snapshot `a` already"),
        "{}",
        again.stderr
    );
    let missing = env.efimera(&root, &["restore", "box:b"]);
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("There is no snapshot `box:b`"),
        "{}",
        missing.stderr
    );
    let bad = env.efimera(&root, &["snapshot", "box", "../up"]);
    assert_eq!(bad.code, 2);
    write(&env, &root, "box", "two");
    let dir = env.data().join("sandboxes/box/snapshots/a");
    // The memory last: once touched, all of it is looked at each time.
    for file in ["state", "scratch", "frozen.json", "streams.json", "ram"] {
        let path = dir.join(file);
        let length = fs::metadata(&path).unwrap().len();
        let handle = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut last = [0];
        handle.read_exact_at(&mut last, length - 1).unwrap();
        handle.set_len(length - 1).unwrap();
        let refused = env.efimera(&root, &["restore", "box:a"]);
        assert_eq!(refused.code, 1, "{file}");
        assert!(
            refused.stderr.contains("can't be restored") && refused.stderr.contains("goes on"),
            "{file}: {}",
            refused.stderr
        );
        let forked = env.efimera(&root, &["fork", "box:a"]);
        assert_eq!(forked.code, 1, "{file}");
        assert_eq!(read(&env, &root, "box", "/tmp/state"), "two\n", "{file}");
        handle.write_all_at(&last, length - 1).unwrap();
    }
    let listed = env.efimera(&root, &["ls", "-a", "-q"]).ok();
    assert_eq!(listed, "box\n", "no half-made fork is left");
    env.efimera(&root, &["snapshot", "rm", "box:a"]).ok();
    assert!(!dir.exists());
    assert_eq!(env.efimera(&root, &["snapshot", "rm", "box:a"]).code, 1);
    env.efimera(&root, &["rm", "--force", "box"]).ok();
}

#[test]
fn a_stopped_sandbox_runs_again_from_its_snapshot() {
    let env = env();
    let root = env.repository("shop");
    kept(&env, &root, "box");
    write(&env, &root, "box", "frozen");
    env.efimera(&root, &["snapshot", "box"]).ok();
    write(&env, &root, "box", "later");
    env.efimera(&root, &["stop", "box"]).ok();
    let diff = |want: &str| {
        let text = env.efimera(&root, &["diff", "box"]).ok();
        assert!(text.contains(want), "{text}");
    };
    diff("+later");
    assert_eq!(env.efimera(&root, &["restore", "box"]).ok(), "box:1\n");
    assert_eq!(
        read(&env, &root, "box", "/tmp/state"),
        "frozen\n",
        "its memory"
    );
    assert_eq!(read(&env, &root, "box", "note"), "frozen\n", "and its disk");
    env.efimera(&root, &["stop", "box"]).ok();
    diff("+frozen");
    env.efimera(&root, &["start", "box"]).ok();
    assert_eq!(read(&env, &root, "box", "note"), "frozen\n");
    env.efimera(&root, &["rm", "--force", "box"]).ok();
}

#[test]
fn a_supervisor_that_dies_over_a_snapshot_leaves_the_older_one() {
    use rustix::process::{Pid, Signal, kill_process};
    let env = env();
    let root = env.repository("shop");
    kept(&env, &root, "box");
    write(&env, &root, "box", "old");
    env.efimera(&root, &["snapshot", "box", "old"]).ok();
    write(&env, &root, "box", "new");
    let inspect = env.efimera(&root, &["inspect", "box"]).ok();
    let inspect: serde_json::Value = serde_json::from_str(&inspect).unwrap();
    let pid = i32::try_from(inspect["sandbox"]["supervisor_pid"].as_i64().unwrap()).unwrap();
    let snapshots = env.data().join("sandboxes/box/snapshots");
    let mut child = env.start(&root, &["snapshot", "box", "new"]);
    until("the snapshot's beginning", || {
        snapshots.join(".new-new").exists() || snapshots.join("new").exists()
    });
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    until("the end of the processes", || env.processes().is_empty());
    env.efimera(&root, &["restore", "box:old"]).ok();
    assert_eq!(read(&env, &root, "box", "/tmp/state"), "old\n");
    // What it left is in nobody's way.
    drop(env.efimera(&root, &["snapshot", "rm", "box:new"]));
    env.efimera(&root, &["snapshot", "box", "new"]).ok();
    env.efimera(&root, &["rm", "--force", "box"]).ok();
}

#[test]
fn an_ordinary_run_is_frozen_and_forked_too() {
    let env = env();
    let root = env.repository("shop");
    let script = "echo up; read -r go; echo \"$go\" > said";
    let words = ["run", "--name", "plain", "--", "sh", "-c", script];
    let mut command = env.efimera_command(&root, &words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for(child.stdout.as_mut().unwrap(), "up\n");
    env.efimera(&root, &["snapshot", "plain", "up"]).ok();
    let fork = env.efimera(&root, &["fork", "plain:up"]).ok();
    let fork = fork.trim_end();
    // The same program in both: in the fork it is answered from inside.
    let answer = "for process in /proc/[0-9]*; do
        if tr '\\0' ' ' < $process/cmdline 2>/dev/null | grep -q '^sh -c echo up'; then kill ${process#/proc/}; fi
    done";
    // The machine ends with its command, and with it this one.
    drop(env.efimera(&root, &["exec", fork, "sh", "-c", answer]));
    assert_eq!(env.efimera(&root, &["wait", fork]).code, 128 + 15);
    env.efimera(&root, &["restore", "plain:up"]).ok();
    drop(child.stdin.take());
    let ran = env.ran(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let text = env
        .efimera(&root, &["results", "--group", "plain", "--json"])
        .ok();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    let exits: Vec<_> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["exit"].clone())
        .collect();
    assert_eq!(exits, [0, 128 + 15]);
}

#[test]
fn attempts_are_compared_and_the_losers_discarded() {
    let env = env();
    let root = env.repository("shop");
    let script = "cut -c1 /etc/machine-id > made";
    let ran = env.efimera(&root, &["run", "--fork", "3", "--", "sh", "-c", script]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.stdout);
    assert!(lines[0].starts_with("NAME") && lines[0].contains("LINES"));
    let names: Vec<&str> = lines[1..]
        .iter()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    for line in &lines[1..] {
        assert!(line.contains("complete") && line.contains("+1"), "{line}");
    }
    let failing = env.efimera(&root, &["run", "--fork", "2", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failing.code, 7, "{}", failing.stderr);
    env.efimera(&root, &["discard", "--except", names[1]]).ok();
    let left = env.efimera(&root, &["results", "--group", names[1]]).ok();
    assert_eq!(left.lines().count(), 2, "{left}");
    assert!(left.contains(names[1]));
    assert_eq!(
        env.efimera(&root, &["discard", "--except", names[1]]).code,
        1
    );
    let results = env.efimera(&root, &["results"]).ok();
    assert_eq!(
        results.lines().count(),
        1 + 1 + 2,
        "others are as they were: {results}"
    );
    env.efimera(&root, &["apply", names[1]]).ok();
    assert!(root.join("made").exists());
}

#[test]
fn memory_that_a_kept_machine_frees_is_the_computers_again() {
    let env = env();
    let root = env.repository("shop");
    kept(&env, &root, "box");
    let pss = || {
        let text = env.efimera(&root, &["inspect", "box"]).ok();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["sandbox"]["memory"]["pss"].as_u64().unwrap()
    };
    let idle = pss();
    let script = "import os; held = b'x' * (400 << 20); print('held', flush=True); os.read(0, 1)";
    let mut command = env.efimera_command(&root, &["exec", "box", "python3", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_for(child.stdout.as_mut().unwrap(), "held\n");
    let held = pss();
    assert!(held > idle + (350 << 20), "{idle} {held}");
    drop(child.stdin.take());
    child.wait().unwrap();
    until("the memory's return", || pss() < idle + (150 << 20));
    // One that shares its memory has nothing to give back, and QEMU isn't asked for it.
    let script = "cat /sys/bus/virtio/drivers/virtio_balloon/virtio*/device || echo none";
    let ran = env
        .efimera(&root, &["run", "--", "bash", "-c", script])
        .ok();
    assert_eq!(ran, "none\n");
    env.efimera(&root, &["rm", "--force", "box"]).ok();
}

/// A program that draws random bytes all the time draws none twice: it stands still until there are new keys.
#[test]
fn nobody_draws_the_same_bytes_in_two_machines() {
    let env = env();
    let root = env.repository("shop");
    kept(&env, &root, "box");
    let script = "import os
drawn = open('/tmp/drawn', 'w')
while True:
    drawn.write(os.getrandom(8).hex() + '\\n')
    drawn.flush()";
    fs::write(root.join("draw.py"), script).unwrap();
    let script =
        "cat > /tmp/draw.py; setsid python3 /tmp/draw.py >/dev/null 2>&1 & echo $! > /tmp/pid";
    let mut command = env.efimera_command(&root, &["exec", "box", "bash", "-c", script]);
    command.stdin(fs::File::open(root.join("draw.py")).unwrap());
    assert!(command.status().unwrap().success());
    let started = "until test -s /tmp/drawn; do sleep 0.1; done";
    env.efimera(&root, &["exec", "box", "sh", "-c", started])
        .ok();
    let forks = env.efimera(&root, &["fork", "box", "-n", "2"]).ok();
    let drawn: Vec<Vec<String>> = forks
        .lines()
        .chain(["box"])
        .map(|name| {
            let script = "size() { wc -c < /tmp/drawn; }; before=$(size); until test $(size) -gt $before; do sleep 0.1; done; kill -9 $(cat /tmp/pid); cat /tmp/drawn";
            let drawn = env.efimera(&root, &["exec", name, "sh", "-c", script]).ok();
            env.efimera(&root, &["rm", "--force", name]).ok();
            drawn.lines().map(str::to_owned).collect()
        })
        .collect();
    let in_common = |one: &[String], other: &[String]| {
        let pairs = one.iter().zip(other);
        pairs.take_while(|(one, other)| one == other).count()
    };
    let before = in_common(&drawn[0], &drawn[1]);
    assert!(before > 0);
    for other in &drawn[1..] {
        // All three parted at one moment; programs that ran on would part when each got its keys.
        assert_eq!(in_common(&drawn[0], other), before);
    }
    assert_eq!(in_common(&drawn[1], &drawn[2]), before);
    let mut after: Vec<&String> = drawn.iter().flat_map(|drawn| &drawn[before..]).collect();
    let count = after.len();
    assert!(drawn.iter().all(|drawn| drawn.len() > before));
    after.sort_unstable();
    after.dedup();
    assert_eq!(after.len(), count);
}
