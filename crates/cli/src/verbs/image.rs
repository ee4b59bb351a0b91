use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::setup::{self, Steps};
use crate::start;
use crate::table::{ago, table};
use clap::{Args, Subcommand};
use image::{DebianOptions, HostFacts, Store};
use std::path::PathBuf;

/// List, build and remove base images
#[derive(Debug, Subcommand)]
pub(crate) enum ImageVerb {
    Ls(LsArgs),
    Build(BuildArgs),
    Inspect(InspectArgs),
    Rm(RmArgs),
}

/// List the base images, the newest first
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Build the base image anew
///
/// From this computer's own package sources, or from a root filesystem that is given. The newest image is the one
/// that `efimera run` takes; a template of it is made at once, where a machine can be booted.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// From this tar of a root filesystem (`-`: standard input)
    #[arg(long, value_name = "TAR")]
    from_tar: Option<PathBuf>,
    /// More packages (repeatable)
    #[arg(long = "package", value_name = "NAME", conflicts_with = "from_tar")]
    packages: Vec<String>,
}

/// Show an image's manifest: packages, sources, builder
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Digest, or the first digits of it (default: the newest)
    digest: Option<String>,
}

/// Remove images
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Digests, or the first digits of them (repeatable)
    #[arg(required = true)]
    digests: Vec<String>,
}

pub(crate) fn run(context: &Context, verb: ImageVerb) -> Result<u8> {
    let store = Store::open(&context.dirs.data)?;
    match verb {
        ImageVerb::Ls(args) => ls(context, &store, &args),
        ImageVerb::Build(args) => build(context, &store, args),
        ImageVerb::Inspect(args) => inspect(context, &store, &args),
        ImageVerb::Rm(args) => {
            for digest in &args.digests {
                let image = store.image(digest)?;
                store.remove_image(&image)?;
                context.ui.line(image.digest().to_string())?;
            }
            Ok(0)
        }
    }
}

fn ls(context: &Context, store: &Store, args: &LsArgs) -> Result<u8> {
    for (path, error) in store.faulty()? {
        context
            .ui
            .warn(format!("`{}` can't be used: {error}", path.display()));
    }
    let images = store.images()?;
    if args.json {
        let items: Result<Vec<_>, _> = images
            .iter()
            .map(|image| {
                let mut value = serde_json::to_value(&image.manifest)?;
                if let Some(packages) = value
                    .get("packages")
                    .and_then(|packages| packages.as_array())
                    .map(Vec::len)
                {
                    value["packages"] = packages.into();
                }
                Ok::<_, serde_json::Error>(value)
            })
            .collect();
        context.ui.json(&items?.into())?;
        return Ok(0);
    }
    let rows: Vec<_> = images
        .iter()
        .map(|image| {
            let manifest = &image.manifest;
            vec![
                manifest.digest.short(),
                base::escape(manifest.name.as_bytes()),
                manifest.size.to_string(),
                manifest.packages.len().to_string(),
                ago(i64::try_from(manifest.created).unwrap_or(i64::MAX)),
            ]
        })
        .collect();
    context.ui.out(table(
        &["DIGEST", "NAME", "SIZE", "PACKAGES", "CREATED"],
        &rows,
    ))?;
    Ok(0)
}

fn build(context: &Context, store: &Store, args: BuildArgs) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let mut steps = Steps::new(context.ui);
    let image = match args.from_tar {
        Some(path) if path.as_os_str() == "-" => image::import_tar(
            store,
            std::io::stdin().lock(),
            "standard input",
            version,
            &mut steps,
        )?,
        Some(path) => {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            image::import_tar(
                store,
                fs_err::File::open(&path)?,
                &name,
                version,
                &mut steps,
            )?
        }
        None => {
            let options = DebianOptions {
                environment: setup::environment(),
                sources: None,
                temporary: PathBuf::from("/var/tmp"),
                extra_packages: args.packages,
                efimera: version.to_owned(),
            };
            image::build_debian(store, &HostFacts::read(), &options, &mut steps)?
        }
    };
    drop(steps);
    start::make_usual_template(context)?;
    context.ui.line(image.digest().to_string())?;
    Ok(0)
}

fn inspect(context: &Context, store: &Store, args: &InspectArgs) -> Result<u8> {
    let image = match &args.digest {
        Some(digest) => store.image(digest)?,
        None => store.newest_image()?.ok_or_else(|| {
            CommandError::new("There is no base image").hint("`efimera setup` builds one")
        })?,
    };
    context.ui.json(&serde_json::to_value(&image.manifest)?)?;
    Ok(0)
}
