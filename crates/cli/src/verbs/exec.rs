use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::session::{self, Outcome};
use crate::surroundings::{self, SurroundingsArgs};
use crate::{pick, terminal};
use base::Name;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use supervisor::client;
use supervisor::control::Command;
use wire::message::Exec;

/// Run one more command in a running sandbox
///
/// The exit code is the command's, as with `efimera run`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// A running sandbox
    name: Name,
    #[command(flatten)]
    surroundings: SurroundingsArgs,
    /// The command, and everything after it (default: a shell)
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl ExecArgs {
    /// A shell in that sandbox.
    pub(crate) fn shell(name: Name, user: Option<String>) -> Self {
        Self {
            name,
            surroundings: SurroundingsArgs::of_user(user),
            command: Vec::new(),
        }
    }
}

pub(crate) fn run(context: &Context, args: ExecArgs) -> Result<u8> {
    execute(context, args).map_err(CommandError::around_a_command)
}

fn execute(context: &Context, args: ExecArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let around = args.surroundings;
    let tty = around.wants_terminal();
    let env = around.variables(context, tty)?;
    let stdin = session::has_stdin();
    let exec = Exec {
        argv: surroundings::words(args.command, &env)?,
        env,
        user: around.user(),
        cwd: around
            .workdir
            .map(|path| path.into_os_string().into_vec())
            .unwrap_or_default(),
        tty: tty.then(terminal::size),
        stdin,
    };
    let mut connection = connect(&store, &args.name)?;
    match session::run(
        context.ui,
        &mut connection,
        &Command::Exec(exec),
        tty,
        stdin,
        None,
    )? {
        Outcome::Ended { end, .. } => {
            session::tell(context.ui, &end);
            Ok(session::exit_code(&end))
        }
        Outcome::Left { asked: true } => Ok(0),
        Outcome::Left { asked: false } => Ok(128 + 1),
    }
}

/// Connects to a running sandbox, or says how to get one.
pub(crate) fn connect(store: &store::Store, name: &Name) -> Result<client::Connection> {
    client::connect(store, name).map_err(|error| {
        let stopped =
            matches!(error, client::ClientError::NotRunning(_)) && store.record(name).is_ok();
        let error = CommandError::from(error);
        if stopped {
            error.hint(format!("`efimera start {name}` starts it again"))
        } else {
            error.hint("`efimera ls` lists the running ones")
        }
    })
}
