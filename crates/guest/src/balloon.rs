//! Whether the kernel tells the host which of its memory is free, for the host to take back. That is the balloon's
//! driver (free page reporting, virtio 1.2, 5.5.6.7), bound to its device or not.
//!
//! A machine that shares its memory with others has nothing to give back, and its host would refuse each page: a
//! template is made without, and only who has memory of its own takes it up.

use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/virtio/devices";
const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_balloon";
/// The device's number (virtio 1.2, 5.5.1), as sysfs has it.
const BALLOON: &str = "0x0005";

/// Has the kernel give memory back, or not. A machine without such a device or driver keeps what it has.
pub(crate) fn give_back(on: bool) {
    let Some(device) = device() else { return };
    let bound = Path::new(DRIVER).join(&device).exists();
    if bound == on {
        return;
    }
    let file = Path::new(DRIVER).join(if on { "bind" } else { "unbind" });
    // It only costs the host memory if it fails.
    fs_err::write(file, device.as_os_str().as_encoded_bytes()).ok();
}

/// The device's name on its bus.
fn device() -> Option<PathBuf> {
    let mut entries = fs_err::read_dir(DEVICES).ok()?.flatten();
    entries.find_map(|entry| {
        let number = fs_err::read_to_string(entry.path().join("device")).ok()?;
        (number.trim_end() == BALLOON).then(|| PathBuf::from(entry.file_name()))
    })
}
