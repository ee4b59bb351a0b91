//! From a wish to a running sandbox: find what it needs, collect and pack the workspace, write the record, start
//! the supervisor, carry the session, tell how it ended.

mod attempts;
mod boot;
mod ingredients;
mod pack;
mod replay;
mod template;
pub(crate) mod turn;
pub(crate) mod wish;

pub(crate) use boot::boot;
pub(crate) use pack::some as pack_some;
pub(crate) use template::make_usual as make_usual_template;
pub(crate) use turn::Turn;

use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::session::{self, Outcome};
use crate::ui::Progress;
use crate::{accel, pick, receipt, roles, terminal};
use base::Name;
use machine::Accel;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use store::{Ending, GuestUser, Lock, Spec, Store, StoreError};
use supervisor::Resume;
use supervisor::client::Connection;
use supervisor::control::{Command, End, Note};
use wire::StreamId;
use wire::message::Exec;
pub(crate) use wish::Wish;

/// Names tried before giving up on finding a free one.
const NAMES: u64 = 200;

/// `efimera run`.
pub(crate) fn run(context: &Context, wish: Wish) -> Result<u8> {
    let ui = context.ui;
    let store = pick::store(context)?;
    if let Some(name) = &wish.name {
        refuse_taken(&store, name)?;
    }
    let ingredients = ingredients::find(context, &wish.machine, wish.yes)?;
    // From here to the record that names it, the baseline must not be taken for garbage.
    let hold = store.hold_baselines()?;
    let packed = pack::pack(context, &store, &wish)?;
    // After everything that is refused at once.
    if ingredients.accel == Accel::Tcg && wish.machine.accel != "tcg" {
        ui.say(accel::emulation_line(context));
    }
    let template = wish
        .machine
        .template
        .then(|| template::ensure(context, &ingredients, &wish.machine))
        .flatten();
    let prepared = Prepared {
        user: guest_user(context),
        packed,
        ingredients,
        template,
    };
    if wish.attempts > 1 {
        return attempts::run(context, &store, &wish, &prepared, hold);
    }
    let created = create(&store, wish.name.as_ref(), |name| {
        prepared.spec(&wish, name, None)
    })?;
    drop(hold);
    let name = created.record.spec.name.clone();
    let turn = turn::wait(context)?;
    let mut connection = supervise(context, &name, created.lock, None)?;
    if let Some(from) = wish.from.as_ref().filter(|_| !wish.clean) {
        replay::replay(context, &store, from, &mut connection)?;
    }
    let stdin = !wish.detach && session::has_stdin();
    let exec = exec(&wish, &created.record.spec, stdin);
    let command = Command::Run {
        exec,
        detach: wish.detach,
    };
    if wish.detach {
        return detach(context, &mut connection, &command, &name);
    }
    let outcome = session::run(ui, &mut connection, &command, wish.tty, stdin, Some(turn));
    if prepared.packed.is_new {
        // The one that it takes the place of may be nobody's.
        pick::tidy_up(context, &store);
    }
    finish(context, &store, &name, &wish, outcome)
}

/// What all machines of one `run` have in common.
struct Prepared {
    user: GuestUser,
    packed: pack::Packed,
    ingredients: ingredients::Ingredients,
    template: Option<String>,
}

impl Prepared {
    fn spec(&self, wish: &Wish, name: Name, group: Option<Name>) -> Spec {
        Spec {
            name,
            created: jiff::Timestamp::now().as_second(),
            workspace: self.packed.baseline.root.clone(),
            cwd: self.packed.cwd.clone(),
            command: wish.argv.iter().map(|word| base::escape(word)).collect(),
            variables: wish
                .env
                .iter()
                .map(|(name, _)| base::escape(name))
                .collect(),
            baseline: key(&self.packed.baseline),
            from: wish.from.clone(),
            image: self.ingredients.image,
            kernel: self.ingredients.kernel.clone(),
            template: self.template.clone(),
            cpus: self.ingredients.cpus,
            memory: wish.machine.memory,
            disk: wish.machine.disk,
            accel: self.ingredients.accel.as_str().to_owned(),
            keep: wish.keep,
            tty: wish.tty,
            detached: wish.detach,
            linger: wish.linger,
            timeout: wish.timeout,
            artifacts: wish.artifacts.clone(),
            user: self.user.clone(),
            group,
        }
    }
}

/// The command as the guest is told.
fn exec(wish: &Wish, spec: &Spec, stdin: bool) -> Exec {
    Exec {
        argv: wish.argv.clone(),
        env: wish.env.clone(),
        cwd: working_directory(spec, wish.workdir.as_deref()),
        user: wish.user.clone(),
        tty: wish.tty.then(terminal::size),
        stdin,
    }
}

/// What is left to say and to give back when a session is over, however it was.
fn finish(
    context: &Context,
    store: &Store,
    name: &Name,
    wish: &Wish,
    outcome: Result<Outcome>,
) -> Result<u8> {
    let ui = context.ui;
    match outcome {
        Ok(Outcome::Ended { end, saved }) => {
            session::tell(ui, &end);
            let completeness = receipt::print(context, store, name, wish.json)?;
            if !saved && !wish.keep && !matches!(end, End::Crashed(_)) {
                ui.warn("The sandbox's supervisor was lost while the result was being saved");
            }
            match (
                session::exit_code(&end),
                receipt::lost(store, name, completeness),
            ) {
                // The command did its part, and efimera didn't.
                (0, Some(lost)) => Err(lost),
                (code, Some(lost)) => {
                    ui.error(&lost);
                    Ok(code)
                }
                (code, None) => Ok(code),
            }
        }
        Ok(Outcome::Left { asked }) if wish.tty => {
            ui.say(format!(
                "{name} goes on without this terminal. `efimera logs {name}` shows what it prints, `efimera wait {name}` waits for it."
            ));
            Ok(if asked { 0 } else { 128 + 1 })
        }
        Ok(Outcome::Left { .. }) => Ok(130),
        Err(error) => {
            // Whatever happened, what was saved before it is worth a line, and the result may know why.
            receipt::print(context, store, name, wish.json)?;
            match store.settled_result(name).map(|head| head.ending) {
                Ok(Some(Ending::Crashed(why))) => {
                    Err(CommandError::new(format!("The machine is gone: {why}")))
                }
                _ => Err(error),
            }
        }
    }
}

/// Waits until the command of a detached sandbox has started.
fn detach(
    context: &Context,
    connection: &mut Connection,
    command: &Command,
    name: &Name,
) -> Result<u8> {
    let stream = connection.open(command)?;
    if let Some(end) = until_started(context, connection, stream)? {
        session::tell(context.ui, &end);
        return Ok(session::exit_code(&end));
    }
    context.ui.line(name.as_str())?;
    Ok(0)
}

/// Waits until the command of a stream has started. How it ended, if it has already.
fn until_started(
    context: &Context,
    connection: &mut Connection,
    stream: StreamId,
) -> Result<Option<End>> {
    let mut progress = Progress::new(context.ui);
    let end = loop {
        match connection.next_note(stream, None)? {
            Some(Note::Booting) => progress.at("starting the machine", 0, 0, false),
            Some(Note::Started) | None => break None,
            Some(Note::Exited(end)) => break Some(end),
            Some(Note::Failed { message, hint }) => {
                return Err(CommandError::told(message, hint));
            }
            Some(_) => {}
        }
    };
    progress.end();
    Ok(end)
}

/// Starts the supervisor of a sandbox whose lock we hold, and gives the connection that it inherited.
/// Its machine goes on from `resume`, if that is given.
pub(crate) fn supervise(
    context: &Context,
    name: &Name,
    lock: Lock,
    resume: Option<&Resume>,
) -> Result<Connection> {
    let (ours, theirs) = UnixStream::pair()?;
    let dirs = &context.dirs;
    let role = roles::command("__supervise");
    let mut program = Program::new(&role[0]);
    program
        .args(&role[1..])
        .args([&dirs.data, &dirs.cache, &dirs.run])
        .args([name.as_str(), &timezone()]);
    if let Some(Resume { directory, fork }) = resume {
        let word = if *fork { roles::FORK } else { roles::RESTORE };
        program.arg(word).arg(directory);
    }
    program
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(lock)))
        .stderr(Stdio::null());
    program
        .spawn()
        .map_err(|error| CommandError::new(format!("The supervisor can't be started: {error}")))?;
    Ok(Connection::new(ours)?)
}

/// Makes the record of a sandbox: of this name, or of one that is free.
pub(crate) fn create(
    store: &Store,
    name: Option<&Name>,
    spec: impl Fn(Name) -> Spec,
) -> Result<store::Created> {
    if let Some(name) = name {
        return Ok(store.create(spec(name.clone()))?);
    }
    let now = jiff::Timestamp::now().as_nanosecond();
    let seed = u64::try_from(now).unwrap_or_default() ^ u64::from(std::process::id()) << 32;
    for attempt in 0..NAMES {
        let name =
            store.free_name((attempt..attempt + NAMES).map(|step| seed.wrapping_add(step)))?;
        match store.create(spec(name)) {
            Err(StoreError::NameTaken(_)) => {}
            other => return Ok(other?),
        }
    }
    Err(CommandError::new("No free name was found").hint("choose one with --name"))
}

pub(crate) fn refuse_taken(store: &Store, name: &Name) -> Result {
    if store.is_alive(name)? {
        return Err(
            CommandError::usage(format!("There is a running sandbox of the name {name}")).hint(
                format!("choose another, or end it: `efimera rm --force {name}`"),
            ),
        );
    }
    if store.record(name).is_ok() || store.result(name).is_ok() {
        return Err(CommandError::usage(format!(
            "There is a sandbox or result of the name {name}"
        ))
        .hint(format!(
            "choose another, or let go of it: `efimera discard {name}`"
        )));
    }
    Ok(())
}

/// The user that owns the workspace in the machine: the host's, so that numbers and names look as at home. Root
/// becomes an ordinary user, since agents refuse to work without asking as root, and rightly so.
pub(crate) fn guest_user(context: &Context) -> GuestUser {
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let well_formed = |name: &&String| {
        (1..=32).contains(&name.len())
            && *name != "root"
            && name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && name.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte)
            })
    };
    let name = context
        .user
        .as_ref()
        .filter(well_formed)
        .cloned()
        .unwrap_or_else(|| "user".to_owned());
    match uid {
        0 => GuestUser {
            name,
            uid: 1000,
            gid: 1000,
        },
        uid => GuestUser {
            name,
            uid,
            gid: if gid == 0 { uid } else { gid },
        },
    }
}

/// Where the command starts: the same place as on the host, or `chosen` as seen from there.
fn working_directory(spec: &Spec, chosen: Option<&Path>) -> Vec<u8> {
    let mut place = spec.workspace.clone();
    if !spec.cwd.is_root() {
        place.push(spec.cwd.as_path());
    }
    if let Some(chosen) = chosen {
        place.push(chosen);
    }
    place.into_os_string().into_vec()
}

/// A baseline's name in the store.
fn key(baseline: &workspace::Baseline) -> String {
    baseline
        .dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The host's time zone by name, from where systemd and Debian keep it; empty for UTC.
fn timezone() -> String {
    let link = fs_err::read_link("/etc/localtime").ok();
    let name = link
        .as_deref()
        .and_then(|path| path.to_str())
        .and_then(|path| path.split_once("zoneinfo/"));
    name.map(|(_, name)| name.to_owned()).unwrap_or_default()
}
