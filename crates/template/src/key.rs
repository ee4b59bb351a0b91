use base::{Digest, Size};
use machine::{Accel, DiskShape, Qemu, Shape};
use std::fmt;
use std::io;
use std::path::Path;

/// Programs that a template has run once, for what they leave in its memory: what a first command of nearly every
/// task needs. Programs that an image doesn't have are passed over.
pub(crate) const WARM: &[&[&str]] = &[
    &["sh", "-c", "ls / >/dev/null; cat /etc/passwd >/dev/null"],
    &["bash", "-c", ":"],
    &["git", "version"],
    &["python3", "-c", "pass"],
    &["node", "-e", "0"],
];

/// What a template is made of.
#[derive(Debug, Clone, Copy)]
pub struct Recipe<'a> {
    /// The emulator.
    pub qemu: &'a Qemu,
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// Virtual processors.
    pub cpus: u32,
    /// The guest's memory.
    pub memory: Size,
    /// The base image.
    pub image: &'a image::Image,
    /// The kernel.
    pub kernel: &'a image::Kernel,
    /// A blank scratch disk ([`image::Store::scratch`]).
    pub scratch: &'a Path,
    /// The size of every workspace disk, whole MiB.
    pub workspace: Size,
    /// Whether there is a network card.
    pub network: bool,
}

/// A template's name: a digest of everything that it depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Recipe<'_> {
    /// The template's name. Two recipes have the same one only if a machine of either can go on from the template of
    /// the other: image, kernel, guest program, QEMU's build, the hardware with its order and sizes, the host's
    /// processor where it is the guest's, and what is warmed.
    ///
    /// Fails when the scratch disk or the base image can't be looked at.
    pub fn key(&self) -> io::Result<Key> {
        let mut text = format!("efimera template {FORM}\n");
        text.push_str(&self.shape()?.describe(self.qemu));
        text.push_str(&format!(
            "image {}\nkernel {}\nguest {}\nwarm {WARM:?}\n",
            self.image.digest(),
            self.kernel.record().digest(),
            Digest::of(guest_bin::GUEST),
        ));
        if self.accel == Accel::Kvm {
            text.push_str(&processor()?);
        }
        Ok(Key(Digest::of(text.as_bytes()).hex()[..32].to_owned()))
    }

    /// The size of the scratch disk.
    pub(crate) fn disk(&self) -> io::Result<Size> {
        Ok(Size(fs_err::metadata(self.scratch)?.len()))
    }

    fn shape(&self) -> io::Result<Shape> {
        let disk = |serial: &str, read_only, size| -> io::Result<DiskShape> {
            Ok(DiskShape {
                serial: serial.parse().map_err(io::Error::other)?,
                read_only,
                size,
            })
        };
        Ok(Shape {
            accel: self.accel,
            cpus: self.cpus,
            memory: self.memory,
            disks: vec![
                disk(crate::disks::ROOT, true, self.image.manifest.size)?,
                disk(crate::disks::SCRATCH, false, self.disk()?)?,
                disk(crate::disks::WORKSPACE, true, self.workspace)?,
            ],
            network: self.network,
        })
    }
}

/// The form of a template's files.
pub(crate) const FORM: u32 = 1;

/// What a guest under hardware virtualisation sees of the host's processor.
pub(crate) fn processor() -> io::Result<String> {
    let text = fs_err::read_to_string("/proc/cpuinfo")?;
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines = first.lines().filter(|line| {
        [
            "vendor_id",
            "cpu family",
            "model",
            "stepping",
            "microcode",
            "flags",
        ]
        .iter()
        .any(|name| line.starts_with(name))
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

impl Key {
    /// A key that was written down.
    pub fn parse(text: &str) -> Option<Self> {
        let well_formed = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        well_formed.then(|| Self(text.to_owned()))
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
