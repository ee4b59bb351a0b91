use crate::arguments::Arguments;
use crate::context::Context;
use crate::error::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

/// Print a completion script for a shell
///
/// bash: efimera completion bash > ~/.local/share/bash-completion/completions/efimera
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// bash, zsh, fish, elvish or powershell
    pub(crate) shell: Shell,
}

pub(crate) fn run(context: &Context, args: &CompletionArgs) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut Arguments::command(),
        "efimera",
        &mut script,
    );
    context.ui.out(script)?;
    Ok(0)
}
