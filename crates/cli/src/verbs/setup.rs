use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::setup::{self, Given};
use crate::{pick, start};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::Store;

/// Install and build what a machine needs
///
/// QEMU and a few tools from the distribution, a guest kernel, the base image. Everything is said before it is
/// done, in one plan with one question.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Without asking
    #[arg(short = 'y', long)]
    yes: bool,
    /// Don't boot a machine at the end to see that it works, and to make a template
    #[arg(long)]
    no_test_boot: bool,
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
    if !args.no_test_boot {
        let took = test_boot(context)?;
        context.ui.say(format!(
            "A machine booted as a test: ready after {:.1} s.",
            took.as_secs_f64()
        ));
        if let Some(factor) = crate::accel::factor(context).filter(|_| !verdict.is_usable()) {
            context.ui.say(format!(
                "Emulation computes {}.",
                crate::accel::slower(factor)
            ));
        }
        start::make_usual_template(context)?;
    }
    context
        .ui
        .say("Ready: `efimera run COMMAND` in any repository.");
    Ok(0)
}

/// Rounds of arithmetic that show the emulator's factor: some 50 ms here, about a second emulated.
const ROUNDS: u64 = 20_000_000;

/// Boots a machine on an empty workspace, measures the emulator in it, and lets it go. What is set up is proved by
/// this, and by nothing less.
fn test_boot(context: &Context) -> Result<Duration> {
    let store = pick::store(context)?;
    // Outside of any repository, which the home directory may be one of.
    let workspace = PathBuf::from(format!("/var/tmp/efimera-test-boot-{}", std::process::id()));
    fs_err::create_dir(&workspace)?;
    let tested = boot_and_measure(context, &store, &workspace);
    fs_err::remove_dir(&workspace)?;
    tested
}

fn boot_and_measure(context: &Context, store: &Store, workspace: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let mut booted = start::boot(context, store, workspace)?;
    let took = begun.elapsed();
    let here = Instant::now();
    let value = wire::spin(ROUNDS);
    let here = here.elapsed().as_nanos().max(1);
    if let Some((nanos, there)) = booted.spin(ROUNDS)?
        && there == value
    {
        let factor = u64::try_from(u128::from(nanos).div_ceil(here)).unwrap_or(u64::MAX);
        crate::accel::keep_factor(context, factor.max(1));
    }
    booted.end(store)?;
    Ok(took)
}
