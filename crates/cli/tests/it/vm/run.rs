//! One command in a machine: what passes through, and what stays as it was.

use crate::{env, tree};
use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_run_leaves_the_host_alone_and_apply_gives_what_the_machine_had() {
    let env = env();
    let root = env.repository("shop");
    fs::write(root.join(".env"), "TOKEN=1\n").unwrap();
    fs::write(root.join("debug.log"), "ignored\n").unwrap();
    let before = tree::list(&root, true);
    let script = format!(
        "set -e
test ! -e .env && test ! -e debug.log
sed -i s/colour/color/ src/paint.py
rm src/brush.py
printf '\\000\\377binary' > blob.bin
mkdir -p empty deep/er && echo x > 'deep/er/a b'
chmod 755 .gitignore
ln -sfn src latest
: > nothing
./build.sh
python3 - <<'PY'
{}
PY",
        tree::LIST_SCRIPT
    );
    let ran = env.efimera(&root, &["run", "--name", "one", "--", "sh", "-c", &script]);
    assert_eq!(
        tree::list(&root, true),
        before,
        "nothing on the host changed"
    );
    let guest = ran.ok();
    let apply = env.efimera(&root, &["apply"]);
    assert_eq!(apply.code, 0, "{}", apply.stderr);
    let mut guest: Vec<String> = guest
        .lines()
        .filter(|line| !line.contains(" out"))
        .map(str::to_owned)
        .collect();
    guest.sort();
    let host: Vec<String> = tree::list(&root, false)
        .into_iter()
        .filter(|line| !line.ends_with(" .env") && !line.ends_with(" debug.log"))
        .collect();
    assert_eq!(host, guest, "the tree is what the machine had");
    assert!(
        fs::read_dir(env.data().join("sandboxes"))
            .unwrap()
            .next()
            .is_none(),
        "the sandbox is gone"
    );
}

#[test]
fn output_input_and_exit_code_pass_through() {
    let env = env();
    let root = env.repository("shop");
    let mut child = env
        .efimera_command(
            &root,
            &[
                "run",
                "-q",
                "-e",
                "A=b c",
                "--",
                "sh",
                "-c",
                "cat; echo \"$A\" >&2; exit 42",
            ],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(output.stdout, bytes, "every byte comes back");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "b c\n");
}

#[test]
fn ends_have_the_codes_of_a_shell() {
    let env = env();
    let root = env.repository("shop");
    let keep = env.efimera(
        &root,
        &[
            "run",
            "--keep",
            "--name",
            "box",
            "--",
            "sh",
            "-c",
            "kill -9 $$",
        ],
    );
    assert_eq!(keep.code, 137, "{}", keep.stderr);
    let code = |words: &[&str]| env.efimera(&root, &[&["exec", "box"], words].concat()).code;
    assert_eq!(code(&["true"]), 0);
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), 143);
    assert_eq!(code(&["no-such-program"]), 127);
    assert_eq!(code(&["/etc/passwd"]), 126);
    assert_eq!(env.efimera(&root, &["rm", "--force", "box"]).code, 0);
}

#[test]
fn a_timeout_ends_the_command_and_keeps_its_work() {
    let env = env();
    let root = env.repository("shop");
    let ran = env.efimera(
        &root,
        &[
            "run",
            "--name",
            "slow",
            "--timeout",
            "4s",
            "--",
            "sh",
            "-c",
            "echo done > early; exec sleep 600",
        ],
    );
    assert_eq!(ran.code, 124, "{}", ran.stderr);
    assert!(env.efimera(&root, &["diff", "slow"]).ok().contains("early"));
}

#[test]
fn the_first_interrupt_is_the_commands_and_the_second_stops() {
    let env = env();
    let root = env.repository("shop");
    let mut child = env.start(
        &root,
        &[
            "run",
            "--name",
            "deaf",
            "--",
            "sh",
            "-c",
            "trap 'echo caught' INT; echo up; while :; do sleep 0.1; done",
        ],
    );
    let mut stdout = child.stdout.take().unwrap();
    wait_for(&mut stdout, "up\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    wait_for(&mut stdout, "caught\n");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert!(
        !env.data().join("sandboxes/deaf").exists(),
        "the machine is gone"
    );
    let head = fs::read_to_string(env.data().join("results/deaf/result.json")).unwrap();
    assert!(head.contains("\"complete\""), "its result is whole: {head}");
}

#[test]
fn a_gigabyte_of_output_is_held_back_not_held() {
    let env = env();
    let root = env.repository("shop");
    let mut child = env.start(
        &root,
        &[
            "run",
            "--name",
            "loud",
            "--",
            "sh",
            "-c",
            "head -c 300000000 /dev/zero; echo end >&2",
        ],
    );
    let mut stdout = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    while let Ok(count @ 1..) = stdout.read(&mut buffer) {
        total += count;
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(total, 300_000_000);
    let log: u64 = fs::read_dir(env.data().join("results/loud/output"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(log < 40 << 20, "the log is bounded: {log}");
}

#[test]
fn a_background_child_does_not_hold_the_machine() {
    let env = env();
    let root = env.repository("shop");
    let begun = Instant::now();
    let ran = env.efimera(
        &root,
        &["run", "-q", "--", "sh", "-c", "sleep 10000 & echo started"],
    );
    assert_eq!(ran.ok(), "started\n");
    assert!(
        begun.elapsed() < Duration::from_mins(5),
        "it ended by itself"
    );
}

#[test]
fn there_is_no_network_and_no_way_to_the_host() {
    let env = env();
    let root = env.repository("shop");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "ls /sys/class/net; for host in 127.0.0.1 10.0.2.2 169.254.169.254 192.168.0.1; do
timeout 3 bash -c \"echo x > /dev/tcp/$host/{port}\" 2>/dev/null && echo reached $host; done; true"
    );
    let ran = env.efimera(
        &root,
        &["run", "-q", "-u", "root", "--", "bash", "-c", &script],
    );
    assert_eq!(
        ran.ok(),
        "lo\n",
        "the loopback interface alone, and nothing behind it"
    );
    assert!(listener.accept().is_err(), "nobody knocked");
}

#[test]
fn an_ordinary_user_with_sudo_runs_the_command() {
    let env = env();
    let root = env.repository("shop");
    let ran = env.efimera(
        &root,
        &[
            "run",
            "-q",
            "--",
            "sh",
            "-c",
            "id -u; sudo id -u; echo $HOME; stat -c %u README.md .gitignore 2>/dev/null; hostname",
        ],
    );
    let lines: Vec<String> = ran.ok().lines().map(str::to_owned).collect();
    assert_ne!(lines[0], "0");
    assert_eq!(lines[1], "0");
    assert!(lines[2].starts_with("/home/"));
    assert_eq!(lines[3], lines[0], "files are the user's");
}

/// Reads until the text came; the test's own time limit is the deadline.
pub(crate) fn wait_for(stream: &mut impl std::io::Read, wanted: &str) {
    let mut seen = Vec::new();
    let mut byte = [0; 1];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        assert_eq!(
            stream.read(&mut byte).unwrap(),
            1,
            "ended after {:?}",
            String::from_utf8_lossy(&seen)
        );
        seen.push(byte[0]);
    }
}
