use crate::context::Context;
use crate::error::Result;
use clap::Args;

/// Copy files into or out of a sandbox, or out of a result
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Where from: PATH, or NAME:PATH
    source: String,
    /// Where to: PATH, or NAME:PATH
    target: String,
}

pub(crate) fn run(_context: &Context, _args: &CpArgs) -> Result<u8> {
    Err(crate::error::CommandError::new("Not there yet"))
}
