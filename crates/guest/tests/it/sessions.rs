use crate::client::{Got, Outcome, command, shell};
use crate::{WORKSPACE, start, start_bare};
use std::time::{Duration, Instant};
use wire::WINDOW;
use wire::message::{Control, Exec, Exit, Reply, Request, RunAs};

const ENOENT: i32 = 2;
const EACCES: i32 = 13;

fn with_stdin(mut exec: Exec) -> Exec {
    exec.stdin = true;
    exec
}

fn run_as(user: &str, script: &str) -> Exec {
    let mut exec = shell(script);
    exec.user = RunAs::Named(user.as_bytes().to_vec());
    exec
}

#[test]
fn output_error_and_exit_code_come_apart() {
    let outcome = start().client.run(&shell("echo out; echo err >&2; exit 7"));
    let expect = Outcome {
        stdout: b"out\n".to_vec(),
        stderr: b"err\n".to_vec(),
        end: Ok(Exit::Code(7)),
    };
    assert_eq!(outcome, expect);
}

#[test]
fn a_signal_is_told_as_one() {
    let mut guarded = start();
    for signal in [9, 11, 15] {
        let outcome = guarded.client.run(&shell(&format!("kill -{signal} $$")));
        assert_eq!(outcome.end, Ok(Exit::Signal(signal)));
    }
    assert_eq!(
        guarded.client.run(&shell("exit 255")).end,
        Ok(Exit::Code(255))
    );
}

#[test]
fn a_command_is_the_user_in_the_workspace() {
    let mut guarded = start();
    assert_eq!(
        guarded.sh("id -un; id -u; id -g; id -G"),
        "eva\n1000\n1000\n1000 29 100\n"
    );
    assert_eq!(guarded.sh("pwd"), format!("{WORKSPACE}\n"));
    assert_eq!(guarded.sh("ulimit -n; umask"), "1024\n0022\n");
    // Nothing of PID 1 is left open but what it was itself given by whoever runs this test, and no signal is
    // blocked or ignored.
    let open = guarded.sh("find /proc/$$/fd -type l -printf '%f %l\\n'; true");
    for line in open.lines() {
        let (fd, target) = line.split_once(' ').unwrap();
        let ours = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let inherited = ours.is_ok_and(|ours| ours.to_string_lossy() == target);
        assert!(["0", "1", "2"].contains(&fd) || inherited, "{line}");
    }
    assert_eq!(
        guarded.sh("grep SigBlk /proc/self/status"),
        "SigBlk:\t0000000000000000\n"
    );
    // This program ignores SIGPIPE, as every one in Rust does, and whoever started it may ignore
    // more: a command must not. Beyond 31 are the C library's own and real-time ones.
    let ignored = guarded.sh("grep SigIgn /proc/self/status");
    let (_, mask) = ignored.trim_end().split_once('\t').unwrap();
    let standard = u64::from_str_radix(mask, 16).unwrap() & ((1 << 31) - 1);
    assert_eq!(standard, 0, "{ignored}");
}

#[test]
fn the_environment_is_ours_with_the_hosts_on_top() {
    let mut guarded = start();
    let mut exec = command(&["env"]);
    exec.env = vec![
        (b"LANG".to_vec(), b"de_DE.UTF-8".to_vec()),
        (b"ODD".to_vec(), b"a\nb=\xff".to_vec()),
        (b"".to_vec(), b"no name".to_vec()),
        (b"NOT=ONE".to_vec(), b"".to_vec()),
    ];
    let outcome = guarded.client.run(&exec);
    let mut lines: Vec<_> = outcome.stdout.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    let expect: [&[u8]; 11] = [
        b"",
        b"EFIMERA=1",
        b"HOME=/home/eva",
        b"IS_SANDBOX=1",
        b"LANG=de_DE.UTF-8",
        b"LOGNAME=eva",
        b"ODD=a",
        b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        b"SHELL=/bin/bash",
        b"USER=eva",
        b"b=\xff",
    ];
    assert_eq!(lines, expect);
}

#[test]
fn users_are_named_as_docker_names_them() {
    let mut guarded = start();
    let mut check = |user: &str, expect: &str| {
        let outcome = guarded
            .client
            .run(&run_as(user, "id -u; id -G; echo $HOME"));
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), expect, "{user}");
    };
    check("root", "0\n0\n/root\n");
    check("0", "0\n0\n/root\n");
    check("eva", "1000\n1000 29 100\n/home/eva\n");
    check("eva:audio", "1000\n29\n/home/eva\n");
    check("4321", "4321\n0\n/\n");
    check("4321:55", "4321\n55\n/\n");
    let outcome = guarded.client.run(&run_as("stranger", "id"));
    let failure = outcome.end.unwrap_err();
    assert_eq!(failure.errno, 0, "ENOENT is for programs");
    assert_eq!(failure.what, b"There is no user `stranger` in the image");
}

#[test]
fn a_command_that_cannot_start_says_why() {
    let mut guarded = start();
    guarded.sh("echo x > data; mkdir dir; echo 'echo \"script $0 $1\"' > script; chmod +x script");
    let mut check = |argv: &[&str], errno: i32, text: &str| {
        let failure = guarded.client.run(&command(argv)).end.unwrap_err();
        let what = String::from_utf8(failure.what).unwrap();
        assert_eq!((failure.errno, what.as_str()), (errno, text));
    };
    check(
        &["no-such"],
        ENOENT,
        "There is no program `no-such` in PATH",
    );
    check(&[""], ENOENT, "There is no program `` in PATH");
    check(&["./no-such"], ENOENT, "Executing `./no-such`");
    check(&["./data"], EACCES, "Executing `./data`");
    check(&["./dir"], EACCES, "Executing `./dir`");
    check(&["/etc/passwd"], EACCES, "Executing `/etc/passwd`");
    let outcome = guarded.client.run(&command(&["./script", "word"]));
    assert_eq!(outcome.stdout, b"script ./script word\n");

    let mut exec = command(&["true"]);
    exec.cwd = b"/no/such/dir".to_vec();
    let failure = guarded.client.run(&exec).end.unwrap_err();
    assert_eq!(failure.errno, 0, "ENOENT is for programs");
    assert_eq!(failure.what, b"There is no directory `/no/such/dir`");
    let mut exec = command(&["pwd"]);
    exec.cwd = b"dir".to_vec();
    let outcome = guarded.client.run(&exec);
    assert_eq!(
        outcome.stdout,
        format!("{WORKSPACE}/dir\n").as_bytes(),
        "relative to the workspace"
    );
    let mut exec = command(&["true"]);
    exec.argv.push(b"a\0b".to_vec());
    assert_eq!(guarded.client.run(&exec).end.unwrap_err().errno, 22);
}

#[test]
fn the_first_executable_in_path_is_taken() {
    let mut guarded = start();
    guarded
        .sh("mkdir a b c; mkdir a/tool; echo x > b/tool; echo 'echo c' > c/tool; chmod +x c/tool");
    let mut exec = command(&["tool"]);
    let path = |dirs: &str| vec![(b"PATH".to_vec(), dirs.as_bytes().to_vec())];
    exec.env = path("a:b:c:/usr/bin");
    assert_eq!(guarded.client.run(&exec).stdout, b"c\n");
    exec.env = path("a:b");
    assert_eq!(guarded.client.run(&exec).end.unwrap_err().errno, EACCES);
    exec.env = path("a");
    assert_eq!(guarded.client.run(&exec).end.unwrap_err().errno, ENOENT);
}

#[test]
fn without_words_it_is_a_login_shell() {
    let mut guarded = start();
    let mut exec = with_stdin(command(&[]));
    exec.env = vec![(b"SHELL".to_vec(), b"/bin/false".to_vec())];
    let id = guarded.client.open(&Request::Exec(exec));
    guarded.client.send(id, b"echo $0; exit 4\n");
    let outcome = guarded.client.outcome(id);
    assert_eq!(outcome.end, Ok(Exit::Code(4)));
    let name = String::from_utf8(outcome.stdout).unwrap();
    assert!(name.starts_with('-') && name.ends_with("sh\n"), "{name}");
}

#[test]
fn input_is_empty_unless_it_is_connected() {
    let outcome = start().client.run(&shell("cat; echo end"));
    assert_eq!(outcome.stdout, b"end\n");
}

#[test]
fn megabytes_go_in_and_come_out_again() {
    let mut guarded = start();
    let id = guarded
        .client
        .open(&Request::Exec(with_stdin(command(&["cat"]))));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    guarded.client.send(id, &bytes);
    guarded.client.mux.finish(id, 0).unwrap();
    let outcome = guarded.client.outcome(id);
    assert!(outcome.stdout == bytes);
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
}

#[test]
fn input_that_nobody_reads_is_paid_for_all_the_same() {
    let mut guarded = start();
    let exec = with_stdin(shell("head -c 1; exec 0<&-; read line < fifo"));
    guarded.sh("mkfifo fifo");
    let id = guarded.client.open(&Request::Exec(exec));
    guarded.client.send(id, &vec![b'x'; 4 * WINDOW]);
    guarded.sh("echo > fifo");
    let outcome = guarded.client.outcome(id);
    assert_eq!(outcome.stdout, b"x");
}

/// The host takes nothing: the command waits, PID 1 holds little, and everybody else is served.
#[test]
fn a_flood_is_held_back_and_stops_nobody_else() {
    const TOTAL: usize = 40 * 1024 * 1024;
    let mut guarded = start();
    guarded.client.stingy = true;
    let flood = guarded
        .client
        .open(&Request::Exec(shell(&format!("head -c {TOTAL} /dev/zero"))));
    let mut seen = 0;
    while let Some(got) = guarded.client.peek(flood, Duration::from_secs(1)) {
        if let Got::Data(1, bytes) = got {
            seen += bytes.len();
        }
    }
    assert!(seen <= WINDOW, "{seen}");
    assert!(guarded.guest.resident() < 16 << 20);
    assert_eq!(guarded.sh("echo hello"), "hello\n");
    guarded.client.pay();
    let outcome = guarded.client.outcome(flood);
    assert_eq!(seen + outcome.stdout.len(), TOTAL);
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
    assert!(guarded.guest.resident() < 16 << 20);
}

/// The command has ended long ago when the host takes its last bytes.
#[test]
fn nothing_that_was_written_is_lost_on_a_slow_host() {
    let total = WINDOW + 40_000;
    let mut guarded = start();
    guarded.client.stingy = true;
    let id = guarded
        .client
        .open(&Request::Exec(shell(&format!("head -c {total} /dev/zero"))));
    let mut seen = 0;
    // More than a session's own patience with a silent pipe.
    while let Some(got) = guarded.client.peek(id, Duration::from_secs(3)) {
        if let Got::Data(1, bytes) = got {
            seen += bytes.len();
        }
    }
    assert!(seen < total);
    guarded.client.pay();
    assert_eq!(seen + guarded.client.outcome(id).stdout.len(), total);
}

#[test]
fn a_background_process_does_not_hold_up_the_end() {
    let mut guarded = start();
    let begin = Instant::now();
    let outcome = guarded.client.run(&shell("sleep 1000 & echo done"));
    assert_eq!(outcome.stdout, b"done\n");
    assert_eq!(outcome.end, Ok(Exit::Code(0)));
    // One that never stops writing, either.
    let outcome = guarded.client.run(&shell("yes & exit 3"));
    assert_eq!(outcome.end, Ok(Exit::Code(3)));
    assert!(begin.elapsed() < Duration::from_secs(30));
    // And it goes on: it is not the session's end that ends it. (The one that wrote has nowhere to write to.)
    let sleeps = "grep -lsx sleep /proc/[0-9]*/comm | wc -l";
    assert_eq!(guarded.sh(sleeps), "1\n");
}

#[test]
fn signals_reach_the_commands_group() {
    let mut guarded = start();
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let id = guarded.client.open(&Request::Exec(shell(script)));
    assert!(matches!(guarded.client.reply(id), Reply::Started { .. }));
    assert_eq!(guarded.client.next(id), Got::Data(1, b"ready\n".to_vec()));
    // Numbers that are no signals are passed over.
    guarded.client.say(id, &Control::Signal(0));
    guarded.client.say(id, &Control::Signal(200));
    guarded.client.say(id, &Control::Signal(15));
    let outcome = guarded.client.outcome(id);
    assert_eq!(outcome.stdout, b"caught\n");
    assert_eq!(outcome.end, Ok(Exit::Code(3)));
}

#[test]
fn orphans_are_reaped() {
    let mut guarded = start();
    guarded.sh("for i in 1 2 3 4 5; do (setsid true &); done");
    guarded.wait_for("grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l", "0\n");
}

#[test]
fn a_stream_that_is_reset_ends_its_command() {
    let mut guarded = start();
    let script = "trap '' TERM; echo ready; sleep 1000";
    let id = guarded.client.open(&Request::Exec(shell(script)));
    guarded.client.next(id);
    assert_eq!(guarded.client.next(id), Got::Data(1, b"ready\n".to_vec()));
    guarded.client.mux.reset(id);
    guarded.wait_for("grep -lsx sleep /proc/[0-9]*/comm | wc -l", "0\n");
}

#[test]
fn a_hundred_sessions_at_once() {
    let mut guarded = start();
    let ids: Vec<_> = (0..100)
        .map(|n| {
            guarded
                .client
                .open(&Request::Exec(shell(&format!("echo {n}; exit {n}"))))
        })
        .collect();
    for (n, id) in ids.into_iter().enumerate() {
        let outcome = guarded.client.outcome(id);
        assert_eq!(outcome.stdout, format!("{n}\n").as_bytes());
        assert_eq!(outcome.end, Ok(Exit::Code(u8::try_from(n).unwrap())));
    }
}

#[test]
fn nothing_runs_before_the_set_up() {
    let mut guarded = start_bare(None, "");
    let failure = guarded.client.run(&shell("true")).end.unwrap_err();
    assert_eq!(failure.what, b"The machine is not set up yet");
}
