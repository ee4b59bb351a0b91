use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::start::{self, turn};
use crate::verbs::snapshot::{self, SnapshotName};
use crate::verbs::start::until_ready;
use base::Name;
use clap::Args;
use std::collections::VecDeque;
use store::{Label, Spec, Store, StoreError};
use supervisor::Resume;
use supervisor::client::Connection;

/// Make sandboxes that go on from where another one is
///
/// Each has memory, processes and disk as they were, goes on for itself with a name and random keys of its own, and
/// brings out its own result against the same baseline. Without a label the running machine is frozen for it.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Sandbox, or one of its snapshots
    #[arg(value_name = "NAME[:LABEL]")]
    snapshot: SnapshotName,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    number: u32,
    /// Name of the fork, if it is one (default: two words)
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
}

pub(crate) fn run(context: &Context, args: &ForkArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let source = &args.snapshot.sandbox;
    if args.number > 1 && args.name.is_some() {
        return Err(CommandError::usage(
            "`--name` is for one fork, and `-n` makes several",
        ));
    }
    if let Some(name) = &args.name {
        start::refuse_taken(&store, name)?;
    }
    let record = store.record(source).map_err(|error| {
        CommandError::from(error).hint("`efimera ls --all` lists the sandboxes")
    })?;
    // For as long as the forks need it, if it isn't one that stays.
    let (label, _passing) = match &args.snapshot.label {
        Some(_) => match snapshot::find(&store, &args.snapshot)? {
            Some(head) => (head.label, None),
            None => return Ok(1),
        },
        None => {
            if !store.is_alive(source)? {
                return Err(CommandError::new(format!("{source} doesn't run"))
                    .hint(format!("fork one of its snapshots (`efimera snapshot ls {source}`), or start it: `efimera start {source}`")));
            }
            let label: Label = format!("fork-{}", std::process::id()).parse()?;
            snapshot::take(context, &store, source, label.clone())?;
            let passing = Passing {
                store: &store,
                sandbox: source,
                label: label.clone(),
            };
            (label, Some(passing))
        }
    };
    let resume = Resume {
        directory: store.snapshot_dir(source, &label),
        fork: true,
    };
    let mut forks = Vec::new();
    let mut turns = VecDeque::new();
    let mut started = 0;
    let mut failed = None;
    for _ in 0..args.number {
        // Those that run make room for the next ones.
        let turn = loop {
            match turn::take(context)? {
                Some(turn) => break turn,
                None if turns.is_empty() => break turn::wait(context)?,
                None => {
                    failed = failed.or(settle(context, &store, &mut forks[started]));
                    started += 1;
                    turns.pop_front();
                }
            }
        };
        turns.push_back(turn);
        let created = start::create(&store, args.name.as_ref(), |name| spec(&record.spec, name))?;
        let name = created.record.spec.name.clone();
        let connection = start::supervise(context, &name, created.lock, Some(&resume))?;
        forks.push((name, connection));
    }
    for fork in &mut forks[started..] {
        failed = failed.or(settle(context, &store, fork));
    }
    failed.map_or(Ok(0), Err)
}

/// Waits until a fork runs, and tells its name; or why it doesn't.
fn settle(
    context: &Context,
    store: &Store,
    (name, connection): &mut (Name, Connection),
) -> Option<CommandError> {
    let ready = until_ready(context, connection).and_then(|()| context.ui.line(name.as_str()));
    ready
        .inspect_err(|_| {
            // It never was, so its result is none.
            forget(store, name);
        })
        .err()
}

/// A fork is what the other one is, but for its name, and that nobody waits for it.
fn spec(source: &Spec, name: Name) -> Spec {
    Spec {
        name,
        created: jiff::Timestamp::now().as_second(),
        tty: false,
        detached: true,
        group: Some(source.group.clone().unwrap_or_else(|| source.name.clone())),
        ..source.clone()
    }
}

/// Removes what a fork left that could not be started, as soon as its supervisor is gone.
fn forget(store: &Store, name: &Name) {
    match store.lock(name) {
        Ok(lock) => drop(store.remove(name, &lock)),
        Err(StoreError::NoSandbox(_)) => {}
        // Still going: its result stays, and says what happened.
        Err(_) => return,
    }
    store.discard(name).ok();
}

/// A snapshot that is there for the forks alone.
struct Passing<'a> {
    store: &'a Store,
    sandbox: &'a Name,
    label: Label,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        // Should it stay, `snapshot ls` shows it.
        self.store.remove_snapshot(self.sandbox, &self.label).ok();
    }
}
