//! The guest program as bytes, and the initramfs that brings it into a machine.
//!
//! The archive is a `newc` cpio (the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`):
//! `/init` is the guest, `/modules` holds the kernel modules under names that sort in the order in which they are
//! to be loaded, `/dev/console` is what the kernel opens for PID 1.
//!
//! Invariant: the same guest and modules give the same bytes; nothing of the building host is in them.

mod cpio;

use cpio::Archive;

/// The guest program: a static ELF executable.
pub const GUEST: &[u8] = include_bytes!(env!("EFIMERA_GUEST"));

/// Where the guest finds the modules in the initramfs, without a leading slash.
pub const MODULES: &str = "modules";

/// An initramfs with the guest as `/init` and each module as `/modules/NAME`.
///
/// The guest loads modules in the order of their names, so the names are `00-virtio_ring.ko` and the like.
pub fn initramfs<'a>(modules: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    initramfs_with(GUEST, modules)
}

/// As [`initramfs`], with another program as `/init`.
pub fn initramfs_with<'a>(
    init: &[u8],
    modules: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Vec<u8> {
    let mut archive = Archive::new();
    for directory in ["dev", MODULES, "proc", "sys"] {
        archive.directory(directory);
    }
    // Major 5, minor 1: the kernel's console (Documentation/admin-guide/devices.txt).
    archive.char_device("dev/console", 5, 1);
    archive.file("init", 0o755, init);
    for (name, bytes) in modules {
        archive.file(&format!("{MODULES}/{name}"), 0o644, bytes);
    }
    archive.finish()
}

#[cfg(test)]
mod tests;
