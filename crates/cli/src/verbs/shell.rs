use crate::context::Context;
use crate::error::Result;
use crate::verbs;
use base::Name;
use clap::Args;

/// Open a shell: in a running sandbox, or in a fresh machine
///
/// With a name, a shell in that sandbox's machine (`efimera exec NAME` with the user's shell). Without one, a
/// fresh machine on a copy of this repository, as `efimera run` without a command.
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// A running sandbox
    pub(crate) name: Option<Name>,
    /// Run as this user of the machine
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

pub(crate) fn run(context: Context, args: ShellArgs) -> Result<u8> {
    match args.name {
        Some(name) => verbs::exec::run(&context, verbs::exec::ExecArgs::shell(name, args.user)),
        None => verbs::run::run(context, verbs::run::RunArgs::shell(args.user)),
    }
}
