//! The command line: one struct for what every verb takes, and the verbs, each in a file of its own.

use crate::verbs::Verb;
use clap::Parser;
use std::path::PathBuf;

/// A disposable Linux machine for a coding agent.
///
/// efimera runs a command in a throw-away virtual machine on a private copy of the repository that you are in,
/// and keeps what it changed as a result that you review, apply or discard. Nothing on this computer changes
/// until you say `efimera apply`.
#[derive(Debug, Parser)]
#[command(
    name = "efimera",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Arguments {
    /// Act as if started in this directory
    #[arg(short = 'C', long, value_name = "DIR", global = false)]
    pub(crate) directory: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn everything_after_the_command_is_its_own() {
        let parsed = Arguments::try_parse_from([
            "efimera", "run", "--keep", "ls", "-a", "--json", "--", "x",
        ])
        .unwrap();
        let crate::verbs::Verb::Run(run) = parsed.verb else {
            panic!("not a run")
        };
        assert!(run.keep);
        assert!(!run.json);
        assert_eq!(run.command, ["ls", "-a", "--json", "--", "x"]);
    }

    #[test]
    fn two_dashes_force_a_command() {
        let parsed = Arguments::try_parse_from(["efimera", "run", "--", "--odd", "-q"]).unwrap();
        let crate::verbs::Verb::Run(run) = parsed.verb else {
            panic!("not a run")
        };
        assert_eq!(run.command, ["--odd", "-q"]);
    }
}
