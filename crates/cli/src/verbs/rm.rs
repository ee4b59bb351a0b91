use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::verbs::stop;
use base::Name;
use clap::Args;
use store::Healed;

/// Remove sandboxes, machine and scratch disk
///
/// Their results stay, until `efimera discard`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Sandboxes (repeatable)
    #[arg(required = true)]
    names: Vec<Name>,
    /// Running ones too: they are stopped first
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &RmArgs) -> Result<u8> {
    let store = pick::store(context)?;
    for name in &args.names {
        if store.is_alive(name)? {
            if !args.force {
                return Err(CommandError::new(format!("The sandbox {name} is running"))
                    .hint(format!("`efimera rm --force {name}` stops it first")));
            }
            stop::end(&store, name, 3000, true)?;
        } else {
            // What a crash left of it may be all that there is.
            if !matches!(store.heal(name), Ok(Healed::Removed)) {
                let lock = pick::stopped(&store, name)?;
                store.remove(name, &lock)?;
            }
        }
        context.ui.line(name.as_str())?;
    }
    Ok(0)
}
