//! Saves a machine and lets others go on from it, where waiting is fine.

use crate::plan::{Beginning, ClonePlan, CloneReport, End, MachineReport, Memory};
use base::Size;
use machine::{
    Accel, Begin, Disk, Machine, Monitor, MonitorError, Ram, Spec, copy_ram, launch, new_ram,
    sealed_copy, sealed_ram,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// An emulated boot takes 2 s on an idle host; tests run many at once.
fn soon() -> Instant {
    Instant::now() + Duration::from_mins(4)
}

pub(crate) fn run(plan: &ClonePlan) {
    let mut report = CloneReport::default();
    match plan.begin {
        Beginning::Boot => boot(plan, &mut report),
        Beginning::Resume { machines } => resume(plan, machines, &mut report),
    }
    println!(
        "{}",
        serde_json::to_string(&report).expect("a report is JSON")
    );
}

fn boot(plan: &ClonePlan, report: &mut CloneReport) {
    let memory = new_ram("ram", Size::mib(plan.memory_mib)).expect("memory");
    let ram = match plan.memory {
        Memory::Own => Ram::Own,
        Memory::Shared => Ram::Shared(copy(&memory)),
        Memory::Private => unreachable!("nobody asks for it"),
    };
    let open = |path| fs_err::File::open(path).expect("the test made it");
    let begin = Begin::Boot {
        kernel: sealed_copy("kernel", open(&plan.kernel)).expect("memory"),
        initramfs: sealed_copy("initramfs", open(&plan.initramfs)).expect("memory"),
        words: vec!["test=serve".to_owned()],
    };
    let mut seat = Seat::start(plan, ram, begin);
    seat.hear();
    seat.talk(&plan.talk);
    match plan.end {
        End::Quit => {}
        End::Save => {
            let state = fs_err::File::create(&plan.state).expect("it is ours");
            seat.monitor.save(state.file(), soon()).expect("it saves");
            let ram = fs_err::File::create(&plan.ram).expect("it is ours");
            let used = copy_ram(&memory, ram.file()).expect("it copies");
            report.saved = Some((state.metadata().expect("it is there").len(), used));
        }
        End::SaveInVain => {
            let state = fs_err::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&plan.state)
                .expect("it can be written");
            let error = seat
                .monitor
                .save(state.file(), soon())
                .expect_err("no room");
            seat.report.error = with_causes(&error);
            seat.monitor.cont(soon()).expect("it goes on");
            seat.talk(&["again".to_owned()]);
            if plan.memory == Memory::Shared {
                // Where there is room it can still be saved.
                let state = File::from(new_ram("state", Size(0)).expect("memory"));
                seat.monitor.save(&state, soon()).expect("it saves");
                report.saved = Some((state.metadata().expect("it is there").len(), 0));
            }
        }
    }
    report.machines.push(seat.quit());
}

fn resume(plan: &ClonePlan, machines: usize, report: &mut CloneReport) {
    let size = Spec::ram_size(Size::mib(plan.memory_mib));
    let saved = fs_err::File::open(&plan.ram).expect("the test made it");
    let ram: Vec<Ram> = match plan.memory {
        Memory::Own => (0..machines).map(|_| Ram::Own).collect(),
        Memory::Shared => (0..machines)
            .map(|_| {
                let own = new_ram("ram", size).expect("memory");
                copy_ram(saved.file(), &own).expect("it copies");
                Ram::Shared(own)
            })
            .collect(),
        Memory::Private => {
            let sealed = File::from(sealed_ram("template", saved.file(), size).expect("memory"));
            report.ram_digests.push(digest(&sealed));
            let ram = (0..machines).map(|_| Ram::Private(copy(&sealed)));
            let ram = ram.collect();
            run_all(plan, ram, report);
            report.ram_digests.push(digest(&sealed));
            return;
        }
    };
    run_all(plan, ram, report);
}

/// All run at the same time, and each is spoken to.
fn run_all(plan: &ClonePlan, ram: Vec<Ram>, report: &mut CloneReport) {
    let seats: Vec<(Seat, bool)> = ram
        .into_iter()
        .map(|ram| {
            let mut seat = Seat::start(plan, ram, Begin::Resume);
            let mut state = fs_err::File::open(&plan.state).expect("the test made it");
            // As whoever has looked at it before leaves it.
            state.seek(SeekFrom::End(0)).expect("it is a file");
            let outcome = seat
                .monitor
                .resume(state.file(), &seat.machine.stderr, soon());
            if let Err(error) = &outcome {
                seat.report.error = with_causes(error);
            }
            (seat, outcome.is_ok())
        })
        .collect();
    for (mut seat, runs) in seats {
        if runs {
            seat.talk(&plan.talk);
        }
        report.machines.push(seat.quit());
    }
}

/// A machine, and what it is talked to by.
struct Seat {
    machine: Machine,
    monitor: Monitor,
    report: MachineReport,
}

impl Seat {
    fn start(plan: &ClonePlan, ram: Ram, begin: Begin) -> Self {
        let spec = Spec {
            qemu: machine::find(None).expect("QEMU is installed"),
            accel: Accel::Tcg,
            cpus: 1,
            memory: Size::mib(plan.memory_mib),
            ram,
            begin,
            disks: plan.disks.iter().map(disk).collect(),
            network: None,
            max_file_size: Some(Size::mib(plan.max_file_mib)),
            required_layers: BTreeSet::new(),
        };
        let machine = launch(&spec, &["/proc/self/exe".into(), "__vmm".into()]).expect("it starts");
        let line = fs_err::read(format!("/proc/{}/cmdline", machine.process.id()));
        Self {
            monitor: Monitor::new(machine.qmp.try_clone().expect("a descriptor")),
            machine,
            report: MachineReport {
                command_line: String::from_utf8_lossy(&line.unwrap_or_default()).replace('\0', " "),
                ..MachineReport::default()
            },
        }
    }

    fn talk(&mut self, lines: &[String]) {
        for line in lines {
            let line = format!("{line}\n");
            self.machine
                .control
                .write_all(line.as_bytes())
                .expect("a socket holds a line");
            self.hear();
        }
    }

    /// Takes one line.
    fn hear(&mut self) {
        let mut line = Vec::new();
        let end = soon();
        while !line.ends_with(b"\n") {
            wait(&self.machine.control, end);
            let mut byte = [0];
            match self.machine.control.read(&mut byte) {
                Ok(0) => panic!("QEMU ended: {}", self.stderr()),
                Ok(_) => line.push(byte[0]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            // The guest's kernel waits for whoever reads its console.
            drain(&mut self.machine.console);
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        self.report.answers.push(line);
    }

    fn stderr(&self) -> String {
        let mut stderr = File::from(copy(&self.machine.stderr));
        String::from_utf8_lossy(&drain(&mut stderr)).into_owned()
    }

    fn quit(mut self) -> MachineReport {
        match self.monitor.quit(soon()) {
            Ok(()) | Err(MonitorError::Ended) => {}
            Err(error) => panic!("{error}"),
        }
        wait(&self.machine.process, soon());
        self.report.stderr = self.stderr();
        self.report
    }
}

fn disk((serial, path): &(String, std::path::PathBuf)) -> Disk {
    let read_only = serial != "scratch";
    let file = fs_err::OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(path)
        .expect("the test made it");
    Disk {
        file: file.into_parts().0.into(),
        read_only,
        serial: serial.parse().expect("it is short"),
    }
}

fn wait(what: &impl AsFd, end: Instant) {
    let left = end
        .checked_duration_since(Instant::now())
        .expect("not done in time");
    let left = Timespec::try_from(left).expect("it is short");
    let mut polled = [PollFd::new(what, PollFlags::IN)];
    assert_ne!(
        poll(&mut polled, Some(&left)).expect("poll works"),
        0,
        "not done in time"
    );
}

fn drain(stream: &mut impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An error is "nothing more for now".
    stream.read_to_end(&mut bytes).ok();
    bytes
}

fn copy(file: &impl AsFd) -> OwnedFd {
    file.as_fd().try_clone_to_owned().expect("a descriptor")
}

fn digest(file: &File) -> String {
    let mut hasher = base::Hasher::new();
    let mut piece = vec![0; 1 << 20];
    let size = file.metadata().expect("it is open").len();
    for at in (0..size).step_by(piece.len()) {
        file.read_exact_at(&mut piece, at).expect("it is whole MiB");
        hasher.update(&piece);
    }
    hasher.finish().to_string()
}

fn with_causes(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| (*error).source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
