use crate::accel::Accel;
use crate::qemu::Qemu;
use base::Size;
use jail::Layer;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
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
    /// Where that memory is.
    pub ram: Ram,
    /// How the guest begins.
    pub begin: Begin,
    /// Block devices, in the order in which the guest finds them.
    pub disks: Vec<Disk>,
    /// The other end of the network card's cable: one of a pair of Unix datagram sockets, one Ethernet frame a
    /// datagram. `None`: there is no card.
    pub network: Option<OwnedFd>,
    /// The longest that QEMU may make a file: at least the largest writable disk.
    pub max_file_size: Option<Size>,
    /// Layers of the jail without which it must not start.
    pub required_layers: BTreeSet<Layer>,
}

/// Where a guest's memory is. A file is a memory file of exactly [`Spec::ram_size`] bytes.
#[derive(Debug)]
pub enum Ram {
    /// In QEMU alone. A saved state holds all of it.
    Own,
    /// In this file, which QEMU maps shared: it is what the guest's memory is, at each moment. A saved state holds
    /// nothing of it, and the file belongs to the state.
    Shared(OwnedFd),
    /// In this file as far as the guest only reads it, from [`crate::sealed_ram`]; what it writes is in QEMU alone
    /// (copy on write). Any number of machines can have the same file, and none can change it. A saved state holds
    /// all of the memory.
    Private(OwnedFd),
}

/// How a guest begins.
#[derive(Debug)]
pub enum Begin {
    /// Its kernel is started.
    Boot {
        /// The kernel, from [`crate::sealed_copy`].
        kernel: OwnedFd,
        /// The initramfs, from [`crate::sealed_copy`].
        initramfs: OwnedFd,
        /// Words that are added to the kernel's command line.
        words: Vec<String>,
    },
    /// It goes on from a state that [`crate::Monitor::save`] gave: the machine stands still until
    /// [`crate::Monitor::resume`]. Its [`Shape`] must be that of the machine that was saved.
    Resume,
}

/// A machine's hardware: what a saved state depends on, but for the state's own memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// How many processors the guest sees.
    pub cpus: u32,
    /// The guest's memory.
    pub memory: Size,
    /// Block devices, in their order.
    pub disks: Vec<DiskShape>,
    /// Whether there is a network card.
    pub network: bool,
}

/// What a guest knows of a disk without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskShape {
    /// Its serial number.
    pub serial: Serial,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// The image's size.
    pub size: Size,
}

impl Spec {
    /// The size of the file that is a guest's memory: whole MiB.
    pub fn ram_size(memory: Size) -> Size {
        Size(memory.bytes().next_multiple_of(1 << 20))
    }

    /// The hardware of this machine. The disks' sizes are read off their descriptors.
    pub fn shape(&self) -> io::Result<Shape> {
        let disk = |disk: &Disk| -> io::Result<DiskShape> {
            let size = rustix::fs::fstat(&disk.file)?.st_size;
            Ok(DiskShape {
                serial: disk.serial.clone(),
                read_only: disk.read_only,
                size: Size(u64::try_from(size).unwrap_or_default()),
            })
        };
        Ok(Shape {
            accel: self.accel,
            cpus: self.cpus,
            memory: self.memory,
            disks: self.disks.iter().map(disk).collect::<io::Result<_>>()?,
            network: self.network.is_some(),
        })
    }
}

impl Shape {
    /// All that a saved state depends on as text, for a key: the build of QEMU, its arguments but for files, the
    /// kernel's own words, and the disks' sizes. Under hardware virtualisation the host's processor counts too, which
    /// isn't in it. QEMU itself doesn't mind all of it: it takes a state with two disks exchanged.
    pub fn describe(&self, qemu: &Qemu) -> String {
        let mut text = format!("{}\n", qemu.build());
        for argument in crate::command_line::hardware_line(self) {
            text.push_str(&argument.to_string_lossy());
            text.push('\n');
        }
        text.push_str(&crate::command_line::kernel_command_line(self.accel, &[]));
        text.push('\n');
        for disk in &self.disks {
            text.push_str(&format!("{} {}\n", disk.serial, disk.size.bytes()));
        }
        text
    }
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

/// The address of the network card: locally administered, and the same in each machine, as no two are on one cable.
pub const CARD_ADDRESS: [u8; 6] = [0x02, 0x65, 0x66, 0x69, 0x00, 0x02];

/// The longest IP packet that the card sends or takes, in bytes. A datagram socket and QEMU's buffer (69,632 bytes) take
/// it with its Ethernet header; without offloads, which this kind of cable has not, each frame costs the same whatever
/// its length.
pub const CARD_MTU: u16 = 65_520;

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
