//! `--from RESULT`: a fresh machine is given the changes of an earlier result on top of the same baseline, through
//! the same door as `efimera cp`. They count as its own work then: its diff is against the original baseline.

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::ui::Progress;
use crate::verbs::cp::{self, Content};
use base::Name;
use store::Store;
use supervisor::client::Connection;
use supervisor::control::{Command, Note};
use wire::message::{FileKind, Tree};
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
        return Err(hint
            .into_iter()
            .fold(CommandError::new(message), CommandError::hint));
    }
    let total = changes.changes().len() as u64;
    let mut done = 0;
    let mut write = |change: &Change, kind: FileKind, content: Content<'_>| {
        progress.at("putting the earlier changes in place", done, total, false);
        done += 1;
        let (mode, target) = match &change.new {
            Some(node) => (node.mode, node.target.clone()),
            None => (0, Vec::new()),
        };
        cp::write(
            connection,
            Tree::Workspace,
            change.path.as_bytes(),
            kind,
            mode,
            target,
            content,
        )
    };
    // What goes goes first, the deepest first; then directories come before what they hold.
    for change in changes
        .changes()
        .iter()
        .rev()
        .filter(|change| change.new.is_none() || change.is_type_change())
    {
        write(change, FileKind::Whiteout, Content::None)?;
    }
    for change in changes.changes() {
        let Some(node) = &change.new else { continue };
        match (node.kind, node.digest) {
            (Kind::Dir, _) => write(change, FileKind::Dir, Content::None)?,
            (Kind::Symlink, _) => write(change, FileKind::Symlink, Content::None)?,
            (Kind::File, digest) => {
                let same = change.old.as_ref().is_some_and(|old| old.digest == digest);
                let path = digest.filter(|_| !same).map(|digest| blobs.path(&digest));
                match path {
                    Some(path) => write(
                        change,
                        FileKind::File,
                        Content::File(&mut fs_err::File::open(path)?),
                    )?,
                    // Only its mode differs, and its content is in the baseline.
                    None => {
                        let bytes = content_of_baseline(store, from, change)?;
                        write(change, FileKind::File, Content::Bytes(&bytes))?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn content_of_baseline(store: &Store, from: &Name, change: &Change) -> Result<Vec<u8>> {
    let head = pick::named(store, from)?;
    let baseline = workspace::Baseline::load(&store.baseline_dir(&head.spec.baseline))?;
    let entry = baseline
        .entry(&change.path)
        .ok_or_else(|| CommandError::new(format!("`{}` is not in the baseline", change.path)))?;
    Ok(baseline.read(entry)?)
}
