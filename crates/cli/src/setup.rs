//! What a computer needs before a machine can start: found out, said, agreed to, and done.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::ui::{self, Tone, Ui};
use image::{Environment, HostFacts, ItemKind, Plan, PlanOptions, Step, Unit};
use std::path::PathBuf;

/// What the command line may say about it.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) kernel: Option<PathBuf>,
    pub(crate) modules: Option<PathBuf>,
    pub(crate) tar: Option<PathBuf>,
}

/// Progress of `image`, on the terminal.
pub(crate) struct Steps(ui::Progress);

impl Steps {
    pub(crate) fn new(ui: Ui) -> Self {
        Self(ui::Progress::new(ui))
    }
}

impl image::Progress for Steps {
    fn step(&mut self, step: Step<'_>) {
        self.0.at(
            step.what,
            step.done,
            step.total.unwrap_or(0),
            step.unit == Unit::Bytes,
        );
    }
}

/// Sets up what is missing for a run, if there is anything: asks, or does it unasked with `yes`, or says what to type.
pub(crate) fn ensure(context: &Context, store: &image::Store, yes: bool) -> Result {
    // The usual case, without looking at the distribution.
    let there = store.newest_image()?.is_some() && store.newest_kernel()?.is_some();
    if there && crate::accel::kept_qemu(&context.dirs.cache).is_ok() {
        return Ok(());
    }
    run(context, store, Given::default(), yes)
}

/// Plans, asks once, and does it.
pub(crate) fn run(context: &Context, store: &image::Store, given: Given, yes: bool) -> Result {
    let ui = context.ui;
    let host = HostFacts::read();
    let options = options(context, given);
    let plan = image::plan(&host, store, &options)?;
    if plan.is_empty() {
        return Ok(());
    }
    tell(ui, &plan);
    if !plan.proven {
        ui.warn("Setting up this distribution was never run for real by us; look at the commands");
    }
    if !yes {
        if !ui.can_ask() {
            return Err(CommandError::new(
                "Something that a machine needs is missing, and nothing was installed",
            )
            .hint("`efimera setup --yes` does all of this"));
        }
        if !ui.ask("Go on?") {
            return Err(CommandError::new("Nothing was installed"));
        }
    }
    let mut steps = Steps::new(ui);
    image::execute(&plan, &host, store, &options, &mut steps)?;
    Ok(())
}

pub(crate) fn options(context: &Context, given: Given) -> PlanOptions {
    PlanOptions {
        environment: environment(),
        kernel: given.kernel.map(|vmlinuz| image::GivenKernel {
            vmlinuz,
            modules: given.modules,
        }),
        tar: given.tar,
        sources: None,
        temporary: PathBuf::from("/var/tmp"),
        may_ask: context.ui.can_ask(),
        efimera: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// What package clients need of the user's environment to reach their servers: proxies and certificates.
pub(crate) fn environment() -> Environment {
    const PASSED: [&str; 10] = [
        "http_proxy",
        "https_proxy",
        "ftp_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "APT_CONFIG",
    ];
    Environment::new(
        PASSED
            .iter()
            .filter_map(|name| Some(((*name).into(), Context::variable(name)?))),
    )
}

/// The plan: items, megabytes, minutes.
fn tell(ui: Ui, plan: &Plan) {
    ui.say("A machine needs these, which are missing here:");
    for item in &plan.items {
        let root = if item.needs_root { " (as root)" } else { "" };
        ui.say(format!(
            "  {}{root}",
            ui.paint_err(Tone::Strong, &item.what)
        ));
        ui.say(format!("    for {}", item.why));
        for command in &item.commands {
            ui.say(format!(
                "    {}",
                ui.paint_err(Tone::Hint, &command.join(" "))
            ));
        }
    }
    let count = plan.items.len() as u64;
    ui.say(format!(
        "{}, about {} to download, about {}.",
        crate::table::count(count, "item", "items"),
        plan.download(),
        minutes(plan.seconds()),
    ));
}

fn minutes(seconds: u32) -> String {
    match seconds {
        0..90 => "a minute".to_owned(),
        _ => format!("{} minutes", seconds.div_ceil(60)),
    }
}

/// What is missing, for `doctor`.
pub(crate) fn missing(context: &Context, store: &image::Store) -> Result<Plan> {
    Ok(image::plan(
        &HostFacts::read(),
        store,
        &options(context, Given::default()),
    )?)
}

/// The kinds by name, for JSON.
pub(crate) fn kind(kind: &ItemKind) -> &'static str {
    match kind {
        ItemKind::Packages => "packages",
        ItemKind::SubordinateIds => "subordinate-ids",
        ItemKind::Kernel => "kernel",
        ItemKind::Image => "image",
    }
}
