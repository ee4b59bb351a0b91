//! One verb, one file: its doc comment is its help, its struct its arguments, its `run` what it does.

use crate::context::Context;
use crate::error::Result;
use clap::Subcommand;

pub(crate) mod apply;
pub(crate) mod completion;
pub(crate) mod cp;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod image;
pub(crate) mod inspect;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod purge;
pub(crate) mod restore;
pub(crate) mod results;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod shell;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod version;
pub(crate) mod wait;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<run::RunArgs>),
    Shell(shell::ShellArgs),
    Exec(exec::ExecArgs),
    Wait(wait::WaitArgs),
    Cp(cp::CpArgs),
    Ls(ls::LsArgs),
    Inspect(inspect::InspectArgs),
    Logs(logs::LogsArgs),
    Stop(stop::StopArgs),
    Start(start::StartArgs),
    Rm(rm::RmArgs),
    Snapshot(snapshot::SnapshotArgs),
    Restore(restore::RestoreArgs),
    Fork(fork::ForkArgs),
    Diff(diff::DiffArgs),
    Apply(apply::ApplyArgs),
    Discard(discard::DiscardArgs),
    Results(results::ResultsArgs),
    #[command(subcommand)]
    Image(image::ImageVerb),
    Setup(setup::SetupArgs),
    Doctor(doctor::DoctorArgs),
    Purge(purge::PurgeArgs),
    Completion(completion::CompletionArgs),
    #[command(hide = true)]
    Man(man::ManArgs),
    Version(version::VersionArgs),
}

/// Does what was asked, and gives the exit code.
pub(crate) fn run(context: Context, verb: Verb) -> Result<u8> {
    match verb {
        Verb::Run(args) => run::run(context, *args),
        Verb::Shell(args) => shell::run(context, args),
        Verb::Exec(args) => exec::run(&context, args),
        Verb::Wait(args) => wait::run(&context, &args),
        Verb::Cp(args) => cp::run(&context, &args),
        Verb::Ls(args) => ls::run(&context, &args),
        Verb::Inspect(args) => inspect::run(&context, &args),
        Verb::Logs(args) => logs::run(&context, &args),
        Verb::Stop(args) => stop::run(&context, &args),
        Verb::Start(args) => start::run(&context, &args),
        Verb::Rm(args) => rm::run(&context, &args),
        Verb::Snapshot(args) => snapshot::run(&context, &args),
        Verb::Restore(args) => restore::run(&context, &args),
        Verb::Fork(args) => fork::run(&context, &args),
        Verb::Diff(args) => diff::run(&context, &args),
        Verb::Apply(args) => apply::run(&context, &args),
        Verb::Discard(args) => discard::run(&context, &args),
        Verb::Results(args) => results::run(&context, &args),
        Verb::Image(verb) => image::run(&context, verb),
        Verb::Setup(args) => setup::run(&context, &args),
        Verb::Doctor(args) => doctor::run(&context, &args),
        Verb::Purge(args) => purge::run(&context, &args),
        Verb::Completion(args) => completion::run(&context, &args),
        Verb::Man(args) => man::run(&args),
        Verb::Version(args) => version::run(&context, &args),
    }
}
