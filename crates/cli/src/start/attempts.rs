//! One command in several machines: each works for itself on its own copy, and a person takes the best.

use super::turn::Starts;
use super::{Prepared, Wish, create, exec, replay, supervise, until_started};
use crate::context::Context;
use crate::error::Result;
use crate::ui::Progress;
use crate::verbs::results;
use crate::verbs::wait::until_saved;
use crate::{pick, session};
use base::Name;
use store::{BaselineHold, Store};
use supervisor::client::Connection;
use supervisor::control::{Command, End, Note};
use wire::StreamId;

/// One machine, and the stream of its command.
type Attempt = (Name, Connection, StreamId);

/// Starts all attempts; unless they are to be left, waits for their ends and compares them. The exit code is 0 if one
/// of them ended with 0, and otherwise the first one's.
pub(super) fn run(
    context: &Context,
    store: &Store,
    wish: &Wish,
    prepared: &Prepared,
    hold: BaselineHold,
) -> Result<u8> {
    let ui = context.ui;
    let mut names: Vec<Name> = Vec::new();
    let mut until_up = |(name, connection, stream): &mut Attempt| {
        if let Some(end) = until_started(context, connection, *stream)? {
            ui.say(format!("{name}:"));
            session::tell(ui, &end);
        }
        Ok(())
    };
    let mut starts = Starts::new();
    for _ in 0..wish.attempts {
        starts.make_room(context, &mut until_up)?;
        let group = names.first();
        let created = create(store, None, |name| {
            let group = group.unwrap_or(&name).clone();
            prepared.spec(wish, name, Some(group))
        })?;
        let name = created.record.spec.name.clone();
        let mut connection = supervise(context, &name, created.lock, None)?;
        if let Some(from) = wish.from.as_ref().filter(|_| !wish.clean) {
            replay::replay(context, store, from, &mut connection)?;
        }
        let command = Command::Run {
            exec: exec(wish, &created.record.spec, false),
            detach: true,
        };
        let stream = connection.open(&command)?;
        starts.push((name.clone(), connection, stream));
        names.push(name);
    }
    drop(hold);
    let mut attempts = starts.finish(&mut until_up)?;
    if wish.leaves {
        for name in &names {
            ui.line(name.as_str())?;
        }
        return Ok(0);
    }
    let list: Vec<&str> = names.iter().map(Name::as_str).collect();
    ui.say(format!(
        "{} attempts run: {}. Ctrl-C leaves them running, `efimera stop` ends them.",
        list.len(),
        list.join(", ")
    ));
    let mut codes = Vec::new();
    let mut progress = Progress::new(ui);
    for (at, (name, connection, _)) in attempts.iter_mut().enumerate() {
        progress.at(
            "attempts that have ended",
            at as u64,
            list.len() as u64,
            false,
        );
        codes.push(end_of(store, name, connection)?);
    }
    progress.end();
    if prepared.packed.is_new {
        pick::tidy_up(context, store);
    }
    let heads: Result<Vec<_>, _> = names
        .iter()
        .map(|name| store.settled_result(name))
        .collect();
    ui.out(results::comparison(store, &heads?)?)?;
    ui.say(format!(
        "efimera diff NAME | efimera apply NAME | efimera discard --except NAME (one of them, e.g. {})",
        list[0]
    ));
    let best = codes.iter().copied().find(|code| *code == 0);
    Ok(best.or(codes.first().copied()).unwrap_or_default())
}

/// Waits for an attempt's command and for its result.
fn end_of(store: &Store, name: &Name, connection: &mut Connection) -> Result<u8> {
    let end = match connection.ask(&Command::Wait, None) {
        Ok(Note::Exited(end)) => end,
        // Its supervisor is gone: the result knows.
        _ => End::Stopped,
    };
    until_saved(store, name);
    let head = store.settled_result(name)?;
    Ok(results::exit_code(head.ending.as_ref()).unwrap_or_else(|| session::exit_code(&end)))
}
