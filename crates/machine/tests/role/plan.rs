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

/// What is done with a machine that is saved and those that go on from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClonePlan {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Serial number and file of each disk; the one named `scratch` is writable.
    pub(crate) disks: Vec<(String, PathBuf)>,
    pub(crate) memory_mib: u64,
    pub(crate) memory: Memory,
    /// Where a saved machine is, or comes to be: its state and its memory.
    pub(crate) state: PathBuf,
    pub(crate) ram: PathBuf,
    pub(crate) begin: Beginning,
    /// Lines that the guest is sent, one after the other's answer.
    pub(crate) talk: Vec<String>,
    pub(crate) end: End,
    pub(crate) max_file_mib: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Memory {
    Own,
    Shared,
    Private,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Beginning {
    Boot,
    /// So many machines at once go on from what was saved.
    Resume {
        machines: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// QEMU is ended.
    Quit,
    /// It is saved.
    Save,
    /// It is saved, in vain, and then asked `again`. With shared memory it is then saved where there is room.
    SaveInVain,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CloneReport {
    pub(crate) machines: Vec<MachineReport>,
    /// Of the sealed memory, before and after.
    pub(crate) ram_digests: Vec<String>,
    /// Bytes of the state, and used bytes of the memory.
    pub(crate) saved: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineReport {
    pub(crate) answers: Vec<String>,
    /// An error with its causes.
    pub(crate) error: String,
    pub(crate) stderr: String,
    pub(crate) command_line: String,
}
