//! The supervisor's way to a real machine: image, kernel and disks put together for QEMU.

use crate::error::CommandError;
use crate::setup;
use image::Silent;
use machine::{Accel, Begin, Disk, Process as Qemu, Ram, Spec as MachineSpec};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::Spec;
use supervisor::{LaunchError, Launched, Launcher, Process};
use template::{Held, Key, Store as TemplateStore, Template, disks};

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

    /// A template that QEMU doesn't take is of no use to anybody: it goes, and the machine boots.
    fn resume_or_boot(
        &mut self,
        spec: &Spec,
        template: &Template,
        scratch: &File,
    ) -> Result<Launched, CommandError> {
        let error = match self.resume(spec, template, scratch) {
            Ok(launched) => return Ok(launched),
            Err(error) => error,
        };
        self.notice = Some(booted_instead(&error.with_causes()));
        TemplateStore::open(&self.data)?.remove(template.key())?;
        scratch.set_len(0)?;
        self.blank(spec, scratch)?;
        self.boot(spec, scratch)
    }

    fn resume(
        &self,
        spec: &Spec,
        template: &Template,
        scratch: &File,
    ) -> Result<Launched, CommandError> {
        // A machine that stays is to give back what it frees, and to be saved cheaply: its memory is its own. Others
        // share what they don't change.
        let (ram, held) = if spec.keep || spec.detached {
            (Ram::Shared(template.own_ram()?), None)
        } else {
            let held = template.hold()?;
            (Ram::Private(held.try_clone()?), Some(held))
        };
        let machine = self.spec(spec, ram, Begin::Resume, scratch)?;
        let started = machine::launch(&machine, &self.role)?;
        let mut monitor = machine::Monitor::new(started.qmp.try_clone()?);
        let deadline = Instant::now() + RESUME;
        monitor.resume(template.state(), &started.stderr, deadline)?;
        Ok(launched(started, held))
    }

    fn boot(&self, spec: &Spec, scratch: &File) -> Result<Launched, CommandError> {
        let kernel = image::Store::open(&self.data)?.kernel(&spec.kernel)?;
        let begin = Begin::Boot {
            kernel: machine::sealed_copy("kernel", kernel.open(&mut Silent)?)?,
            initramfs: machine::sealed_copy("initramfs", kernel.initramfs()?.as_slice())?,
            words: Vec::new(),
        };
        let machine = self.spec(spec, Ram::Own, begin, scratch)?;
        Ok(launched(machine::launch(&machine, &self.role)?, None))
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
            max_file_size: Some(spec.disk),
            required_layers: std::collections::BTreeSet::new(),
        })
    }
}

/// How long QEMU may take to go on from a state: it takes a hundredth of that.
const RESUME: Duration = Duration::from_secs(20);

fn booted_instead(why: &str) -> String {
    format!("the machine booted, since its template can't be used: {why}")
}

fn launched(started: machine::Machine, held: Option<Held>) -> Launched {
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
        control: started.control.into(),
        console: Some(started.console.into()),
        complaints: Some(started.stderr),
        process: Box::new(Monitor {
            qemu: started.process,
            _qmp: started.qmp,
            _held: held,
        }),
    }
}

/// QEMU's process, with its monitor's socket held open: QEMU keeps asking for a new one otherwise.
#[derive(Debug)]
struct Monitor {
    qemu: Qemu,
    _qmp: UnixStream,
    /// The memory that it shares with others, for others to find.
    _held: Option<Held>,
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
}

/// An error and its causes in one sentence, as it crosses to the client.
fn sentence(error: CommandError) -> LaunchError {
    LaunchError(error.with_causes())
}
