use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::start::{self, turn};
use crate::ui::Progress;
use crate::verbs::exec::connect;
use crate::verbs::snapshot::{self, SnapshotName};
use crate::verbs::start::until_ready;
use clap::Args;
use supervisor::Resume;
use supervisor::control::{Command, Note};

/// Take a sandbox back to a snapshot: memory, processes and disk
///
/// What ran then goes on from there, terminals that were attached then and still are included; what came later is
/// gone, in the machine and in its result. A stopped sandbox runs again.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Snapshot; without a label the newest one
    #[arg(value_name = "NAME[:LABEL]")]
    snapshot: SnapshotName,
}

pub(crate) fn run(context: &Context, args: &RestoreArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let name = &args.snapshot.sandbox;
    let alive = store.is_alive(name)?;
    if !alive {
        // Says why, if there is nothing of that name.
        drop(pick::stopped(&store, name)?);
    }
    let head = match &args.snapshot.label {
        Some(label) => snapshot::labelled(&store, &args.snapshot, label)?,
        None => snapshot::newest(&store, name)?,
    };
    if alive {
        let mut connection = connect(&store, name)?;
        let mut progress = Progress::new(context.ui);
        progress.at("restoring the machine", 0, 0, false);
        let answer = connection.ask(&Command::Restore(head.label.clone()), None)?;
        progress.end();
        if let Note::Failed { message, hint } = answer {
            return Err(CommandError::told(message, hint));
        }
    } else {
        let lock = pick::stopped(&store, name)?;
        let resume = Resume {
            directory: store.snapshot_dir(name, &head.label),
            fork: false,
        };
        let _turn = turn::wait(context)?;
        let mut connection = start::supervise(context, name, lock, Some(&resume))?;
        until_ready(context, &mut connection)?;
    }
    context.ui.line(format!("{name}:{}", head.label))?;
    Ok(0)
}
