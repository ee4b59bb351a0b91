//! The same program on an ordinary host, for tests: a socket in place of the port, and a directory in place of
//! the disks. It runs as the first process of a process-id and mount namespace that the test made.
//!
//! A machine can't be brought to this: there the arguments of PID 1 come from the kernel's command line, which
//! the host writes, and in the first process-id namespace it is refused.

use crate::fault::{Context as _, Fault};
use crate::guest::Guest;
use crate::place::Place;
use crate::port::Port;
use crate::process;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// The number of the kernel's first process-id namespace (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// `--test-port` (the port is standard input) `--root DIR`: DIR holds `root`, which becomes the root and has
/// what a boot would have mounted in it, `scratch`, and `hidden` with an optional `workspace`. With a file `ready`, it is
/// made ready as a boot does it.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), Fault> {
    let [_, flag, root] = arguments else {
        return Err(Fault::new("Reading the arguments of a test", Errno::INVAL));
    };
    let namespace = fs_err::read_link("/proc/self/ns/pid")
        .context(|| "Looking at the process-id namespace".to_owned())?;
    if flag != "--root" || namespace == Path::new(FIRST_NAMESPACE) {
        return Err(Fault::new(
            "A test runs in a process-id namespace of its own",
            Errno::PERM,
        ));
    }
    rustix::process::umask(Mode::from_raw_mode(crate::boot::UMASK));
    let doing = || "Preparing a test".to_owned();
    let root = Path::new(root);
    let open = |name: &str| -> Result<OwnedFd, Fault> {
        rustix::fs::open(
            root.join(name),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .context(doing)
    };
    let mut place = Place::rehearsal(open("hidden")?, open("scratch")?);
    let ready = crate::accounts::is_there(&root.join("ready").to_string_lossy());
    let fd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).context(doing)?;
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).context(doing)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).context(doing)?;
    let port = Port::new(fd).context(doing)?;
    rustix::process::chroot(root.join("root")).context(doing)?;
    rustix::process::chdir("/").context(doing)?;
    if ready {
        crate::accounts::make_ready();
        place.make_ready();
    }
    let children = process::child_events().context(doing)?;
    Guest::new(port, children, Ok(place)).serve();
    Ok(())
}
