use crate::os_release::{Family, OsRelease};
use crate::subid;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What matters of the host for setting it up. Read once, then pure data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The distribution.
    pub os: OsRelease,
    /// True for the superuser.
    pub root: bool,
    /// Name of the user, or the number where `/etc/passwd` has no name for it.
    pub user: String,
    /// An ordinary user may make user namespaces.
    pub user_namespaces: bool,
    /// The user has a range of subordinate user and group ids.
    pub subordinate_ids: bool,
    /// Those of [`HostFacts::PROGRAMS`] that are installed.
    pub programs: BTreeSet<String>,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -m`.
    pub architecture: String,
}

impl HostFacts {
    /// Programs that are looked for in the system's directories.
    pub const PROGRAMS: [&'static str; 10] = [
        "apt-get",
        "dnf",
        "dpkg-deb",
        "git",
        "mkfs.ext4",
        "mmdebstrap",
        "newuidmap",
        "pacman",
        "qemu-system-x86_64",
        "sudo",
    ];

    /// Looks at the running host.
    pub fn read() -> Self {
        let uid = rustix::process::geteuid();
        let user = user_name(uid.as_raw());
        let name = rustix::system::uname();
        let text = |path: &str| fs_err::read_to_string(path).unwrap_or_default();
        Self {
            os: OsRelease::read(Path::new("/")),
            root: uid.is_root(),
            // Debian's older switch (0: forbidden), and the kernel's own limit.
            user_namespaces: text("/proc/sys/kernel/unprivileged_userns_clone").trim() != "0"
                && text("/proc/sys/user/max_user_namespaces").trim() != "0",
            subordinate_ids: ["/etc/subuid", "/etc/subgid"]
                .iter()
                .all(|path| subid::has_range(&text(path), &user, uid.as_raw())),
            user,
            programs: Self::PROGRAMS
                .iter()
                .filter(|program| is_installed(program))
                .map(|program| (*program).to_owned())
                .collect(),
            kernel_release: name.release().to_string_lossy().into_owned(),
            architecture: name.machine().to_string_lossy().into_owned(),
        }
    }

    /// The distribution's family.
    pub fn family(&self) -> Family {
        self.os.family()
    }

    /// True when the program is installed.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(program)
    }
}

/// In the directories that a child's `PATH` names.
fn is_installed(program: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .any(|directory| {
            fs_err::metadata(Path::new(directory).join(program)).is_ok_and(|metadata| {
                metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
            })
        })
}

fn user_name(uid: u32) -> String {
    let passwd = fs_err::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|fields| fields.get(2).is_some_and(|field| *field == uid.to_string()));
    line.map_or_else(|| uid.to_string(), |fields| fields[0].to_owned())
}
