//! The supervisor's way to a real machine: image, kernel and disks put together for QEMU.

use crate::error::CommandError;
use crate::setup;
use base::Size;
use image::Silent;
use machine::{Accel, Begin, Disk, Process as Qemu, Ram, Spec as MachineSpec};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Spec;
use supervisor::{Freezer, LaunchError, Launched, Launcher, Memory, Process};
use template::{Fit, Held, Key, Running, Snapshot, Store as TemplateStore, Template, disks};

/// Starts QEMU for sandboxes whose parts are in this data directory.
#[derive(Debug)]
pub(crate) struct QemuLauncher {
    data: PathBuf,
    qemu: machine::Qemu,
    /// The command that plays the role of QEMU's jailer.
    role: Vec<OsString>,
    /// What the scratch disk was formatted from, for the launch that follows.
    template: Option<Template>,
    /// What is to be told of the start.
    notice: Option<String>,
}

impl Launcher for QemuLauncher {
    fn launch(&mut self, spec: &Spec, scratch: File) -> Result<Launched, LaunchError> {
        let launched = match self.template.take() {
            Some(template) => self.resume_or_boot(spec, &template, &scratch),
            None => self.boot(spec, &scratch),
        };
        let mut launched = launched.map_err(sentence)?;
        launched.notice = self.notice.take();
        Ok(launched)
    }

    fn resume(
        &mut self,
        spec: &Spec,
        directory: &Path,
        memory: Memory,
        scratch: &File,
    ) -> Result<Launched, LaunchError> {
        self.resume_snapshot(spec, directory, memory, scratch)
            .map_err(|not_resumed| sentence(not_resumed.error))
    }

    fn format_scratch(&mut self, spec: &Spec, scratch: &File) -> Result<(), LaunchError> {
        self.template = self.find_template(spec);
        match &self.template {
            Some(template) => template.copy_scratch(scratch).map_err(CommandError::from),
            None => self.blank(spec, scratch),
        }
        .map_err(sentence)
    }
}

impl QemuLauncher {
    /// A launcher for the sandboxes of this data directory.
    pub(crate) fn new(data: PathBuf, qemu: machine::Qemu, role: Vec<OsString>) -> Self {
        Self {
            data,
            qemu,
            role,
            template: None,
            notice: None,
        }
    }

    /// The template of the record, which may have gone since that was written.
    fn find_template(&mut self, spec: &Spec) -> Option<Template> {
        let key = Key::parse(spec.template.as_ref()?)?;
        let found = TemplateStore::open(&self.data)
            .map_err(CommandError::from)
            .and_then(|store| Ok(store.find(&key)?));
        let why = match found {
            Ok(Some(template)) => return Some(template),
            Ok(None) => "it is gone".to_owned(),
            Err(error) => error.with_causes(),
        };
        self.notice = Some(booted_instead(&why));
        None
    }

    fn blank(&self, spec: &Spec, scratch: &File) -> Result<(), CommandError> {
        let blank = image::Store::open(&self.data)?.scratch(spec.disk, &setup::environment())?;
        Ok(image::copy_sparse(
            fs_err::File::open(blank)?.file(),
            scratch,
        )?)
    }

    /// A template that QEMU doesn't take is of no use to anybody: it goes, and the machine boots. So it does when the
    /// computer is out of something, which is not the template's fault.
    fn resume_or_boot(
        &mut self,
        spec: &Spec,
        template: &Template,
        scratch: &File,
    ) -> Result<Launched, CommandError> {
        let NotResumed { error, unfit } = match self.resume_template(spec, template, scratch) {
            Ok(launched) => return Ok(launched),
            Err(error) => error,
        };
        self.notice = Some(booted_instead(&error.with_causes()));
        if unfit {
            TemplateStore::open(&self.data)?.remove(template.key())?;
        }
        scratch.set_len(0)?;
        self.blank(spec, scratch)?;
        self.boot(spec, scratch)
    }

    fn resume_template(
        &self,
        spec: &Spec,
        template: &Template,
        scratch: &File,
    ) -> Result<Launched, NotResumed> {
        let memory = if owns_memory(spec) {
            Given::Own(template.own_ram()?)
        } else {
            Given::Shared(template.hold()?)
        };
        self.go_on(spec, memory, template.state(), scratch)
    }

    fn resume_snapshot(
        &self,
        spec: &Spec,
        directory: &Path,
        memory: Memory,
        scratch: &File,
    ) -> Result<Launched, NotResumed> {
        // The disk's size is a part of the hardware.
        rustix::fs::ftruncate(scratch, spec.disk.bytes())?;
        let shape = self.spec(spec, Ram::Own, Begin::Resume, scratch)?.shape()?;
        let snapshot = Snapshot::open(directory, &Fit::of(&shape, &self.qemu)?)?;
        snapshot.copy_scratch(scratch)?;
        let memory = match memory {
            Memory::Own => snapshot.own_ram()?.map(Given::Own),
            Memory::Shared => snapshot.hold()?.map(Given::Shared),
        };
        self.go_on(
            spec,
            memory.unwrap_or(Given::InState),
            snapshot.state(),
            scratch,
        )
    }

    /// Starts a machine that goes on from a state.
    fn go_on(
        &self,
        spec: &Spec,
        memory: Given,
        state: &File,
        scratch: &File,
    ) -> Result<Launched, NotResumed> {
        let (ram, own, held) = match memory {
            Given::Own(ram) => (Ram::Shared(ram.try_clone()?), Some(ram), None),
            Given::Shared(held) => (Ram::Private(held.try_clone()?), None, Some(held)),
            Given::InState => (Ram::Own, None, None),
        };
        let machine = self.spec(spec, ram, Begin::Resume, scratch)?;
        let fit = Fit::of(&machine.shape()?, &self.qemu)?;
        let started = machine::launch(&machine, &self.role).map_err(|error| NotResumed {
            // Of a machine with another memory.
            unfit: matches!(error, machine::LaunchError::RamSize { .. }),
            error: error.into(),
        })?;
        let mut monitor = machine::Monitor::new(started.qmp.try_clone()?);
        let resumed = monitor.resume(state, &started.stderr, Instant::now() + RESUME);
        resumed.map_err(|error| NotResumed {
            unfit: matches!(error, machine::MonitorError::Resume(_)),
            error: error.into(),
        })?;
        let running = Running {
            monitor,
            ram: own,
            scratch: scratch.try_clone()?.into(),
            fit,
        };
        Ok(launched(started, running, held))
    }

    fn boot(&self, spec: &Spec, scratch: &File) -> Result<Launched, CommandError> {
        let kernel = image::Store::open(&self.data)?.kernel(&spec.kernel)?;
        let begin = Begin::Boot {
            kernel: machine::sealed_copy("kernel", kernel.open(&mut Silent)?)?,
            initramfs: machine::sealed_copy("initramfs", kernel.initramfs()?.as_slice())?,
            words: Vec::new(),
        };
        let (ram, own) = if owns_memory(spec) {
            let ram = machine::new_ram("efimera-machine", MachineSpec::ram_size(spec.memory))?;
            (Ram::Shared(ram.try_clone()?), Some(ram))
        } else {
            (Ram::Own, None)
        };
        let machine = self.spec(spec, ram, begin, scratch)?;
        let fit = Fit::of(&machine.shape()?, &self.qemu)?;
        let started = machine::launch(&machine, &self.role)?;
        let running = Running {
            monitor: machine::Monitor::new(started.qmp.try_clone()?),
            ram: own,
            scratch: scratch.try_clone()?.into(),
            fit,
        };
        Ok(launched(started, running, None))
    }

    fn spec(
        &self,
        spec: &Spec,
        ram: Ram,
        begin: Begin,
        scratch: &File,
    ) -> Result<MachineSpec, CommandError> {
        let images = image::Store::open(&self.data)?;
        let root = images.image(&spec.image.to_string())?.open(&mut Silent)?;
        let workspace = fs_err::File::open(
            self.data
                .join("baselines")
                .join(&spec.baseline)
                .join(workspace::IMAGE_FILE),
        )?;
        let disk = |file: OwnedFd, read_only, serial: &str| -> Result<Disk, CommandError> {
            Ok(Disk {
                file,
                read_only,
                serial: serial.parse()?,
            })
        };
        Ok(MachineSpec {
            qemu: self.qemu.clone(),
            accel: if spec.accel == Accel::Kvm.as_str() {
                Accel::Kvm
            } else {
                Accel::Tcg
            },
            cpus: spec.cpus,
            memory: spec.memory,
            ram,
            begin,
            disks: vec![
                disk(root.into_parts().0.into(), true, disks::ROOT)?,
                disk(scratch.try_clone()?.into(), false, disks::SCRATCH)?,
                disk(workspace.into_parts().0.into(), true, disks::WORKSPACE)?,
            ],
            network: None,
            // A state may hold all of the memory.
            max_file_size: Some(Size(
                spec.disk
                    .bytes()
                    .max(2 * MachineSpec::ram_size(spec.memory).bytes()),
            )),
            required_layers: std::collections::BTreeSet::new(),
        })
    }
}

/// A machine that stays, or that somebody sits at, is to give back what it frees, and to be frozen cheaply: its memory
/// is its own. Others share what they don't change.
fn owns_memory(spec: &Spec) -> bool {
    spec.keep || spec.detached || spec.tty
}

/// How long QEMU may take to go on from a state: it takes a hundredth of that.
const RESUME: Duration = Duration::from_secs(20);

fn booted_instead(why: &str) -> String {
    format!("the machine booted, since its template can't be used: {why}")
}

/// A machine doesn't go on from a state.
struct NotResumed {
    error: CommandError,
    /// QEMU has looked at the state, and doesn't take it.
    unfit: bool,
}

impl<E: Into<CommandError>> From<E> for NotResumed {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            unfit: false,
        }
    }
}

/// The memory that a machine goes on with.
enum Given {
    /// Its own, in a file.
    Own(OwnedFd),
    /// One that others have as well, and nobody can change.
    Shared(Held),
    /// Of its QEMU alone, filled from the state.
    InState,
}

fn launched(started: machine::Machine, running: Running, held: Option<Held>) -> Launched {
    let name = |layer: &jail::Layer| match serde_json::to_value(layer) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{layer:?}"),
    };
    let on = started
        .posture
        .layers()
        .filter(|(_, state)| **state == jail::State::On);
    Launched {
        jail: on.map(|(layer, _)| name(&layer)).collect(),
        jail_missing: started
            .posture
            .missing()
            .map(|(layer, why)| format!("{}: {why}", name(&layer)))
            .collect(),
        notice: None,
        owns_memory: running.ram.is_some(),
        control: started.control.into(),
        console: Some(started.console.into()),
        complaints: Some(started.stderr),
        process: Box::new(Monitor {
            qemu: started.process,
            running: Arc::new(Mutex::new(running)),
            _held: held,
        }),
    }
}

/// QEMU's process.
#[derive(Debug)]
struct Monitor {
    qemu: Qemu,
    /// What freezes it. Its monitor's socket is held open here: QEMU keeps asking for a new one otherwise.
    running: Arc<Mutex<Running>>,
    /// The memory that it shares with others, for others to find.
    _held: Option<Held>,
}

/// See [`Freezer`].
struct FreezeMachine(Arc<Mutex<Running>>);

impl Freezer for FreezeMachine {
    fn freeze(&mut self, directory: &Path) -> Result<(), LaunchError> {
        // A thread that failed with it has left the monitor in an unknown state.
        let mut running = self
            .0
            .lock()
            .map_err(|_| LaunchError("QEMU's monitor is of no use any more".to_owned()))?;
        running
            .freeze(directory)
            .map_err(|error| sentence(error.into()))
    }
}

impl Process for Monitor {
    fn pid(&self) -> Option<u32> {
        Some(self.qemu.id())
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.qemu.as_fd()
    }

    fn reap(&mut self) -> Option<String> {
        match self.qemu.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) if status.success() => {
                Some("the machine went off by itself".to_owned())
            }
            Ok(Some(status)) => Some(format!("QEMU ended with {status}")),
            Err(error) => Some(format!("QEMU can't be waited for: {error}")),
        }
    }

    fn kill(&mut self) {
        // It is gone, or it is being reaped: either way there is nothing left to end.
        let _ended: io::Result<_> = self.qemu.kill();
    }

    fn freezer(&self) -> Option<Box<dyn Freezer>> {
        Some(Box::new(FreezeMachine(Arc::clone(&self.running))))
    }
}

/// An error and its causes in one sentence, as it crosses to the client.
fn sentence(error: CommandError) -> LaunchError {
    LaunchError(error.with_causes())
}
