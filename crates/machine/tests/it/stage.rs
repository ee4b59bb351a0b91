use crate::plan::{Beginning, ClonePlan, CloneReport, End, Host, Memory, Plan, Report};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Who runs the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Current,
    /// A user id without an account, which only root can take on.
    Nobody,
}

const NOBODY: u32 = 54_321;

/// Both users if the tests run as root, else the one that there is.
pub(crate) fn users() -> Vec<User> {
    if rustix::process::geteuid().is_root() {
        vec![User::Current, User::Nobody]
    } else {
        vec![User::Current]
    }
}

/// The files of one machine.
pub(crate) struct Stage {
    pub(crate) directory: TempDir,
    kernel: PathBuf,
}

/// What the guest reads at the start of its root disk.
pub(crate) const ROOT_MARK: &[u8; 16] = b"the root's bytes";
const SCRATCH_SIZE: usize = 1 << 20;
/// Far more than any workspace: its file takes no room for that.
pub(crate) const WORKSPACE: u64 = 64 << 30;

impl Stage {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs_err::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = |name: &str| directory.path().join(name);
        // By another process: a descriptor of ours, open for writing, could be inherited by a child that another
        // test forks in this moment, and the program could not be executed while that lives ("text file busy").
        let role = env!("CARGO_BIN_EXE_machine-role");
        let copied = Command::new("cp")
            .arg(role)
            .arg(path("machine-role"))
            .status();
        assert!(copied.unwrap().success());
        // The stored kernel is its owner's alone.
        fs_err::write(
            path("vmlinuz"),
            fs_err::read(kernel_directory().join("vmlinuz")).unwrap(),
        )
        .unwrap();
        fs_err::write(
            path("initramfs"),
            initramfs(&kernel_directory(), &init(directory.path())),
        )
        .unwrap();
        let mut root = ROOT_MARK.to_vec();
        root.resize(SCRATCH_SIZE, 0);
        fs_err::write(path("root"), root).unwrap();
        Self {
            kernel: path("vmlinuz"),
            directory,
        }
    }

    pub(crate) fn plan(&self, guest: &str, host: Host) -> Plan {
        Plan {
            kernel: self.kernel.clone(),
            initramfs: self.directory.path().join("initramfs"),
            root: self.directory.path().join("root"),
            scratch: self.directory.path().join("scratch"),
            cpus: 1,
            guest: guest.to_owned(),
            host,
        }
    }

    /// Starts the supervisor as `user`, with a fresh scratch disk.
    pub(crate) fn supervise(&self, user: User, plan: &Plan) -> Supervisor {
        fs_err::write(&plan.scratch, vec![0; SCRATCH_SIZE]).unwrap();
        let mut command = Command::new(self.directory.path().join("machine-role"));
        command
            .args(["supervise", &serde_json::to_string(plan).unwrap()])
            .env("STRAY_VARIABLE", "1");
        if user == User::Nobody {
            std::os::unix::fs::chown(&plan.scratch, Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        }
        Supervisor(
            command
                .stdout(Stdio::piped())
                .current_dir("/")
                .spawn()
                .unwrap(),
        )
    }

    /// A machine that is to be booted, with files of this user for all that it writes. The disk `workspace` has
    /// `WORKSPACE` bytes and nothing in them.
    pub(crate) fn clone_plan(&self, user: User) -> ClonePlan {
        let path = |name: &str| self.directory.path().join(name);
        for name in ["scratch", "state", "ram"] {
            fs_err::write(path(name), []).unwrap();
            if user == User::Nobody {
                std::os::unix::fs::chown(path(name), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        self.sparse("scratch", SCRATCH_SIZE as u64, b"");
        ClonePlan {
            kernel: self.kernel.clone(),
            initramfs: path("initramfs"),
            disks: vec![
                ("root".to_owned(), path("root")),
                ("scratch".to_owned(), path("scratch")),
                (
                    "workspace".to_owned(),
                    self.sparse("placeholder", WORKSPACE, b""),
                ),
            ],
            memory_mib: 256,
            memory: Memory::Shared,
            state: path("state"),
            ram: path("ram"),
            begin: Beginning::Boot,
            talk: Vec::new(),
            end: End::Save,
            max_file_mib: 1024,
        }
    }

    /// A file of this size that begins with `content`, the rest being a hole.
    pub(crate) fn sparse(&self, name: &str, size: u64, content: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        let mut options = fs_err::OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(content).unwrap();
        file.set_len(size).unwrap();
        path
    }

    /// Carries the plan out as `user`.
    pub(crate) fn clones(&self, user: User, plan: &ClonePlan) -> CloneReport {
        let output = self.role(user, &["clone", &serde_json::to_string(plan).unwrap()]);
        serde_json::from_str(&output).unwrap()
    }

    /// What the role says on its standard output, run as `user` to its end.
    pub(crate) fn role(&self, user: User, arguments: &[&str]) -> String {
        let mut command = Command::new(self.directory.path().join("machine-role"));
        command.args(arguments).current_dir("/");
        if user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{user:?}: {}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the role as `user`, to be talked with.
    pub(crate) fn start_role(&self, user: User, arguments: &[&str]) -> Child {
        let mut command = Command::new(self.directory.path().join("machine-role"));
        command.args(arguments).current_dir("/");
        if user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Whether the read-only disk is as it was.
    pub(crate) fn root_is_intact(&self) -> bool {
        fs_err::read(self.directory.path().join("root"))
            .unwrap()
            .starts_with(ROOT_MARK)
    }

    /// What the guest wrote into the middle of its scratch disk.
    pub(crate) fn written(&self) -> Vec<u8> {
        let scratch = fs_err::read(self.directory.path().join("scratch")).unwrap();
        assert_eq!(scratch.len(), SCRATCH_SIZE);
        scratch[512 * 1024..][..16].to_vec()
    }
}

/// A supervisor that runs.
pub(crate) struct Supervisor(Child);

impl Supervisor {
    /// Its next report.
    pub(crate) fn report(&mut self) -> Report {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(
            !line.is_empty(),
            "the supervisor failed: {:?}",
            self.0.wait()
        );
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // It has ended, except where a test failed.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "where the tests' data lie is not known otherwise"
)]
fn kernel_directory() -> PathBuf {
    let data = std::env::var_os("EFIMERA_TEST_DATA")
        .expect("EFIMERA_TEST_DATA names a directory with `kernels/<id>/vmlinuz`; `cargo xtask test` makes it");
    let kernels = fs_err::read_dir(Path::new(&data).join("kernels")).unwrap();
    kernels.map(|entry| entry.unwrap().path()).max().unwrap()
}

/// The guest's program, compiled without any library to load.
fn init(directory: &Path) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/init.c");
    let program = directory.join("init");
    let status = Command::new("cc")
        .args(["-static", "-O1", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success(), "cc: {status}");
    fs_err::read(program).unwrap()
}

/// A `newc` cpio archive of the program and the kernel's modules.
fn initramfs(kernel: &Path, init: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    entry(&mut archive, "init", 0o100_755, init);
    entry(&mut archive, "modules", 0o040_755, b"");
    for module in fs_err::read_dir(kernel.join("modules")).unwrap() {
        let path = module.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // No network card, no driver for one.
        if name.contains("virtio") && !name.contains("net") {
            entry(
                &mut archive,
                &format!("modules/{name}"),
                0o100_644,
                &fs_err::read(&path).unwrap(),
            );
        }
    }
    entry(&mut archive, "TRAILER!!!", 0, b"");
    archive
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, contents: &[u8]) {
    let inode = u32::try_from(archive.len()).unwrap();
    let size = u32::try_from(contents.len()).unwrap();
    let name_size = u32::try_from(name.len() + 1).unwrap();
    archive.extend_from_slice(b"070701");
    for field in [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend_from_slice(contents);
    archive.resize(archive.len().next_multiple_of(4), 0);
}
