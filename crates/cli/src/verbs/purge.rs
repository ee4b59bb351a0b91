use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::table::count;
use base::Size;
use clap::Args;
use store::{Purge, StoreError, names_of};

/// Delete what efimera keeps: stopped sandboxes and results
///
/// With --all also images, kernels and caches: what a person deletes when a laptop changes hands. Running
/// sandboxes are in the way: stop them first.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Images, kernels and caches too
    #[arg(long)]
    all: bool,
    /// Without asking
    #[arg(short = 'y', long, visible_alias = "force")]
    yes: bool,
}

pub(crate) fn run(context: &Context, args: &PurgeArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let usage = store.usage();
    let results = store.results()?.heads;
    let work = usage.sandboxes + usage.results + usage.baselines;
    let bytes = if args.all { usage.total() } else { work };
    let what = format!(
        "{} ({}){}",
        count(results.len() as u64, "result", "results"),
        Size(bytes),
        if args.all {
            " and every image, kernel and cache"
        } else {
            ""
        },
    );
    if !args.yes {
        if !context.ui.can_ask() {
            return Err(
                CommandError::new(format!("Nothing was deleted: {what} would be"))
                    .hint("say --yes to delete it"),
            );
        }
        if !context.ui.ask(&format!("Delete {what} for good?")) {
            return Err(CommandError::new("Nothing was deleted"));
        }
    }
    let what = if args.all { Purge::All } else { Purge::Work };
    let purged = store.purge(what).map_err(|error| match &error {
        StoreError::InTheWay(names) => {
            let stop = format!("end them first: `efimera stop {}`", names_of(names, " "));
            CommandError::from(error).hint(stop)
        }
        _ => error.into(),
    })?;
    context.ui.say(format!(
        "Deleted {} and {}: {}.",
        count(purged.results.len() as u64, "result", "results"),
        count(
            purged.sandboxes.len() as u64,
            "stopped sandbox",
            "stopped sandboxes"
        ),
        Size(purged.bytes),
    ));
    Ok(0)
}
