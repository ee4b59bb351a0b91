//! The receipt: what a run leaves behind, in at most eight lines.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::start::pack_some;
use crate::table::{self, count};
use crate::ui::Tone;
use crate::verbs::results;
use base::Name;
use store::{Completeness, Ending, ResultHead, Store};
use workspace::{Baseline, ChangeSet, Omitted};

/// Says it on stderr, as lines or as JSON. How much of the work the result holds.
pub(crate) fn print(
    context: &Context,
    store: &Store,
    name: &Name,
    json: bool,
) -> Result<Completeness> {
    // A kept machine lives on, and its result is that of some moments ago.
    pick::refresh(context, store, name);
    let head = store.settled_result(name)?;
    if json {
        let mut value = results::as_json(store, &head)?;
        if let Ok(baseline) = Baseline::load(&store.baseline_dir(&head.spec.baseline)) {
            value["left_out"] = serde_json::to_value(&baseline.left_out)?;
        }
        context.ui.always(value.to_string());
        return Ok(head.completeness);
    }
    if context.ui.is_quiet() {
        return Ok(head.completeness);
    }
    let changes = pick::changes(store, name)?;
    let facts = Facts::of(store, &head, &changes)?;
    for line in compose(&head, &changes, facts, |text| {
        context.ui.paint_err(Tone::Strong, text)
    }) {
        context.ui.say(line);
    }
    Ok(head.completeness)
}

/// What of a run's work is not in its result. Lost work is no talk: this is told even where the receipt is not.
pub(crate) fn lost(store: &Store, name: &Name, completeness: Completeness) -> Option<CommandError> {
    let how = match completeness {
        Completeness::Nothing => "not saved",
        Completeness::Checkpoint => "not saved in full",
        Completeness::Running | Completeness::Complete => return None,
    };
    let error = CommandError::new(format!("What the command changed was {how} ({name})"));
    let error = error.around_a_command();
    let limits = store.result(name).map(|head| head.limits);
    Some(limits.iter().flatten().fold(error, CommandError::because))
}

/// What only the store can tell.
struct Facts {
    added_lines: u64,
    removed_lines: u64,
    left_out: Omitted,
    alive: bool,
}

impl Facts {
    fn of(store: &Store, head: &ResultHead, changes: &ChangeSet) -> Result<Self> {
        let (added_lines, removed_lines) = changed_lines(store, head, changes)?;
        let left_out = Baseline::load(&store.baseline_dir(&head.spec.baseline))
            .map(|baseline| baseline.left_out)
            .unwrap_or_default();
        Ok(Self {
            added_lines,
            removed_lines,
            left_out,
            alive: store.is_alive(&head.spec.name)?,
        })
    }
}

/// Lines that a result added and removed; none when its baseline can't be read any more.
pub(crate) fn changed_lines(
    store: &Store,
    head: &ResultHead,
    changes: &ChangeSet,
) -> Result<(u64, u64)> {
    match Baseline::load(&store.baseline_dir(&head.spec.baseline)) {
        Ok(baseline) => crate::verbs::diff::line_counts(store, head, &baseline, changes),
        Err(_) => Ok((0, 0)),
    }
}

fn compose(
    head: &ResultHead,
    changes: &ChangeSet,
    facts: Facts,
    strong: impl Fn(&str) -> String,
) -> Vec<String> {
    let name = &head.spec.name;
    let mut lines = vec![format!(
        "{}   {}   {}",
        strong(name.as_str()),
        summary(head, changes, &facts),
        machine(head, facts.alive)
    )];
    let left_out = left_out(&facts.left_out);
    if !left_out.is_empty() {
        lines.push(format!("  left out    {}", left_out.join(", ")));
    }
    if head.ignored > 0 || head.refused_count > 0 {
        let mut parts = Vec::new();
        if head.ignored > 0 {
            parts.push(format!(
                "{} (--artifact GLOB brings them out)",
                count(head.ignored, "ignored path", "ignored paths")
            ));
        }
        if head.refused_count > 0 {
            let names: Vec<&str> = head.refused.iter().take(3).map(String::as_str).collect();
            parts.push(format!(
                "{} refused ({})",
                count(head.refused_count, "path", "paths"),
                names.join(", ")
            ));
        }
        lines.push(format!("  stayed in   {}", parts.join(", ")));
    }
    if !head.commits.is_empty() {
        lines.push(format!(
            "  commits     {}, kept with the result",
            head.commits.len()
        ));
    }
    if let Some(limit) = head.limits.first() {
        lines.push(format!("  limits      {limit}"));
    }
    let torn = changes.stat().torn;
    if torn > 0 {
        lines.push(format!(
            "  torn        {} changed while being saved",
            count(torn, "file", "files")
        ));
    }
    if facts.alive {
        lines.push(format!(
            "  efimera exec {name} … | stop {name} | diff {name}"
        ));
    } else if !changes.is_empty() {
        lines.push(format!(
            "  efimera diff | apply | discard | run --from {name} …"
        ));
    }
    lines
}

fn summary(head: &ResultHead, changes: &ChangeSet, facts: &Facts) -> String {
    if !changes.is_empty() {
        return format!(
            "{} (+{} −{})",
            table::changes(&changes.stat()),
            facts.added_lines,
            facts.removed_lines
        );
    }
    match head.completeness {
        // Whether something changed, nobody knows.
        Completeness::Nothing => "nothing was saved",
        Completeness::Checkpoint => "no change was saved",
        Completeness::Running | Completeness::Complete => "nothing changed",
    }
    .to_owned()
}

fn machine(head: &ResultHead, alive: bool) -> &'static str {
    match (alive, head.completeness) {
        (true, _) => "the machine runs on",
        (false, Completeness::Checkpoint) => "saved up to the last checkpoint; the machine is gone",
        (false, _) if head.spec.keep && !matches!(head.ending, Some(Ending::Crashed(_))) => {
            "the machine is stopped"
        }
        (false, _) => "the machine is gone",
    }
}

fn left_out(omitted: &Omitted) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = |number: usize, one: &str, many: &str, names: &[base::RelPath]| {
        if number > 0 {
            let names = if names.is_empty() {
                String::new()
            } else {
                format!(" ({})", pack_some(names))
            };
            parts.push(format!("{}{names}", count(number as u64, one, many)));
        }
    };
    part(
        usize::try_from(omitted.ignored).unwrap_or(usize::MAX),
        "ignored path",
        "ignored paths",
        &[],
    );
    part(
        omitted.secrets.len(),
        "secret file",
        "secret files",
        &omitted.secrets,
    );
    part(
        omitted.excluded.len(),
        "excluded path",
        "excluded paths",
        &[],
    );
    part(
        omitted.unreadable.len(),
        "unreadable path",
        "unreadable paths",
        &omitted.unreadable,
    );
    part(
        omitted.special.len(),
        "special file",
        "special files",
        &omitted.special,
    );
    parts
}
