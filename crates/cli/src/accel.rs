//! What this computer can accelerate: measured once for each of its boots.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::roles;
use machine::probe::{KeptVerdict, Verdict};
use machine::{Accel, AccelRequest, Qemu};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The verdict of this boot, from the cache or measured now.
pub(crate) fn verdict(context: &Context) -> Verdict {
    let path = context.dirs.cache.join("accel.json");
    let boot_id = machine::probe::boot_id().unwrap_or_default();
    match read::<KeptVerdict>(&path) {
        Some(kept) if !boot_id.is_empty() && kept.holds(&boot_id) => kept.verdict,
        _ => measure(context),
    }
}

/// Measures again, whatever the cache says.
pub(crate) fn measure(context: &Context) -> Verdict {
    let verdict = machine::probe::probe(&roles::command("__probe-kvm"));
    let boot_id = machine::probe::boot_id().unwrap_or_default();
    write(
        &context.dirs.cache.join("accel.json"),
        &KeptVerdict {
            boot_id,
            verdict: verdict.clone(),
        },
    );
    verdict
}

/// Chooses the accelerator.
pub(crate) fn choose(context: &Context, request: &str) -> Result<Accel> {
    let request: AccelRequest = request.parse().map_err(CommandError::usage)?;
    // Emulation needs no measurement.
    if request == AccelRequest::Tcg {
        return Ok(Accel::Tcg);
    }
    let verdict = verdict(context);
    Accel::choose(request, &verdict).map_err(|error| {
        let error = CommandError::from(error);
        verdict.cure().into_iter().fold(error, CommandError::hint)
    })
}

/// QEMU, from the cache while it is the same program, or found now.
pub(crate) fn kept_qemu(cache: &Path) -> Result<Qemu, machine::FindError> {
    let path = cache.join("qemu.json");
    if let Some(kept) = read::<Qemu>(&path).filter(Qemu::is_current) {
        return Ok(kept);
    }
    let found = machine::find(None)?;
    write(&path, &found);
    Ok(found)
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

/// A cache that can't be written costs a measurement next time, and nothing else.
fn write<T: Serialize>(path: &Path, value: &T) {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return;
    };
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), fs_err::create_dir_all)
        .and_then(|()| fs_err::write(&temporary, bytes))
        .and_then(|()| fs_err::rename(&temporary, path));
    if written.is_err() {
        drop(fs_err::remove_file(&temporary));
    }
}

/// The line that says that a machine is emulated, and what that costs. Why it is, `doctor` says.
pub(crate) fn emulation_line(context: &Context) -> String {
    let slower = factor(context).map_or("slower than this computer".to_owned(), slower);
    format!("No usable hardware virtualisation: emulated, {slower} (`efimera doctor` says why).")
}

/// What a factor means, for a person.
pub(crate) fn slower(factor: u64) -> String {
    match factor {
        0 | 1 => "about as fast as this computer".to_owned(),
        _ => format!("about {factor} times slower than this computer"),
    }
}

/// How much slower the emulator is, as set-up measured it on this boot or an earlier one.
pub(crate) fn factor(context: &Context) -> Option<u64> {
    read::<u64>(&context.dirs.cache.join("factor.json"))
}

/// Keeps what was measured.
pub(crate) fn keep_factor(context: &Context, factor: u64) {
    write(&context.dirs.cache.join("factor.json"), &factor);
}
