use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::session::{self, Outcome};
use crate::start::wish::{variable_of, variables_of_file};
use crate::{pick, terminal};
use base::Name;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use supervisor::client;
use supervisor::control::Command;
use wire::message::{Exec, RunAs};

/// Run one more command in a running sandbox
///
/// The exit code is the command's, as with `efimera run`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// A running sandbox
    name: Name,
    /// Set a variable; NAME alone passes yours on (repeatable)
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Set variables from a file of NAME=VALUE lines (repeatable)
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Working directory in the machine (default: the workspace)
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Run as this user of the machine
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// With a terminal even when standard output is none
    #[arg(short, long, hide = true)]
    tty: bool,
    /// Standard input is always passed on
    #[arg(short, long, hide = true)]
    interactive: bool,
    /// The command, and everything after it (default: a shell)
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl ExecArgs {
    /// A shell in that sandbox.
    pub(crate) fn shell(name: Name, user: Option<String>) -> Self {
        Self {
            name,
            env: Vec::new(),
            env_file: Vec::new(),
            workdir: None,
            user,
            tty: false,
            interactive: false,
            command: Vec::new(),
        }
    }
}

pub(crate) fn run(context: &Context, args: ExecArgs) -> Result<u8> {
    execute(context, args).map_err(CommandError::around_a_command)
}

fn execute(context: &Context, args: ExecArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let tty = args.tty || terminal::is_interactive();
    let mut env = Vec::new();
    if tty {
        let term = context
            .term
            .as_deref()
            .unwrap_or(OsStr::new("xterm-256color"));
        env.push((b"TERM".to_vec(), term.as_bytes().to_vec()));
    }
    for file in &args.env_file {
        env.extend(variables_of_file(&fs_err::read_to_string(file)?, file)?);
    }
    for variable in &args.env {
        env.extend(variable_of(variable)?);
    }
    let stdin = session::has_stdin();
    let exec = Exec {
        argv: args.command.into_iter().map(OsString::into_vec).collect(),
        env,
        cwd: args
            .workdir
            .map(|path| path.into_os_string().into_vec())
            .unwrap_or_default(),
        user: args
            .user
            .map_or(RunAs::User, |name| RunAs::Named(name.into_bytes())),
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
    )? {
        Outcome::Ended { end, .. } => {
            session::tell(context.ui, &end);
            Ok(session::exit_code(&end))
        }
        Outcome::Left => Ok(128 + 1),
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
