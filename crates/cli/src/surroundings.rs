//! What a command in a machine has around it, as `run` and `exec` both take it: variables, directory, user,
//! terminal.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::terminal;
use base::Size;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use wire::message::RunAs;

/// Bytes of arguments and variables together: what fits one request on the wire, and room for what is added.
const MAX_COMMAND: usize = wire::MAX_MESSAGE - 2048;

/// A variable's name and value.
type Variable = (Vec<u8>, Vec<u8>);

/// What the command has around it
#[derive(Debug, Default, Args)]
pub(crate) struct SurroundingsArgs {
    /// Set a variable in the machine; NAME alone passes yours on (repeatable)
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Set variables from a file of NAME=VALUE lines (repeatable)
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Working directory in the machine
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Run as this user of the machine (a name or number, `root` too)
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// With a terminal even when standard output is none
    #[arg(short, long, hide = true)]
    tty: bool,
    /// Standard input is always passed on
    #[arg(short, long, hide = true)]
    interactive: bool,
}

impl SurroundingsArgs {
    /// The defaults, as `user`.
    pub(crate) fn of_user(user: Option<String>) -> Self {
        Self {
            user,
            ..Self::default()
        }
    }

    /// True when the command gets a terminal.
    pub(crate) fn wants_terminal(&self) -> bool {
        self.tty || terminal::is_interactive()
    }

    /// Who runs the command.
    pub(crate) fn user(&self) -> RunAs {
        match &self.user {
            None => RunAs::User,
            Some(name) => RunAs::Named(name.clone().into_bytes()),
        }
    }

    /// The variables, later ones over earlier ones.
    pub(crate) fn variables(&self, context: &Context, tty: bool) -> Result<Vec<Variable>> {
        let mut variables = Vec::new();
        if tty {
            let term = context
                .term
                .as_deref()
                .unwrap_or(OsStr::new("xterm-256color"));
            variables.push((b"TERM".to_vec(), term.as_bytes().to_vec()));
        }
        for file in &self.env_file {
            variables.extend(variables_of_file(&fs_err::read_to_string(file)?, file)?);
        }
        for variable in &self.env {
            variables.extend(variable_of(variable)?);
        }
        Ok(variables)
    }
}

/// The words of a command, which together with its variables fit into one request.
pub(crate) fn words(command: Vec<OsString>, variables: &[Variable]) -> Result<Vec<Vec<u8>>> {
    let words: Vec<Vec<u8>> = command.into_iter().map(OsString::into_vec).collect();
    let strings = words
        .iter()
        .chain(variables.iter().flat_map(|(name, value)| [name, value]));
    let size: usize = strings.map(|string| string.len() + 8).sum();
    if size > MAX_COMMAND {
        return Err(CommandError::usage(format!(
            "The command and its variables are longer than {}",
            Size(MAX_COMMAND as u64)
        ))
        .hint("pass long text in a file of the repository, or on standard input"));
    }
    Ok(words)
}

/// `NAME=VALUE`, or `NAME` alone for the user's own value; a name that the user has not set is left out, as
/// docker does.
fn variable_of(text: &str) -> Result<Option<Variable>> {
    match text.split_once('=') {
        Some((name, value)) => Ok(Some((checked_name(name)?, value.as_bytes().to_vec()))),
        None => match Context::variable(text) {
            Some(value) => Ok(Some((checked_name(text)?, value.into_vec()))),
            None => Ok(None),
        },
    }
}

/// Lines of `NAME=VALUE` or `NAME`; empty lines and lines that start with `#` are passed over.
fn variables_of_file(text: &str, file: &Path) -> Result<Vec<Variable>> {
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
    use super::{MAX_COMMAND, variable_of, variables_of_file, words};
    use std::path::Path;

    #[test]
    fn a_command_fits_one_request() {
        let long = "x".repeat(MAX_COMMAND - 8);
        assert_eq!(words(vec![long.clone().into()], &[]).unwrap().len(), 1);
        words(vec![long.into()], &[(b"A".to_vec(), Vec::new())]).unwrap_err();
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
