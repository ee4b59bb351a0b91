//! Finding the disks and the port that the host gave this machine, by name and never by order.

use crate::fault::{Context as _, Fault};
use crate::process::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, netlink};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kernel's announcements of devices.
#[derive(Debug)]
pub(crate) struct Announcements {
    socket: OwnedFd,
}

impl Announcements {
    /// Opened before modules are loaded, so that nothing is missed between a look and the wait for the next.
    pub(crate) fn open() -> Result<Self, Fault> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::KOBJECT_UEVENT),
        )
        .context(|| "Opening the kernel's device announcements".to_owned())?;
        // Group 1 is the kernel's own; udev's is 2.
        rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 1))
            .context(|| "Listening to the kernel's device announcements".to_owned())?;
        Ok(Self { socket })
    }

    /// Looks again whenever the kernel announces something, until `look` finds what it wants or `limit` is over.
    pub(crate) fn wait_for<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            _ = poll(&mut fds, Some(&timespec(left)));
            let mut buffer = [0; 4096];
            // ENOBUFS says that announcements were lost: then it is time to look, too.
            while matches!(
                rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT),
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
            ) {}
        }
    }
}

/// The device file of the virtio disk with this serial.
pub(crate) fn find_disk(serial: &str) -> Option<PathBuf> {
    find("/sys/block", "serial", serial)
}

/// The device file of the virtio-serial port with this name.
pub(crate) fn find_port(name: &str) -> Option<PathBuf> {
    find("/sys/class/virtio-ports", "name", name)
}

fn find(class: &str, attribute: &str, wanted: &str) -> Option<PathBuf> {
    for entry in fs_err::read_dir(class).ok()?.flatten() {
        let value = fs_err::read_to_string(entry.path().join(attribute)).unwrap_or_default();
        if value.trim_end() == wanted {
            let device = Path::new("/dev").join(entry.file_name());
            // devtmpfs makes the node before the announcement, but sysfs shows the device still earlier.
            return rustix::fs::stat(&device).is_ok().then_some(device);
        }
    }
    None
}
