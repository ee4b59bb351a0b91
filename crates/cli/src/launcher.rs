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
use store::Spec;
use supervisor::{LaunchError, Launched, Launcher, Process};

/// Starts QEMU for sandboxes whose parts are in this data directory.
#[derive(Debug)]
pub(crate) struct QemuLauncher {
    pub(crate) data: PathBuf,
    pub(crate) qemu: machine::Qemu,
    /// The command that plays the role of QEMU's jailer.
    pub(crate) role: Vec<OsString>,
}

impl Launcher for QemuLauncher {
    fn launch(&mut self, spec: &Spec, scratch: File) -> Result<Launched, LaunchError> {
        self.start(spec, scratch).map_err(sentence)
    }

    fn format_scratch(&mut self, spec: &Spec, scratch: &File) -> Result<(), LaunchError> {
        let format = || -> Result<(), CommandError> {
            let blank =
                image::Store::open(&self.data)?.scratch(spec.disk, &setup::environment())?;
            image::copy_sparse(fs_err::File::open(blank)?.file(), scratch)?;
            Ok(())
        };
        format().map_err(sentence)
    }
}

impl QemuLauncher {
    fn start(&self, spec: &Spec, scratch: File) -> Result<Launched, CommandError> {
        let images = image::Store::open(&self.data)?;
        let root = images.image(&spec.image.to_string())?.open(&mut Silent)?;
        let kernel = images.kernel(&spec.kernel)?;
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
        let machine = MachineSpec {
            qemu: self.qemu.clone(),
            accel: if spec.accel == Accel::Kvm.as_str() {
                Accel::Kvm
            } else {
                Accel::Tcg
            },
            cpus: spec.cpus,
            memory: spec.memory,
            ram: Ram::Own,
            begin: Begin::Boot {
                kernel: machine::sealed_copy("kernel", kernel.open(&mut Silent)?)?,
                initramfs: machine::sealed_copy("initramfs", kernel.initramfs()?.as_slice())?,
                words: Vec::new(),
            },
            disks: vec![
                disk(root.into_parts().0.into(), true, "root")?,
                disk(scratch.into(), false, "scratch")?,
                disk(workspace.into_parts().0.into(), true, "workspace")?,
            ],
            max_file_size: Some(spec.disk),
            required_layers: std::collections::BTreeSet::new(),
        };
        let started = machine::launch(&machine, &self.role)?;
        let name = |layer: &jail::Layer| match serde_json::to_value(layer) {
            Ok(serde_json::Value::String(name)) => name,
            _ => format!("{layer:?}"),
        };
        let on = started
            .posture
            .layers()
            .filter(|(_, state)| **state == jail::State::On);
        Ok(Launched {
            jail: on.map(|(layer, _)| name(&layer)).collect(),
            jail_missing: started
                .posture
                .missing()
                .map(|(layer, why)| format!("{}: {why}", name(&layer)))
                .collect(),
            control: started.control.into(),
            console: Some(started.console.into()),
            complaints: Some(started.stderr),
            process: Box::new(Monitor {
                qemu: started.process,
                _qmp: started.qmp,
            }),
        })
    }
}

/// QEMU's process, with its monitor's socket held open: QEMU keeps asking for a new one otherwise.
#[derive(Debug)]
struct Monitor {
    qemu: Qemu,
    _qmp: UnixStream,
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
    LaunchError(
        std::iter::once(error.message)
            .chain(error.causes)
            .collect::<Vec<_>>()
            .join(": "),
    )
}
