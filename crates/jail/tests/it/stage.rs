use crate::plan::Plan;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Who attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Current,
    /// A user id without an account, which only root can take on.
    Nobody,
}

/// Both users if the tests run as root, which is how CI runs them once; else the one that there is.
pub(crate) fn users() -> Vec<User> {
    if rustix::process::geteuid().is_root() {
        vec![User::Current, User::Nobody]
    } else {
        vec![User::Current]
    }
}

const NOBODY: u32 = 54_321;
pub(crate) const SECRET: &str = "the-users-secret";

/// Everything that an attacker could reach, and the host's view of it.
pub(crate) struct Stage {
    directory: TempDir,
    user: User,
    pub(crate) tcp: TcpListener,
    pub(crate) udp: UdpSocket,
    pub(crate) unix: UnixListener,
    pub(crate) unix_abstract: UnixListener,
}

impl Stage {
    pub(crate) fn new(user: User) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs_err::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        // The build's directory may be closed to other users.
        let program = directory.path().join("jail-probe");
        // By another process: a descriptor of ours, open for writing, could be inherited by a child that another
        // test forks in this moment, and the program could not be executed while that lives ("text file busy").
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_jail-probe"))
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        fs_err::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();

        let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let udp = UdpSocket::bind(tcp.local_addr().unwrap()).unwrap();
        let unix = UnixListener::bind(directory.path().join("socket")).unwrap();
        fs_err::set_permissions(
            directory.path().join("socket"),
            PermissionsExt::from_mode(0o777),
        )
        .unwrap();
        let name = abstract_name(directory.path());
        let address =
            <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name).unwrap();
        let unix_abstract = UnixListener::bind_addr(&address).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        unix.set_nonblocking(true).unwrap();
        unix_abstract.set_nonblocking(true).unwrap();
        let stage = Self {
            directory,
            user,
            tcp,
            udp,
            unix,
            unix_abstract,
        };
        stage.write_file();
        stage
    }

    /// The user's file, as it is before an attack.
    pub(crate) fn write_file(&self) {
        let path = self.file();
        if path.exists() {
            fs_err::remove_file(&path).unwrap();
        }
        fs_err::write(&path, SECRET).unwrap();
        if self.user == User::Nobody {
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs_err::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            file: self.file(),
            absent: self.directory.path().join("absent"),
            port: self.tcp.local_addr().unwrap().port(),
            socket: self.directory.path().join("socket"),
            abstract_socket: abstract_name(self.directory.path()),
            // Of the same user as the attacker, so that only the jail can be in the way.
            outsider: 0,
            required: std::collections::BTreeSet::new(),
            report: 0,
        }
    }

    /// The probe as this stage's user, with a variable in its environment and a stray descriptor of the file.
    pub(crate) fn probe(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.directory.path().join("jail-probe"));
        command
            .args(arguments)
            .env("STRAY_VARIABLE", SECRET)
            .current_dir("/");
        if self.user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// A descriptor of `file` that every child inherits.
pub(crate) fn stray_descriptor(file: &Path) -> OwnedFd {
    let opened = fs_err::File::open(file).unwrap();
    // dup() doesn't set CLOEXEC.
    rustix::io::dup(opened.as_fd()).unwrap()
}

/// Whether a listener that doesn't block has seen nobody.
pub(crate) fn untouched<T>(outcome: io::Result<T>) -> bool {
    outcome
        .err()
        .is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn abstract_name(directory: &Path) -> String {
    format!(
        "jail-test-{}",
        directory.file_name().unwrap().to_string_lossy()
    )
}
