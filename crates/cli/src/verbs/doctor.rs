use crate::context::Context;
use crate::error::Result;
use crate::ui::Tone;
use crate::{accel, setup};
use clap::Args;
use serde_json::{Value, json};

/// Look whether this computer has what a machine needs
///
/// What is there, what is not, how the processor's virtualisation was measured, and for each fault the next
/// command to type. Exit code 0 when machines can start, 1 when not.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    good: bool,
    /// It can be lived with.
    bearable: bool,
    text: String,
    next: Option<String>,
}

pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Result<u8> {
    let findings = [
        qemu(context),
        kernel(context)?,
        base_image(context)?,
        acceleration(context),
        packages(context)?,
    ];
    let well = findings
        .iter()
        .all(|finding| finding.good || finding.bearable);
    if args.json {
        let items: Vec<Value> = findings
            .iter()
            .map(|finding| {
                json!({ "what": finding.what, "ok": finding.good, "bearable": finding.bearable, "text": finding.text, "next": finding.next })
            })
            .collect();
        let factor = accel::factor(context);
        context
            .ui
            .json(&json!({ "ok": well, "findings": items, "emulation_factor": factor }))?;
    } else {
        for finding in &findings {
            let (mark, tone) = match (finding.good, finding.bearable) {
                (true, _) => ("ok   ", Tone::Good),
                (false, true) => ("slow ", Tone::Warn),
                (false, false) => ("fault", Tone::Bad),
            };
            context.ui.line(format!(
                "{} {:<12} {}",
                context.ui.paint_out(tone, mark),
                finding.what,
                finding.text
            ))?;
            if let Some(next) = &finding.next {
                context.ui.line(format!(
                    "{:>20}{}",
                    "",
                    context.ui.paint_out(Tone::Hint, next)
                ))?;
            }
        }
    }
    Ok(u8::from(!well))
}

fn qemu(context: &Context) -> Finding {
    match accel::kept_qemu(&context.dirs.cache) {
        Ok(qemu) => good(
            "qemu",
            format!("{} at {}", qemu.version, qemu.path.display()),
        ),
        Err(error) => fault("qemu", error.to_string(), "efimera setup"),
    }
}

fn kernel(context: &Context) -> Result<Finding> {
    let store = image::Store::open(&context.dirs.data)?;
    let Some(kernel) = store.newest_kernel()? else {
        return Ok(fault(
            "kernel",
            "there is no guest kernel".to_owned(),
            "efimera setup",
        ));
    };
    Ok(match kernel.open(&mut image::Silent) {
        Ok(_) => good(
            "kernel",
            format!(
                "{} from {}",
                kernel.record().release,
                kernel.record().origin
            ),
        ),
        Err(error) => fault("kernel", error.to_string(), "efimera setup"),
    })
}

fn base_image(context: &Context) -> Result<Finding> {
    let store = image::Store::open(&context.dirs.data)?;
    let Some(base) = store.newest_image()? else {
        return Ok(fault(
            "base image",
            "there is no base image".to_owned(),
            "efimera setup",
        ));
    };
    Ok(match base.open(&mut setup::Steps::new(context.ui)) {
        Ok(_) => good(
            "base image",
            format!("{} ({})", base.digest().short(), base.manifest.name),
        ),
        Err(error) => fault("base image", error.to_string(), "efimera image build"),
    })
}

fn acceleration(context: &Context) -> Finding {
    let verdict = accel::measure(context);
    let text = verdict.describe();
    if verdict.is_usable() {
        return good("processor", text);
    }
    let factor = accel::factor(context)
        .map(|factor| format!("; emulation computes {}", accel::slower(factor)));
    Finding {
        what: "processor",
        good: false,
        // Emulation works, unless the user's configuration says that it is not to be used.
        bearable: context.config.machine.accel.as_deref() != Some("kvm"),
        text: format!("{text}{}", factor.unwrap_or_default()),
        next: verdict.cure(),
    }
}

fn packages(context: &Context) -> Result<Finding> {
    let store = image::Store::open(&context.dirs.data)?;
    let plan = setup::missing(context, &store)?;
    let missing: Vec<&str> = plan
        .items
        .iter()
        .filter(|item| matches!(setup::kind(&item.kind), "packages" | "subordinate-ids"))
        .map(|item| item.what.as_str())
        .collect();
    Ok(match missing.as_slice() {
        [] => good(
            "packages",
            "everything that is used of the distribution is there".to_owned(),
        ),
        missing => fault("packages", missing.join("; "), "efimera setup"),
    })
}

fn good(what: &'static str, text: String) -> Finding {
    Finding {
        what,
        good: true,
        bearable: false,
        text,
        next: None,
    }
}

fn fault(what: &'static str, text: String, next: &str) -> Finding {
    Finding {
        what,
        good: false,
        bearable: false,
        text,
        next: Some(next.to_owned()),
    }
}
