use crate::context::Context;
use crate::error::Result;
use crate::pick;
use base::Name;
use clap::Args;

/// Throw a result away
///
/// It is gone for good; the repository is as it is. Without a name, the one result of this directory that
/// waits.
#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    /// Results (repeatable)
    names: Vec<Name>,
}

pub(crate) fn run(context: &Context, args: &DiscardArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let names = match args.names.as_slice() {
        [] => vec![pick::only_waiting(context, &store, "discard")?.spec.name],
        names => names.to_vec(),
    };
    // All of them are looked up before the first is gone.
    for name in &names {
        pick::named(&store, name)?;
    }
    for name in &names {
        store.discard(name)?;
        context.ui.say(format!("{name} is discarded."));
    }
    pick::tidy_up(context, &store);
    Ok(0)
}
