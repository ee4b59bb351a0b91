use super::{Command, Event, MAX_LINE, MAX_WAITING, Migration, Qmp, QmpError};
use proptest::prelude::*;

/// As QEMU 7.2 sends it.
const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}"#;

fn feed(qmp: &mut Qmp, lines: &[&str]) -> Result<Vec<Event>, QmpError> {
    qmp.feed(format!("{}\r\n", lines.join("\r\n")).as_bytes())
}

fn ready() -> Qmp {
    let mut qmp = Qmp::new();
    let events = feed(&mut qmp, &[GREETING, r#"{"return": {}}"#]).unwrap();
    assert_eq!(events, [Event::Ready]);
    qmp.sent(qmp.output().len());
    qmp
}

fn sent(qmp: &mut Qmp) -> String {
    let text = String::from_utf8(qmp.output().to_vec()).unwrap();
    qmp.sent(text.len());
    text
}

#[test]
fn it_negotiates_and_then_sends_what_was_asked_early() {
    let mut qmp = Qmp::new();
    qmp.execute(Command::QueryStatus).unwrap();
    assert_eq!(sent(&mut qmp), "");
    assert_eq!(feed(&mut qmp, &[GREETING]).unwrap(), []);
    assert_eq!(sent(&mut qmp), "{\"execute\":\"qmp_capabilities\"}\n");
    assert_eq!(
        feed(&mut qmp, &[r#"{"return": {}}"#]).unwrap(),
        [Event::Ready]
    );
    assert_eq!(sent(&mut qmp), "{\"execute\":\"query-status\",\"id\":0}\n");
    let answer =
        r#"{"return": {"status": "running", "singlestep": false, "running": true}, "id": 0}"#;
    let done = Event::Done {
        command: Command::QueryStatus,
        status: Some("running".to_owned()),
    };
    assert_eq!(feed(&mut qmp, &[answer]).unwrap(), [done]);
}

#[test]
fn events_are_read() {
    let check = |line: &str, expect: Event| {
        assert_eq!(feed(&mut ready(), &[line]), Ok(vec![expect]), "{line}");
    };
    let time = r#""timestamp": {"seconds": 1764525000, "microseconds": 1}"#;
    check(
        &format!(
            r#"{{{time}, "event": "SHUTDOWN", "data": {{"guest": true, "reason": "guest-shutdown"}}}}"#
        ),
        Event::Shutdown {
            by_guest: true,
            reason: "guest-shutdown".to_owned(),
        },
    );
    check(
        &format!(
            r#"{{{time}, "event": "SHUTDOWN", "data": {{"guest": false, "reason": "host-qmp-quit"}}}}"#
        ),
        Event::Shutdown {
            by_guest: false,
            reason: "host-qmp-quit".to_owned(),
        },
    );
    check(
        &format!(r#"{{{time}, "event": "GUEST_PANICKED", "data": {{"action": "poweroff"}}}}"#),
        Event::Panicked,
    );
    check(
        &format!(r#"{{{time}, "event": "RESET", "data": {{"guest": true}}}}"#),
        Event::Reset,
    );
    check(&format!(r#"{{{time}, "event": "STOP"}}"#), Event::Stopped);
    check(&format!(r#"{{{time}, "event": "RESUME"}}"#), Event::Resumed);
    check(
        &format!(
            r#"{{{time}, "event": "BLOCK_IO_ERROR", "data": {{"device": "", "nospace": true}}}}"#
        ),
        Event::BlockError,
    );
    check(
        &format!(r#"{{{time}, "event": "RTC_CHANGE"}}"#),
        Event::Other("RTC_CHANGE".to_owned()),
    );
}

#[test]
fn a_migration_is_followed() {
    let check = |status: &str, expect: Migration| {
        let line = format!(r#"{{"event": "MIGRATION", "data": {{"status": "{status}"}}}}"#);
        let events = feed(&mut ready(), &[&line]);
        assert_eq!(events, Ok(vec![Event::Migration(expect)]), "{status}");
    };
    check("setup", Migration::Underway);
    check("active", Migration::Underway);
    check("completed", Migration::Completed);
    check("failed", Migration::Failed);
    check("cancelled", Migration::Failed);
    // Versions to come may have states that are not known here.
    check("wait-unplug", Migration::Underway);
}

#[test]
fn a_failed_migration_tells_why() {
    let check = |answer: &str, expect: Option<&str>| {
        let mut qmp = ready();
        qmp.execute(Command::QueryMigrate).unwrap();
        let line = format!(r#"{{"return": {answer}, "id": 0}}"#);
        let done = Event::Done {
            command: Command::QueryMigrate,
            status: expect.map(str::to_owned),
        };
        assert_eq!(feed(&mut qmp, &[&line]), Ok(vec![done]), "{answer}");
    };
    check("{}", None);
    check(r#"{"status": "completed", "total-time": 8}"#, None);
    check(
        r#"{"status": "failed", "error-desc": "Unable to write\nto file"}"#,
        Some("Unable to write\\nto file"),
    );
}

#[test]
fn commands_are_sent_with_what_they_need() {
    let mut text = String::new();
    for command in [
        Command::SetCapabilities,
        Command::SetSpeed,
        Command::GetFd,
        Command::Migrate,
        Command::MigrateIncoming,
        Command::QueryMigrate,
        Command::PowerDown,
    ] {
        let mut qmp = ready();
        qmp.execute(command).unwrap();
        let line = sent(&mut qmp);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["execute"], command.name());
        text.push_str(&line);
    }
    insta::assert_snapshot!(text, @r#"
    {"execute":"migrate-set-capabilities","id":0,"arguments":{"capabilities":[{"capability":"x-ignore-shared","state":true},{"capability":"events","state":true}]}}
    {"execute":"migrate-set-parameters","id":0,"arguments":{"max-bandwidth":1099511627776}}
    {"execute":"getfd","id":0,"arguments":{"fdname":"state"}}
    {"execute":"migrate","id":0,"arguments":{"uri":"fd:state"}}
    {"execute":"migrate-incoming","id":0,"arguments":{"uri":"fd:state"}}
    {"execute":"query-migrate","id":0}
    {"execute":"system_powerdown","id":0}
    "#);
}

#[test]
fn a_refusal_names_its_command() {
    let mut qmp = ready();
    qmp.execute(Command::PowerDown).unwrap();
    qmp.execute(Command::Quit).unwrap();
    let events = feed(
        &mut qmp,
        &[
            r#"{"id": 0, "error": {"class": "GenericError", "desc": "no power \u001b[31mbutton"}}"#,
            r#"{"return": {}, "id": 1}"#,
        ],
    );
    let failed = Event::Failed {
        command: Command::PowerDown,
        reason: "no power \\x1b[31mbutton".to_owned(),
    };
    assert_eq!(
        events,
        Ok(vec![
            failed,
            Event::Done {
                command: Command::Quit,
                status: None
            }
        ])
    );
}

#[test]
fn answers_that_were_not_asked_for_are_refused() {
    let mut qmp = ready();
    assert_eq!(
        feed(&mut qmp, &[r#"{"return": {}, "id": 0}"#]),
        Err(QmpError::Unasked)
    );

    let mut qmp = ready();
    qmp.execute(Command::Stop).unwrap();
    assert_eq!(
        feed(&mut qmp, &[r#"{"return": {}, "id": 7}"#]),
        Err(QmpError::Unasked)
    );
}

#[test]
fn what_is_not_the_protocol_is_refused() {
    let check = |lines: &[&str]| {
        let outcome = feed(&mut Qmp::new(), lines);
        assert!(
            matches!(outcome, Err(QmpError::Malformed(_))),
            "{lines:?}: {outcome:?}"
        );
    };
    check(&["no JSON"]);
    check(&["[]"]);
    check(&["{}"]);
    check(&[r#"{"return": {}}"#]);
    check(&[r#"{"event": "STOP"}"#]);
    check(&[GREETING, GREETING]);
    check(&[
        GREETING,
        r#"{"error": {"class": "CommandNotFound", "desc": "no"}}"#,
    ]);
    check(&[GREETING, r#"{"return": {}}"#, r#"{"return": {}}"#]);
    check(&[GREETING, r#"{"return": {}}"#, r#"{"event": "SHUTDOWN"}"#]);
    check(&[GREETING, r#"{"return": {}}"#, r#"{"event": "MIGRATION"}"#]);
    check(&[GREETING, r#"{"return": {}}"#, r#"{"event": 7}"#]);
    check(&[&"[".repeat(10_000)]);
}

#[test]
fn a_line_has_a_longest_length() {
    // Padding inside of the object, up to the line's end of one byte.
    let line = |length: usize| {
        let rest = GREETING.strip_prefix('{').unwrap();
        format!("{{{}{rest}\n", " ".repeat(length - GREETING.len() - 1))
    };
    assert_eq!(line(MAX_LINE).len(), MAX_LINE);
    assert_eq!(Qmp::new().feed(line(MAX_LINE).as_bytes()), Ok(Vec::new()));
    assert_eq!(
        Qmp::new().feed(line(MAX_LINE + 1).as_bytes()),
        Err(QmpError::TooLong)
    );

    let mut endless = Qmp::new();
    let outcome = (0..).find_map(|_| endless.feed(&[b' '; 1024]).err());
    assert_eq!(outcome, Some(QmpError::TooLong));
}

#[test]
fn after_an_error_nothing_is_read_or_sent() {
    let mut qmp = ready();
    feed(&mut qmp, &["?"]).unwrap_err();
    assert_eq!(feed(&mut qmp, &[r#"{"event": "STOP"}"#]), Ok(Vec::new()));
    qmp.execute(Command::Quit).unwrap();
    assert_eq!(qmp.output(), b"");
}

#[test]
fn commands_without_answers_do_not_pile_up() {
    let mut qmp = Qmp::new();
    for _ in 0..MAX_WAITING {
        qmp.execute(Command::Stop).unwrap();
    }
    assert_eq!(qmp.execute(Command::Stop), Err(QmpError::Silent));
}

proptest! {
    /// However the bytes are cut, the events are the same.
    #[test]
    fn pieces_make_no_difference(cuts in prop::collection::vec(1usize..200, 1..40)) {
        let text = [
            GREETING,
            r#"{"return": {}}"#,
            r#"{"event": "RESUME"}"#,
            r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#,
            "",
        ]
        .join("\n");
        let whole = Qmp::new().feed(text.as_bytes());
        let mut qmp = Qmp::new();
        let mut events = Vec::new();
        let mut rest = text.as_bytes();
        for cut in cuts.into_iter().cycle() {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            events.extend(qmp.feed(piece).unwrap());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(Ok(events), whole);
    }

    /// Nothing that is sent makes it panic, or hold more than one line.
    #[test]
    fn garbage_is_survived(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..30)) {
        let mut qmp = ready();
        for piece in pieces {
            qmp.feed(&piece).ok();
            prop_assert!(qmp.partial.len() <= MAX_LINE);
        }
    }
}
