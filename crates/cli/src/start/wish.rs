//! What a person asked for on the command line, in their configuration and by default, as plain values. From
//! here on nobody looks at arguments, environment or configuration.

use crate::config::seconds;
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::terminal;
use crate::verbs::run::RunArgs;
use base::{Name, Size};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use wire::message::RunAs;

/// Memory of a machine unless said otherwise: enough for a compiler, small enough for a laptop with 8 GiB.
const MEMORY: Size = Size::gib(2);
/// Size limit of the scratch disk; it takes room on this computer only as it fills.
const DISK: Size = Size::gib(20);
/// How long a machine goes on when its terminal is lost.
const LINGER: u64 = 8 * 3600;

/// Bytes of arguments and variables together: what fits one frame on the wire, and room for what is added.
const MAX_COMMAND: usize = wire::MAX_PAYLOAD - 2048;

/// Everything that `run` needs to know.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) workdir: Option<Vec<u8>>,
    pub(crate) user: RunAs,
    pub(crate) tty: bool,
    pub(crate) detach: bool,
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
        let tty = !args.detach && (args.tty || terminal::is_interactive());
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
        let size = |bytes: &[u8]| bytes.len() + 8;
        let words: usize = args.command.iter().map(|word| size(word.as_bytes())).sum();
        let variables: usize = env
            .iter()
            .map(|(name, value)| size(name) + size(value))
            .sum();
        if words + variables > MAX_COMMAND {
            return Err(CommandError::usage(format!(
                "The command and its variables are longer than {}",
                Size(MAX_COMMAND as u64)
            ))
            .hint("pass long text in a file of the repository, or on standard input"));
        }
        let joined =
            |first: &[String], more: Vec<String>| first.iter().cloned().chain(more).collect();
        let duration = |flag: Option<u64>, key: Option<&String>, otherwise: u64| match (flag, key) {
            (Some(seconds), _) => Ok(seconds),
            (None, Some(text)) => seconds(text).map_err(CommandError::usage),
            (None, None) => Ok(otherwise),
        };
        Ok(Self {
            argv: args.command.into_iter().map(OsString::into_vec).collect(),
            env,
            workdir: args.workdir.map(|path| path.into_os_string().into_vec()),
            user: args
                .user
                .map_or(RunAs::User, |name| RunAs::Named(name.into_bytes())),
            tty,
            detach: args.detach,
            keep: args.keep,
            name: args.name,
            from: args.from,
            clean: args.clean,
            timeout: duration(args.timeout, config.run.timeout.as_ref(), 0)?,
            linger: duration(args.linger, config.run.linger.as_ref(), LINGER)?,
            json: args.json,
            yes: args.yes,
            artifacts: joined(&config.workspace.artifacts, args.artifacts),
            machine: MachineWish {
                cpus: args.machine.cpus.or(config.machine.cpus),
                memory: args
                    .machine
                    .memory
                    .or(config.machine.memory)
                    .unwrap_or(MEMORY),
                disk: args.machine.disk.or(config.machine.disk).unwrap_or(DISK),
                accel: accel(args.machine.accel, config.machine.accel.as_deref())?,
                image: args.machine.image,
            },
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

/// `NAME=VALUE`, or `NAME` alone for the user's own value; a name that the user has not set is left out, as
/// docker does.
pub(crate) fn variable_of(text: &str) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    match text.split_once('=') {
        Some((name, value)) => Ok(Some((checked_name(name)?, value.as_bytes().to_vec()))),
        None => match Context::variable(text) {
            Some(value) => Ok(Some((checked_name(text)?, value.into_vec()))),
            None => Ok(None),
        },
    }
}

/// Lines of `NAME=VALUE` or `NAME`; empty lines and lines that start with `#` are passed over.
pub(crate) fn variables_of_file(
    text: &str,
    file: &std::path::Path,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut variables = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let variable = variable_of(line).map_err(|error| {
            CommandError::usage(format!(
                "Line {} of `{}`: {}",
                number + 1,
                file.display(),
                error.message
            ))
        })?;
        variables.extend(variable);
    }
    Ok(variables)
}

fn checked_name(name: &str) -> Result<Vec<u8>> {
    let well_formed = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if well_formed {
        Ok(name.as_bytes().to_vec())
    } else {
        Err(CommandError::usage(format!(
            "`{}` is not the name of a variable",
            base::escape_line(name.as_bytes(), 60)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::{accel, variable_of, variables_of_file};
    use std::path::Path;

    #[test]
    fn a_demand_for_hardware_holds() {
        assert_eq!(accel(None, Some("kvm")).unwrap(), "kvm");
        assert_eq!(accel(Some("auto".to_owned()), Some("kvm")).unwrap(), "kvm");
        accel(Some("tcg".to_owned()), Some("kvm")).unwrap_err();
        assert_eq!(accel(Some("tcg".to_owned()), None).unwrap(), "tcg");
        accel(None, Some("fast")).unwrap_err();
    }

    #[test]
    fn variables_as_docker_has_them() {
        assert_eq!(
            variable_of("A=b=c").unwrap(),
            Some((b"A".to_vec(), b"b=c".to_vec()))
        );
        assert_eq!(
            variable_of("A=").unwrap(),
            Some((b"A".to_vec(), b"".to_vec()))
        );
        assert_eq!(variable_of("EFIMERA_TEST_NEVER_SET").unwrap(), None);
        variable_of("1A=b").unwrap_err();
        variable_of("A B=c").unwrap_err();
        let file = variables_of_file("# comment\n\nA=1\nB= 2\n", Path::new("x")).unwrap();
        assert_eq!(
            file,
            [
                (b"A".to_vec(), b"1".to_vec()),
                (b"B".to_vec(), b" 2".to_vec())
            ]
        );
        let error = variables_of_file("A=1\n-=2\n", Path::new("x")).unwrap_err();
        assert!(
            error.message.starts_with("Line 2 of `x`"),
            "{}",
            error.message
        );
    }
}
