//! `--from RESULT`: a fresh machine is given the changes of an earlier result on top of the same baseline, through
//! the same door as `efimera cp`. They count as its own work then: its diff is against the original baseline.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::machine_files::{self, MachinePath, New};
use crate::pick;
use crate::ui::Progress;
use base::Name;
use std::io::{Cursor, Read};
use store::Store;
use supervisor::client::Connection;
use supervisor::control::{Command, Note};
use workspace::{BlobDir, Change, Kind};

pub(crate) fn replay(
    context: &Context,
    store: &Store,
    from: &Name,
    connection: &mut Connection,
) -> Result {
    let changes = pick::changes(store, from)?;
    let blobs = BlobDir::open(store.result_dir(from).blobs())?;
    let mut progress = Progress::new(context.ui);
    progress.at("starting the machine", 0, 0, false);
    if let Note::Failed { message, hint } = connection.ask(&Command::Ready, None)? {
        return Err(CommandError::told(message, hint));
    }
    let total = changes.changes().len() as u64;
    let mut done = 0;
    let mut write = |change: &Change, new: New<'_>| {
        progress.at("putting the earlier changes in place", done, total, false);
        done += 1;
        machine_files::write(connection, &MachinePath::of_workspace(&change.path), new)
    };
    // What goes goes first, the deepest first; then directories come before what they hold.
    for change in changes
        .changes()
        .iter()
        .rev()
        .filter(|change| change.new.is_none() || change.is_type_change())
    {
        write(change, New::Nothing)?;
    }
    for change in changes.changes() {
        let Some(node) = &change.new else { continue };
        let mode = node.mode;
        match (node.kind, node.digest) {
            (Kind::Dir, _) => write(change, New::Dir { mode })?,
            (Kind::Symlink, _) => write(
                change,
                New::Symlink {
                    target: node.target.clone(),
                },
            )?,
            (Kind::File, digest) => {
                let same = change.old.as_ref().is_some_and(|old| old.digest == digest);
                let path = digest.filter(|_| !same).map(|digest| blobs.path(&digest));
                let mut content: Box<dyn Read> = match path {
                    Some(path) => Box::new(fs_err::File::open(path)?),
                    // Only its mode differs, and its content is in the baseline.
                    None => Box::new(Cursor::new(content_of_baseline(store, from, change)?)),
                };
                let content = &mut content;
                write(change, New::File { mode, content })?;
            }
        }
    }
    Ok(())
}

fn content_of_baseline(store: &Store, from: &Name, change: &Change) -> Result<Vec<u8>> {
    let head = pick::named(store, from)?;
    let baseline = workspace::Baseline::load(&store.baseline_dir(&head.spec.baseline))?;
    let entry = baseline
        .entry(&change.path)?
        .ok_or_else(|| CommandError::new(format!("`{}` is not in the baseline", change.path)))?;
    Ok(baseline.read(&entry)?)
}
