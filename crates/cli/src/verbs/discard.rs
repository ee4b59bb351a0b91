use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use base::Name;
use clap::Args;
use store::Store;

/// Throw a result away
///
/// It is gone for good; the repository is as it is. Without a name, the one result of this directory that
/// waits.
#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    /// Results (repeatable)
    names: Vec<Name>,
    /// All others of the attempts or forks that this one is of
    #[arg(long, value_name = "RESULT", conflicts_with = "names")]
    except: Option<Name>,
}

pub(crate) fn run(context: &Context, args: &DiscardArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let names = match (args.names.as_slice(), &args.except) {
        (_, Some(kept)) => others(&store, kept)?,
        ([], None) => vec![pick::only_waiting(context, &store, "discard")?.spec.name],
        (names, None) => names.to_vec(),
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

/// The other results of a group. One whose sandbox still runs is left, as nobody has seen what it brings.
fn others(store: &Store, kept: &Name) -> Result<Vec<Name>> {
    let head = pick::named(store, kept)?;
    let mut names = Vec::new();
    for other in store.results()?.heads {
        let name = other.spec.name.clone();
        if other.spec.group_name() == head.spec.group_name()
            && name != *kept
            && !store.is_alive(&name)?
        {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Err(CommandError::new(format!(
            "There are no others: nothing else came from the `run --fork` or `fork` that {kept} is of"
        )));
    }
    Ok(names)
}
