//! The template that a machine starts from: found, or made now.

use super::ingredients::{self, Ingredients};
use super::wish::MachineWish;
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::ui::Progress;
use crate::verbs::run::MachineArgs;
use crate::{accel, roles, setup};
use base::Size;
use template::{Recipe, Store};

/// The key of the template for such a machine, which is there when this returns. `None` when there can't be one: the
/// machine boots then, which takes longer and is otherwise the same.
pub(crate) fn ensure(
    context: &Context,
    ingredients: &Ingredients,
    wish: &MachineWish,
) -> Option<String> {
    match make(context, ingredients, wish.memory, wish.disk) {
        Ok(key) => Some(key),
        Err(error) => {
            context.ui.warn(format!(
                "There is no template to start from, so the machine boots: {}",
                error.with_causes()
            ));
            None
        }
    }
}

/// Makes the template of a machine without any options, if all that it needs is there: after `setup` and
/// `image build`, so that the first run finds it.
pub(crate) fn make_usual(context: &Context) -> Result {
    let images = image::Store::open(&context.dirs.data)?;
    if images.newest_kernel()?.is_none() || accel::kept_qemu(&context.dirs.cache).is_err() {
        return Ok(());
    }
    let wish = MachineWish::of(context, MachineArgs::default())?;
    let ingredients = ingredients::find(context, &wish, false)?;
    ensure(context, &ingredients, &wish);
    Ok(())
}

/// Finds the template, or makes it.
pub(crate) fn make(
    context: &Context,
    ingredients: &Ingredients,
    memory: Size,
    disk: Size,
) -> Result<String> {
    let images = image::Store::open(&context.dirs.data)?;
    let qemu = accel::kept_qemu(&context.dirs.cache)?;
    let recipe = Recipe {
        qemu: &qemu,
        accel: ingredients.accel,
        cpus: ingredients.cpus,
        memory,
        image: &images.image(&ingredients.image.to_string())?,
        kernel: &images.kernel(&ingredients.kernel)?,
        scratch: &images.scratch(disk, &setup::environment())?,
        workspace: workspace::DISK_SIZE,
        network: false,
    };
    let key = recipe.key()?;
    let store = Store::open(&context.dirs.data)?;
    match store.find(&key) {
        Ok(Some(_)) => return Ok(key.to_string()),
        Ok(None) => {}
        Err(error) => context.ui.say(format!(
            "The template is made anew: {}",
            CommandError::from(error).with_causes()
        )),
    }
    let mut progress = Progress::new(context.ui);
    let role = roles::command("__vmm");
    let mut made = false;
    template::make(&store, &recipe, &role, &mut |step| {
        let text = match step {
            template::Step::Waiting => "waiting for another run, which makes the same template",
            template::Step::Booting => "booting the machine that all later ones start from",
            template::Step::Warming => "warming it",
            template::Step::Saving => "freezing it",
        };
        made |= step == template::Step::Saving;
        progress.begin(text);
    })?;
    progress.end();
    if made {
        context.ui.say(
            "A template was made: machines of this size start from it now, instead of booting.",
        );
    }
    // What older images and other sizes left; should it fail, it only takes room.
    store.collect_garbage().ok();
    Ok(key.to_string())
}
