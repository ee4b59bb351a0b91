//! What each family of distributions needs and calls it. One table, so that what differs can be seen at a glance.

use crate::os_release::Family;

/// How a family is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Commands that install packages, the names follow the last one. None where the package manager isn't known.
    pub(crate) install: &'static [&'static [&'static str]],
    /// Programs that are needed, the package of each, and its download with all that comes along, in MB.
    pub(crate) programs: &'static [(&'static str, &'static str, u64)],
    /// Where a guest kernel may come from, the best first.
    pub(crate) kernels: &'static [KernelWay],
    /// True where the base image is built from the host's own package sources; elsewhere a tar must be given.
    pub(crate) builds_base: bool,
    /// True where all of this was run for real.
    pub(crate) proven: bool,
}

/// One way to a guest kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelWay {
    /// A package that is fetched with apt and unpacked, not installed.
    Apt(&'static str),
    /// The kernel that the host runs.
    Running,
}

/// The family's row.
pub(crate) fn profile(family: Family) -> Profile {
    match family {
        Family::Debian => Profile {
            kernels: DEBIAN_KERNELS,
            proven: true,
            ..APT
        },
        Family::Ubuntu => Profile {
            kernels: UBUNTU_KERNELS,
            ..APT
        },
        Family::Fedora => Profile {
            install: &[&[
                "dnf",
                "install",
                "--assumeyes",
                "--setopt=install_weak_deps=False",
            ]],
            programs: &[
                ("qemu-system-x86_64", "qemu-system-x86-core", 30),
                ("mkfs.ext4", "e2fsprogs", 1),
                ("git", "git-core", 5),
            ],
            kernels: &[KernelWay::Running],
            builds_base: false,
            proven: false,
        },
        Family::Arch => Profile {
            install: &[&["pacman", "--sync", "--needed", "--noconfirm"]],
            programs: &[
                ("qemu-system-x86_64", "qemu-system-x86", 30),
                ("mkfs.ext4", "e2fsprogs", 1),
                ("git", "git", 7),
            ],
            kernels: &[KernelWay::Running],
            builds_base: false,
            proven: false,
        },
        Family::Unknown => Profile {
            install: &[],
            programs: &[
                ("qemu-system-x86_64", "QEMU for x86-64", 0),
                ("mkfs.ext4", "e2fsprogs", 0),
                ("git", "git", 0),
            ],
            kernels: &[KernelWay::Running],
            builds_base: false,
            proven: false,
        },
    }
}

const APT: Profile = Profile {
    install: &[
        &["apt-get", "update"],
        &["apt-get", "install", "--yes", "--no-install-recommends"],
    ],
    programs: &[
        ("qemu-system-x86_64", "qemu-system-x86", 20),
        ("mmdebstrap", "mmdebstrap", 1),
        ("newuidmap", "uidmap", 1),
        ("mkfs.ext4", "e2fsprogs", 1),
        ("git", "git", 8),
    ],
    kernels: DEBIAN_KERNELS,
    builds_base: true,
    proven: false,
};

const DEBIAN_KERNELS: &[KernelWay] = &[
    KernelWay::Apt("linux-image-cloud-amd64"),
    KernelWay::Apt("linux-image-amd64"),
    KernelWay::Running,
];
const UBUNTU_KERNELS: &[KernelWay] = &[
    KernelWay::Apt("linux-image-virtual"),
    KernelWay::Apt("linux-image-generic"),
    KernelWay::Running,
];
