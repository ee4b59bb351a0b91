use super::{Action, Conclusion, Event, Life, Rules};
use proptest::prelude::*;
use std::time::Duration;
use store::{Ending, State};

const HOUR: Duration = Duration::from_hours(1);

fn rules() -> Rules {
    Rules {
        keep: false,
        tty: false,
        detached: false,
        linger: HOUR,
        timeout: None,
        again: false,
        boot: Duration::from_secs(30),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A life that has taken these events, one a second; the last one's actions.
fn live(rules: Rules, events: &[Event]) -> (Life, Vec<Action>) {
    let mut life = Life::new(rules);
    let mut actions = Vec::new();
    for (second, event) in events.iter().enumerate() {
        actions = life.step(at(second as u64), event.clone());
    }
    (life, actions)
}

fn running() -> Vec<Event> {
    vec![
        Event::Launched,
        Event::GuestReady,
        Event::Asked,
        Event::MainStarted,
    ]
}

fn after(mut events: Vec<Event>, more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    events.extend(more);
    events
}

fn concluded(ending: Ending, complete: bool, keep: bool) -> Action {
    Action::Conclude(Conclusion {
        ending,
        complete,
        keep,
    })
}

#[test]
fn an_ordinary_life() {
    let mut life = Life::new(rules());
    assert_eq!(life.step(at(0), Event::Launched), []);
    assert_eq!(life.deadline(), Some(at(30)));
    assert_eq!(life.step(at(1), Event::Asked), []);
    assert_eq!(
        life.step(at(2), Event::GuestReady),
        [Action::Record(State::Running), Action::StartMain]
    );
    assert_eq!(life.deadline(), None);
    assert_eq!(
        life.step(at(3), Event::MainEnded(Ending::Exited(7))),
        [
            Action::TellMain(Ending::Exited(7)),
            Action::Record(State::Saving),
            Action::EndSessions { grace_ms: 2000 }
        ]
    );
    assert_eq!(life.step(at(4), Event::SessionsEnded), [Action::SaveFinal]);
    assert_eq!(life.step(at(5), Event::Saved(true)), [Action::Kill]);
    assert_eq!(
        life.step(at(6), Event::MonitorEnded("QEMU ended".to_owned())),
        [concluded(Ending::Exited(7), true, false)]
    );
    assert!(life.is_done());
    assert_eq!(
        life.step(
            at(7),
            Event::Stop {
                grace_ms: 0,
                remove: true
            }
        ),
        []
    );
}

#[test]
fn every_state_but_up_has_a_deadline_that_leads_on() {
    let mut life = live(
        Rules {
            keep: true,
            ..rules()
        },
        &after(
            running(),
            [Event::Stop {
                grace_ms: 1000,
                remove: false,
            }],
        ),
    )
    .0;
    let mut seen = Vec::new();
    while let Some(deadline) = life.deadline() {
        assert_eq!(
            life.step(
                deadline.saturating_sub(Duration::from_millis(1)),
                Event::Tick
            ),
            []
        );
        seen.extend(life.step(deadline, Event::Tick));
    }
    assert_eq!(
        seen,
        [
            Action::SaveFinal,
            Action::AbortSave,
            Action::PowerOff,
            Action::Kill,
            Action::TellMain(Ending::Stopped),
            concluded(Ending::Stopped, false, true)
        ]
    );
}

#[test]
fn a_machine_that_does_not_come_up_is_killed() {
    let mut life = live(rules(), &[Event::Launched, Event::Asked]).0;
    assert_eq!(life.step(at(29), Event::Tick), []);
    assert_eq!(life.step(at(30), Event::Tick), [Action::Kill]);
    let crashed = Ending::Crashed("the machine did not come up within 30 seconds".to_owned());
    assert_eq!(
        life.step(at(31), Event::MonitorEnded("killed".to_owned())),
        [
            Action::TellMain(crashed.clone()),
            concluded(crashed, false, false)
        ]
    );
}

#[test]
fn the_first_cause_is_told() {
    let stop = Event::Stop {
        grace_ms: 0,
        remove: false,
    };
    let events = after(
        running(),
        [
            stop,
            Event::MainEnded(Ending::Signalled(15)),
            Event::MonitorEnded("gone".to_owned()),
        ],
    );
    let (_, actions) = live(rules(), &events);
    assert_eq!(actions, [concluded(Ending::Stopped, false, false)]);
    let (_, actions) = live(
        rules(),
        &after(running(), [Event::MonitorEnded("gone".to_owned())]),
    );
    let crashed = Ending::Crashed("gone".to_owned());
    assert_eq!(
        actions,
        [
            Action::TellMain(crashed.clone()),
            concluded(crashed, false, false)
        ]
    );
}

#[test]
fn a_guest_that_breaks_the_protocol_is_killed_and_not_saved_from() {
    let (mut life, actions) = live(
        rules(),
        &after(running(), [Event::GuestBroke("lies".to_owned())]),
    );
    assert_eq!(actions, [Action::Kill]);
    assert_eq!(life.step(at(9), Event::SessionsEnded), []);
    assert_eq!(life.step(at(9), Event::Saved(true)), []);
    let crashed = Ending::Crashed("lies".to_owned());
    assert_eq!(
        life.step(at(10), Event::MonitorEnded("killed".to_owned())),
        [
            Action::TellMain(crashed.clone()),
            concluded(crashed, false, false)
        ]
    );
}

#[test]
fn a_guest_that_hangs_up_on_its_way_down_is_no_crash() {
    let events = after(
        running(),
        [
            Event::MainEnded(Ending::Exited(0)),
            Event::SessionsEnded,
            Event::Saved(true),
            Event::GuestBroke("closed its port".to_owned()),
            Event::MonitorEnded("QEMU ended".to_owned()),
        ],
    );
    assert_eq!(
        live(rules(), &events).1,
        [concluded(Ending::Exited(0), true, false)]
    );
}

#[test]
fn a_lost_client_means_what_the_sandbox_was_asked_to_be() {
    let lost = |rules| live(rules, &after(running(), [Event::ClientLost]));
    // Without a terminal: it ends.
    assert_eq!(
        lost(rules()).1,
        [
            Action::Record(State::Saving),
            Action::EndSessions { grace_ms: 10_000 }
        ]
    );
    // With one: it lingers.
    let (mut life, actions) = lost(Rules {
        tty: true,
        ..rules()
    });
    assert_eq!(actions, []);
    assert_eq!(life.deadline(), Some(at(4) + HOUR));
    assert_eq!(
        life.step(at(4) + HOUR, Event::Tick),
        [
            Action::Record(State::Saving),
            Action::EndSessions { grace_ms: 10_000 }
        ]
    );
    // Detached: nothing happens, ever.
    let (life, actions) = lost(Rules {
        detached: true,
        ..rules()
    });
    assert_eq!((life.deadline(), actions), (None, vec![]));
    // Kept: the command ends, the machine stays.
    let (mut life, actions) = lost(Rules {
        keep: true,
        ..rules()
    });
    assert_eq!(actions, [Action::SignalMain(15)]);
    assert_eq!(life.step(at(14), Event::Tick), [Action::SignalMain(9)]);
    // Even a guest that doesn't say that the command died can't hold it up.
    assert_eq!(
        life.step(at(24), Event::Tick),
        [
            Action::TellMain(Ending::Stopped),
            Action::Record(State::Idle),
            Action::Checkpoint
        ]
    );
    assert!(life.is_up());
    // Before the command was given: nobody will.
    let (_, actions) = live(
        Rules {
            keep: true,
            ..rules()
        },
        &[Event::Launched, Event::ClientLost],
    );
    assert_eq!(actions, [Action::Kill]);
}

#[test]
fn linger_ends_with_the_command() {
    let events = after(
        running(),
        [Event::ClientLost, Event::MainEnded(Ending::Exited(0))],
    );
    let rules = Rules {
        tty: true,
        keep: true,
        ..rules()
    };
    let (life, actions) = live(rules, &events);
    assert_eq!(
        actions,
        [
            Action::TellMain(Ending::Exited(0)),
            Action::Record(State::Idle),
            Action::Checkpoint
        ]
    );
    assert_eq!(life.deadline(), None);
}

#[test]
fn kept_is_what_ran_and_was_not_removed() {
    let end = |rules, remove, events: Vec<Event>| {
        let events = after(
            events,
            [
                Event::Stop {
                    grace_ms: 0,
                    remove,
                },
                Event::MonitorEnded("gone".to_owned()),
            ],
        );
        match live(rules, &events).1.pop() {
            Some(Action::Conclude(conclusion)) => conclusion.keep,
            other => panic!("{other:?}"),
        }
    };
    let kept = Rules {
        keep: true,
        ..rules()
    };
    assert!(end(kept, false, running()));
    assert!(!end(kept, true, running()));
    assert!(!end(rules(), false, running()));
    // Its command never started.
    assert!(!end(kept, false, vec![Event::Launched]));
    // It had one in an earlier life.
    let again = Rules {
        again: true,
        ..kept
    };
    assert!(end(again, false, vec![Event::Launched]));
}

#[test]
fn a_started_again_sandbox_runs_nothing_by_itself() {
    let again = Rules {
        again: true,
        keep: true,
        timeout: Some(at(1)),
        ..rules()
    };
    let (mut life, actions) = live(again, &[Event::Launched, Event::GuestReady]);
    assert_eq!(actions, [Action::Record(State::Idle)]);
    assert_eq!(life.step(at(9), Event::Asked), []);
    assert_eq!(life.step(at(9), Event::ClientLost), []);
    assert_eq!(life.deadline(), None);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Launched),
        Just(Event::LaunchFailed("no".to_owned())),
        Just(Event::GuestReady),
        Just(Event::Asked),
        Just(Event::MainStarted),
        any::<u8>().prop_map(|code| Event::MainEnded(Ending::Exited(code))),
        Just(Event::ClientLost),
        (0..20_000u32, any::<bool>())
            .prop_map(|(grace_ms, remove)| Event::Stop { grace_ms, remove }),
        Just(Event::SessionsEnded),
        Just(Event::Progress),
        any::<bool>().prop_map(Event::Saved),
        Just(Event::MonitorEnded("gone".to_owned())),
        Just(Event::GuestBroke("lies".to_owned())),
        Just(Event::Tick),
    ]
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (
        any::<[bool; 4]>(),
        0..100u64,
        proptest::option::of(0..100u64),
    )
        .prop_map(|([keep, tty, detached, again], linger, timeout)| Rules {
            keep,
            tty,
            detached,
            linger: at(linger),
            timeout: timeout.map(at),
            again,
            boot: at(30),
        })
}

proptest! {
    /// Whatever happens in whatever order, and then a stop: the life ends, by its own deadlines alone, with one
    /// conclusion, and the machine is asked to go or killed.
    #[test]
    fn every_life_ends_once(
        rules in any_rules(),
        events in proptest::collection::vec((0..40u64, any_event()), 0..40),
    ) {
        let mut life = Life::new(rules);
        let mut now = Duration::ZERO;
        let mut actions = Vec::new();
        let mut launched = false;
        for (pause, event) in events {
            now += at(pause);
            launched |= event == Event::Launched;
            actions.extend(life.step(now, event));
        }
        actions.extend(life.step(now, Event::Stop { grace_ms: 1000, remove: false }));
        let mut steps = 0;
        while !life.is_done() {
            let deadline = life.deadline();
            prop_assert!(deadline.is_some(), "{life:?} waits for ever");
            now = now.max(deadline.unwrap_or_default());
            actions.extend(life.step(now, Event::Tick));
            steps += 1;
            prop_assert!(steps < 20, "{life:?} turns in a circle");
        }
        let conclusions: Vec<_> = actions.iter().filter_map(|action| match action {
            Action::Conclude(conclusion) => Some(conclusion),
            _ => None,
        }).collect();
        prop_assert_eq!(conclusions.len(), 1);
        prop_assert_eq!(life.step(now, Event::Tick), []);
        if launched && !actions.contains(&Action::Kill) && !actions.contains(&Action::PowerOff) {
            // It ended without a word of ours: only because its process ended (or never was).
            prop_assert!(!conclusions[0].complete);
        }
        if conclusions[0].complete {
            prop_assert!(actions.contains(&Action::SaveFinal));
        }
        prop_assert!(!conclusions[0].keep || rules.keep);
        // The command starts at most once, and its end is told at most once.
        let count = |wanted: fn(&Action) -> bool| actions.iter().filter(|action| wanted(action)).count();
        prop_assert!(count(|action| matches!(action, Action::StartMain)) <= 1);
        prop_assert!(count(|action| matches!(action, Action::TellMain(_))) <= 1);
    }

    /// Nothing is done before its time: a tick before the deadline is without effect.
    #[test]
    fn an_early_tick_does_nothing(
        rules in any_rules(),
        events in proptest::collection::vec(any_event(), 0..20),
    ) {
        let mut life = Life::new(rules);
        for event in events {
            life.step(Duration::ZERO, event);
        }
        let early = life.deadline().map_or(at(1_000_000), |deadline| {
            deadline.saturating_sub(Duration::from_millis(1))
        });
        if life.deadline() != Some(Duration::ZERO) {
            prop_assert_eq!(life.step(early, Event::Tick), []);
        }
    }
}
