use super::{Numbers, command_line};
use crate::qemu::Qemu;
use crate::spec::{Begin, Disk, Ram, Spec};
use crate::{Accel, MINIMUM};
use base::Size;
use std::collections::BTreeSet;
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
        max_file_size: None,
        required_layers: BTreeSet::new(),
    }
}

/// One option with its value a line.
fn text(accel: Accel) -> String {
    let numbers = Numbers {
        ram: None,
        kernel: 10,
        initramfs: 11,
        disks: vec![12, 13],
        qmp: 14,
        console: 15,
        control: 16,
    };
    let mut text = String::new();
    let spec = spec(accel);
    for argument in command_line(&spec, &spec.shape().unwrap(), &numbers) {
        let argument = argument.into_string().unwrap();
        text.push(if argument.starts_with('-') { '\n' } else { ' ' });
        text.push_str(&argument);
    }
    text.trim_start().to_owned()
}

#[test]
fn an_emulated_machine() {
    insta::assert_snapshot!(text(Accel::Tcg), @r"
    -nodefaults
    -no-user-config
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
    -no-reboot
    -kernel /proc/self/fd/10
    -initrd /proc/self/fd/11
    -append console=ttyS0 quiet panic=-1 cryptomgr.notests norandmaps no_timer_check efimera.trace=1,2
    -chardev socket,id=qmp,fd=14
    -mon chardev=qmp,mode=control
    -display none
    -vga none
    -machine q35,usb=off,sata=off,smbus=off,vmport=off,smm=off,dump-guest-core=off,mem-merge=off
    -m 2049M
    -accel tcg,tb-size=512
    -cpu max
    -smp cpus=2,sockets=1,cores=2,threads=1,maxcpus=2
    -chardev socket,id=console,fd=15
    -serial chardev:console
    -chardev socket,id=control,fd=16
    -device virtio-serial-pci,disable-legacy=on,max_ports=2
    -device virtserialport,id=control,chardev=control,name=efimera
    -object rng-builtin,id=random
    -device virtio-rng-pci,disable-legacy=on,rng=random
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
    let emulated = text(Accel::Tcg);
    let hardware = text(Accel::Kvm);
    let difference: Vec<(&str, &str)> = emulated
        .lines()
        .zip(hardware.lines())
        .filter(|(one, other)| one != other)
        .collect();
    insta::assert_debug_snapshot!(difference, @r#"
    [
        (
            "-append console=ttyS0 quiet panic=-1 cryptomgr.notests norandmaps no_timer_check efimera.trace=1,2",
            "-append console=ttyS0 quiet panic=-1 cryptomgr.notests efimera.trace=1,2",
        ),
        (
            "-accel tcg,tb-size=512",
            "-accel kvm",
        ),
        (
            "-cpu max",
            "-cpu host,vmx=off,svm=off,pmu=off",
        ),
    ]
    "#);
}
