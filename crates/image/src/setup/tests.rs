use super::*;
use crate::os_release::OsRelease;

fn host(os_release: &str) -> HostFacts {
    HostFacts {
        os: OsRelease::parse(os_release),
        root: false,
        user: "me".into(),
        user_namespaces: true,
        subordinate_ids: true,
        programs: ["apt-get", "dpkg-deb", "git", "mkfs.ext4", "sudo"]
            .map(str::to_owned)
            .into(),
        kernel_release: "6.1.0-x".into(),
        architecture: "x86_64".into(),
    }
}

fn options() -> PlanOptions {
    PlanOptions {
        environment: Environment::default(),
        kernel: None,
        tar: None,
        sources: None,
        temporary: "/var/tmp".into(),
        may_ask: false,
        efimera: "0".into(),
    }
}

const NOTHING: Present = Present {
    kernel: false,
    image: false,
};
const DEBIAN: &str = "ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME=\"Debian 12\"";

/// The plan as lines: what, and the commands.
fn check(host: &HostFacts, present: Present, options: &PlanOptions, expected: &str) {
    let plan = plan_for(host, present, options);
    let mut text = String::new();
    for item in &plan.items {
        text.push_str(&item.what);
        text.push('\n');
        for command in &item.commands {
            text.push_str("  ");
            text.push_str(&command.join(" "));
            text.push('\n');
        }
    }
    assert_eq!(text, expected);
}

#[test]
fn a_fresh_debian_gets_packages_kernel_and_image() {
    check(
        &host(DEBIAN),
        NOTHING,
        &options(),
        "\
Install qemu-system-x86, mmdebstrap, uidmap
  apt-get update
  apt-get install --yes --no-install-recommends qemu-system-x86 mmdebstrap uidmap
Download the guest kernel linux-image-cloud-amd64 (unpacked, not installed)
  efimera setup
Build the base image of Debian 12 from the host's package sources
  efimera image build
",
    );
}

#[test]
fn root_needs_no_uidmap() {
    let plan = plan_for(
        &HostFacts {
            root: true,
            subordinate_ids: false,
            ..host(DEBIAN)
        },
        NOTHING,
        &options(),
    );
    assert_eq!(plan.items[0].what, "Install qemu-system-x86, mmdebstrap");
    assert_eq!(plan.items.len(), 3);
}

#[test]
fn a_user_without_subordinate_ids_gets_some() {
    let host = HostFacts {
        subordinate_ids: false,
        ..host(DEBIAN)
    };
    let plan = plan_for(&host, NOTHING, &options());
    assert_eq!(plan.items[1].kind, ItemKind::SubordinateIds);
    assert_eq!(plan.items[1].commands[0][0], "usermod");
    assert_eq!(plan.items[1].commands[0][5], "me");
}

#[test]
fn what_is_there_is_not_planned_again() {
    let mut ready = host(DEBIAN);
    ready.programs.insert("qemu-system-x86_64".into());
    let present = Present {
        kernel: true,
        image: true,
    };
    assert!(plan_for(&ready, present, &options()).is_empty());
    // Without an image to build its tools aren't needed.
    check(
        &host(DEBIAN),
        present,
        &options(),
        "\
Install qemu-system-x86
  apt-get update
  apt-get install --yes --no-install-recommends qemu-system-x86
",
    );
}

#[test]
fn each_family_has_its_own_names() {
    let present = Present {
        kernel: true,
        image: true,
    };
    check(
        &host("ID=fedora"),
        present,
        &options(),
        "\
Install qemu-system-x86-core
  dnf install --assumeyes --setopt=install_weak_deps=False qemu-system-x86-core
",
    );
    check(
        &host("ID=arch"),
        present,
        &options(),
        "\
Install qemu-system-x86
  pacman --sync --needed --noconfirm qemu-system-x86
",
    );
    check(
        &host("ID=alpine"),
        present,
        &options(),
        "Install QEMU for x86-64\n",
    );
    assert!(plan_for(&host("ID=debian"), present, &options()).proven);
    for other in ["ID=ubuntu", "ID=fedora", "ID=arch", "ID=x"] {
        assert!(
            !plan_for(&host(other), present, &options()).proven,
            "{other}"
        );
    }
}

#[test]
fn without_apt_the_host_lends_its_kernel_and_a_tar_is_asked_for() {
    let mut fedora = host("ID=fedora\nPRETTY_NAME=Fedora");
    fedora.programs.insert("qemu-system-x86_64".into());
    check(
        &fedora,
        NOTHING,
        &options(),
        "\
Take over the host's kernel 6.1.0-x
  efimera setup
Take in a root file system as the base image (a tar that you give)
  efimera image build --from-tar FILE
",
    );
}

#[test]
fn given_files_are_taken_even_where_others_are_there() {
    let given = PlanOptions {
        kernel: Some(GivenKernel {
            vmlinuz: "/k/bzImage".into(),
            modules: Some("/k/modules".into()),
        }),
        tar: Some("/r.tar".into()),
        ..options()
    };
    let mut ready = host(DEBIAN);
    ready.programs.insert("qemu-system-x86_64".into());
    check(
        &ready,
        Present {
            kernel: true,
            image: true,
        },
        &given,
        "\
Take over the kernel /k/bzImage
  efimera setup --kernel /k/bzImage --modules /k/modules
Make a base image of /r.tar
  efimera image build --from-tar /r.tar
",
    );
}

fn refusal(host: &HostFacts, options: &PlanOptions) -> String {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let plan = plan_for(
        host,
        Present {
            kernel: true,
            image: true,
        },
        options,
    );
    execute(&plan, host, &store, options, &mut crate::progress::Silent)
        .unwrap_err()
        .to_string()
}

#[test]
fn without_root_and_terminal_the_exact_command_is_named() {
    assert_eq!(
        refusal(&host(DEBIAN), &options()),
        "This needs root: sudo apt-get update && sudo apt-get install --yes --no-install-recommends qemu-system-x86"
    );
    let mut without_sudo = host(DEBIAN);
    without_sudo.programs.remove("sudo");
    let may_ask = PlanOptions {
        may_ask: true,
        ..options()
    };
    assert!(refusal(&without_sudo, &may_ask).starts_with("This needs root: sudo apt-get update"));
}

#[test]
fn an_unknown_package_manager_is_said() {
    assert_eq!(
        refusal(&host("ID=alpine\nPRETTY_NAME=\"Alpine Linux\""), &options()),
        "Alpine Linux has no package manager that efimera knows; install these yourself: QEMU for x86-64"
    );
}

#[test]
fn sudo_gets_the_environment_through_env() {
    let environment = Environment::new([("https_proxy".into(), "p".into())]);
    let command = as_root(&owned(&["apt-get", "update"]), &environment);
    assert_eq!(
        child::words(&command),
        "sudo env https_proxy=p PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive apt-get update"
    );
}

#[test]
fn a_plan_adds_up() {
    let plan = plan_for(&host(DEBIAN), NOTHING, &options());
    assert_eq!(
        plan.download(),
        Size(plan.items.iter().map(|item| item.download.bytes()).sum())
    );
    assert!(plan.download() > Size::mib(180) && plan.seconds() > 100);
}

fn run(commands: &[&[&str]]) -> Result<(), SetupError> {
    let item = Item {
        kind: ItemKind::Packages,
        what: "Install x".into(),
        why: "",
        commands: commands.iter().map(|words| owned(words)).collect(),
        needs_root: true,
        download: Size(0),
        seconds: 0,
    };
    let root = HostFacts {
        root: true,
        ..host(DEBIAN)
    };
    change_host(&item, &root, &options(), &mut crate::progress::Silent)
}

#[test]
fn the_last_command_decides() {
    run(&[&["false"], &["true"]]).unwrap();
    let error = run(&[&["true"], &["sh", "-c", "echo why >&2; exit 4"]]).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.ends_with("ended with exit status: 4; it said:\n  why"),
        "{source}"
    );
}

#[test]
fn the_next_kernel_is_tried_only_where_this_one_is_absent() {
    use crate::modules::ModulesError;
    let missing = ModulesError::Missing {
        name: "erofs".into(),
        by: None,
    };
    assert!(FetchError::NoPackage("x".into()).is_absence());
    assert!(FetchError::Modules(missing).is_absence());
    assert!(!FetchError::Io(io::Error::other("full")).is_absence());
    assert!(!FetchError::Unpack(io::Error::other("cut")).is_absence());
}
