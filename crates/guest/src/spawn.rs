//! Starting one command: who it is, what it finds around it, and what its descriptors are.

use crate::accounts::{Accounts, Identity};
use crate::child::{self, Image};
use crate::fault::{Context as _, Fault};
use crate::setup::Identified;
use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, Winsize};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use wire::message::{Exec, RunAs, TtySize};

/// Debian's, with the administrator's directories, which its login shells leave out for ordinary users: agents
/// and scripts look for `ip` or `sysctl` there.
pub(crate) const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What runs a script that doesn't say what runs it.
const SHELL: &str = "/bin/sh";

/// Open files, soft and hard: what a login on Debian has. Programs that want more raise the soft limit
/// themselves; some walk through all numbers up to it.
const OPEN_FILES: (u64, u64) = (1024, 1_048_576);

/// Our ends of a started command's descriptors. None of them blocks.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: Pid,
    /// The terminal; then the other three are `None`.
    pub(crate) terminal: Option<OwnedFd>,
    /// The command's end of the terminal.
    pub(crate) terminal_end: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

/// Starts the command. An error's number is the one of `execve` where that is what failed: ENOENT for a program
/// that isn't there, EACCES for one that can't be executed.
pub(crate) fn spawn(exec: &Exec, machine: &Identified) -> Result<Started, Fault> {
    let identity = identify(exec, machine)?;
    let environment = environment(exec, &identity);
    let cwd_path = machine.workspace.join(OsStr::from_bytes(&exec.cwd));
    let cwd = rustix::fs::open(
        &cwd_path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| match errno {
        // ENOENT is for a program that isn't there.
        Errno::NOENT => Fault::plain(format!("There is no directory `{}`", cwd_path.display())),
        other => Fault::new(
            format!("Entering the working directory `{}`", cwd_path.display()),
            other,
        ),
    })?;
    let shell = [identity.shell.clone()];
    let argv = if exec.argv.is_empty() {
        &shell[..]
    } else {
        &exec.argv[..]
    };
    let strings = exec.argv.iter().chain([&exec.cwd]);
    let pairs = environment.iter().flat_map(|(name, value)| [name, value]);
    if strings.chain(pairs).any(|text| text.contains(&0)) {
        return Err(Fault::new(
            "A word of the command or its environment holds a NUL byte",
            Errno::INVAL,
        ));
    }
    let program = find_program(&argv[0], &cwd, &environment)?;

    // A login shell is one whose name starts with a dash.
    let arg0 = if exec.argv.is_empty() {
        let name = program.file_name().unwrap_or_default();
        [b"-", name.as_bytes()].concat()
    } else {
        argv[0].clone()
    };
    let (mut result, ends) = make_ends(exec, &identity)?;
    let texts = std::iter::once(&arg0).chain(&argv[1..]).map(Vec::as_slice);
    let pairs: Vec<Vec<u8>> = environment
        .iter()
        .map(|(name, value)| [name, b"=".as_slice(), value].concat())
        .collect();
    let program_text = c_string(program.as_os_str().as_bytes())?;
    let image = Image {
        program: &program_text,
        argv: &texts.map(c_string).collect::<Result<Vec<_>, _>>()?,
        environment: &pairs
            .iter()
            .map(|pair| c_string(pair))
            .collect::<Result<Vec<_>, _>>()?,
        descriptors: [&ends.stdin, &ends.stdout, &ends.stderr],
    };
    let started = child::start(&image, &mut enter(&identity, &cwd, exec.tty.is_some()));
    // The child's ends are in it, and have to be closed here for their ends to be seen.
    drop(ends);
    if started == Err(Errno::NOEXEC) && program != Path::new(SHELL) {
        // A script without `#!`, as execvp(3) and every shell take it. From the start, since a terminal is
        // hung up with the first process that it belonged to.
        let mut script = exec.clone();
        script.argv = vec![SHELL.into(), program.into_os_string().into_vec()];
        script.argv.extend_from_slice(&argv[1..]);
        return spawn(&script, machine);
    }
    result.pid = started.context(|| format!("Executing `{}`", program.display()))?;
    Ok(result)
}

fn c_string(text: &[u8]) -> Result<CString, Fault> {
    CString::new(text).map_err(|_| {
        Fault::new(
            "A word of the command or its environment holds a NUL byte",
            Errno::INVAL,
        )
    })
}

fn identify(exec: &Exec, machine: &Identified) -> Result<Identity, Fault> {
    let accounts = Accounts::load()?;
    let name = match &exec.user {
        RunAs::User => &machine.user.name,
        RunAs::Named(name) => name,
    };
    let found = accounts.look_up(name);
    match &exec.user {
        // The image's files belong to the guest's root, who may have broken them.
        RunAs::User if found.is_err() => Ok(Identity {
            uid: machine.user.uid,
            gid: machine.user.gid,
            groups: Vec::new(),
            name: machine.user.name.clone(),
            home: machine.user.home.clone(),
            shell: b"/bin/sh".to_vec(),
        }),
        RunAs::User | RunAs::Named(_) => found,
    }
}

/// Our defaults, and what the host sent on top of them.
fn environment(exec: &Exec, identity: &Identity) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut variables: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut set = |name: &[u8], value: &[u8]| {
        if name.is_empty() || name.contains(&b'=') {
            return;
        }
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value.to_vec(),
            None => variables.push((name.to_vec(), value.to_vec())),
        }
    };
    set(b"PATH", PATH);
    set(b"HOME", &identity.home);
    if !identity.name.is_empty() {
        set(b"USER", &identity.name);
        set(b"LOGNAME", &identity.name);
    }
    set(b"SHELL", &identity.shell);
    set(b"LANG", b"C.UTF-8");
    set(b"IS_SANDBOX", b"1");
    set(b"EFIMERA", b"1");
    if exec.tty.is_some() {
        set(b"TERM", b"xterm");
    }
    for (name, value) in &exec.env {
        set(name, value);
    }
    variables
}

/// The file that `word` names: as it is with a slash in it, otherwise the first match in `PATH` that is a file
/// and executable, otherwise the first that is a file (so that executing it says why not).
fn find_program(
    word: &[u8],
    cwd: &OwnedFd,
    environment: &[(Vec<u8>, Vec<u8>)],
) -> Result<PathBuf, Fault> {
    let word_path = Path::new(OsStr::from_bytes(word));
    if word.contains(&b'/') {
        return Ok(word_path.to_path_buf());
    }
    let missing = || {
        let shown = base::escape_line(word, 120);
        Fault::new(
            format!("There is no program `{shown}` in PATH"),
            Errno::NOENT,
        )
    };
    if word.is_empty() {
        return Err(missing());
    }
    let path = environment
        .iter()
        .find(|(name, _)| name == b"PATH")
        .map_or(PATH, |(_, value)| value);
    let mut closed = None;
    for dir in path.split(|byte| *byte == b':') {
        // An empty entry is the working directory.
        let dir = if dir.is_empty() { b"." } else { dir };
        let candidate = Path::new(OsStr::from_bytes(dir)).join(word_path);
        let Ok(stat) = rustix::fs::statat(cwd, &candidate, AtFlags::empty()) else {
            continue;
        };
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            continue;
        }
        // For root, access asks whether there is any execute bit.
        if rustix::fs::accessat(cwd, &candidate, Access::EXEC_OK, AtFlags::empty()).is_ok() {
            return Ok(candidate);
        }
        closed = closed.or(Some(candidate));
    }
    closed.ok_or_else(missing)
}

/// What happens in the child before it executes: plain system calls.
fn enter(identity: &Identity, cwd: &OwnedFd, terminal: bool) -> impl FnMut() -> Result<(), Errno> {
    let uid = Uid::from_raw(identity.uid);
    let gid = Gid::from_raw(identity.gid);
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    move || {
        crate::process::unblock_signals()?;
        rustix::process::setsid()?;
        if terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        limit_files(OPEN_FILES.1).or_else(|_| {
            // Where the ceiling can't be raised, it stays: a test on a host that is itself a container.
            let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
            limit_files(hard.unwrap_or(OPEN_FILES.1))
        })?;
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        // As the user: a directory that only root can enter is an error here, and no way around its mode.
        rustix::process::fchdir(cwd)
    }
}

fn limit_files(hard: u64) -> Result<(), Errno> {
    let limit = Rlimit {
        current: Some(OPEN_FILES.0.min(hard)),
        maximum: Some(hard),
    };
    rustix::process::setrlimit(Resource::Nofile, limit)
}

/// The child's ends.
struct ChildEnds {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

fn make_ends(exec: &Exec, identity: &Identity) -> Result<(Started, ChildEnds), Fault> {
    let doing = || "Making the command's descriptors".to_owned();
    let mut ours = Started {
        pid: Pid::INIT,
        terminal: None,
        terminal_end: None,
        stdin: None,
        stdout: None,
        stderr: None,
    };
    if let Some(size) = exec.tty {
        let (terminal, end) = open_terminal(size, identity)?;
        ours.terminal = Some(terminal);
        let child = ChildEnds {
            stdout: end.try_clone().context(doing)?,
            stderr: end.try_clone().context(doing)?,
            stdin: end.try_clone().context(doing)?,
        };
        ours.terminal_end = Some(end);
        return Ok((ours, child));
    }
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let (out, stdout) = rustix::pipe::pipe_with(flags).context(doing)?;
    let (err, stderr) = rustix::pipe::pipe_with(flags).context(doing)?;
    let stdin = if exec.stdin {
        let (stdin, feed) = rustix::pipe::pipe_with(flags).context(doing)?;
        unblock(&feed).context(doing)?;
        ours.stdin = Some(feed);
        stdin
    } else {
        rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .context(doing)?
    };
    // The ends of a pipe have flags of their own, so the child's stay as every program expects them.
    unblock(&out).context(doing)?;
    unblock(&err).context(doing)?;
    // So that programs which open /dev/stdout again (tee, sh -c '>/dev/stderr') may do so as the user.
    let stdin_pipe = exec.stdin.then_some(&stdin);
    for end in [&stdout, &stderr].into_iter().chain(stdin_pipe) {
        rustix::fs::fchown(
            end,
            Some(Uid::from_raw(identity.uid)),
            Some(Gid::from_raw(identity.gid)),
        )
        .context(doing)?;
    }
    ours.stdout = Some(out);
    ours.stderr = Some(err);
    let child = ChildEnds {
        stdin,
        stdout,
        stderr,
    };
    Ok((ours, child))
}

/// A terminal of its own in `/dev/pts`, belonging to the user.
fn open_terminal(size: TtySize, identity: &Identity) -> Result<(OwnedFd, OwnedFd), Fault> {
    let doing = || "Making a terminal".to_owned();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = rustix::pty::openpt(flags).context(doing)?;
    rustix::pty::unlockpt(&terminal).context(doing)?;
    let end = rustix::pty::ioctl_tiocgptpeer(&terminal, flags).context(doing)?;
    // The group (`tty`) is the mount's.
    rustix::fs::fchown(&end, Some(Uid::from_raw(identity.uid)), None).context(doing)?;
    let mut modes = rustix::termios::tcgetattr(&end).context(doing)?;
    // So that erasing a character in the terminal's own line editor takes away all of its bytes.
    modes.input_modes |= InputModes::IUTF8;
    rustix::termios::tcsetattr(&end, OptionalActions::Now, &modes).context(doing)?;
    resize(&terminal, size).context(doing)?;
    unblock(&terminal).context(doing)?;
    Ok((terminal, end))
}

/// Sets a terminal's size; the kernel tells its foreground process group.
pub(crate) fn resize(terminal: &OwnedFd, size: TtySize) -> Result<(), Errno> {
    rustix::termios::tcsetwinsize(
        terminal,
        Winsize {
            ws_row: size.rows,
            ws_col: size.cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
}

fn unblock(fd: &OwnedFd) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}
