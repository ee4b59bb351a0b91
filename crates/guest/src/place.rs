//! What was set up before the host spoke, by a boot or by a test.

use crate::accounts::READY_OWNER;
use crate::boot::{OVERLAY_OPTIONS, make_dir};
use crate::device::find_disk;
use crate::fault::{Context as _, Fault};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The directories that the visible tree doesn't show.
#[derive(Debug)]
pub(crate) struct Place {
    /// A root above the visible one, where layers are mounted.
    hidden: OwnedFd,
    /// The scratch disk's root.
    scratch: OwnedFd,
    real: bool,
    /// Where the workspace's disk is, found before anybody waits for it.
    disk: Option<PathBuf>,
}

/// The serial number of the disk that the host packed.
const WORKSPACE_DISK: &str = "workspace";

/// The layers of the workspace, on the scratch disk.
const WORKSPACE_DIRS: [&str; 3] = ["workspace", "workspace/upper", "workspace/work"];

/// The workspace's two views.
#[derive(Debug)]
pub(crate) struct Layers {
    /// The overlay's root, as everyone in the machine sees it.
    pub(crate) merged: OwnedFd,
    /// Its upper layer.
    pub(crate) upper: OwnedFd,
}

impl Place {
    pub(crate) fn real(hidden: OwnedFd, scratch: OwnedFd) -> Self {
        Self {
            hidden,
            scratch,
            real: true,
            disk: None,
        }
    }

    /// A place made by a test: `hidden` holds a directory `workspace` for the lower layer.
    pub(crate) fn rehearsal(hidden: OwnedFd, scratch: OwnedFd) -> Self {
        Self {
            hidden,
            scratch,
            real: false,
            disk: None,
        }
    }

    /// True in a machine, false on a test's host.
    pub(crate) fn is_real(&self) -> bool {
        self.real
    }

    /// The scratch disk's root directory.
    pub(crate) fn scratch(&self) -> BorrowedFd<'_> {
        self.scratch.as_fd()
    }

    /// Makes and finds what a set-up needs, as far as that says nothing about a machine. The workspace's disk isn't
    /// read. What fails here is made, or fails again, when its turn comes.
    pub(crate) fn make_ready(&mut self) {
        self.disk = self.real.then(|| find_disk(WORKSPACE_DISK)).flatten();
        for dir in WORKSPACE_DIRS {
            _ = mkdir_at(&self.scratch, dir);
        }
        let (uid, gid) = READY_OWNER;
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let [_, upper, _] = WORKSPACE_DIRS;
        _ = rustix::fs::chownat(&self.scratch, upper, owner.0, owner.1, AtFlags::empty());
        _ = mkdir_at(&self.hidden, "workspace");
        // Read before it is used: one that is not whole is made anew.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        drop(rustix::fs::openat(
            &self.scratch,
            crate::setup::KEPT_ID,
            flags,
            Mode::from_raw_mode(0o600),
        ));
    }

    /// Mounts the workspace's overlay on `target`, an existing directory.
    pub(crate) fn mount_workspace(
        &self,
        target: &Path,
        owner: (Uid, Gid),
    ) -> Result<Layers, Fault> {
        let lower = self.workspace_lower()?;
        let doing = || format!("Mounting the workspace on `{}`", target.display());
        for dir in WORKSPACE_DIRS {
            mkdir_at(&self.scratch, dir).context(doing)?;
        }
        let upper = open_at(&self.scratch, "workspace/upper").context(doing)?;
        let work = open_at(&self.scratch, "workspace/work").context(doing)?;
        // The overlay's root takes owner and mode from its upper directory.
        let mode = rustix::fs::fstat(&lower).context(doing)?.st_mode & 0o7777 | 0o700;
        let is = rustix::fs::fstat(&upper).context(doing)?;
        if (is.st_uid, is.st_gid) != (owner.0.as_raw(), owner.1.as_raw()) {
            rustix::fs::fchown(&upper, Some(owner.0), Some(owner.1)).context(doing)?;
        }
        if is.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&upper, Mode::from_raw_mode(mode)).context(doing)?;
        }

        let layers = [
            ("lowerdir", &lower),
            ("upperdir", &upper),
            ("workdir", &work),
        ];
        let mount = match overlay(layers, OVERLAY_OPTIONS) {
            // A test that an ordinary account runs: no trusted attributes, and no renamed lower directories.
            Err(Errno::PERM) if !self.real => overlay(layers, &[("userxattr", "")]),
            other => other,
        }
        .context(doing)?;
        // The last component may be a link of the image: opened, it is what it leads to.
        let point = rustix::fs::open(
            target,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .context(doing)?;
        move_mount(
            &mount,
            "",
            &point,
            "",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        )
        .context(doing)?;
        let merged = open_at(&mount, ".").context(doing)?;
        Ok(Layers { merged, upper })
    }

    /// The read-only tree that the host packed; an empty directory when it gave no such disk.
    fn workspace_lower(&self) -> Result<OwnedFd, Fault> {
        let doing = || "Mounting the workspace's disk".to_owned();
        mkdir_at(&self.hidden, "workspace").context(doing)?;
        if self.real
            && let Some(disk) = self.disk.clone().or_else(|| find_disk(WORKSPACE_DISK))
        {
            let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).context(doing)?;
            fsconfig_set_string(&context, "source", &disk).context(doing)?;
            fsconfig_set_flag(&context, "ro").context(doing)?;
            fsconfig_create(&context).context(doing)?;
            let mount = fsmount(
                &context,
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::MOUNT_ATTR_RDONLY,
            )
            .context(doing)?;
            move_mount(
                &mount,
                "",
                &self.hidden,
                "workspace",
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )
            .context(doing)?;
            crate::ahead::read_metadata(&disk);
        }
        open_at(&self.hidden, "workspace").context(doing)
    }

    /// Makes what is on the scratch disk safe, so that the machine can go.
    pub(crate) fn settle(&self) {
        rustix::fs::sync();
        if !self.real {
            return;
        }
        // Out of the visible root, to where the disk can be named. What fails here costs a journal replay.
        let readonly = rustix::process::fchdir(&self.hidden)
            .and_then(|()| rustix::process::chroot("."))
            .and_then(|()| {
                rustix::mount::mount_remount("/scratch", rustix::mount::MountFlags::RDONLY, c"")
            });
        if let Err(errno) = readonly {
            crate::console::say(format!("Making the scratch disk read-only: {errno}"));
        }
        rustix::fs::sync();
    }
}

/// A new overlay, not mounted anywhere yet. The layers can't be named from the visible root; their descriptors can.
fn overlay(layers: [(&str, &OwnedFd); 3], options: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, layer) in layers {
        fsconfig_set_string(
            &context,
            key,
            format!("/proc/self/fd/{}", layer.as_raw_fd()),
        )?;
    }
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_set_string(&context, "source", "workspace")?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

/// Makes every missing directory of `path` and opens each existing one for search by everybody, so that the user
/// reaches what lies below it. Links on the way lead where they lead inside the machine.
pub(crate) fn make_way(
    path: &Path,
    made: &mut dyn FnMut(&Path) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut so_far = std::path::PathBuf::from("/");
    for component in path.components().skip(1) {
        so_far.push(component);
        let found = match rustix::fs::stat(&so_far) {
            Err(Errno::NOENT) => {
                // A link that points at nothing (`/var/run` of a bare image) is made to point at something.
                let real = follow(&so_far);
                if real == so_far {
                    make_dir(&so_far, 0o755)?;
                    made(&so_far)?;
                } else {
                    make_way(&real, made)?;
                }
                continue;
            }
            found => found.context(|| format!("Looking at `{}`", so_far.display()))?,
        };
        if rustix::fs::FileType::from_raw_mode(found.st_mode) != rustix::fs::FileType::Directory {
            return Err(Fault::new(
                format!("`{}` is in the way of the workspace", so_far.display()),
                Errno::NOTDIR,
            ));
        }
        if found.st_mode & 0o001 == 0 {
            rustix::fs::chmodat(
                CWD,
                &so_far,
                Mode::from_raw_mode(found.st_mode & 0o7777 | 0o001),
                AtFlags::empty(),
            )
            .context(|| format!("Opening the way through `{}`", so_far.display()))?;
        }
    }
    Ok(())
}

/// Where a dangling link points to; the path itself when it is none.
fn follow(path: &Path) -> std::path::PathBuf {
    let mut path = path.to_path_buf();
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(target) = fs_err::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    // `..` is resolved by name: what it leads through does not exist, or is a directory.
    let mut clean = std::path::PathBuf::from("/");
    for component in path.components() {
        match component {
            std::path::Component::Normal(name) => clean.push(name),
            std::path::Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

fn mkdir_at(dir: impl AsFd, name: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn open_at(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        dir,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}
