use super::*;

fn sh(script: &str) -> Command {
    let mut command = Environment::default().command("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn a_child_gets_a_clean_environment_and_no_input() {
    let passed = [
        ("https_proxy".into(), "proxy".into()),
        ("PATH".into(), "/evil".into()),
    ];
    let mut command = Environment::new(passed).command("sh");
    command.args(["-c", "env | sort; cat"]);
    let seen = String::from_utf8(output(&mut command).unwrap()).unwrap();
    let seen: Vec<_> = seen
        .lines()
        .filter(|line| !line.starts_with("PWD=") && !line.starts_with("_="))
        .collect();
    assert_eq!(
        seen,
        [
            "DEBIAN_FRONTEND=noninteractive",
            "LC_ALL=C.UTF-8",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "https_proxy=proxy"
        ]
    );
}

#[test]
fn a_failure_names_command_status_and_last_words() {
    let error = output(&mut sh(
        "for n in $(seq 20); do echo line $n >&2; done; exit 3",
    ))
    .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("`sh -c 'for n in $(seq 20)"), "{text}");
    assert!(
        text.contains("ended with exit status: 3; it said:\n  line 9\n"),
        "{text}"
    );
    assert!(text.ends_with("  line 20"), "{text}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let error = output(&mut Environment::default().command("no-such-program")).unwrap_err();
    assert_eq!(error.to_string(), "Can't start `no-such-program`");
}

#[test]
fn much_on_both_outputs_does_not_block() {
    let mut command = sh(
        "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2",
    );
    assert_eq!(output(&mut command).unwrap().len(), 1_000_000);
}

#[test]
fn input_larger_than_a_pipe_arrives_whole() {
    let mut command = sh("head -c 1000000 /dev/zero; wc -c");
    let mut running = Running::start(&mut command, Some(vec![b'x'; 300_000])).unwrap();
    let mut answer = Vec::new();
    running.stdout().read_to_end(&mut answer).unwrap();
    running.finish().unwrap();
    assert_eq!(&answer[1_000_000..], b"300000\n");
}

#[test]
fn a_child_that_is_dropped_is_ended_and_can_clean_up() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("cleaned");
    let script = format!(
        "trap 'touch {}; exit 1' TERM; echo ready; while :; do sleep 0.05; done",
        mark.display()
    );
    let mut running = Running::start(&mut sh(&script), None).unwrap();
    let mut stdout = running.stdout();
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).unwrap();
    drop(running);
    assert!(mark.exists());
}

#[test]
fn words_are_quoted_where_a_shell_would_split_them() {
    let mut command = Command::new("apt-get");
    command.args(["install", "a b", "it's", "", "x=y"]);
    assert_eq!(words(&command), r"apt-get install 'a b' 'it'\''s' '' x=y");
}
