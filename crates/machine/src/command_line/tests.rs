use super::{Numbers, RamFile, command_line, hardware_line};
use crate::qemu::Qemu;
use crate::spec::{Begin, Disk, Ram, Shape, Spec};
use crate::{Accel, MINIMUM};
use base::Size;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

fn nothing() -> OwnedFd {
    fs_err::File::open("/dev/null")
        .unwrap()
        .into_parts()
        .0
        .into()
}

fn spec(accel: Accel) -> Spec {
    Spec {
        qemu: Qemu::for_tests("/usr/bin/qemu-system-x86_64", MINIMUM),
        accel,
        cpus: 2,
        memory: Size(Size::gib(2).bytes() + 1),
        ram: Ram::Own,
        begin: Begin::Boot {
            kernel: nothing(),
            initramfs: nothing(),
            words: vec!["efimera.trace=1,2".to_owned()],
        },
        disks: vec![
            Disk {
                file: nothing(),
                read_only: true,
                serial: "root".parse().unwrap(),
            },
            Disk {
                file: nothing(),
                read_only: false,
                serial: "scratch".parse().unwrap(),
            },
        ],
        network: None,
        max_file_size: None,
        required_layers: BTreeSet::new(),
    }
}

/// One option with its value a line.
fn text(spec: &Spec, ram: Option<RamFile>) -> String {
    let numbers = Numbers {
        ram,
        kernel: 10,
        initramfs: 11,
        disks: vec![12, 13],
        qmp: 14,
        console: 15,
        control: 16,
        network: 18,
    };
    lines(&command_line(spec, &spec.shape().unwrap(), &numbers))
}

fn lines(arguments: &[OsString]) -> String {
    let mut text = String::new();
    for argument in arguments {
        let argument = argument.to_str().unwrap();
        text.push(if argument.starts_with('-') { '\n' } else { ' ' });
        text.push_str(argument);
    }
    text.trim_start().to_owned()
}

/// The lines in which two texts of the same length differ.
fn difference<'a>(one: &'a str, other: &'a str) -> Vec<(&'a str, &'a str)> {
    let pairs = one.lines().zip(other.lines());
    pairs.filter(|(one, other)| one != other).collect()
}

#[test]
fn an_emulated_machine() {
    insta::assert_snapshot!(text(&spec(Accel::Tcg), None), @r"
    -nodefaults
    -no-user-config
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
    -no-reboot
    -kernel /proc/self/fd/10
    -initrd /proc/self/fd/11
    -append console=ttyS0 quiet panic=-1 cryptomgr.notests norandmaps no_timer_check lsm=landlock psi=0 efimera.trace=1,2
    -chardev socket,id=qmp,fd=14
    -mon chardev=qmp,mode=control
    -display none
    -vga none
    -machine q35,usb=off,sata=off,smbus=off,vmport=off,smm=off,dump-guest-core=off,mem-merge=off
    -m 2049M
    -accel tcg,tb-size=512
    -cpu max,erms=off,fsrm=off
    -smp cpus=2,sockets=1,cores=2,threads=1,maxcpus=2
    -chardev socket,id=console,fd=15
    -serial chardev:console
    -chardev socket,id=control,fd=16
    -device virtio-serial-pci,disable-legacy=on,max_ports=2
    -device virtserialport,chardev=control,name=efimera
    -object rng-builtin,id=random
    -device virtio-rng-pci,disable-legacy=on,rng=random
    -device virtio-balloon-pci,disable-legacy=on,free-page-reporting=on
    -add-fd fd=12,set=0
    -blockdev driver=file,node-name=file0,filename=/dev/fdset/0,read-only=on,locking=off,discard=unmap,cache.no-flush=on
    -blockdev driver=raw,node-name=disk0,file=file0,read-only=on,discard=unmap,cache.no-flush=on
    -device virtio-blk-pci,disable-legacy=on,drive=disk0,serial=root,config-wce=off,werror=report,rerror=report
    -add-fd fd=13,set=1
    -blockdev driver=file,node-name=file1,filename=/dev/fdset/1,read-only=off,locking=off,discard=unmap,cache.no-flush=on
    -blockdev driver=raw,node-name=disk1,file=file1,read-only=off,discard=unmap,cache.no-flush=on
    -device virtio-blk-pci,disable-legacy=on,drive=disk1,serial=scratch,config-wce=off,werror=report,rerror=report
    ");
}

#[test]
fn a_hardware_machine_differs_in_the_processor_alone() {
    let emulated = text(&spec(Accel::Tcg), None);
    let hardware = text(&spec(Accel::Kvm), None);
    insta::assert_debug_snapshot!(difference(&emulated, &hardware), @r#"
    [
        (
            "-append console=ttyS0 quiet panic=-1 cryptomgr.notests norandmaps no_timer_check lsm=landlock psi=0 efimera.trace=1,2",
            "-append console=ttyS0 quiet panic=-1 cryptomgr.notests efimera.trace=1,2",
        ),
        (
            "-accel tcg,tb-size=512",
            "-accel kvm",
        ),
        (
            "-cpu max,erms=off,fsrm=off",
            "-cpu host,vmx=off,svm=off,pmu=off",
        ),
    ]
    "#);
}

#[test]
fn a_machine_on_a_cable_has_one_card_more() {
    let without = text(&spec(Accel::Tcg), None);
    let with = Spec {
        network: Some(nothing()),
        ..spec(Accel::Tcg)
    };
    let with = text(&with, None);
    let added: Vec<&str> = with
        .lines()
        .filter(|line| !without.lines().any(|other| other == *line))
        .collect();
    assert_eq!(
        added,
        [
            "-netdev dgram,id=cable,local.type=fd,local.str=18",
            "-device virtio-net-pci,disable-legacy=on,netdev=cable,mac=02:65:66:69:00:02,host_mtu=65520,romfile="
        ]
    );
}

#[test]
fn a_machine_that_goes_on_has_the_same_hardware() {
    let booted = spec(Accel::Tcg);
    let resumed = Spec {
        begin: Begin::Resume,
        ..spec(Accel::Tcg)
    };
    let begins = |line: &&str| {
        ["-kernel", "-initrd", "-append", "-incoming"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let file = |shared| Some(RamFile { number: 17, shared });
    let (booted, resumed) = (text(&booted, file(true)), text(&resumed, file(false)));
    let added: Vec<&str> = resumed.lines().filter(begins).collect();
    assert_eq!(added, ["-incoming defer"]);
    let same = |text: &str| {
        let lines = text.lines().filter(|line| !begins(line));
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_debug_snapshot!(difference(&same(&booted), &same(&resumed)), @r#"
    [
        (
            "-object memory-backend-file,id=pc.ram,size=2049M,mem-path=/proc/self/fd/17,share=on,dump=off,merge=off",
            "-object memory-backend-file,id=pc.ram,size=2049M,mem-path=/proc/self/fd/17,share=off,dump=off,merge=off",
        ),
    ]
    "#);
    // What a key is made of is in both, but for the numbers.
    let shape = spec(Accel::Tcg).shape().unwrap();
    let hardware = lines(&hardware_line(&shape));
    assert!(hardware.contains("-device virtio-blk-pci"));
    for line in hardware.lines().filter(|line| line.starts_with("-device")) {
        assert!(booted.contains(line), "{line}");
        assert!(resumed.contains(line), "{line}");
    }
}

#[test]
fn a_description_tells_apart_what_a_state_depends_on() {
    let qemu = Qemu::for_tests("/usr/bin/qemu-system-x86_64", MINIMUM);
    let shape = || {
        let mut shape = spec(Accel::Tcg).shape().unwrap();
        shape.disks[1].size = Size::gib(1);
        shape
    };
    let plain = shape().describe(&qemu);
    assert_eq!(shape().describe(&qemu), plain);
    assert!(!plain.contains("memory-backend"), "{plain}");
    assert!(plain.contains("\nconsole=ttyS0 "), "{plain}");

    let differs = |change: &dyn Fn(&mut Shape)| {
        let mut other = shape();
        change(&mut other);
        assert_ne!(other.describe(&qemu), plain, "{other:?}");
    };
    differs(&|shape| shape.accel = Accel::Kvm);
    differs(&|shape| shape.cpus = 1);
    differs(&|shape| shape.memory = Size::gib(2));
    differs(&|shape| shape.disks[1].size = Size::gib(2));
    differs(&|shape| shape.disks[1].read_only = true);
    differs(&|shape| shape.disks[1].serial = "other".parse().unwrap());
    differs(&|shape| shape.network = true);
    differs(&|shape| shape.disks.swap(0, 1));
    differs(&|shape| drop(shape.disks.pop()));
    let other = Qemu::for_tests("/usr/local/bin/qemu-system-x86_64", MINIMUM);
    assert_ne!(shape().describe(&other), plain);
}
