use super::{MAX_EVENTS, MAX_WORDS, Monitor, MonitorError, words};
use crate::qmp::{Command, Event};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;

/// A QEMU that greets, and answers each command with what `answer` gives for its name: lines in which `ID` is the
/// command's number. It ends at the first command for which that is nothing, or when nobody listens.
fn qemu(
    answer: impl Fn(&str) -> Option<&'static str> + Send + 'static,
) -> (Monitor, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut asked = Vec::new();
        let mut writer = theirs.try_clone().unwrap();
        writeln!(writer, "{GREETING}").unwrap();
        for line in BufReader::new(theirs).lines() {
            let Ok(line) = line else { break };
            let json: serde_json::Value = serde_json::from_str(&line).unwrap();
            let name = json["execute"].as_str().unwrap().to_owned();
            let said = match &*name {
                "qmp_capabilities" => Some(r#"{"return": {}}"#),
                name => answer(name),
            };
            asked.push(name);
            let Some(said) = said else { break };
            let said = said.replace("ID", &json["id"].to_string());
            if writeln!(writer, "{said}").is_err() {
                break;
            }
        }
        asked
    });
    (Monitor::new(ours), thread)
}

/// Long enough for any thread to have its turn.
fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

fn nothing() -> File {
    tempfile::tempfile().unwrap()
}

const DONE: Option<&str> = Some(r#"{"return": {}, "id": ID}"#);

const SAVED: Option<&str> =
    Some(r#"{"return": {"status": "postmigrate", "running": false}, "id": ID}"#);

#[test]
fn a_machine_is_saved_step_by_step() {
    let asked_before = AtomicBool::new(false);
    let (mut monitor, qemu) = qemu(move |name| match name {
        "query-status" if !asked_before.swap(true, Ordering::Relaxed) => {
            Some(r#"{"return": {"status": "finish-migrate", "running": false}, "id": ID}"#)
        }
        "query-status" => SAVED,
        "migrate" => Some(
            "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"setup\"}}\n\
             {\"return\": {}, \"id\": ID}\n\
             {\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}",
        ),
        _ => DONE,
    });
    monitor.save(nothing(), soon()).unwrap();
    drop(monitor);
    assert_eq!(
        qemu.join().unwrap(),
        [
            "qmp_capabilities",
            "stop",
            "migrate-set-capabilities",
            "migrate-set-parameters",
            "getfd",
            "migrate",
            "query-status",
            "query-status"
        ]
    );
}

#[test]
fn a_failure_is_told_with_qemus_reason_and_leaves_no_trace_in_the_next_save() {
    let (mut monitor, _qemu) = qemu(|name| match name {
        "migrate" => Some(
            "{\"return\": {}, \"id\": ID}\n\
             {\"event\": \"MIGRATION\", \"data\": {\"status\": \"failed\"}}",
        ),
        "query-migrate" => {
            Some(r#"{"return": {"status": "failed", "error-desc": "no\u001b[m room"}, "id": ID}"#)
        }
        _ => DONE,
    });
    for _ in 0..2 {
        let error = monitor.save(nothing(), soon()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "QEMU can't save the machine: no\\x1b[m room"
        );
    }
}

#[test]
fn a_refusal_names_the_command() {
    let (mut monitor, _qemu) = qemu(|name| match name {
        "migrate" => {
            Some(r#"{"error": {"class": "GenericError", "desc": "disallowed"}, "id": ID}"#)
        }
        _ => DONE,
    });
    let error = monitor.save(nothing(), soon()).unwrap_err();
    assert_eq!(error.to_string(), "QEMU refuses `migrate`: disallowed");
}

#[test]
fn a_silent_qemu_is_given_up_at_the_deadline() {
    // It never answers `cont`, and lives on.
    let (mut monitor, _qemu) = qemu(|name| if name == "cont" { Some("") } else { DONE });
    monitor.stop(soon()).unwrap();
    let start = Instant::now();
    let error = monitor
        .cont(start + Duration::from_millis(200))
        .unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!(error.to_string(), "QEMU hasn't finished `cont` in time");
    // One that has passed is no reason to panic.
    let error = monitor.cont(start).unwrap_err();
    assert!(matches!(error, MonitorError::TimedOut(_)), "{error:?}");
}

#[test]
fn a_qemu_that_ends_over_a_state_is_quoted() {
    let (mut monitor, _qemu) = qemu(|name| {
        if name == "migrate-incoming" {
            None
        } else {
            DONE
        }
    });
    let (stderr, mut qemus) = std::io::pipe().unwrap();
    qemus
        .write_all(
            b"qemu-system-x86_64: no \x1b[31mstate\nqemu-system-x86_64: load of migration failed\n",
        )
        .unwrap();
    drop(qemus);
    let error = monitor.resume(nothing(), &stderr, soon()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "QEMU doesn't take the saved machine: no \\x1b[31mstate; load of migration failed"
    );
    assert!(matches!(monitor.stop(soon()), Err(MonitorError::Ended)));
}

#[test]
fn a_qemu_that_is_killed_over_a_state_says_nothing_against_the_state() {
    let (mut monitor, _qemu) = qemu(|name| if name == "getfd" { None } else { DONE });
    let (stderr, _) = std::io::pipe().unwrap();
    let error = monitor.resume(nothing(), &stderr, soon()).unwrap_err();
    assert!(matches!(error, MonitorError::Ended), "{error:?}");
}

#[test]
fn what_isn_t_qmp_is_an_error() {
    let (mut monitor, _qemu) = qemu(|_| Some("?"));
    let error = monitor.stop(soon()).unwrap_err();
    assert!(matches!(error, MonitorError::Protocol(_)), "{error:?}");
    // Whatever is asked later has its deadline, too.
    let error = monitor.stop(Instant::now()).unwrap_err();
    assert!(
        matches!(error, MonitorError::TimedOut(_) | MonitorError::Protocol(_)),
        "{error:?}"
    );
}

#[test]
fn quitting_succeeds_however_qemu_goes() {
    let (mut monitor, _qemu) = qemu(|_| None);
    monitor.quit(soon()).unwrap();
    let (mut monitor, _qemu) = qemu(|_| DONE);
    monitor.quit(soon()).unwrap();
}

#[test]
fn events_wait_to_be_taken_and_are_bounded() {
    let (mut monitor, _qemu) = qemu(|name| match name {
        "stop" => Some("{\"event\": \"STOP\"}\n{\"return\": {}, \"id\": ID}"),
        _ => DONE,
    });
    for _ in 0..2 * MAX_EVENTS {
        monitor.stop(soon()).unwrap();
    }
    // The first of all was that the monitor is ready.
    let events = monitor.events().unwrap();
    assert_eq!(events, [const { Event::Stopped }; MAX_EVENTS]);
    monitor.execute(Command::Continue, soon()).unwrap();
    assert_eq!(monitor.events().unwrap(), []);
}

#[test]
fn a_flood_of_events_hides_no_answer() {
    // As when the host's disk is full, and the guest goes on writing.
    let flood = "{\"event\": \"BLOCK_IO_ERROR\", \"data\": {}}\n".repeat(3 * MAX_EVENTS);
    let stop = format!("{{\"return\": {{}}, \"id\": ID}}\n{flood}");
    let migrate = format!(
        "{{\"return\": {{}}, \"id\": ID}}\n\
         {{\"event\": \"MIGRATION\", \"data\": {{\"status\": \"completed\"}}}}\n{flood}"
    );
    let (stop, migrate): (&str, &str) = (stop.leak(), migrate.leak());
    let (mut monitor, _qemu) = qemu(move |name| match name {
        "stop" => Some(stop),
        "migrate" => Some(migrate),
        "query-status" => SAVED,
        _ => DONE,
    });
    monitor.save(nothing(), soon()).unwrap();
}

#[test]
fn words_are_bounded_and_never_waited_for() {
    let (stderr, mut qemus) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&stderr, true).unwrap();
    assert_eq!(words(&stderr), None);
    qemus.write_all(&vec![b'x'; 60_000]).unwrap();
    assert!(words(&stderr).unwrap().len() <= MAX_WORDS + 4);
    let mut rest = Vec::new();
    drop(qemus);
    File::from(stderr.as_fd().try_clone_to_owned().unwrap())
        .read_to_end(&mut rest)
        .unwrap();
    assert!(rest.len() > 40_000, "{}", rest.len());
}
