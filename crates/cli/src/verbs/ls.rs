use crate::context::Context;
use crate::error::Result;
use crate::pick;
use crate::table::{ago, table, time};
use clap::Args;
use store::{Listed, State};

/// List the sandboxes
///
/// Those that run; with -a also those that are stopped and kept. Results of sandboxes that are gone are in
/// `efimera results`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Stopped ones too
    #[arg(short, long)]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Names only
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(context: &Context, args: &LsArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let listing = store.list()?;
    for (name, error) in &listing.broken {
        context
            .ui
            .warn(format!("The record of {name} can't be read: {error}"));
    }
    let shown = |listed: &&Listed| args.all || listed.alive;
    let sandboxes: Vec<&Listed> = listing.sandboxes.iter().filter(shown).collect();
    if args.json {
        let items: Vec<_> = sandboxes.iter().map(|listed| as_json(listed)).collect();
        context.ui.json(&items.into())?;
    } else if args.quiet {
        for listed in sandboxes {
            context.ui.line(listed.record.spec.name.as_str())?;
        }
    } else {
        let rows: Vec<_> = sandboxes.iter().map(|listed| as_row(listed)).collect();
        context.ui.out(table(
            &["NAME", "STATE", "CREATED", "DIRECTORY", "COMMAND"],
            &rows,
        ))?;
    }
    Ok(0)
}

fn as_row(listed: &Listed) -> Vec<String> {
    let spec = &listed.record.spec;
    vec![
        spec.name.to_string(),
        state(listed.record.state).to_owned(),
        ago(spec.created),
        base::escape(spec.workspace.as_os_str().as_encoded_bytes()),
        base::escape_line(spec.command.join(" ").as_bytes(), 60),
    ]
}

fn as_json(listed: &Listed) -> serde_json::Value {
    let spec = &listed.record.spec;
    serde_json::json!({
        "name": spec.name,
        "state": state(listed.record.state),
        "created": time(spec.created),
        "workspace": spec.workspace,
        "command": spec.command,
        "keep": spec.keep,
    })
}

pub(crate) fn state(state: State) -> &'static str {
    match state {
        State::Created | State::Booting => "booting",
        State::Running => "running",
        State::Idle => "idle",
        State::Saving => "saving",
        State::Stopped => "stopped",
        State::Crashed => "crashed",
    }
}
