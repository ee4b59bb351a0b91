//! `efimera`: one command gives a coding agent a disposable Linux machine.

mod accel;
mod arguments;
mod config;
mod context;
mod error;
mod keys;
mod launcher;
mod machine_files;
mod pick;
mod receipt;
mod roles;
mod session;
mod setup;
mod start;
mod surroundings;
mod table;
mod terminal;
mod ui;
mod verbs;

use crate::arguments::Arguments;
use crate::context::Context;
use crate::error::exit;
use crate::ui::Ui;
use clap::Parser as _;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(role) = roles::Role::of(&words) {
        return role.play();
    }
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are data; a usage error is talk. clap knows which is which.
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let context = Context::from_environment(arguments.directory.as_deref());
    let ui = context
        .as_ref()
        .map_or_else(|_| Ui::new(true, true), |context| context.ui);
    match context.and_then(|context| verbs::run(context, arguments.verb)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            ui.error(&error);
            ExitCode::from(error.exit)
        }
    }
}
