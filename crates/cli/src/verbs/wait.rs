use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::verbs::exec::connect;
use crate::verbs::results::exit_code;
use crate::{pick, session};
use base::Name;
use clap::Args;
use store::Store;
use supervisor::client::ClientError;
use supervisor::control::{Command, Note};

/// Wait for a sandbox's command, and end with its exit code
///
/// A sandbox that is gone already gives the exit code that its result recorded.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Sandbox or result
    name: Name,
}

pub(crate) fn run(context: &Context, args: &WaitArgs) -> Result<u8> {
    let store = pick::store(context)?;
    if store.is_alive(&args.name)? {
        let asked =
            connect(&store, &args.name).map(|mut connection| connection.ask(&Command::Wait, None));
        match asked {
            Ok(Ok(Note::Exited(end))) => {
                until_saved(&store, &args.name);
                session::tell(context.ui, &end);
                return Ok(session::exit_code(&end));
            }
            Ok(Ok(Note::Failed { message, hint })) => {
                let error = CommandError::new(message).around_a_command();
                return Err(hint.into_iter().fold(error, CommandError::hint));
            }
            // It ended in this moment: its result knows.
            Ok(Ok(_) | Err(ClientError::Lost)) | Err(_) => {}
            Ok(Err(error)) => return Err(CommandError::from(error).around_a_command()),
        }
    }
    let head = pick::named(&store, &args.name).map_err(CommandError::around_a_command)?;
    exit_code(head.ending.as_ref()).ok_or_else(|| {
        CommandError::new(format!(
            "Nothing is known about the end of {}'s command",
            args.name
        ))
        .around_a_command()
    })
}

/// A sandbox that isn't kept is over when its result is written and its supervisor gone: whoever waits may `apply`.
pub(crate) fn until_saved(store: &Store, name: &Name) {
    if store.record(name).is_ok_and(|record| record.spec.keep) {
        return;
    }
    // The supervisor answers this at its conclusion, or goes; both are the end.
    let conclusion = Command::Stop {
        grace_ms: 0,
        remove: false,
    };
    if let Ok(mut connection) = connect(store, name) {
        drop(connection.ask(&conclusion, None));
    }
}
