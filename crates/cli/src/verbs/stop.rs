use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::verbs::exec::connect;
use base::Name;
use clap::Args;
use supervisor::client::ClientError;
use supervisor::control::{Command, Note};

/// Stop sandboxes: end their commands, save their results, power off
///
/// A kept sandbox can be started again with `efimera start`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Running sandboxes (repeatable)
    #[arg(required = true)]
    names: Vec<Name>,
    /// How long the command has to end itself
    #[arg(short, long, value_name = "DURATION", default_value = "10s", value_parser = crate::config::seconds)]
    time: u64,
}

pub(crate) fn run(context: &Context, args: &StopArgs) -> Result<u8> {
    let store = pick::store(context)?;
    for name in &args.names {
        let grace_ms = u32::try_from(args.time.saturating_mul(1000)).unwrap_or(u32::MAX);
        end(&store, name, grace_ms, false)?;
        context.ui.line(name.as_str())?;
    }
    Ok(0)
}

/// Has a running sandbox end, and waits until it has.
pub(crate) fn end(store: &store::Store, name: &Name, grace_ms: u32, remove: bool) -> Result {
    let mut connection = connect(store, name)?;
    match connection.ask(&Command::Stop { grace_ms, remove }, None) {
        Ok(Note::Failed { message, hint }) => Err(CommandError::told(message, hint)),
        // It was about to go anyway.
        Ok(_) | Err(ClientError::Lost) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
