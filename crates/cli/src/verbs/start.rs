use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::start::{self, turn};
use crate::ui::Progress;
use base::Name;
use clap::Args;
use supervisor::client::{Connection, Item};
use supervisor::control::{Command, Note};

/// Start a stopped sandbox again
///
/// The machine boots with the disk that it had; its command is not run again (`efimera exec` runs one).
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// Stopped sandboxes (repeatable)
    #[arg(required = true)]
    names: Vec<Name>,
}

pub(crate) fn run(context: &Context, args: &StartArgs) -> Result<u8> {
    let store = pick::store(context)?;
    for name in &args.names {
        if store.is_alive(name)? {
            return Err(CommandError::new(format!(
                "The sandbox {name} is running already"
            )));
        }
        let lock = pick::stopped(&store, name)?;
        let _turn = turn::wait(context)?;
        let mut connection = start::supervise(context, name, lock, None)?;
        until_ready(context, &mut connection)?;
        context.ui.line(name.as_str())?;
    }
    Ok(0)
}

/// Waits until the machine of a sandbox that starts can be used.
pub(crate) fn until_ready(context: &Context, connection: &mut Connection) -> Result {
    let stream = connection.open(&Command::Ready)?;
    let mut progress = Progress::new(context.ui);
    loop {
        match connection.next(stream, None)? {
            Item::Note(Note::Booting) => progress.at("starting the machine", 0, 0, false),
            Item::Note(Note::Failed { message, hint }) => {
                return Err(CommandError::told(message, hint));
            }
            Item::Note(Note::Started) | Item::Closed => break,
            Item::Note(_) | Item::Data { .. } | Item::Finished(_) => {}
        }
    }
    progress.end();
    Ok(())
}
