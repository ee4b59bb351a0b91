use crate::arguments::Arguments;
use crate::error::Result;
use clap::{Args, CommandFactory as _};
use std::path::PathBuf;

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to
    pub(crate) directory: PathBuf,
}

pub(crate) fn run(args: &ManArgs) -> Result<u8> {
    fs_err::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(Arguments::command(), &args.directory)?;
    Ok(0)
}
