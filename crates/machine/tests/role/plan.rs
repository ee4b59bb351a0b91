use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One machine and what is done to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Read-only.
    pub(crate) root: PathBuf,
    /// Writable.
    pub(crate) scratch: PathBuf,
    pub(crate) cpus: u32,
    /// What the guest does after its greeting: `power-off`, `panic`, `flood`, or `wait` for the host.
    pub(crate) guest: String,
    /// What the host does after the guest's greeting.
    pub(crate) host: Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Host {
    /// Waits for the guest to end.
    Wait,
    /// Asks for the state and then for the end, over QMP.
    Quit,
    /// Says that the guest is up, and waits to be killed.
    Linger,
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) qemu: u32,
    pub(crate) missing_layers: Vec<String>,
    pub(crate) control: String,
    pub(crate) console: String,
    pub(crate) console_dropped: u64,
    pub(crate) stderr: String,
    pub(crate) events: Vec<String>,
    pub(crate) exit: String,
    /// From the start of QEMU to the guest's greeting.
    pub(crate) greeting_milliseconds: u64,
    /// QEMU's command line and environment, as /proc has them.
    pub(crate) command_line: String,
    pub(crate) environment: String,
    pub(crate) network_devices: String,
    pub(crate) status: String,
}
