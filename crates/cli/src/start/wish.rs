//! What a person asked for on the command line, in their configuration and by default, as plain values. From
//! here on nobody looks at arguments, environment or configuration.

use crate::config::seconds;
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::surroundings;
use crate::verbs::run::{MachineArgs, RunArgs};
use base::{Name, Size};
use std::path::PathBuf;
use wire::message::RunAs;

/// Memory of a machine unless said otherwise: enough for a compiler, small enough for a laptop with 8 GiB.
const MEMORY: Size = Size::gib(2);
/// Size limit of the scratch disk; it takes room on this computer only as it fills.
const DISK: Size = Size::gib(20);
/// Below it the guest's kernel finds no room for itself and its first program.
const LEAST_MEMORY: Size = Size::mib(256);
/// Below it there is no room for a file system with something in it.
const LEAST_DISK: Size = Size::mib(64);
/// What ext4 can be with blocks of 4 KiB.
const MOST_DISK: Size = Size::gib(16 * 1024);
/// How long a machine goes on when its terminal is lost.
const LINGER: u64 = 8 * 3600;

/// Everything that `run` needs to know.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) workdir: Option<PathBuf>,
    pub(crate) user: RunAs,
    pub(crate) tty: bool,
    pub(crate) detach: bool,
    /// How many machines run the command, each for itself; with several, `detach` holds.
    pub(crate) attempts: u32,
    /// Nobody waits for the end.
    pub(crate) leaves: bool,
    pub(crate) keep: bool,
    pub(crate) name: Option<Name>,
    pub(crate) from: Option<Name>,
    pub(crate) clean: bool,
    pub(crate) timeout: u64,
    pub(crate) linger: u64,
    pub(crate) json: bool,
    pub(crate) yes: bool,
    pub(crate) artifacts: Vec<String>,
    pub(crate) machine: MachineWish,
    pub(crate) workspace: WorkspaceWish,
}

/// What the machine is made of.
#[derive(Debug)]
pub(crate) struct MachineWish {
    pub(crate) cpus: Option<u32>,
    pub(crate) memory: Size,
    pub(crate) disk: Size,
    pub(crate) accel: String,
    pub(crate) image: Option<String>,
    pub(crate) template: bool,
}

/// What goes in.
#[derive(Debug)]
pub(crate) struct WorkspaceWish {
    pub(crate) directory: PathBuf,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) only: Option<PathBuf>,
    pub(crate) history: String,
    pub(crate) skip_unreadable: bool,
    pub(crate) allow_unusual: bool,
}

impl Wish {
    pub(crate) fn from_run(context: &Context, args: RunArgs) -> Result<Self> {
        let config = &context.config;
        let attempts = args.fork.unwrap_or(1);
        if attempts > 1 && args.name.is_some() {
            return Err(CommandError::usage(
                "`--name` is for one sandbox, and `--fork` makes several",
            ));
        }
        let tty = !args.detach && attempts == 1 && args.surroundings.wants_terminal();
        let env = args.surroundings.variables(context, tty)?;
        let argv = surroundings::words(args.command, &env)?;
        let joined = |first: &[String], more: Vec<String>| -> Vec<String> {
            first.iter().cloned().chain(more).collect()
        };
        let duration = |flag: Option<u64>, key: Option<&String>, otherwise: u64| match (flag, key) {
            (Some(seconds), _) => Ok(seconds),
            (None, Some(text)) => seconds(text).map_err(CommandError::usage),
            (None, None) => Ok(otherwise),
        };
        let artifacts = joined(&config.workspace.artifacts, args.artifacts);
        workspace::Artifacts::new(&artifacts)?;
        let machine = MachineWish::of(context, args.machine)?;
        Ok(Self {
            argv,
            env,
            workdir: args.surroundings.workdir.clone(),
            user: args.surroundings.user(),
            tty,
            detach: args.detach || attempts > 1,
            attempts,
            leaves: args.detach,
            keep: args.keep,
            name: args.name,
            from: args.from,
            clean: args.clean,
            timeout: duration(args.timeout, config.run.timeout.as_ref(), 0)?,
            linger: duration(args.linger, config.run.linger.as_ref(), LINGER)?,
            json: args.json,
            yes: args.yes,
            artifacts,
            machine,
            workspace: WorkspaceWish {
                directory: context.cwd.clone(),
                include: joined(&config.workspace.include, args.workspace.include),
                exclude: joined(&config.workspace.exclude, args.workspace.exclude),
                only: args.workspace.only,
                history: args
                    .workspace
                    .history
                    .or_else(|| config.workspace.history.clone())
                    .unwrap_or_else(|| "auto".to_owned()),
                skip_unreadable: args.workspace.skip_unreadable,
                allow_unusual: args.workspace.allow_unusual,
            },
        })
    }
}

impl MachineWish {
    /// The flags over the configuration over our own choice.
    pub(crate) fn of(context: &Context, args: MachineArgs) -> Result<Self> {
        let config = &context.config.machine;
        let memory = args.memory.or(config.memory).unwrap_or(MEMORY);
        let disk = args.disk.or(config.disk).unwrap_or(DISK);
        check_sizes(memory, disk)?;
        Ok(Self {
            cpus: args.cpus.or(config.cpus),
            memory,
            disk,
            accel: accel(args.accel, config.accel.as_deref())?,
            image: args.image,
            template: !args.no_template,
        })
    }
}

/// Sizes that a machine can have here, before anything is made for it.
fn check_sizes(memory: Size, disk: Size) -> Result {
    let system = rustix::system::sysinfo();
    let here = Size(system.totalram.saturating_mul(system.mem_unit.into()));
    if memory < LEAST_MEMORY || memory > here {
        return Err(CommandError::usage(format!(
            "A machine's memory is from {LEAST_MEMORY} to what this computer has ({here}), not {memory}"
        )));
    }
    if !(LEAST_DISK..=MOST_DISK).contains(&disk) {
        return Err(CommandError::usage(format!(
            "A machine's disk is from {LEAST_DISK} to {MOST_DISK}, not {disk}"
        )));
    }
    Ok(())
}

/// A flag may choose freely, except that it can't take back a demand for hardware in the configuration.
fn accel(flag: Option<String>, key: Option<&str>) -> Result<String> {
    match (flag.as_deref(), key) {
        (Some("tcg"), Some("kvm")) => Err(CommandError::usage(
            "Your configuration demands hardware virtualisation (`machine.accel = \"kvm\"`), and `--accel tcg` is emulation",
        )
        .hint("change `machine.accel` in the configuration first")),
        (_, Some("kvm")) => Ok("kvm".to_owned()),
        (Some(flag), _) => Ok(flag.to_owned()),
        (None, Some(key @ ("auto" | "tcg"))) => Ok(key.to_owned()),
        (None, Some(other)) => {
            Err(CommandError::usage(format!("`machine.accel` is `auto`, `kvm` or `tcg`, not `{other}`")))
        }
        (None, None) => Ok("auto".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{DISK, MEMORY, accel, check_sizes};
    use base::Size;

    #[test]
    fn sizes_that_no_machine_can_have_are_refused() {
        check_sizes(MEMORY, DISK).unwrap();
        check_sizes(Size(4096), DISK).unwrap_err();
        check_sizes(Size::gib(1 << 20), DISK).unwrap_err();
        check_sizes(MEMORY, Size(1024)).unwrap_err();
        check_sizes(MEMORY, Size::gib(1 << 20)).unwrap_err();
    }

    #[test]
    fn a_demand_for_hardware_holds() {
        assert_eq!(accel(None, Some("kvm")).unwrap(), "kvm");
        assert_eq!(accel(Some("auto".to_owned()), Some("kvm")).unwrap(), "kvm");
        accel(Some("tcg".to_owned()), Some("kvm")).unwrap_err();
        assert_eq!(accel(Some("tcg".to_owned()), None).unwrap(), "tcg");
        accel(None, Some("fast")).unwrap_err();
    }
}
