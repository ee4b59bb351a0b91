//! From the kernel's hand-over to a running root: modules, disks, the overlay, and the switch into it.

use crate::console::say;
use crate::device::{Announcements, find_disk, find_port};
use crate::fault::{Context as _, Fault};
use crate::network;
use crate::place::Place;
use crate::port::Port;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use std::ffi::CString;
use std::path::Path;
use std::time::Duration;

/// How long a disk or the port may take to appear after the modules are loaded. They are there at once, as
/// virtio's drivers probe while they load; the limit is for an emulator on a host under heavy load.
const DEVICE_LIMIT: Duration = Duration::from_mins(1);

/// Options of every overlay: a directory of the lower layer can be renamed (Debian's kernel has that off), inode
/// numbers stay the same, and the upper layer always holds whole files, so that they can be read from there.
pub(crate) const OVERLAY_OPTIONS: &[(&str, &str)] = &[
    ("redirect_dir", "on"),
    ("xino", "on"),
    ("metacopy", "off"),
    ("index", "off"),
];

/// Which permissions files and directories don't get by themselves.
pub(crate) const UMASK: u32 = 0o022;

/// Where things lie in the initramfs, which stays below the new root and can't be seen from it.
const LOWER: &str = "/lower";
const SCRATCH: &str = "/scratch";
const NEW_ROOT: &str = "/new";

/// Mounts what the kernel offers, loads the modules and finds the port. Without these there is nobody to tell.
pub(crate) fn prepare() -> Result<(Announcements, Port), Fault> {
    make_dir("/dev", 0o755)?;
    make_dir("/proc", 0o555)?;
    make_dir("/sys", 0o555)?;
    mount(
        "devtmpfs",
        "/dev",
        "devtmpfs",
        MountFlags::NOSUID,
        "mode=0755",
    )?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", plain, "")?;
    mount("sysfs", "/sys", "sysfs", plain, "")?;
    let announcements = Announcements::open()?;
    load_modules();
    let device = announcements
        .wait_for(DEVICE_LIMIT, || find_port("efimera"))
        .ok_or_else(|| Fault::new("Waiting for the port `efimera`", Errno::NODEV))?;
    let fd = rustix::fs::open(
        &device,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY,
        Mode::empty(),
    )
    .context(|| format!("Opening the port `{}`", device.display()))?;
    let port = Port::new(fd).context(|| "Watching the port".to_owned())?;
    Ok((announcements, port))
}

/// Builds the root and makes it this process's own.
pub(crate) fn enter_root(announcements: &Announcements) -> Result<Place, Fault> {
    let wait = |serial: &str| {
        announcements
            .wait_for(DEVICE_LIMIT, || find_disk(serial))
            .ok_or_else(|| Fault::new(format!("Waiting for the disk `{serial}`"), Errno::NODEV))
    };
    let root = wait("root")?;
    let scratch = wait("scratch")?;
    for dir in [LOWER, SCRATCH, NEW_ROOT] {
        make_dir(dir, 0o755)?;
    }
    mount(&root, LOWER, "erofs", MountFlags::RDONLY, "")?;
    // No O_SYNC, no barriers of its own: the disk is thrown away, or outlives only a clean power-off.
    mount(&scratch, SCRATCH, "ext4", MountFlags::NOATIME, "")?;
    for dir in ["root", "root/upper", "root/work"] {
        make_dir(Path::new(SCRATCH).join(dir), 0o755)?;
    }
    let mut options =
        format!("lowerdir={LOWER},upperdir={SCRATCH}/root/upper,workdir={SCRATCH}/root/work");
    for (key, value) in OVERLAY_OPTIONS {
        options.extend([",", key, "=", value]);
    }
    mount(
        "overlay",
        NEW_ROOT,
        "overlay",
        MountFlags::empty(),
        &options,
    )?;
    for dir in ["dev", "proc", "sys", "run", "tmp"] {
        make_dir(Path::new(NEW_ROOT).join(dir), 0o755)?;
    }
    make_dir(Path::new(SCRATCH).join("tmp"), 0o1777)?;
    rustix::mount::mount_bind(
        Path::new(SCRATCH).join("tmp"),
        Path::new(NEW_ROOT).join("tmp"),
    )
    .context(|| "Mounting `/tmp`".to_owned())?;
    for dir in ["dev", "proc", "sys"] {
        let from = Path::new("/").join(dir);
        rustix::mount::mount_move(&from, Path::new(NEW_ROOT).join(dir))
            .context(|| format!("Moving `{}`", from.display()))?;
    }
    // The initramfs is memory.
    remove_initramfs();

    let hidden = open_dir("/")?;
    let scratch = open_dir(SCRATCH)?;
    rustix::process::chdir(NEW_ROOT).context(|| "Entering the new root".to_owned())?;
    rustix::mount::mount_move(".", "/").context(|| "Moving the new root".to_owned())?;
    rustix::process::chroot(".").context(|| "Changing the root".to_owned())?;
    rustix::process::chdir("/").context(|| "Entering the new root".to_owned())?;
    // As systemd has it, so that container tools find what they expect. The initramfs below stays private:
    // pivot_root in a nested namespace asks for that.
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )
    .context(|| "Sharing mounts".to_owned())?;
    mount_inside()?;
    crate::accounts::make_ready();
    crate::child::make_ready();
    network::raise_loopback()?;
    network::raise_card()?;
    let mut place = Place::real(hidden, scratch);
    place.make_ready();
    Ok(place)
}

/// What a running system expects to be mounted.
fn mount_inside() -> Result<(), Fault> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    make_dir("/dev/pts", 0o755)?;
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "gid=5,mode=620,ptmxmode=666",
    )?;
    make_dir("/dev/shm", 0o1777)?;
    let volatile = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/dev/shm", "tmpfs", volatile, "mode=1777")?;
    mount("tmpfs", "/run", "tmpfs", volatile, "mode=755")?;
    make_dir("/run/lock", 0o1777)?;
    for (name, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        match rustix::fs::symlink(target, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Fault::new(format!("Making the link `{name}`"), errno)),
        }
    }
    // Not every kernel has it, and nothing of ours needs it.
    if let Err(fault) = mount("cgroup2", "/sys/fs/cgroup", "cgroup2", plain, "") {
        say(fault);
    }
    Ok(())
}

/// Loads `/modules/*.ko` in the order of their names. A module that doesn't load is said and passed over: if it
/// was needed, the disk or port that it drives is missed by name later on.
fn load_modules() {
    let Ok(entries) = fs_err::read_dir("/modules") else {
        return;
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let parameters = CString::default();
    for path in paths {
        let loaded = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::system::finit_module(&file, &parameters, 0));
        match loaded {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => say(format!("Loading `{}`: {errno}", path.display())),
        }
    }
}

fn remove_initramfs() {
    // Whatever can't be removed costs a little memory and nothing else.
    if let Ok(entries) = fs_err::read_dir("/modules") {
        for entry in entries.flatten() {
            _ = rustix::fs::unlink(entry.path());
        }
    }
    _ = rustix::fs::unlink("/init");
}

fn open_dir(path: &str) -> Result<std::os::fd::OwnedFd, Fault> {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .context(|| format!("Opening `{path}`"))
}

/// Makes a directory with these permission bits; one that is there already stays as it is.
pub(crate) fn make_dir(path: impl AsRef<Path>, mode: u32) -> Result<(), Fault> {
    let path = path.as_ref();
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
        // The umask takes nothing away from these.
        Ok(()) if mode & (UMASK | 0o7000) == 0 => Ok(()),
        // The umask has no say, and mkdir drops the sticky bit on some file systems.
        Ok(()) => rustix::fs::chmodat(
            CWD,
            path,
            Mode::from_raw_mode(mode),
            rustix::fs::AtFlags::empty(),
        )
        .context(|| format!("Setting the mode of `{}`", path.display())),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(Fault::new(
            format!("Making the directory `{}`", path.display()),
            errno,
        )),
    }
}

fn mount(
    source: impl AsRef<Path>,
    target: &str,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<(), Fault> {
    let options =
        CString::new(options).map_err(|_| Fault::new("Mount options hold a NUL", Errno::INVAL))?;
    rustix::mount::mount(
        source.as_ref(),
        target,
        kind,
        flags,
        (!options.is_empty()).then_some(options.as_c_str()),
    )
    .context(|| {
        format!(
            "Mounting `{}` ({kind}) on `{target}`",
            source.as_ref().display()
        )
    })
}
