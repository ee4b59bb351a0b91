//! Which sandbox or result a person means: the one they named, or the obvious one of the directory they are in.

use crate::context::Context;
use crate::error::{CommandError, Result};
use base::Name;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::{Completeness, Dirs, Lock, ResultHead, Store};
use supervisor::client;
use supervisor::control::{Command, Note};
use workspace::ChangeSet;

/// Opens the store.
pub(crate) fn store(context: &Context) -> Result<Store> {
    let dirs = &context.dirs;
    Ok(Store::open(Dirs {
        data: dirs.data.clone(),
        cache: dirs.cache.clone(),
        run: dirs.run.clone(),
    })?)
}

/// Removes the baselines and templates that nothing needs any more. Should it fail, they only take room.
pub(crate) fn tidy_up(context: &Context, store: &Store) {
    template::Store::open(&context.dirs.data)
        .and_then(|templates| templates.collect_garbage())
        .ok();
    if let Ok(remembered) = workspace::remembered(&context.dirs.cache, REMEMBERED_DAYS) {
        store.collect_garbage(&remembered).ok();
    }
}

/// A workspace that was not run in for so long is packed anew the next time.
const REMEMBERED_DAYS: u64 = 30;

/// The result of that name.
pub(crate) fn named(store: &Store, name: &Name) -> Result<ResultHead> {
    store.settled_result(name).map_err(|error| {
        let missing = matches!(error, store::StoreError::NoResult(_));
        let error = CommandError::from(error);
        if missing {
            error.hint("`efimera results` lists the results")
        } else {
            error
        }
    })
}

/// The lock of a sandbox that doesn't run.
pub(crate) fn stopped(store: &Store, name: &Name) -> Result<Lock> {
    let locked = store.heal(name).and_then(|_| store.lock(name));
    locked.map_err(|error| {
        let missing = matches!(error, store::StoreError::NoSandbox(_));
        let error = CommandError::from(error);
        match missing {
            true if store.result(name).is_ok() => error.hint(format!(
                "its result is there: `efimera diff {name}`, `efimera discard {name}`"
            )),
            true => error.hint("`efimera ls --all` lists the sandboxes"),
            false => error,
        }
    })
}

/// The newest result of the current directory, for looking at.
pub(crate) fn newest(context: &Context, store: &Store) -> Result<ResultHead> {
    here(context, store)?
        .into_iter()
        .next()
        .ok_or_else(|| nothing_here(context))
}

/// The one result of the current directory that waits to be decided on.
pub(crate) fn only_waiting(context: &Context, store: &Store, verb: &str) -> Result<ResultHead> {
    let mut waiting = Vec::new();
    for head in here(context, store)? {
        if is_waiting(store, &head)? {
            waiting.push(head);
        }
    }
    match waiting.len() {
        0 => Err(nothing_here(context)),
        1 => Ok(waiting.remove(0)),
        count => {
            let names: Vec<&str> = waiting.iter().map(|head| head.spec.name.as_str()).collect();
            Err(CommandError::usage(format!(
                "{count} results of this directory wait: {}",
                names.join(", ")
            ))
            .hint(format!("say which: `efimera {verb} {}`", names[0])))
        }
    }
}

/// A result that holds something and was not taken over yet.
pub(crate) fn is_waiting(store: &Store, head: &ResultHead) -> Result<bool> {
    Ok(head.applied.is_none()
        && (!head.commits.is_empty() || !changes(store, &head.spec.name)?.is_empty()))
}

/// Has a running sandbox save what it has now, so that what is looked at is not its last checkpoint.
pub(crate) fn refresh(context: &Context, store: &Store, name: &Name) {
    if !store.is_alive(name).unwrap_or(false) {
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    let asked = client::connect(store, name)
        .and_then(|mut connection| connection.ask(&Command::Checkpoint, Some(deadline)));
    if !matches!(asked, Ok(Note::Saved)) && store.is_alive(name).unwrap_or(false) {
        context.ui.warn(format!(
            "{name} did not save what it has now; this is its last checkpoint"
        ));
    }
}

/// How long a running sandbox may take to save what it has.
const PATIENCE: Duration = Duration::from_mins(1);

/// A result's change set; empty before its first checkpoint.
pub(crate) fn changes(store: &Store, name: &Name) -> Result<ChangeSet> {
    let path = store.result_dir(name).changes();
    match fs_err::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            CommandError::new(format!(
                "The change set `{}` can't be read: {error}",
                path.display()
            ))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ChangeSet::default()),
        Err(error) => Err(error.into()),
    }
}

/// How a result's state reads in a listing.
pub(crate) fn completeness(head: &ResultHead) -> &'static str {
    match head.completeness {
        Completeness::Running => "running",
        Completeness::Complete if head.applied.is_some() => "applied",
        Completeness::Complete => "complete",
        Completeness::Checkpoint => "checkpoint",
        Completeness::Nothing => "nothing",
    }
}

/// The results whose workspace holds the current directory, the newest first.
fn here(context: &Context, store: &Store) -> Result<Vec<ResultHead>> {
    let cwd = current(context);
    let mut heads = store.results()?.heads;
    heads.retain(|head| cwd.starts_with(&head.spec.workspace));
    Ok(heads)
}

fn nothing_here(context: &Context) -> CommandError {
    CommandError::new(format!(
        "No result of `{}` waits",
        current(context).display()
    ))
    .hint("`efimera results -a` lists those of every directory")
}

/// The current directory without links, as workspaces are recorded.
pub(crate) fn current(context: &Context) -> PathBuf {
    fs_err::canonicalize(&context.cwd).unwrap_or_else(|_| context.cwd.clone())
}
