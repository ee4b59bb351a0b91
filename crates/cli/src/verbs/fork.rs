use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::start::{self, turn::Starts};
use crate::verbs::snapshot::{self, SnapshotName};
use crate::verbs::start::until_ready;
use base::Name;
use clap::Args;
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
        Some(label) => {
            let head = snapshot::labelled(&store, &args.snapshot, label)?;
            (head.label, None)
        }
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
    // One that can't go on is no reason not to wait for the others.
    let mut failed = None;
    let mut until_up = |(name, connection): &mut (Name, Connection)| {
        match until_ready(context, connection) {
            Ok(()) => context.ui.line(name.as_str())?,
            Err(error) => {
                // It never was, so its result is none.
                forget(&store, name);
                failed.get_or_insert(error);
            }
        }
        Ok(())
    };
    let mut starts = Starts::new();
    for _ in 0..args.number {
        starts.make_room(context, &mut until_up)?;
        let created = start::create(&store, args.name.as_ref(), |name| spec(&record.spec, name))?;
        let name = created.record.spec.name.clone();
        let connection = start::supervise(context, &name, created.lock, Some(&resume))?;
        starts.push((name, connection));
    }
    starts.finish(&mut until_up)?;
    failed.map_or(Ok(0), Err)
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
