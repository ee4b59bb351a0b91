use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::table::{self, count};
use base::{Digest, Name};
use clap::Args;
use std::path::{Path, PathBuf};
use store::{Completeness, ResultHead};
use workspace::{BlobDir, ChangeSet, PlanError};

/// Take a result over into the repository: all of it, or nothing
///
/// Each file is written only where this computer still has what the machine was given; if anything moved on, all
/// conflicts are listed and nothing is changed. Links are never followed, git directories never touched. Without a
/// name, the one result of this directory that waits.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// A result
    name: Option<Name>,
    /// Apply only if the change set has this digest (see `efimera diff --json`)
    #[arg(long, value_name = "DIGEST")]
    digest: Option<Digest>,
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Into this directory instead of the one that the machine was given
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, args: &ApplyArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let head = match &args.name {
        Some(name) => pick::named(&store, name)?,
        None => pick::only_waiting(context, &store, "apply")?,
    };
    let name = &head.spec.name;
    if head.completeness == Completeness::Running {
        return Err(
            CommandError::new(format!("The sandbox {name} still runs")).hint(format!(
                "`efimera stop {name}` ends it, `efimera wait {name}` waits for it"
            )),
        );
    }
    let changes = pick::changes(&store, name)?;
    let digest = changes.digest();
    if args.digest.is_some_and(|wanted| wanted != digest) {
        return Err(CommandError::new(format!(
            "The change set of {name} is {digest}, not the one you looked at"
        ))
        .hint(format!("look at it again: `efimera diff {name}`")));
    }
    let root = args
        .to
        .clone()
        .unwrap_or_else(|| head.spec.workspace.clone());
    let journal = journal(context, &root)?;
    // An apply that a crash cut short is put back first.
    if workspace::recover(&journal)? {
        context.ui.warn(
            "An earlier apply was cut short; the repository was put back as it was before it",
        );
    }
    let plan = workspace::plan(&changes, &root).map_err(conflicts)?;
    let todo = plan.todo().len() as u64;
    let already = plan.already().len() as u64;
    if args.dry_run && args.json {
        let paths = plan.todo().iter().map(|change| change.path.to_string());
        context.ui.json(&serde_json::json!({
            "name": name,
            "digest": digest,
            "would_change": paths.collect::<Vec<_>>(),
            "already": already,
        }))?;
        return Ok(0);
    }
    if args.dry_run {
        for change in plan.todo() {
            context.ui.line(change.path.to_string())?;
        }
        context.ui.say(format!(
            "{} would change; nothing was done.",
            count(todo, "path", "paths")
        ));
        return Ok(0);
    }
    let done = ChangeSet::new(plan.todo().to_vec()).map(|set| table::changes(&set.stat()));
    let blobs = BlobDir::open(store.result_dir(name).blobs())?;
    let operation = plan.apply(&blobs, &journal)?;
    store.mark_applied(name, jiff::Timestamp::now().as_second())?;
    if args.json {
        context.ui.json(&serde_json::json!({
            "name": name,
            "digest": digest,
            "changed": todo,
            "already": operation.already,
            "kept": operation.kept,
        }))?;
        return Ok(0);
    }
    if todo == 0 && already == 0 {
        context.ui.say(format!("{name} changes nothing."));
    } else {
        context.ui.say(format!(
            "{name}: {} in {}.",
            done.unwrap_or_else(|_| count(todo, "path changed", "paths changed")),
            root.display()
        ));
    }
    if already > 0 {
        context.ui.say(format!(
            "{} already had what the result has.",
            count(already, "path", "paths")
        ));
    }
    for kept in &operation.kept {
        context.ui.say(format!(
            "Kept the directory {kept}: it holds files that the machine never had."
        ));
    }
    torn(context, &head, &changes);
    Ok(0)
}

/// One journal for each directory, so that an operation that was cut short is found again.
fn journal(context: &Context, root: &Path) -> Result<PathBuf> {
    let real = fs_err::canonicalize(root)?;
    let dir = context.dirs.data.join("operations");
    fs_err::create_dir_all(&dir)?;
    Ok(dir.join(Digest::of(real.as_os_str().as_encoded_bytes()).hex()))
}

fn conflicts(error: PlanError) -> CommandError {
    let PlanError::Conflicts(list) = error else {
        return error.into();
    };
    let message = PlanError::Conflicts(list.clone()).to_string();
    let mut error = CommandError::new(format!(
        "Nothing was applied: {}{}",
        message[..1].to_lowercase(),
        &message[1..]
    ));
    error.causes = list.iter().map(ToString::to_string).collect();
    error.hint("`efimera diff` shows the result; `efimera diff | git apply --3way` merges by hand")
}

fn torn(context: &Context, head: &ResultHead, changes: &workspace::ChangeSet) {
    let torn: Vec<String> = changes
        .changes()
        .iter()
        .filter(|change| change.torn)
        .map(|change| change.path.to_string())
        .collect();
    if !torn.is_empty() {
        context.ui.warn(format!(
            "In {} these changed while they were saved, look at them: {}",
            head.spec.name,
            torn.join(", ")
        ));
    }
}
