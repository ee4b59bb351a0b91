//! What of a freshly installed system goes into the image: nothing that differs from one build to the next, nothing
//! of the host, and no documentation.

use base::RelPath;
use erofs::Meta;
use erofs::tar::{Action, Filter, Kind};

/// The time of every file that an installation made itself (2023-01-01): a fixed one, so that two builds of the same
/// packages are the same, and early enough that `make` takes nothing for newer than a user's file.
pub(crate) const EPOCH: i64 = 1_672_531_200;

/// Where dpkg keeps its list of packages.
const STATUS: &[u8] = b"var/lib/dpkg/status";

/// The filter, and what it saw.
#[derive(Default)]
pub(crate) struct Cleaner {
    /// The contents of dpkg's list of packages.
    pub(crate) status: Vec<u8>,
    /// Bytes that were handed on or left out so far.
    pub(crate) entries: u64,
}

impl Filter for Cleaner {
    fn decide(&mut self, path: &RelPath, kind: Kind, meta: &mut Meta) -> Action {
        self.entries += 1;
        if meta.mtime.0 >= EPOCH {
            meta.mtime = (EPOCH, 0);
        }
        decide(path.as_bytes(), kind)
    }

    fn captured(&mut self, _: &RelPath, bytes: &[u8]) {
        self.status = bytes.to_vec();
    }
}

fn decide(path: &[u8], kind: Kind) -> Action {
    if path == STATUS {
        return Action::Capture;
    }
    // The guest kernel fills /dev itself, and what is here depends on how the builder could make it.
    if path.starts_with(b"dev/") {
        return Action::Skip;
    }
    if kind == Kind::Directory {
        return Action::Keep;
    }
    if path == b"etc/machine-id" {
        // Empty and there: "not set yet" (machine-id(5)).
        return Action::Empty;
    }
    if HOST_FILES.contains(&path)
        || HOST_DIRECTORIES
            .iter()
            .any(|directory| path.starts_with(directory))
    {
        return Action::Skip;
    }
    if BACKUPS.iter().any(|directory| is_backup(path, directory)) {
        return Action::Skip;
    }
    if let Some(below) = path.strip_prefix(b"usr/share/doc/") {
        return if below.ends_with(b"/copyright") {
            Action::Keep
        } else {
            Action::Skip
        };
    }
    if DOCUMENTATION
        .iter()
        .any(|directory| path.starts_with(directory))
    {
        Action::Skip
    } else {
        Action::Keep
    }
}

/// Files that the builder copied from the host or made for itself.
const HOST_FILES: [&[u8]; 6] = [
    b"etc/hostname",
    b"etc/resolv.conf",
    b"etc/apt/sources.list",
    b"etc/apt/apt.conf.d/99mmdebstrap",
    b"etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    b"var/lib/dbus/machine-id",
];

/// Directories whose files are the host's (addresses and passwords of package sources) or come and go.
const HOST_DIRECTORIES: [&[u8]; 11] = [
    b"etc/apt/sources.list.d/",
    b"etc/apt/auth.conf.d/",
    b"var/cache/apt/",
    b"var/cache/ldconfig/",
    b"var/lib/apt/lists/",
    b"var/lib/systemd/random-seed",
    b"var/log/",
    b"root/.cache/",
    b"run/",
    b"tmp/",
    b"var/tmp/",
];

/// Documentation and translations: a sixth of the image, for a reader that has neither `man` nor another language.
/// The directories stay, since package scripts expect them; licences stay too.
const DOCUMENTATION: [&[u8]; 5] = [
    b"usr/share/info/",
    b"usr/share/lintian/",
    b"usr/share/locale/",
    b"usr/share/man/",
    b"usr/share/bug/",
];

/// Directories whose files have backup copies.
const BACKUPS: [&[u8]; 3] = [b"etc/", b"var/cache/debconf/", b"var/lib/dpkg/"];

/// `etc/passwd-`, `var/lib/dpkg/status-old`.
fn is_backup(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|file| {
        !file.contains(&b'/')
            && (file.ends_with(b"-old") || (directory == b"etc/" && file.ends_with(b"-")))
    })
}

#[cfg(test)]
mod tests;
