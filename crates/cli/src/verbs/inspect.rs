use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::pick;
use crate::verbs::{ls, results};
use base::Name;
use clap::Args;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use store::{Record, Spec, Store};
use supervisor::client;
use supervisor::control::{Command, Note};
use workspace::Baseline;

/// Show everything that is known about a sandbox or result, as JSON
///
/// With --seen: exactly what the machine was given, files in and left out, and names of variables.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Sandbox or result
    name: Name,
    /// What the machine was given
    #[arg(long)]
    seen: bool,
    /// As JSON, which it is anyway
    #[arg(long, hide = true)]
    json: bool,
}

/// How long a supervisor may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(context: &Context, args: &InspectArgs) -> Result<u8> {
    let store = pick::store(context)?;
    let record = match store
        .heal(&args.name)
        .and_then(|_| store.record(&args.name))
    {
        Ok(record) => Some(record),
        Err(store::StoreError::NoSandbox(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let head = match (store.settled_result(&args.name), &record) {
        (Ok(head), _) => Some(head),
        (Err(store::StoreError::NoResult(_)), Some(_)) => None,
        (Err(store::StoreError::NoResult(_)), None) => {
            return Err(CommandError::new(format!(
                "There is no sandbox and no result of the name {}",
                args.name
            ))
            .hint("`efimera ls -a` and `efimera results -a` list them"));
        }
        (Err(error), _) => return Err(error.into()),
    };
    let spec = record
        .as_ref()
        .map(|record| &record.spec)
        .or(head.as_ref().map(|head| &head.spec));
    let Some(spec) = spec else {
        return Err(CommandError::new("Nothing is known about it"));
    };
    if args.seen {
        context.ui.json(&seen(&store, spec)?)?;
        return Ok(0);
    }
    let mut value = json!({
        "name": spec.name,
        "workspace": spec.workspace,
        "cwd": spec.cwd,
        "command": spec.command,
        "image": spec.image,
        "kernel": spec.kernel,
        "template": spec.template,
        "machine": { "accel": spec.accel, "cpus": spec.cpus, "memory": spec.memory, "disk": spec.disk },
        "user": spec.user,
        "keep": spec.keep,
        "from": spec.from,
    });
    if let Some(record) = &record {
        value["sandbox"] = sandbox(&store, record);
    }
    if let Some(head) = &head {
        value["result"] = results::as_json(&store, head)?;
        value["result"]["refused_names"] = json!(head.refused);
        value["result"]["commits"] = json!(head.commits);
    }
    context.ui.json(&value)?;
    Ok(0)
}

fn sandbox(store: &Store, record: &Record) -> Value {
    let mut value = json!({
        "state": ls::state(record.state),
        "supervisor_pid": record.supervisor_pid,
        "vmm_pid": record.vmm_pid,
        "jail": record.jail,
        "jail_missing": record.jail_missing,
        "memory": memory(record),
    });
    // One that doesn't answer is no reason to say nothing about it.
    let asked = client::connect(store, &record.spec.name).and_then(|mut connection| {
        connection.ask(&Command::Status, Some(Instant::now() + PATIENCE))
    });
    match asked {
        Ok(Note::Status(status)) => {
            value["boot_ms"] = json!(status.boot_ms);
            value["clients"] = json!(status.clients);
            value["sessions"] = json!(status.sessions);
            value["checkpoint_age_seconds"] = json!(status.checkpoint_age);
            value["console"] = json!(base::escape(&status.console));
        }
        Ok(_) => {}
        Err(error) => value["supervisor"] = json!(error.to_string()),
    }
    value
}

/// What the sandbox really costs this computer, in bytes: its processes' own memory, and with their share of what they
/// have in common with others (`Pss` of proc(5)). Null where the system doesn't say.
fn memory(record: &Record) -> Value {
    let processes = [record.supervisor_pid, record.vmm_pid];
    let mut sums = [0, 0];
    for pid in processes.into_iter().flatten() {
        let Ok(text) = fs_err::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            return Value::Null;
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(key), Some(kib)) = (words.next(), words.next()) else {
                continue;
            };
            let bytes = kib.parse::<u64>().unwrap_or_default() * 1024;
            match key {
                "Pss:" => sums[0] += bytes,
                "Private_Clean:" | "Private_Dirty:" => sums[1] += bytes,
                _ => {}
            }
        }
    }
    json!({ "pss": sums[0], "private": sums[1] })
}

/// What went in, path by path.
fn seen(store: &Store, spec: &Spec) -> Result<Value> {
    let baseline = Baseline::load(&store.baseline_dir(&spec.baseline))?;
    let files: Vec<Value> = baseline
        .entries
        .to_vec()?
        .iter()
        .map(|entry| {
            json!({
                "path": entry.path,
                "kind": entry.kind,
                "mode": format!("{:04o}", entry.mode),
                "size": entry.size,
                "digest": entry.digest,
            })
        })
        .collect();
    Ok(json!({
        "workspace": spec.workspace,
        "files": files,
        "left_out": baseline.left_out,
        "tracked_secrets": baseline.tracked_secrets,
        "git": baseline.git,
        "variables": spec.variables,
        "command": spec.command,
        "user": spec.user,
    }))
}
