//! A supervisor in small: starts the machine, polls its streams, reports.

use crate::plan::{Host, Plan, Report};
use base::Size;
use machine::{Accel, Begin, Command, Console, Disk, Machine, Qmp, Ram, Spec, launch, sealed_copy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// An emulated boot takes 2 s on an idle host; tests run many at once.
const DEADLINE: Duration = Duration::from_mins(4);

pub(crate) fn run(plan: &Plan) {
    let start = Instant::now();
    let mut machine =
        launch(&spec(plan), &["/proc/self/exe".into(), "__vmm".into()]).expect("QEMU starts");
    let mut report = Report {
        qemu: machine.process.id(),
        ..Report::default()
    };
    report.missing_layers = machine
        .posture
        .missing()
        .map(|(layer, why)| format!("{layer:?}: {why}"))
        .collect();
    let mut watch = Watch {
        qmp: Qmp::new(),
        console: Console::new(),
        report,
    };

    while !watch.report.control.contains('\n') && watch.step(&mut machine, start) {}
    watch.report.greeting_milliseconds =
        start.elapsed().as_millis().try_into().expect("it is short");
    watch.look_at(machine.process.id());
    match plan.host {
        Host::Wait => machine
            .control
            .write_all(b"go\n")
            .expect("the port is open"),
        Host::Quit => {
            watch
                .qmp
                .execute(Command::QueryStatus)
                .expect("nothing waits");
            watch.qmp.execute(Command::Quit).expect("nothing waits");
        }
        Host::Linger => {
            println!(
                "{}",
                serde_json::to_string(&watch.report).expect("a report is JSON")
            );
            io::stdout().flush().expect("the test reads");
        }
    }
    while watch.step(&mut machine, start) {}
    let status = machine
        .process
        .try_wait()
        .expect("it is our child")
        .expect("it has ended");
    watch.report.exit = status.to_string();
    watch.report.console = String::from_utf8_lossy(&watch.console.bytes()).into_owned();
    watch.report.console_dropped = watch.console.dropped();
    println!(
        "{}",
        serde_json::to_string(&watch.report).expect("a report is JSON")
    );
}

struct Watch {
    qmp: Qmp,
    console: Console,
    report: Report,
}

impl Watch {
    /// Waits for the next thing to happen, and takes it in. False once QEMU has ended and all it said is read.
    fn step(&mut self, machine: &mut Machine, start: Instant) -> bool {
        let left = DEADLINE.checked_sub(start.elapsed()).unwrap_or_else(|| {
            let console = String::from_utf8_lossy(&self.console.bytes()).into_owned();
            panic!("not done after {DEADLINE:?}: {:?}\n{console}", self.report)
        });
        let ended = machine
            .process
            .try_wait()
            .expect("it is our child")
            .is_some();
        if !ended {
            let qmp_flags = if self.qmp.output().is_empty() {
                PollFlags::IN
            } else {
                PollFlags::IN | PollFlags::OUT
            };
            let mut polled = [
                PollFd::new(&machine.process, PollFlags::IN),
                PollFd::new(&machine.qmp, qmp_flags),
                PollFd::new(&machine.console, PollFlags::IN),
                PollFd::new(&machine.control, PollFlags::IN),
                PollFd::new(&machine.stderr, PollFlags::IN),
            ];
            poll(
                &mut polled,
                Some(&Timespec::try_from(left).expect("it is short")),
            )
            .expect("poll works");
        }
        self.read(machine);
        !ended
    }

    fn read(&mut self, machine: &mut Machine) {
        for event in self
            .qmp
            .feed(&available(&mut machine.qmp))
            .expect("QEMU speaks QMP")
        {
            self.report.events.push(format!("{event:?}"));
        }
        let sent = machine.qmp.write(self.qmp.output()).unwrap_or_default();
        self.qmp.sent(sent);
        self.console.push(&available(&mut machine.console));
        self.report
            .control
            .push_str(&String::from_utf8_lossy(&available(&mut machine.control)));
        let mut stderr = fs_err::File::from_parts(
            machine
                .stderr
                .as_fd()
                .try_clone_to_owned()
                .expect("a descriptor")
                .into(),
            "stderr",
        );
        self.report
            .stderr
            .push_str(&String::from_utf8_lossy(&available(&mut stderr)));
    }

    /// What the host's kernel says of the process.
    fn look_at(&mut self, qemu: u32) {
        let read = |name: &str| {
            let bytes = fs_err::read(format!("/proc/{qemu}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        self.report.command_line = read("cmdline");
        self.report.environment = read("environ");
        self.report.network_devices = read("net/dev");
        self.report.status = read("status");
    }
}

/// What can be read without waiting.
fn available(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An error is "nothing there" or "the other end is gone": either way there is no more for now, and what was
    // read before it stays.
    stream.read_to_end(&mut bytes).ok();
    bytes
}

fn spec(plan: &Plan) -> Spec {
    let open = |path: &Path| fs_err::File::open(path).expect("the test made it");
    let scratch = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&plan.scratch)
        .expect("the test made it");
    let disk = |file: fs_err::File, read_only, serial: &str| Disk {
        file: file.into_parts().0.into(),
        read_only,
        serial: serial.parse().expect("it is short"),
    };
    Spec {
        qemu: machine::find(None).expect("QEMU is installed"),
        accel: Accel::Tcg,
        cpus: plan.cpus,
        memory: Size::mib(512),
        ram: Ram::Own,
        begin: Begin::Boot {
            kernel: sealed_copy("kernel", open(&plan.kernel)).expect("memory"),
            initramfs: sealed_copy("initramfs", open(&plan.initramfs)).expect("memory"),
            words: vec![format!("test={}", plan.guest)],
        },
        disks: vec![
            disk(open(&plan.root), true, "root"),
            disk(scratch, false, "scratch"),
        ],
        network: None,
        max_file_size: Some(Size::mib(64)),
        required_layers: BTreeSet::new(),
    }
}
