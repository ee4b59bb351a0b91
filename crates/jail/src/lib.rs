//! Confinement of the VMM process (QEMU), which counts as hostile once its guest has broken out of the
//! emulated hardware.
//!
//! ```text
//!  supervisor                     role `__vmm` (our own binary)             QEMU
//!  spawn ── fork, exec ─────────▶ enter: reads the Confinement
//!        ── Confinement ────────▶ puts the layers on, one after the other
//!        ◀── Posture ─────────── says which are on
//!        ◀── end of file ──────── execve, which closes the channel ───────▶ runs, with the listed
//!            or what failed                                                  descriptors and nothing else
//! ```
//!
//! One socketpair carries it all. The role closes it on execute, so QEMU never holds it: what the supervisor
//! reads there was written by our own code, before any guest existed.
//!
//! Two kinds of layers. Those that every supported kernel has (no new privileges, no capabilities, closed
//! descriptors, empty environment, limits, parent-death signal, filter of system calls) are put on or the start fails.
//! Those that a host may lack or forbid (namespaces, Landlock and its newer parts) are put on where they
//! exist, and the [`Posture`] names each one that is missing and why.
//!
//! Later steps (mount, pid and ipc namespaces, a system call filter that lists what is allowed) are further
//! [`Layer`]s: a module below `layers`, a line in `enter`.

mod confinement;
mod layers;
mod posture;
mod program;
mod role;
mod spawn;

pub use confinement::Confinement;
pub use posture::{Layer, Posture, State};
pub use program::{ProgramError, ProgramFiles, program_files};
pub use role::{EnterError, enter};
pub use spawn::{Confined, SpawnError, spawn};
