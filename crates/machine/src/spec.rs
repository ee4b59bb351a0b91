use crate::accel::Accel;
use crate::qemu::Qemu;
use base::Size;
use jail::Layer;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// One machine, as it is to be started. It holds descriptors only: QEMU never learns a path of the user.
#[derive(Debug)]
pub struct Spec {
    /// The emulator.
    pub qemu: Qemu,
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// How many processors the guest sees.
    pub cpus: u32,
    /// The guest's memory, in whole MiB (rounded up).
    pub memory: Size,
    /// The kernel, from [`crate::sealed_copy`].
    pub kernel: OwnedFd,
    /// The initramfs, from [`crate::sealed_copy`].
    pub initramfs: OwnedFd,
    /// Words that are added to the kernel's command line.
    pub kernel_words: Vec<String>,
    /// Block devices, in the order in which the guest finds them.
    pub disks: Vec<Disk>,
    /// The longest that QEMU may make a file: at least the largest writable disk.
    pub max_file_size: Option<Size>,
    /// Layers of the jail without which it must not start.
    pub required_layers: BTreeSet<Layer>,
}

/// One raw disk image.
#[derive(Debug)]
pub struct Disk {
    /// The image, open for reading, and for writing unless `read_only`.
    pub file: OwnedFd,
    /// Whether the guest may only read it. QEMU couldn't write either then, as `file` isn't open for it.
    pub read_only: bool,
    /// How the guest knows it: `/sys/block/*/serial`.
    pub serial: Serial,
}

/// The most disks of one machine: each takes one of the 32 places on the bus.
pub const MAX_DISKS: usize = 16;

/// A disk's serial number: 1 to 20 lower-case letters, digits and hyphens. 20 is virtio's limit
/// (`VIRTIO_BLK_ID_BYTES`).
#[derive(Clone, PartialEq, Eq)]
pub struct Serial(String);

/// The text is not a serial number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a disk's serial number (want 1 to 20 lower-case letters, digits and hyphens)"
)]
pub struct SerialError(String);

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        let well_formed = (1..=20).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(SerialError(base::escape_line(text.as_bytes(), 40)))
        }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
