//! What a machine is made of, found on this computer, or set up now.

use super::wish::MachineWish;
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::{accel, setup};
use base::Digest;
use machine::Accel;

/// Processors of a machine unless said otherwise: agents and builds gain little from more, and the computer stays
/// usable.
const MAX_CPUS: usize = 4;
/// Emulated processors cost each other: a boot takes a fifth longer with two than with one, and 200 times fork and
/// exec a third, so there is one where the computer has no more than two.
const MAX_EMULATED_CPUS: usize = 2;

/// Everything that is there before a machine can start.
#[derive(Debug)]
pub(crate) struct Ingredients {
    pub(crate) image: Digest,
    pub(crate) kernel: String,
    pub(crate) accel: Accel,
    pub(crate) cpus: u32,
}

pub(crate) fn find(context: &Context, wish: &MachineWish, yes: bool) -> Result<Ingredients> {
    let images = image::Store::open(&context.dirs.data)?;
    setup::ensure(context, &images, yes)?;
    let chosen = match &wish.image {
        Some(name) => images.image(name).map_err(|error| {
            CommandError::from(error).hint("`efimera image ls` lists the images")
        })?,
        None => images.newest_image()?.ok_or_else(|| {
            CommandError::new("There is no base image").hint("`efimera setup` builds one")
        })?,
    };
    // Checked here, where there is somebody to tell, and not first in the supervisor.
    let mut progress = setup::Steps::new(context.ui);
    drop(chosen.open(&mut progress)?);
    let kernel = images.newest_kernel()?.ok_or_else(|| {
        CommandError::new("There is no guest kernel").hint("`efimera setup` fetches one")
    })?;
    drop(kernel.open(&mut progress)?);
    drop(progress);
    let accel = accel::choose(context, &wish.accel)?;
    Ok(Ingredients {
        image: chosen.digest(),
        kernel: kernel.record().id.clone(),
        accel,
        cpus: wish.cpus.unwrap_or_else(|| default_cpus(accel)),
    })
}

fn default_cpus(accel: Accel) -> u32 {
    let have = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpus = match accel {
        Accel::Kvm => have.min(MAX_CPUS),
        Accel::Tcg => (have / 2).clamp(1, MAX_EMULATED_CPUS),
    };
    u32::try_from(cpus).unwrap_or(1)
}
