//! The workspace, from the user's directory to a baseline, with what a person has to know about it.

use super::Wish;
use super::wish::WorkspaceWish;
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::ui::{Progress, Ui};
use base::RelPath;
use std::path::Path;
use store::Store;
use workspace::{
    Baseline, CollectError, CollectOptions, Collected, DEFAULT_MAX_FILE_SIZE, DEFAULT_MAX_FILES,
    DEFAULT_MAX_TOTAL_SIZE, History, PackOptions,
};

/// What a machine is given to work on.
pub(crate) struct Packed {
    pub(crate) baseline: Baseline,
    pub(crate) cwd: RelPath,
    /// It was written now.
    pub(crate) is_new: bool,
}

pub(crate) fn pack(context: &Context, store: &Store, wish: &Wish) -> Result<Packed> {
    if let Some(from) = &wish.from {
        let head = pick::named(store, from)?;
        let baseline = Baseline::load(&store.baseline_dir(&head.spec.baseline))?;
        let cwd = head.spec.cwd.clone();
        return Ok(Packed {
            baseline,
            cwd,
            is_new: false,
        });
    }
    let mut progress = Progress::new(context.ui);
    progress.at("looking at the workspace", 0, 0, false);
    let collected =
        workspace::collect(&collect_options(context, &wish.workspace)?).map_err(with_next_step)?;
    warn(context.ui, &collected);
    let options = PackOptions {
        baselines: store.baselines_dir(),
        cache: context.dirs.cache.clone(),
        owner: {
            let user = super::guest_user(context);
            (user.uid, user.gid)
        },
    };
    let mut is_new = false;
    let baseline = workspace::pack(&collected, &options, &mut |far| {
        is_new = true;
        if far.waits_for_git {
            progress.at("packing the git history", 0, 0, false);
        } else {
            progress.at("copying the workspace", far.bytes, far.bytes_total, true);
        }
    })?;
    progress.end();
    Ok(Packed {
        baseline,
        cwd: collected.cwd,
        is_new,
    })
}

fn collect_options(context: &Context, wish: &WorkspaceWish) -> Result<CollectOptions> {
    let directory = wish.directory.clone();
    Ok(CollectOptions {
        only: wish
            .only
            .as_deref()
            .map(|path| below_root(&directory, path))
            .transpose()?,
        directory,
        include: wish.include.clone(),
        exclude: wish.exclude.clone(),
        skip_unreadable: wish.skip_unreadable,
        history: match wish.history.as_str() {
            "auto" => History::Auto,
            "full" => History::Full,
            "shallow" => History::Shallow,
            "none" => History::None,
            other => {
                return Err(CommandError::usage(format!(
                    "`workspace.history` is `auto`, `full`, `shallow` or `none`, not `{other}`"
                )));
            }
        },
        allow_unusual: wish.allow_unusual,
        git_program: None,
        home: Some(context.home.clone()),
        max_file_size: DEFAULT_MAX_FILE_SIZE,
        max_total_size: DEFAULT_MAX_TOTAL_SIZE,
        max_files: DEFAULT_MAX_FILES,
        scratch: context.dirs.cache.clone(),
    })
}

/// What to type next when a workspace can't go in as it is.
fn with_next_step(error: CollectError) -> CommandError {
    let hint = match &error {
        CollectError::Unusual { .. } | CollectError::NotYours { .. } => {
            Some("if it is meant: `--allow-unusual`; a part of it: `--only PATH`, or `-C DIR`")
        }
        CollectError::Unreadable { .. } => Some("`--skip-unreadable` leaves them out"),
        CollectError::TooLarge { .. }
        | CollectError::TooMuch { .. }
        | CollectError::TooMany { .. } => {
            Some("`--exclude GLOB` leaves files out, `--only PATH` takes a part of the workspace")
        }
        CollectError::Git(_) => {
            Some("`--history none` takes the files without their git directory")
        }
        _ => None,
    };
    hint.into_iter().fold(error.into(), CommandError::hint)
}

/// `--only PATH`, as typed, relative to the workspace's root.
fn below_root(directory: &Path, path: &Path) -> Result<RelPath> {
    let here = fs_err::canonicalize(directory)?;
    let wanted = fs_err::canonicalize(here.join(path)).map_err(|error| {
        CommandError::usage(format!("There is no `{}` to take in", path.display())).because(&error)
    })?;
    let root = here
        .ancestors()
        .find(|ancestor| ancestor.join(".git").exists())
        .unwrap_or(&here);
    let below = wanted.strip_prefix(root).map_err(|_| {
        CommandError::usage(format!(
            "`{}` is not in the workspace `{}`",
            path.display(),
            root.display()
        ))
    })?;
    if below.as_os_str().is_empty() {
        return Ok(RelPath::root());
    }
    Ok(RelPath::try_from(below)?)
}

/// What goes in that its owner may not expect to.
fn warn(ui: Ui, collected: &Collected) {
    if !collected.tracked_secrets.is_empty() {
        ui.warn(format!(
            "Tracked in git, so they go in, though they look like secrets: {}",
            some(&collected.tracked_secrets)
        ));
        ui.hint("--exclude GLOB leaves a file out (its history stays in; `--history none` leaves that out too)");
    }
    if !collected.left_out.unreadable.is_empty() {
        ui.warn(format!(
            "Left out, since they can't be read: {}",
            some(&collected.left_out.unreadable)
        ));
    }
    if !collected.left_out.special.is_empty() {
        ui.warn(format!(
            "Left out, being no files: {}",
            some(&collected.left_out.special)
        ));
    }
}

/// The first few of a list of paths.
pub(crate) fn some(paths: &[RelPath]) -> String {
    let shown: Vec<String> = paths.iter().take(4).map(ToString::to_string).collect();
    let more = paths.len().saturating_sub(shown.len());
    if more == 0 {
        shown.join(", ")
    } else {
        format!("{} and {more} more", shown.join(", "))
    }
}
