use crate::context::Context;
use crate::error::Result;
use crate::pick;
use crate::table;
use crate::ui::Tone;
use base::Name;
use clap::Args;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use store::{ResultHead, Store};
use workspace::{
    Baseline, BlobDir, Change, ChangeSet, FileStat, Kind, ObjectFormat, ResultSides, Status, Style,
    Summary,
};

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
        say_what_no_patch_holds(context, &changes);
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

/// What `apply` would do beyond the patch: git knows one permission bit of a file, and no directory without a file.
fn say_what_no_patch_holds(context: &Context, changes: &ChangeSet) {
    let lines: Vec<String> = changes
        .changes()
        .iter()
        .filter_map(|change| not_in_a_patch(changes, change))
        .collect();
    for line in lines.iter().take(MAX_TOLD) {
        context.ui.say(format!("Not in the patch: {line}"));
    }
    if let Some(more) = lines.len().checked_sub(MAX_TOLD).filter(|more| *more > 0) {
        context.ui.say(format!(
            "Not in the patch: {more} more (`efimera diff --stat` has all)"
        ));
    }
}

/// Lines about what a patch doesn't hold.
const MAX_TOLD: usize = 20;

fn not_in_a_patch(changes: &ChangeSet, change: &Change) -> Option<String> {
    let path = &change.path;
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if old.kind == new.kind => {
            let told = (old.mode ^ new.mode) & 0o100 != 0 && old.kind == Kind::File;
            (old.mode != new.mode && !told).then(|| {
                format!(
                    "{path} has mode {:03o} in the result, and had {:03o}",
                    new.mode, old.mode
                )
            })
        }
        (_, Some(new)) if new.kind == Kind::Dir => {
            if !changes.holds_below(path, |below| below.new.is_some()) {
                Some(format!("the new directory {path}, which holds no file"))
            } else if new.mode == 0o755 {
                None
            } else {
                Some(format!(
                    "the new directory {path} has mode {:03o}",
                    new.mode
                ))
            }
        }
        (_, Some(new)) if new.kind == Kind::File && !matches!(new.mode, 0o644 | 0o755) => {
            Some(format!("the new file {path} has mode {:03o}", new.mode))
        }
        (Some(old), None) if old.kind == Kind::Dir => {
            let emptied = changes.holds_below(path, |below| below.old.is_some());
            (!emptied).then(|| format!("the directory {path} is gone, which held no file"))
        }
        _ => None,
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
    let name = |file: &FileStat| match &file.from {
        Some(from) => format!("{from} => {}", file.path),
        // As `ls -p` has it.
        None if file.is_dir() => format!("{}/", file.path),
        None => file.path.to_string(),
    };
    let names: Vec<String> = summary.files.iter().map(name).collect();
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
        " {} (+{} −{})\n",
        table::changes(&summary.stat),
        summary.lines_added,
        summary.lines_removed
    ));
    text
}
