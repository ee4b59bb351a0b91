//! What to do on which event: the life of a sandbox as a pure value. No IO, no clock of its own.
//!
//! ```text
//!  Launching ──launched──▶ Booting ──guest ready──▶ Up ◀─┐ kept: the command's end (and a client's exec, cp …)
//!      │                      │                     │ └──┘  leave the machine up
//!      │                      │ deadline, stop,     │ command's end, timeout, stop, SIGTERM,
//!      │                      │ client lost         │ client lost (at once, or after linger)
//!      │                      │                     ▼
//!      │                      │              EndingSessions ── all processes gone, or deadline
//!      │ launch failed        │                     ▼
//!      │                      │                  Saving ────── final pass done, failed, or deadline
//!      │                      │                     ├─────▶ PoweringOff (only a kept disk has to be whole)
//!      │                      ▼                     ▼            │ deadline
//!      │                   Killing ◀─────── not kept, or the guest breaks the protocol (in any state)
//!      ▼                      ▼                                  ▼
//!    Done ◀───────────── monitor ended (from any state: what was saved last is the result)
//! ```
//!
//! Every way leads to `Done` through exactly one [`Action::Conclude`], and every state but `Up` has a deadline;
//! `Up` lasts as long as somebody wants it: the command (with its timeout), a client, `linger`, or `--keep`.
//! The first cause of an ending is the one that is told.

#[cfg(test)]
mod tests;

use std::time::Duration;
use store::{Ending, State};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The monitor's process runs.
    Launched,
    /// It could not be started.
    LaunchFailed(String),
    /// The guest is set up.
    GuestReady,
    /// A frozen machine goes on: the first one of this sandbox, or in the place of the one that ran.
    Resumed {
        /// The sandbox's own command runs in it.
        running: bool,
    },
    /// A client gave the sandbox's own command.
    Asked,
    /// The command runs.
    MainStarted,
    /// The command ended.
    MainEnded(Ending),
    /// Whoever started the command, or was about to, is gone.
    ClientLost,
    /// `stop`, `rm`, or SIGTERM to the supervisor.
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL in the machine.
        grace_ms: u32,
        /// Even a kept sandbox goes.
        remove: bool,
    },
    /// No process is left in the machine.
    SessionsEnded,
    /// The final pass goes on.
    Progress,
    /// The final pass ended; whether it brought out everything.
    Saved(bool),
    /// The monitor's process ended.
    MonitorEnded(String),
    /// The guest broke the protocol, or closed its end of it.
    GuestBroke(String),
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Write down where the sandbox is.
    Record(State),
    /// Start the command.
    StartMain,
    /// Send the command a signal.
    SignalMain(u8),
    /// Tell the command's client, and whoever waits, how it ended; write it into the result.
    TellMain(Ending),
    /// Take a checkpoint now, and go on.
    Checkpoint,
    /// End all processes in the machine.
    EndSessions {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u32,
    },
    /// Bring out everything, a last time.
    SaveFinal,
    /// Give that up.
    AbortSave,
    /// Have the guest power off.
    PowerOff,
    /// End the monitor at once.
    Kill,
    /// Write the end, tell everybody, and go.
    Conclude(Conclusion),
}

/// The end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conclusion {
    /// How the command ended, if it wasn't told before.
    pub(crate) ending: Ending,
    /// The final pass brought out everything.
    pub(crate) complete: bool,
    /// The sandbox stays, powered off.
    pub(crate) keep: bool,
}

/// What a sandbox was asked to be, as far as its life goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Stays after its command has ended.
    pub(crate) keep: bool,
    /// Outlives a lost client for `linger`.
    pub(crate) tty: bool,
    /// Needs no client.
    pub(crate) detached: bool,
    /// See `tty`.
    pub(crate) linger: Duration,
    /// When the command is ended.
    pub(crate) timeout: Option<Duration>,
    /// Runs no command of its own: it was stopped, and is started again.
    pub(crate) again: bool,
    /// How long the machine may take to come up.
    pub(crate) boot: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Launching,
    Booting { until: Duration },
    Up,
    EndingSessions { until: Duration },
    Saving { quiet: Duration, until: Duration },
    PoweringOff { until: Duration },
    Killing { until: Duration },
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Main {
    /// There is none (any more).
    None,
    /// No client has given it yet.
    Awaited,
    /// Given, but the machine is not up.
    Asked,
    Running {
        timeout: Option<Duration>,
    },
    /// Asked to end, in a machine that stays.
    Terminating {
        why: Ending,
        kill: Duration,
    },
    /// Killed, in a machine that stays.
    Killed {
        why: Ending,
        give_up: Duration,
    },
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    rules: Rules,
    phase: Phase,
    main: Main,
    /// The command was started at some time.
    ran: bool,
    ending: Option<Ending>,
    complete: bool,
    remove: bool,
    linger: Option<Duration>,
}

/// Grace of processes that the command left behind.
const LEFTOVER_GRACE_MS: u32 = 2_000;
/// Grace at a timeout or a lost client.
const GRACE_MS: u32 = 10_000;
/// The guest's own time for ending sessions beyond the grace; an emulated guest with hundreds of processes needs
/// seconds.
const END_SESSIONS: Duration = Duration::from_secs(20);
/// The final pass may be quiet for so long: the longest wait is for one disk flush of the guest.
const SAVE_QUIET: Duration = Duration::from_mins(1);
/// And take so long in all: gigabytes through an emulated port, and no more than a person would wait.
const SAVE: Duration = Duration::from_mins(30);
/// Flushing file systems and powering off.
const POWER_OFF: Duration = Duration::from_secs(30);
/// A killed process that is still there is stuck in the kernel; we don't wait for that.
const KILL: Duration = Duration::from_secs(10);

const SIGTERM: u8 = 15;
const SIGKILL: u8 = 9;

impl Life {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            phase: Phase::Launching,
            main: if rules.again {
                Main::None
            } else {
                Main::Awaited
            },
            ran: false,
            ending: None,
            complete: false,
            remove: false,
            linger: None,
        }
    }

    /// When a [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Launching | Phase::Done => None,
            Phase::Booting { until }
            | Phase::EndingSessions { until }
            | Phase::PoweringOff { until }
            | Phase::Killing { until } => Some(until),
            Phase::Saving { quiet, until } => Some(quiet.min(until)),
            Phase::Up => {
                let main = match &self.main {
                    Main::None | Main::Awaited | Main::Asked => None,
                    Main::Running { timeout } => *timeout,
                    Main::Terminating { kill, .. } => Some(*kill),
                    Main::Killed { give_up, .. } => Some(*give_up),
                };
                [main, self.linger].into_iter().flatten().min()
            }
        }
    }

    /// Commands can be run in the machine.
    pub(crate) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// The machine is on its way up.
    pub(crate) fn is_coming_up(&self) -> bool {
        matches!(self.phase, Phase::Launching | Phase::Booting { .. })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// True while the command may still be given.
    pub(crate) fn awaits_main(&self) -> bool {
        self.main == Main::Awaited && (self.is_up() || self.is_coming_up())
    }

    /// What `event` at `now` (time since some start) leads to, in order.
    pub(crate) fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut todo = Vec::new();
        if self.phase == Phase::Done {
            return todo;
        }
        match event {
            Event::Launched => {
                if self.phase == Phase::Launching {
                    self.phase = Phase::Booting {
                        until: now + self.rules.boot,
                    };
                }
            }
            Event::GuestReady => self.guest_ready(now, &mut todo),
            Event::Resumed { running } => self.resumed(now, running, &mut todo),
            Event::Asked => self.asked(now, &mut todo),
            Event::MainStarted => {}
            Event::MainEnded(ending) => self.main_ended(now, ending, &mut todo),
            Event::ClientLost => self.client_lost(now, &mut todo),
            Event::Stop { grace_ms, remove } => {
                self.remove |= remove;
                self.close(now, Ending::Stopped, grace_ms, &mut todo);
            }
            Event::SessionsEnded => {
                if matches!(self.phase, Phase::EndingSessions { .. }) {
                    self.save(now, &mut todo);
                }
            }
            Event::Progress => {
                if let Phase::Saving { quiet, .. } = &mut self.phase {
                    *quiet = now + SAVE_QUIET;
                }
            }
            Event::Saved(complete) => {
                if matches!(self.phase, Phase::Saving { .. }) {
                    self.complete = complete;
                    self.power_off(now, &mut todo);
                }
            }
            Event::LaunchFailed(why) | Event::MonitorEnded(why) => {
                self.ending.get_or_insert(Ending::Crashed(why));
                self.conclude(&mut todo);
            }
            Event::GuestBroke(why) => match self.phase {
                // It closes its end when it powers off, and is on its way down anyhow.
                Phase::PoweringOff { .. } | Phase::Killing { .. } => {}
                _ => {
                    self.ending.get_or_insert(Ending::Crashed(why));
                    self.kill(now, &mut todo);
                }
            },
            Event::Tick => self.tick(now, &mut todo),
        }
        todo
    }

    fn guest_ready(&mut self, now: Duration, todo: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Booting { .. }) {
            return;
        }
        self.phase = Phase::Up;
        match self.main {
            Main::None => todo.push(Action::Record(State::Idle)),
            Main::Asked => self.start_main(now, todo),
            _ => {}
        }
    }

    fn resumed(&mut self, now: Duration, running: bool, todo: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Booting { .. } | Phase::Up) {
            return;
        }
        self.phase = Phase::Up;
        self.ending = None;
        self.linger = None;
        if running {
            self.ran = true;
            self.main = Main::Running {
                timeout: self.rules.timeout.map(|timeout| now + timeout),
            };
            todo.push(Action::Record(State::Running));
        } else {
            self.main = Main::None;
            todo.push(Action::Record(State::Idle));
        }
    }

    fn asked(&mut self, now: Duration, todo: &mut Vec<Action>) {
        if !self.awaits_main() {
            return;
        }
        self.main = Main::Asked;
        if self.is_up() {
            self.start_main(now, todo);
        }
    }

    fn start_main(&mut self, now: Duration, todo: &mut Vec<Action>) {
        self.ran = true;
        self.main = Main::Running {
            timeout: self.rules.timeout.map(|timeout| now + timeout),
        };
        todo.extend([Action::Record(State::Running), Action::StartMain]);
    }

    fn main_ended(&mut self, now: Duration, exit: Ending, todo: &mut Vec<Action>) {
        let why = match std::mem::replace(&mut self.main, Main::None) {
            Main::Running { .. } => exit,
            Main::Terminating { why, .. } | Main::Killed { why, .. } => why,
            other @ (Main::None | Main::Awaited | Main::Asked) => {
                self.main = other;
                return;
            }
        };
        self.linger = None;
        let ending = self.ending.get_or_insert(why).clone();
        todo.push(Action::TellMain(ending.clone()));
        if self.phase != Phase::Up {
            return;
        }
        if self.rules.keep {
            todo.extend([Action::Record(State::Idle), Action::Checkpoint]);
        } else {
            self.close(now, ending, LEFTOVER_GRACE_MS, todo);
        }
    }

    fn client_lost(&mut self, now: Duration, todo: &mut Vec<Action>) {
        let lasting = self.rules.detached || self.rules.again;
        match (&self.main, self.phase) {
            _ if lasting => {}
            // Nobody is left who could give the command.
            (Main::Awaited, Phase::Booting { .. } | Phase::Up) => {
                self.remove = true;
                self.close(now, Ending::Stopped, 0, todo);
            }
            (Main::Asked | Main::Running { .. }, _) if self.rules.tty => {
                self.linger = Some(now + self.rules.linger);
            }
            (Main::Running { .. }, Phase::Up) if self.rules.keep => {
                self.terminate_main(now, Ending::Stopped, todo);
            }
            (Main::Asked | Main::Running { .. }, _) => {
                self.close(now, Ending::Stopped, GRACE_MS, todo);
            }
            _ => {}
        }
    }

    fn terminate_main(&mut self, now: Duration, why: Ending, todo: &mut Vec<Action>) {
        self.main = Main::Terminating {
            why,
            kill: now + Duration::from_millis(GRACE_MS.into()),
        };
        todo.push(Action::SignalMain(SIGTERM));
    }

    fn tick(&mut self, now: Duration, todo: &mut Vec<Action>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Launching | Phase::Done => {}
            Phase::Booting { .. } => {
                self.ending.get_or_insert(Ending::Crashed(format!(
                    "the machine did not come up within {} seconds",
                    self.rules.boot.as_secs()
                )));
                self.kill(now, todo);
            }
            Phase::EndingSessions { .. } => self.save(now, todo),
            Phase::Saving { .. } => {
                todo.push(Action::AbortSave);
                self.power_off(now, todo);
            }
            Phase::PoweringOff { .. } => self.kill(now, todo),
            Phase::Killing { .. } => self.conclude(todo),
            Phase::Up if self.linger.is_some_and(|linger| linger <= now) => {
                self.linger = None;
                self.close(now, Ending::Stopped, GRACE_MS, todo);
            }
            Phase::Up => match self.main.clone() {
                Main::None | Main::Awaited | Main::Asked => {}
                Main::Running { .. } if self.rules.keep => {
                    self.terminate_main(now, Ending::TimedOut, todo);
                }
                Main::Running { .. } => self.close(now, Ending::TimedOut, GRACE_MS, todo),
                Main::Terminating { why, .. } => {
                    self.main = Main::Killed {
                        why,
                        give_up: now + Duration::from_millis(GRACE_MS.into()),
                    };
                    todo.push(Action::SignalMain(SIGKILL));
                }
                // A guest that does not report a killed command is broken or lies; the rest of it may still
                // be of use to its owner.
                Main::Killed { why, .. } => self.main_ended(now, why, todo),
            },
        }
    }

    /// Starts the closing, unless it has begun.
    fn close(&mut self, now: Duration, why: Ending, grace_ms: u32, todo: &mut Vec<Action>) {
        match self.phase {
            Phase::Launching => {
                self.ending.get_or_insert(why);
                self.conclude(todo);
            }
            // Nothing has run, so there is nothing to save.
            Phase::Booting { .. } => {
                self.ending.get_or_insert(why);
                self.kill(now, todo);
            }
            Phase::Up => {
                self.ending.get_or_insert(why);
                self.phase = Phase::EndingSessions {
                    until: now + Duration::from_millis(grace_ms.into()) + END_SESSIONS,
                };
                todo.extend([
                    Action::Record(State::Saving),
                    Action::EndSessions { grace_ms },
                ]);
            }
            _ => {}
        }
    }

    fn save(&mut self, now: Duration, todo: &mut Vec<Action>) {
        self.phase = Phase::Saving {
            quiet: now + SAVE_QUIET,
            until: now + SAVE,
        };
        todo.push(Action::SaveFinal);
    }

    /// Ends the machine after its work is out: with care only if its disk is used again.
    fn power_off(&mut self, now: Duration, todo: &mut Vec<Action>) {
        if !self.is_kept() {
            return self.kill(now, todo);
        }
        self.phase = Phase::PoweringOff {
            until: now + POWER_OFF,
        };
        todo.push(Action::PowerOff);
    }

    fn kill(&mut self, now: Duration, todo: &mut Vec<Action>) {
        self.phase = Phase::Killing { until: now + KILL };
        todo.push(Action::Kill);
    }

    fn conclude(&mut self, todo: &mut Vec<Action>) {
        let ending = self.ending.clone().unwrap_or(Ending::Stopped);
        if std::mem::replace(&mut self.main, Main::None) != Main::None {
            todo.push(Action::TellMain(ending.clone()));
        }
        self.phase = Phase::Done;
        todo.push(Action::Conclude(Conclusion {
            ending,
            complete: self.complete,
            keep: self.is_kept(),
        }));
    }

    /// A kept machine whose command never started holds nothing worth keeping.
    fn is_kept(&self) -> bool {
        self.rules.keep && !self.remove && (self.ran || self.rules.again)
    }
}
