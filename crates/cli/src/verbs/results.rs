use crate::context::Context;
use crate::error::Result;
use crate::table::{ago, table, time};
use crate::{pick, receipt};
use base::{Name, Size};
use clap::Args;
use store::{Ending, ResultHead, Store};

/// List the results
///
/// Those of the repository that you are in, the newest first.
#[derive(Debug, Args)]
pub(crate) struct ResultsArgs {
    /// Those of every directory
    #[arg(short, long)]
    all: bool,
    /// Compare the attempts or forks that this result is of
    #[arg(long, value_name = "RESULT")]
    group: Option<Name>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, args: &ResultsArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let results = store.results()?;
    let mut heads = results.heads;
    for (name, error) in &results.broken {
        context
            .ui
            .warn(format!("The result {name} can't be read: {error}"));
    }
    if let Some(one) = &args.group {
        let one = pick::named(&store, one)?.spec;
        heads.retain(|head| head.spec.group_name() == one.group_name());
        heads.reverse();
    } else {
        let cwd = pick::current(context);
        heads.retain(|head| args.all || cwd.starts_with(&head.spec.workspace));
    }
    if args.json {
        let items: Result<Vec<_>> = heads.iter().map(|head| as_json(&store, head)).collect();
        context.ui.json(&items?.into())?;
    } else if args.group.is_some() {
        context.ui.out(comparison(&store, &heads)?)?;
    } else {
        let rows: Result<Vec<_>> = heads.iter().map(|head| as_row(&store, head)).collect();
        context.ui.out(table(
            &[
                "NAME", "STATE", "CREATED", "FILES", "SIZE", "EXIT", "COMMAND",
            ],
            &rows?,
        ))?;
    }
    Ok(0)
}

fn as_row(store: &Store, head: &ResultHead) -> Result<Vec<String>> {
    let stat = pick::changes(store, &head.spec.name)?.stat();
    Ok(vec![
        head.spec.name.to_string(),
        pick::completeness(head).to_owned(),
        ago(head.spec.created),
        (stat.changed + stat.added + stat.deleted).to_string(),
        Size(store.result_usage(&head.spec.name)).to_string(),
        ending(head.ending.as_ref()),
        base::escape_line(head.spec.command.join(" ").as_bytes(), 60),
    ])
}

/// Results side by side: what each changed, how it ended, and how long it took.
pub(crate) fn comparison(store: &Store, heads: &[ResultHead]) -> Result<String> {
    let rows: Result<Vec<_>> = heads.iter().map(|head| compared(store, head)).collect();
    let heading = ["NAME", "STATE", "EXIT", "TIME", "FILES", "LINES"];
    Ok(table(&heading, &rows?))
}

fn compared(store: &Store, head: &ResultHead) -> Result<Vec<String>> {
    let changes = pick::changes(store, &head.spec.name)?;
    let stat = changes.stat();
    let (added, removed) = receipt::changed_lines(store, head, &changes)?;
    let time = match head.ended {
        0 => "-".to_owned(),
        ended => format!("{} s", ended.saturating_sub(head.spec.created).max(0)),
    };
    Ok(vec![
        head.spec.name.to_string(),
        pick::completeness(head).to_owned(),
        ending(head.ending.as_ref()),
        time,
        (stat.changed + stat.added + stat.deleted).to_string(),
        format!("+{added} −{removed}"),
    ])
}

/// A result as listings and receipts have it in JSON.
pub(crate) fn as_json(store: &Store, head: &ResultHead) -> Result<serde_json::Value> {
    let changes = pick::changes(store, &head.spec.name)?;
    let stat = changes.stat();
    Ok(serde_json::json!({
        "name": head.spec.name,
        "state": pick::completeness(head),
        "created": time(head.spec.created),
        "saved": time(head.saved),
        "ended": time(head.ended),
        "applied": head.applied.and_then(time),
        "workspace": head.spec.workspace,
        "command": head.spec.command,
        "exit": exit_code(head.ending.as_ref()),
        "ending": ending(head.ending.as_ref()),
        "files": { "changed": stat.changed, "added": stat.added, "deleted": stat.deleted, "torn": stat.torn },
        "digest": changes.digest(),
        "ignored": head.ignored,
        "refused": head.refused_count,
        "limits": head.limits,
        "commits": head.commits.iter().map(|commit| &commit.id).collect::<Vec<_>>(),
        "bytes": store.result_usage(&head.spec.name),
    }))
}

fn ending(ending: Option<&Ending>) -> String {
    match ending {
        None => "-".to_owned(),
        Some(Ending::Exited(code) | Ending::NotStarted(code, _)) => code.to_string(),
        Some(Ending::Signalled(signal)) => format!("signal {signal}"),
        Some(Ending::TimedOut) => "timeout".to_owned(),
        Some(Ending::Stopped) => "stopped".to_owned(),
        Some(Ending::Crashed(_)) => "crashed".to_owned(),
    }
}

/// The exit code that a shell would show for it.
pub(crate) fn exit_code(ending: Option<&Ending>) -> Option<u8> {
    Some(match ending? {
        Ending::Exited(code) | Ending::NotStarted(code, _) => *code,
        Ending::Signalled(signal) => 128_u8.saturating_add(*signal),
        Ending::TimedOut => crate::error::exit::TIMED_OUT,
        Ending::Stopped => 128 + 15,
        Ending::Crashed(_) => crate::error::exit::EFIMERA,
    })
}
