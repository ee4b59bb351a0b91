use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::setup::{self, Given};
use clap::Args;
use std::path::PathBuf;

/// Install and build what a machine needs
///
/// QEMU and a few tools from the distribution, a guest kernel, the base image. Everything is said before it is
/// done, in one plan with one question.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Without asking
    #[arg(short = 'y', long)]
    yes: bool,
    /// Use this kernel (a vmlinuz)
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The modules of --kernel, as below /lib/modules
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Use this root filesystem as the base image (a tar)
    #[arg(long, value_name = "TAR")]
    base: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: &SetupArgs) -> Result<u8> {
    let store = image::Store::open(&context.dirs.data)?;
    let given = Given {
        kernel: args.kernel.clone(),
        modules: args.modules.clone(),
        tar: args.base.clone(),
    };
    setup::run(context, &store, given, args.yes)?;
    crate::accel::kept_qemu(&context.dirs.cache)
        .map_err(|error| CommandError::from(error).hint("`efimera doctor` looks closer"))?;
    let verdict = crate::accel::measure(context);
    context.ui.say(format!("{}.", verdict.describe()));
    context
        .ui
        .say("Ready: `efimera run COMMAND` in any repository.");
    Ok(0)
}
