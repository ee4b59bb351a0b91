//! QEMU's arguments: a pure function of the specification and of descriptor numbers.
//!
//! The machine type is `q35`. `microvm` has fewer devices, but under the emulator it hung in 2 of 5 cold boots,
//! and on a loaded host in 13 of 13, where `q35` came up each time. The kernel says why (`earlyprintk`): "tsc:
//! Unable to calibrate against PIT", because an emulator that competes for processor time lets the measured loop
//! run unevenly; "tsc: No reference (HPET/PMTIMER) available", which `q35` has; and with the TSC given up it
//! waits for ever in the calibration of its delay loop, as there is no timer left that ticks. What `q35` has and
//! a machine like ours can do without is switched off one by one.

use crate::accel::Accel;
use crate::spec::{Begin, CARD_ADDRESS, CARD_MTU, Shape, Spec};
use std::ffi::OsString;

/// The numbers of the descriptors that QEMU inherits.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) ram: Option<RamFile>,
    pub(crate) kernel: i32,
    pub(crate) initramfs: i32,
    pub(crate) disks: Vec<i32>,
    pub(crate) qmp: i32,
    pub(crate) console: i32,
    pub(crate) control: i32,
    pub(crate) network: i32,
}

/// A file that is the guest's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RamFile {
    pub(crate) number: i32,
    pub(crate) shared: bool,
}

pub(crate) fn command_line(spec: &Spec, shape: &Shape, numbers: &Numbers) -> Vec<OsString> {
    let mut line = Line::default();
    line.flag("-nodefaults").flag("-no-user-config");
    // Its deny-list is put on after the start; the jail's filter holds from before it.
    line.option(
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    );
    // A guest that restarts, by will or by panic (`panic=-1`), is at its end: its disks are for one boot.
    line.flag("-no-reboot");
    match &spec.begin {
        Begin::Boot { words, .. } => {
            line.option("-kernel", format!("/proc/self/fd/{}", numbers.kernel));
            line.option("-initrd", format!("/proc/self/fd/{}", numbers.initramfs));
            line.option("-append", kernel_command_line(spec.accel, words));
        }
        // The kernel is in the memory; QEMU asks for its files in no other case.
        Begin::Resume => {
            line.option("-incoming", "defer");
        }
    }
    line.option("-chardev", format!("socket,id=qmp,fd={}", numbers.qmp));
    line.option("-mon", "chardev=qmp,mode=control");
    hardware(&mut line, shape, numbers);
    line.arguments
}

/// The part of the command line that a saved state depends on: all descriptors are 0 in it.
pub(crate) fn hardware_line(shape: &Shape) -> Vec<OsString> {
    let mut line = Line::default();
    let numbers = Numbers {
        disks: vec![0; shape.disks.len()],
        ..Numbers::default()
    };
    hardware(&mut line, shape, &numbers);
    line.arguments
}

fn hardware(line: &mut Line, shape: &Shape, numbers: &Numbers) {
    board(line, shape, numbers.ram);
    line.option(
        "-chardev",
        format!("socket,id=console,fd={}", numbers.console),
    );
    line.option("-serial", "chardev:console");
    line.option(
        "-chardev",
        format!("socket,id=control,fd={}", numbers.control),
    );
    // Port 0 is reserved for consoles (virtio 1.2, 5.3.2), so one port of our own makes two.
    line.option("-device", format!("virtio-serial-pci,{MODERN},max_ports=2"));
    line.option(
        "-device",
        format!(
            "virtserialport,chardev=control,name={}",
            crate::CONTROL_PORT
        ),
    );

    // From getrandom(2) in QEMU itself: no file to open.
    line.option("-object", "rng-builtin,id=random");
    line.option("-device", format!("virtio-rng-pci,{MODERN},rng=random"));

    // Its guest says which memory is free, and QEMU gives it back to the host: where the memory is the machine's own
    // file, and the guest was told to.
    line.option(
        "-device",
        format!("virtio-balloon-pci,{MODERN},free-page-reporting=on"),
    );

    if shape.network {
        card(line, numbers.network);
    }

    for (index, (disk, number)) in shape.disks.iter().zip(&numbers.disks).enumerate() {
        let read_only = if disk.read_only { "on" } else { "off" };
        line.option("-add-fd", format!("fd={number},set={index}"));
        // Raw, always said: a guest that writes another format's header into its disk gets nothing by it.
        // No locking: it needs the file's path. No flushing: what a crash of the host would lose, nobody reads.
        // Freed blocks return to the host's file system.
        line.option(
            "-blockdev",
            format!(
                "driver=file,node-name=file{index},filename=/dev/fdset/{index},read-only={read_only},locking=off,\
                 discard=unmap,cache.no-flush=on"
            ),
        );
        line.option(
            "-blockdev",
            format!(
                "driver=raw,node-name=disk{index},file=file{index},read-only={read_only},discard=unmap,\
                 cache.no-flush=on"
            ),
        );
        // When the host's disk is full the guest is told (an I/O error there); QEMU's default would pause it, and it
        // would look as if it hung.
        line.option(
            "-device",
            format!(
                "virtio-blk-pci,{MODERN},drive=disk{index},serial={},config-wce=off,werror=report,rerror=report",
                disk.serial
            ),
        );
    }
}

/// A card at the end of a cable. `dgram`, as the other end can be taken up by another process; `stream` can't.
fn card(line: &mut Line, number: i32) {
    line.option(
        "-netdev",
        format!("dgram,id=cable,local.type=fd,local.str={number}"),
    );
    let address = CARD_ADDRESS.map(|byte| format!("{byte:02x}")).join(":");
    // No boot from it: without a ROM there is no file to read. One pair of queues, as one process is at the other end.
    line.option(
        "-device",
        format!("virtio-net-pci,{MODERN},netdev=cable,mac={address},host_mtu={CARD_MTU},romfile="),
    );
}

/// Without the interface of virtio before 1.0.
const MODERN: &str = "disable-legacy=on";

fn board(line: &mut Line, shape: &Shape, ram: Option<RamFile>) {
    line.option("-display", "none").option("-vga", "none");
    let mut machine =
        "q35,usb=off,sata=off,smbus=off,vmport=off,smm=off,dump-guest-core=off,mem-merge=off"
            .to_owned();
    let memory = Spec::ram_size(shape.memory).bytes() >> 20;
    if let Some(RamFile { number, shared }) = ram {
        let share = if shared { "on" } else { "off" };
        // The name that QEMU gives memory of its own on this machine type: states know memory by it.
        machine.push_str(",memory-backend=pc.ram");
        line.option(
            "-object",
            format!(
                "memory-backend-file,id=pc.ram,size={memory}M,mem-path=/proc/self/fd/{number},share={share},\
                 dump=off,merge=off"
            ),
        );
    }
    line.option("-machine", machine);
    line.option("-m", format!("{memory}M"));
    match shape.accel {
        Accel::Kvm => {
            line.option("-accel", "kvm");
            // No virtual machines within: that part of KVM is attacked most.
            line.option("-cpu", "host,vmx=off,svm=off,pmu=off");
        }
        Accel::Tcg => {
            // The buffer of translated code, in MiB. QEMU's own choice is an eighth of the host's memory, up to
            // 1 GiB; half of that boots no slower.
            line.option("-accel", "tcg,tb-size=512");
            // All that the emulator knows: programs built for x86-64-v2 and v3 run. It boots as fast as the
            // plain `qemu64` (within 3 % of processor time). But for fast string operations: told that they are
            // fast, kernel and C library copy and clear memory with them, which are emulated byte by byte. Without,
            // the kernel does it by eight bytes, five times as fast.
            line.option("-cpu", "max,erms=off,fsrm=off");
        }
    }
    // Under the emulator a second processor costs a fifth more processor time at boot and a third more for each
    // fork and execute: it pays only where the host has a core to spare for it.
    line.option(
        "-smp",
        format!(
            "cpus={0},sockets=1,cores={0},threads=1,maxcpus={0}",
            shape.cpus
        ),
    );
}

pub(crate) fn kernel_command_line(accel: Accel, added: &[String]) -> String {
    let mut words = vec![
        "console=ttyS0",
        "quiet",
        // At once; with `-no-reboot` this ends QEMU.
        "panic=-1",
        // The self-tests of ciphers are a quarter of an emulated boot.
        "cryptomgr.notests",
    ];
    if accel == Accel::Tcg {
        // The emulator keeps translated code by address. With user programs at random addresses, each start of
        // one is translated anew: fork and execute take four times as long.
        words.push("norandmaps");
        // At its start the kernel checks that the timer ticks, against a loop of its own that a loaded host lets
        // run unevenly: in two of five boots it called the timer broken, which is a panic in the worst case.
        words.push("no_timer_check");
        // Of the security modules, the one that programs use for themselves. Each of Debian's other six has its say
        // at every file that is opened, and none has rules here. Pressure is accounted at every switch of tasks.
        // Together that is a thirtieth of a start from a template.
        words.extend(["lsm=landlock", "psi=0"]);
    }
    words.extend(added.iter().map(String::as_str));
    words.join(" ")
}

#[derive(Debug, Default)]
struct Line {
    arguments: Vec<OsString>,
}

impl Line {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.arguments.push(name.into());
        self
    }

    fn option(&mut self, name: &str, value: impl Into<OsString>) -> &mut Self {
        self.arguments.push(name.into());
        self.arguments.push(value.into());
        self
    }
}

#[cfg(test)]
mod tests;
