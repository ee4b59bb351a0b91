//! A machine for efimera's own use, with nothing to do: the test boot of `setup`.

use super::wish::{MachineWish, Wish, WorkspaceWish};
use super::{Prepared, create, guest_user, ingredients, pack, supervise};
use crate::context::Context;
use crate::error::{CommandError, Result};
use crate::ui::Progress;
use base::{Name, Size};
use std::path::Path;
use store::Store;
use supervisor::client::{Connection, Item};
use supervisor::control::{Command, Note};
use wire::message::{Reply, Request, RunAs, decode};

/// A machine that is set up and waits.
#[derive(Debug)]
pub(crate) struct Booted {
    name: Name,
    connection: Connection,
}

/// Boots one on the directory `workspace`, and waits until it is ready.
pub(crate) fn boot(context: &Context, store: &Store, workspace: &Path) -> Result<Booted> {
    let wish = idle_wish(workspace);
    let ingredients = ingredients::find(context, &wish.machine, true)?;
    let hold = store.hold_baselines()?;
    let packed = pack::pack(context, store, &wish)?;
    let prepared = Prepared {
        user: guest_user(context),
        packed,
        ingredients,
        template: None,
    };
    let created = create(store, None, |name| prepared.spec(&wish, name, None))?;
    drop(hold);
    let name = created.record.spec.name.clone();
    let mut connection = supervise(context, &name, created.lock, None)?;
    let mut progress = Progress::new(context.ui);
    progress.at("booting a machine as a test", 0, 0, false);
    match connection.ask(&Command::Ready, None)? {
        Note::Failed { message, hint } => Err(CommandError::told(message, hint)),
        _ => Ok(Booted { name, connection }),
    }
}

impl Booted {
    /// Nanoseconds and result of [`wire::spin`] in the machine; `None` when it won't say.
    pub(crate) fn spin(&mut self, rounds: u64) -> Result<Option<(u64, u64)>> {
        let stream = self
            .connection
            .open(&Command::Files(Request::Spin { rounds }))?;
        loop {
            match self.connection.next(stream, None)? {
                Item::Note(Note::Reply(bytes)) => {
                    if let Ok(Reply::Spun { nanos, value }) = decode(&bytes) {
                        return Ok(Some((nanos, value)));
                    }
                }
                Item::Closed => return Ok(None),
                Item::Note(_) | Item::Data { .. } | Item::Finished(_) => {}
            }
        }
    }

    /// Has it go, result and all.
    pub(crate) fn end(mut self, store: &Store) -> Result {
        let stop = Command::Stop {
            grace_ms: 0,
            remove: true,
        };
        if let Note::Failed { message, .. } = self.connection.ask(&stop, None)? {
            return Err(CommandError::new(message));
        }
        drop(self.connection);
        // The lock is let go of as the last thing; whoever takes it has seen the supervisor's end.
        drop(store.lock(&self.name));
        match store.discard(&self.name) {
            Ok(()) | Err(store::StoreError::NoResult(_) | store::StoreError::Running(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn idle_wish(workspace: &Path) -> Wish {
    Wish {
        argv: Vec::new(),
        env: Vec::new(),
        workdir: None,
        user: RunAs::User,
        tty: false,
        detach: false,
        leaves: false,
        attempts: 1,
        keep: false,
        name: None,
        from: None,
        clean: false,
        timeout: 0,
        linger: 0,
        json: false,
        yes: true,
        artifacts: Vec::new(),
        machine: MachineWish {
            cpus: None,
            memory: Size::gib(1),
            disk: Size::gib(1),
            accel: "auto".to_owned(),
            image: None,
            template: false,
        },
        workspace: WorkspaceWish {
            directory: workspace.to_owned(),
            include: Vec::new(),
            exclude: Vec::new(),
            only: None,
            history: "none".to_owned(),
            skip_unreadable: false,
            allow_unusual: true,
        },
    }
}
