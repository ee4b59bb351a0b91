//! The host's own package sources and tools, as root or as an ordinary user: whoever runs the tests.

use crate::bench::Bench;
use image::{AptOptions, DebianOptions, Environment, HostFacts, Origin, Progress, Silent, Step};
use std::process::Command;

/// Remembers the steps.
#[derive(Default)]
struct Steps(Vec<String>);

impl Progress for Steps {
    fn step(&mut self, step: Step<'_>) {
        self.0.push(step.to_string());
    }
}

/// What a person who debugs a failing build wants to read.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn the_base_image_is_built_from_the_hosts_package_sources() {
    let bench = Bench::new();
    let options = DebianOptions {
        environment: Environment::default(),
        sources: None,
        temporary: "/var/tmp".into(),
        extra_packages: Vec::new(),
        efimera: "0.0".into(),
    };
    let mut steps = Steps::default();
    let image = image::build_debian(&bench.store, &HostFacts::read(), &options, &mut steps)
        .unwrap_or_else(|error| panic!("{}", explain(&error)));
    assert!(
        steps
            .0
            .iter()
            .any(|step| step.starts_with("Packing the base image: ")),
        "{:?}",
        steps.0
    );

    let manifest = &image.manifest;
    for name in [
        "git",
        "ca-certificates",
        "curl",
        "python3",
        "ripgrep",
        "build-essential",
        "openssh-client",
        "procps",
        "less",
        "sudo",
    ] {
        assert!(
            manifest.packages.iter().any(|package| package.name == name),
            "{name}"
        );
    }
    assert!(
        matches!(&manifest.origin, Origin::Packages { builder, sources }
        if builder.starts_with("mmdebstrap ") && !sources.is_empty())
    );
    image.open(&mut Silent).unwrap();

    let check = Command::new("fsck.erofs")
        .arg(image.path())
        .output()
        .unwrap();
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stderr)
    );
    let look = |path: &str| {
        let dump = Command::new("dump.erofs")
            .arg(format!("--path={path}"))
            .arg(image.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&dump.stdout).into_owned();
        text.contains("NID:").then_some(text)
    };
    // The tool doesn't show the set-id bits.
    assert!(look("/usr/bin/sudo").unwrap().contains("Access: 0755"));
    assert!(look("/etc/apt/sources.list.d/host.sources").is_some());
    for path in [
        "/etc/hostname",
        "/etc/resolv.conf",
        "/var/lib/apt/lists/lock",
        "/var/log/dpkg.log",
        "/dev/null",
    ] {
        assert_eq!(look(path), None, "{path}");
    }
    assert!(bench.unfinished().is_empty());
}

#[test]
fn a_kernel_is_fetched_without_installing_it() {
    let bench = Bench::new();
    let options = AptOptions {
        environment: Environment::default(),
        sources: None,
        package: "linux-image-cloud-amd64".into(),
    };
    let mut steps = Steps::default();
    let kernel = image::install_from_apt(&bench.store, &HostFacts::read(), &options, &mut steps)
        .unwrap_or_else(|error| panic!("{}", explain(&error)));
    assert!(
        steps
            .0
            .iter()
            .any(|step| step == "Downloading the kernel: 100 %"),
        "{:?}",
        steps.0
    );
    assert!(
        kernel.record().release.ends_with("-cloud-amd64"),
        "{}",
        kernel.record().release
    );
    let names: Vec<_> = kernel
        .modules()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let place = |name: &str| names.iter().position(|file| file.ends_with(name)).unwrap();
    assert!(place("-virtio.ko") < place("-virtio_pci.ko"));
    assert!(place("-libcrc32c.ko") < place("-erofs.ko"));
    let initramfs = kernel.initramfs().unwrap();
    assert!(initramfs.starts_with(b"070701"));
    assert_eq!(bench.store.newest_kernel().unwrap(), Some(kernel));
    assert!(bench.unfinished().is_empty());
}

#[test]
fn a_package_that_does_not_exist_is_named() {
    let bench = Bench::new();
    let options = AptOptions {
        environment: Environment::default(),
        sources: None,
        package: "linux-image-of-no-distribution".into(),
    };
    let error = image::install_from_apt(&bench.store, &HostFacts::read(), &options, &mut Silent)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "The host's package sources have no package `linux-image-of-no-distribution` with a kernel"
    );
    assert!(bench.unfinished().is_empty());
}
