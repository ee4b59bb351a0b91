//! Each attempt answers with what it got, or with the error that kept it from getting it.

use crate::plan::Plan;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, inotify};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

type Attempt = io::Result<String>;

pub(crate) fn run(plan: &Plan) -> ExitCode {
    let outsider = Pid::from_raw(plan.outsider).expect("a process id is positive");
    let directory = plan.file.parent().expect("the file lies in a directory");
    let own_fd_directory = Path::new("/proc/self/fd");
    let attempts: Vec<(&str, Attempt)> = vec![
        ("read the user's file", read(&plan.file)),
        (
            "read the user's file through /proc/self/root",
            read(&behind_root(&plan.file)),
        ),
        (
            "read the user's file through /proc/self/cwd",
            read(Path::new("/proc/self/cwd/etc/passwd")),
        ),
        ("write the user's file", write(&plan.file)),
        (
            "change the file's mode",
            done(rustix::fs::chmod(&plan.file, Mode::RWXU)),
        ),
        ("change the file's times", touch(&plan.file)),
        ("set an attribute", set_attribute(&plan.file)),
        ("watch the user's directory", watch(directory)),
        ("list the user's directory", list(directory)),
        ("list /", list(Path::new("/"))),
        ("list processes", list(Path::new("/proc"))),
        ("read /etc/passwd", read(Path::new("/etc/passwd"))),
        (
            "read another's command line",
            read(Path::new(&format!("/proc/{}/cmdline", plan.outsider))),
        ),
        (
            "read its own mounts",
            read(Path::new("/proc/self/mountinfo")),
        ),
        ("execute a shell", execute("/bin/sh")),
        (
            "connect to loopback",
            TcpStream::connect(("127.0.0.1", plan.port)).map(|_| "connected".into()),
        ),
        ("send to loopback", send_datagram(plan.port)),
        (
            "connect to a socket by path",
            UnixStream::connect(&plan.socket).map(|_| "connected".into()),
        ),
        (
            "connect to an abstract socket",
            connect_abstract(&plan.abstract_socket),
        ),
        ("list network interfaces", interfaces()),
        ("signal the parent", parent().and_then(signal)),
        ("signal an outsider", signal(outsider)),
        ("hold the parent by a descriptor", hold_parent()),
        (
            "read an outsider's memory",
            read(Path::new(&format!("/proc/{}/maps", plan.outsider))),
        ),
        ("make a user namespace", make_user_namespace()),
        ("dump core", core_limit()),
        (
            "see the environment",
            seen(std::env::vars().map(|(name, _)| name)),
        ),
        ("have capabilities", have_capabilities()),
        ("gain privileges", gain_privileges()),
        (
            "remove the user's file",
            done(rustix::fs::unlink(&plan.file)),
        ),
        ("create a file", write(&plan.absent)),
        ("replace a file by a directory", replace(&plan.absent)),
    ];
    let mut report: BTreeMap<&str, Result<String, String>> = attempts
        .into_iter()
        .map(|(name, outcome)| (name, outcome.map_err(|error| error.to_string())))
        .collect();
    // Its own descriptors it may see: that is how the test learns of a stray one.
    let descriptors = list(own_fd_directory).unwrap_or_else(|error| error.to_string());
    report.insert("descriptors", Ok(descriptors));

    let text = serde_json::to_vec(&report).expect("a map of texts is JSON");
    inherited(plan.report)
        .write_all(&text)
        .expect("the report was inherited");
    ExitCode::SUCCESS
}

#[expect(
    unsafe_code,
    reason = "an inherited descriptor is known by its number only"
)]
fn inherited(number: i32) -> UnixStream {
    // SAFETY: the supervisor kept this descriptor open for us, and nothing else owns it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().expect("it is open").into()
}

fn read(path: &Path) -> Attempt {
    Ok(base::escape_line(&fs_err::read(path)?, 60))
}

fn behind_root(path: &Path) -> std::path::PathBuf {
    Path::new("/proc/self/root").join(
        path.strip_prefix("/")
            .expect("the test's paths are absolute"),
    )
}

fn write(path: &Path) -> Attempt {
    let mut file = fs_err::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?;
    file.write_all(b"owned")?;
    Ok("written".to_owned())
}

fn replace(path: &Path) -> Attempt {
    // Where the attempt before this one was refused, there is nothing to remove.
    rustix::fs::unlink(path).ok();
    done(rustix::fs::mkdir(path, Mode::RWXU))
}

fn done(result: Result<(), Errno>) -> Attempt {
    result?;
    Ok("done".to_owned())
}

fn touch(path: &Path) -> Attempt {
    let moment = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let times = rustix::fs::Timestamps {
        last_access: moment,
        last_modification: moment,
    };
    done(rustix::fs::utimensat(
        rustix::fs::CWD,
        path,
        &times,
        rustix::fs::AtFlags::empty(),
    ))
}

fn set_attribute(path: &Path) -> Attempt {
    done(rustix::fs::setxattr(
        path,
        "user.owned",
        b"1",
        rustix::fs::XattrFlags::empty(),
    ))
}

fn watch(directory: &Path) -> Attempt {
    let watcher = inotify::init(inotify::CreateFlags::empty())?;
    inotify::add_watch(watcher, directory, inotify::WatchFlags::ALL_EVENTS)?;
    Ok("watching".to_owned())
}

fn list(directory: &Path) -> Attempt {
    let names = fs_err::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<_>>>()?;
    seen(names.into_iter())
}

/// Seeing nothing is as good as a refusal.
fn seen(names: impl Iterator<Item = String>) -> Attempt {
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        Err(io::Error::other("nothing there"))
    } else {
        Ok(names.join(" "))
    }
}

fn execute(program: &str) -> Attempt {
    // In a child, so that success can be reported.
    let status = Command::new(program).args(["-c", "exit 7"]).status()?;
    Ok(format!("{status}"))
}

fn send_datagram(port: u16) -> Attempt {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    socket.send_to(b"owned", ("127.0.0.1", port))?;
    Ok("sent".to_owned())
}

fn connect_abstract(name: &str) -> Attempt {
    let socket: OwnedFd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok("connected".to_owned())
}

fn interfaces() -> Attempt {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let names = (1..16)
        .filter_map(|index| rustix::net::netdevice::index_to_name(socket.as_fd(), index).ok());
    seen(names)
}

fn parent() -> io::Result<Pid> {
    rustix::process::getppid().ok_or_else(|| io::Error::other("no parent"))
}

fn signal(process: Pid) -> Attempt {
    done(rustix::process::test_kill_process(process))
}

fn hold_parent() -> Attempt {
    rustix::process::pidfd_open(parent()?, rustix::process::PidfdFlags::empty())?;
    Ok("held".to_owned())
}

fn make_user_namespace() -> Attempt {
    // In a child: the attempts after this one are about the namespace that this process has.
    let mut command = Command::new("/proc/self/exe");
    command.arg("hang");
    let unshare = || {
        crate::supervise::unshare_user()?;
        Err(io::Error::other("made"))
    };
    #[expect(unsafe_code, reason = "the child must do it before it executes")]
    // SAFETY: the closure makes one system call, and its error doesn't allocate before the call has succeeded.
    let outcome = unsafe { command.pre_exec(unshare) }.spawn();
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok("made".to_owned()),
    }
}

fn core_limit() -> Attempt {
    match rustix::process::getrlimit(rustix::process::Resource::Core).maximum {
        Some(0 | 1) => Err(io::Error::other("the limit says no")),
        limit => Ok(format!("{limit:?}")),
    }
}

fn have_capabilities() -> Attempt {
    let sets = rustix::thread::capabilities(None)?;
    let held = sets.effective | sets.permitted | sets.inheritable;
    if held.is_empty() {
        Err(io::Error::other("none"))
    } else {
        Ok(format!("{:#x}", held.bits()))
    }
}

fn gain_privileges() -> Attempt {
    if rustix::thread::no_new_privs()? {
        Err(io::Error::other("never"))
    } else {
        Ok("possible".to_owned())
    }
}
