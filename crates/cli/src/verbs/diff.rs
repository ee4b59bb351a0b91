use crate::context::Context;
use crate::error::Result;
use crate::pick;
use crate::ui::Tone;
use base::{Name, RelPath};
use clap::Args;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use store::{ResultHead, Store};
use workspace::{Baseline, BlobDir, ChangeSet, ObjectFormat, ResultSides, Status, Style, Summary};

/// Show what a result changes
///
/// Against the baseline: what went into the machine. On a terminal with colours, a pager, and every invisible
/// character shown; in a pipe a patch that `git apply` takes. Without a name, the newest result of this directory.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// A result
    name: Option<Name>,
    /// Files and numbers of lines only
    #[arg(long)]
    stat: bool,
    /// As JSON
    #[arg(long, conflicts_with = "stat")]
    json: bool,
    /// The names of changed files only
    #[arg(long, conflicts_with_all = ["stat", "json"])]
    name_only: bool,
    /// Without a pager
    #[arg(long)]
    no_pager: bool,
}

pub(crate) fn run(context: &Context, args: &DiffArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let head = match &args.name {
        Some(name) => pick::named(&store, name)?,
        None => {
            let head = pick::newest(context, &store)?;
            context
                .ui
                .say(format!("The newest result here: {}", head.spec.name));
            head
        }
    };
    pick::refresh(context, &store, &head.spec.name);
    let changes = pick::changes(&store, &head.spec.name)?;
    let baseline = Baseline::load(&store.baseline_dir(&head.spec.baseline))?;
    let blobs = BlobDir::open(store.result_dir(&head.spec.name).blobs())?;
    let sides = ResultSides {
        baseline: &baseline,
        blobs: &blobs,
    };
    if args.json {
        let summary = workspace::summarize(&changes, &sides)?;
        let mut value = serde_json::to_value(&summary)?;
        value["name"] = serde_json::json!(head.spec.name);
        value["digest"] = serde_json::json!(changes.digest());
        context.ui.json(&value)?;
    } else if args.name_only {
        for change in changes.changes() {
            context.ui.line(change.path.to_string())?;
        }
    } else if args.stat {
        context
            .ui
            .out(stat(context, &workspace::summarize(&changes, &sides)?))?;
    } else if context.ui.stdout_is_terminal() {
        show(context, &changes, &sides, args.no_pager)?;
    } else {
        patch(&baseline, &changes, &sides)?;
        say_other_modes(context, &changes);
    }
    Ok(0)
}

/// Lines added and removed, for the receipt.
pub(crate) fn line_counts(
    store: &Store,
    head: &ResultHead,
    baseline: &Baseline,
    changes: &ChangeSet,
) -> Result<(u64, u64)> {
    let blobs = BlobDir::open(store.result_dir(&head.spec.name).blobs())?;
    let summary = workspace::summarize(
        changes,
        &ResultSides {
            baseline,
            blobs: &blobs,
        },
    )?;
    Ok((summary.lines_added, summary.lines_removed))
}

/// Raw bytes for a pipe or file.
fn patch(baseline: &Baseline, changes: &ChangeSet, sides: &ResultSides<'_>) -> Result {
    let sha256 = baseline
        .git
        .as_ref()
        .and_then(|git| git.head.as_ref())
        .is_some_and(|head| head.len() == 64);
    let format = if sha256 {
        ObjectFormat::Sha256
    } else {
        ObjectFormat::Sha1
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    match workspace::write_patch(changes, sides, format, &mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// A patch knows one permission bit. What else `apply` would change of them is said here.
fn say_other_modes(context: &Context, changes: &ChangeSet) {
    for change in changes.changes() {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && old.kind == new.kind
            && old.mode != new.mode
            && (old.mode ^ new.mode) & 0o100 == 0
        {
            context.ui.say(format!(
                "Not in the patch: {} has mode {:03o} in the result, and had {:03o}",
                change.path, new.mode, old.mode
            ));
        }
    }
}

/// Escaped text, through the user's pager as git does it.
fn show(context: &Context, changes: &ChangeSet, sides: &ResultSides<'_>, no_pager: bool) -> Result {
    let pager = context.pager.clone().unwrap_or_else(|| "less".into());
    let words = pager.to_string_lossy().into_owned();
    let mut words = words.split_whitespace();
    let program = words
        .next()
        .filter(|program| *program != "cat" && !no_pager);
    let child = program.and_then(|program| {
        // As git: quit when it fits one screen, pass colours, leave the screen as it is.
        Command::new(program)
            .args(words)
            .env("LESS", "FRX")
            .stdin(Stdio::piped())
            .spawn()
            .ok()
    });
    let write = |out: &mut dyn io::Write| {
        workspace::display(changes, sides, &mut |style, text| {
            out.write_all(context.ui.paint_out(tone(style), text).as_bytes())
        })
    };
    let written = match child {
        Some(mut child) => {
            let written = match child.stdin.take() {
                Some(stdin) => {
                    let mut out = io::BufWriter::new(stdin);
                    write(&mut out).and_then(|()| out.flush())
                }
                None => Ok(()),
            };
            child.wait()?;
            written
        }
        None => write(&mut io::stdout().lock()),
    };
    match written {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn tone(style: Style) -> Tone {
    match style {
        Style::Context => Tone::Plain,
        Style::Header => Tone::Strong,
        Style::Hunk => Tone::Hint,
        Style::Added => Tone::Good,
        Style::Removed => Tone::Bad,
        Style::Escaped => Tone::Warn,
        Style::Note => Tone::Faint,
    }
}

fn stat(context: &Context, summary: &Summary) -> String {
    let name = |path: &RelPath, from: &Option<RelPath>| match from {
        Some(from) => format!("{from} => {path}"),
        None => path.to_string(),
    };
    let names: Vec<String> = summary
        .files
        .iter()
        .map(|file| name(&file.path, &file.from))
        .collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .min(60);
    let mut text = String::new();
    for (file, name) in summary.files.iter().zip(&names) {
        let what = match (file.added, file.removed) {
            _ if file.binary => "binary".to_owned(),
            (Some(added), Some(removed)) if added + removed > 0 => format!(
                "{} {}",
                context.ui.paint_out(Tone::Good, &format!("+{added}")),
                context.ui.paint_out(Tone::Bad, &format!("−{removed}"))
            ),
            _ => String::new(),
        };
        let status = match file.status {
            Status::Added => "added",
            Status::Modified => "changed",
            Status::Deleted => "deleted",
            Status::TypeChanged => "other kind",
            Status::ModeChanged => "mode",
            Status::Renamed => "renamed",
        };
        let torn = if file.torn { "  (torn)" } else { "" };
        text.push_str(format!(" {name:<width$} | {status:<10} {what}{torn}").trim_end());
        text.push('\n');
    }
    text.push_str(&format!(
        " {} changed, {} added, {} deleted (+{} −{})\n",
        summary.changed, summary.added, summary.deleted, summary.lines_added, summary.lines_removed
    ));
    text
}
