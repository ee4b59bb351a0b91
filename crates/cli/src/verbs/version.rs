use crate::context::Context;
use crate::error::Result;
use clap::Args;

/// Print the version
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// As JSON, with the versions of the protocol and the records
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &VersionArgs) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        context.ui.json(&serde_json::json!({
            "version": version,
            "protocol": wire::VERSION,
            "records": store::VERSION,
        }))?;
    } else {
        context.ui.line(format!("efimera {version}"))?;
    }
    Ok(0)
}
