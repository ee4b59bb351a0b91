use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::start::{self, Wish};
use crate::surroundings::SurroundingsArgs;
use base::{Name, Size};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a command in a fresh machine, on a private copy of this repository
///
/// The machine starts from the base image, gets the working state of the repository that you are in (ignored
/// files and probable secrets stay out), and runs the command at the same path, without any network. What it
/// changed is kept as a result; the machine is gone when the command is done. Without a command it runs a shell.
///
/// The exit code is the command's: 128+n when signal n ended it, 124 after `--timeout`, 125 when efimera itself
/// failed, 126 and 127 when the command could not be started or found.
#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Leave the command running and print the sandbox's name
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Run the command in N machines, each with its own copy and result, and compare what came of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) fork: Option<u32>,
    /// Start from this result: its baseline with its changes on top
    #[arg(long, value_name = "RESULT")]
    pub(crate) from: Option<Name>,
    /// With --from: start from its baseline alone
    #[arg(long, requires = "from")]
    pub(crate) clean: bool,
    #[command(flatten)]
    pub(crate) surroundings: SurroundingsArgs,
    /// End the command after this time (90s, 30m, 8h)
    #[arg(long, value_name = "DURATION", value_parser = crate::config::seconds)]
    pub(crate) timeout: Option<u64>,
    /// Name of the sandbox (default: two words)
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<Name>,
    /// Keep the machine after the command, until `stop` or `rm`
    #[arg(long)]
    pub(crate) keep: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the receipt as JSON on stderr
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
    /// Bring out ignored paths that match (repeatable)
    #[arg(long = "artifact", value_name = "GLOB")]
    pub(crate) artifacts: Vec<String>,
    /// How long to go on when the terminal is lost
    #[arg(long, value_name = "DURATION", value_parser = crate::config::seconds)]
    pub(crate) linger: Option<u64>,
    /// Install what is missing without asking
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// There are no mounts: see `cp` and `--include`
    #[arg(short = 'v', long = "volume", value_name = "MOUNT", hide = true)]
    pub(crate) volume: Vec<String>,
    /// There are no mounts: see `cp` and `--include`
    #[arg(long, value_name = "MOUNT", hide = true)]
    pub(crate) mount: Vec<String>,
    /// The command, and everything after it
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// What the machine is made of
#[derive(Debug, Default, Args)]
pub(crate) struct MachineArgs {
    /// Virtual processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: Option<u32>,
    /// Memory (512m, 2g)
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Size of the scratch disk (20g)
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Size>,
    /// Processor: hardware (kvm), emulation (tcg), or the better one (auto)
    #[arg(long, value_name = "KIND", value_parser = ["auto", "kvm", "tcg"])]
    pub(crate) accel: Option<String>,
    /// Boot the machine, instead of starting it from a template
    #[arg(long)]
    pub(crate) no_template: bool,
    /// Base image, by digest or the first digits of it
    #[arg(long, value_name = "DIGEST")]
    pub(crate) image: Option<String>,
}

/// What of the repository goes in
#[derive(Debug, Default, Args)]
pub(crate) struct WorkspaceArgs {
    /// Take in matching paths that would stay out: ignored ones, probable secrets (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Leave out matching paths (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Take in only this path of the repository
    #[arg(long, value_name = "PATH")]
    pub(crate) only: Option<PathBuf>,
    /// How much of the git history goes in: auto, full, shallow, none
    #[arg(long, value_name = "HOW", value_parser = ["auto", "full", "shallow", "none"])]
    pub(crate) history: Option<String>,
    /// Leave out files that can't be read, instead of refusing
    #[arg(long)]
    pub(crate) skip_unreadable: bool,
    /// Take in a directory that is usually a mistake: /, your home, or somebody else's
    #[arg(long)]
    pub(crate) allow_unusual: bool,
}

pub(crate) fn run(mut context: Context, args: RunArgs) -> Result<u8> {
    if !args.volume.is_empty() || !args.mount.is_empty() {
        return Err(CommandError::usage("There are no mounts: the machine works on a copy, and never on this computer's files")
            .hint("take more files in with `--include GLOB`, or copy them with `efimera cp FILE NAME:PATH`"));
    }
    if args.quiet {
        context.ui.silence();
    }
    Wish::from_run(&context, args)
        .and_then(|wish| start::run(&context, wish))
        .map_err(CommandError::around_a_command)
}

impl RunArgs {
    /// A shell in a fresh machine, with every default.
    pub(crate) fn shell(user: Option<String>) -> Self {
        Self {
            surroundings: SurroundingsArgs::of_user(user),
            ..Self::default()
        }
    }
}
