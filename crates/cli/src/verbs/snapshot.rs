use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::table::{ago, table, time};
use crate::ui::Progress;
use crate::verbs::exec::connect;
use base::{Name, Size};
use clap::{Args, Subcommand};
use std::fmt;
use std::str::FromStr;
use store::{Label, SnapshotHead, Store};
use supervisor::control::{Command, Note};

/// Freeze a running machine, memory, processes and disk, and let it go on
///
/// `efimera restore` takes the sandbox back there, `efimera fork` makes others that go on from there. A snapshot takes
/// the machine's used memory and disk as room on this computer, and goes with its sandbox.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    verb: Option<SnapshotVerb>,
    /// Running sandbox
    #[arg(required = true)]
    name: Option<Name>,
    /// What to call it (default: the next number)
    label: Option<Label>,
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    Ls(ListArgs),
    Rm(RemoveArgs),
}

/// List a sandbox's snapshots, the oldest first
#[derive(Debug, Args)]
struct ListArgs {
    /// Sandbox
    name: Name,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Remove snapshots; machines that came from them go on
#[derive(Debug, Args)]
struct RemoveArgs {
    /// Snapshots (repeatable)
    #[arg(required = true, value_name = "NAME:LABEL")]
    snapshots: Vec<SnapshotName>,
}

/// A snapshot as a person names it: `NAME:LABEL`, or `NAME` where one is obvious.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotName {
    pub(crate) sandbox: Name,
    pub(crate) label: Option<Label>,
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (sandbox, label) = match text.split_once(':') {
            Some((sandbox, label)) => (sandbox, Some(label)),
            None => (text, None),
        };
        let label = label.map(str::parse::<Label>).transpose();
        Ok(Self {
            sandbox: sandbox.parse().map_err(|error| format!("{error}"))?,
            label: label.map_err(|error| error.to_string())?,
        })
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sandbox)?;
        match &self.label {
            Some(label) => write!(f, ":{label}"),
            None => Ok(()),
        }
    }
}

pub(crate) fn run(context: &Context, args: &SnapshotArgs) -> Result<u8> {
    let store = pick::store(context)?;
    match (&args.verb, &args.name) {
        (Some(SnapshotVerb::Ls(args)), _) => list(context, &store, args),
        (Some(SnapshotVerb::Rm(args)), _) => remove(context, &store, args),
        (None, Some(name)) => {
            let label = match &args.label {
                Some(label) => label.clone(),
                None => next_number(&store.snapshots(name)?)?,
            };
            take(context, &store, name, label.clone())?;
            context.ui.line(format!("{name}:{label}"))?;
            Ok(0)
        }
        (None, None) => Ok(0),
    }
}

/// Has the supervisor take a snapshot, and waits for it.
pub(crate) fn take(context: &Context, store: &Store, name: &Name, label: Label) -> Result {
    let mut connection = connect(store, name)?;
    let mut progress = Progress::new(context.ui);
    progress.at("freezing the machine", 0, 0, false);
    let answer = connection.ask(&Command::Snapshot(label), None)?;
    progress.end();
    match answer {
        Note::Failed { message, hint } => Err(CommandError::told(message, hint)),
        _ => Ok(()),
    }
}

/// One more than the highest number that is taken.
pub(crate) fn next_number(taken: &[SnapshotHead]) -> Result<Label> {
    let highest = taken
        .iter()
        .filter_map(|head| head.label.as_str().parse::<u64>().ok())
        .max();
    Ok((highest.unwrap_or_default() + 1).to_string().parse()?)
}

/// The snapshot of that label.
pub(crate) fn labelled(store: &Store, name: &SnapshotName, label: &Label) -> Result<SnapshotHead> {
    store.snapshot(&name.sandbox, label)?.ok_or_else(|| {
        CommandError::new(format!("There is no snapshot `{name}`"))
            .hint(format!("`efimera snapshot ls {}` lists them", name.sandbox))
    })
}

/// The newest snapshot of a sandbox.
pub(crate) fn newest(store: &Store, sandbox: &Name) -> Result<SnapshotHead> {
    store.snapshots(sandbox)?.pop().ok_or_else(|| {
        CommandError::new(format!("{sandbox} has no snapshots"))
            .hint(format!("`efimera snapshot {sandbox}` takes one"))
    })
}

fn list(context: &Context, store: &Store, args: &ListArgs) -> Result<u8> {
    store.record(&args.name).map_err(|error| {
        CommandError::from(error).hint("`efimera ls --all` lists the sandboxes")
    })?;
    let heads = store.snapshots(&args.name)?;
    if args.json {
        let items: Vec<_> = heads
            .iter()
            .map(|head| {
                serde_json::json!({
                    "label": head.label,
                    "created": time(seconds(head)),
                    "bytes": head.size,
                    "running": head.running,
                })
            })
            .collect();
        context.ui.json(&items.into())?;
    } else {
        let rows: Vec<Vec<String>> = heads
            .iter()
            .map(|head| {
                vec![
                    head.label.to_string(),
                    ago(seconds(head)),
                    Size(head.size).to_string(),
                ]
            })
            .collect();
        context
            .ui
            .out(table(&["LABEL", "CREATED", "SIZE"], &rows))?;
    }
    Ok(0)
}

fn remove(context: &Context, store: &Store, args: &RemoveArgs) -> Result<u8> {
    for name in &args.snapshots {
        let Some(label) = &name.label else {
            return Err(CommandError::usage(format!("`{name}` names no snapshot"))
                .hint("write NAME:LABEL; `efimera rm NAME` removes a sandbox with all of them"));
        };
        if !store.remove_snapshot(&name.sandbox, label)? {
            return Err(CommandError::new(format!("There is no snapshot `{name}`")));
        }
        context.ui.line(name.to_string())?;
    }
    Ok(0)
}

fn seconds(head: &SnapshotHead) -> i64 {
    head.created_ns / 1_000_000_000
}
