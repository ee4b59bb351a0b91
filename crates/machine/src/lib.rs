//! One virtual machine: what accelerates it, QEMU's command line, its start inside the jail, its monitor (QMP).
//!
//! Nothing here has a loop or a thread. [`launch`] returns a process and streams that don't block, for the
//! supervisor's poll loop; [`Qmp`] and [`Console`] take bytes in and give events and bytes out.
//!
//! ```text
//!  Spec ── command_line ──▶ arguments that name descriptors by number, never a path of the user
//!       ── launch ────────▶ jail ──▶ QEMU          Machine { process, qmp, console, control, stderr }
//! ```
//!
//! A booted machine can be saved, and others go on from there, each in a QEMU of its own with the same [`Shape`]:
//!
//! ```text
//!  Begin::Boot + Ram::Shared ── Monitor::save ──▶ state (devices)    ──▶ Monitor::resume ── Begin::Resume + …
//!                                   memory's file ── sealed_ram ──▶ Ram::Private   all have the pages, none can change them
//!                                                 ── copy_ram ────▶ Ram::Shared    has its own, and can be saved alike
//! ```
//!
//! [`Monitor`] alone waits, each time up to a deadline.
//!
//! QEMU counts as owned by its guest from the first guest instruction on: what comes out of any of the four
//! streams is bounded and never believed.

mod accel;
mod command_line;
mod console;
mod exit;
mod launch;
mod monitor;
pub mod probe;
mod qemu;
mod qmp;
mod ram;
mod sealed;
mod spec;

pub use accel::{Accel, AccelError, AccelRequest};
pub use console::Console;
pub use launch::{LaunchError, Machine, Process, launch};
pub use monitor::{Monitor, MonitorError};
pub use qemu::{FindError, MINIMUM, Qemu, Version, find};
pub use qmp::{Command, Event, MAX_LINE, Migration, Qmp, QmpError};
pub use ram::{copy_ram, new_ram, sealed_ram, share_of};
pub use sealed::sealed_copy;
pub use spec::{
    Begin, CARD_ADDRESS, CARD_MTU, Disk, DiskShape, MAX_DISKS, Ram, Serial, SerialError, Shape,
    Spec,
};

/// The name of the virtio-serial port that carries the control channel, as the guest sees it in
/// `/sys/class/virtio-ports/*/name`.
pub const CONTROL_PORT: &str = "efimera";
