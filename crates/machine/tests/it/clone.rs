//! Machines that are saved, and others that go on from there.

use crate::plan::{Beginning, ClonePlan, CloneReport, End, MachineReport, Memory};
use crate::stage::{Stage, User, WORKSPACE, users};
use std::io::{BufRead as _, BufReader};

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|&line| line.to_owned()).collect()
}

/// The plan for machines that go on from what `plan` saved.
fn resumed(plan: &ClonePlan, machines: usize) -> ClonePlan {
    ClonePlan {
        memory: Memory::Private,
        begin: Beginning::Resume { machines },
        end: End::Quit,
        ..plan.clone()
    }
}

/// The only machine of a report, which nothing went wrong with.
fn only(report: CloneReport) -> MachineReport {
    let [machine] = report.machines.try_into().unwrap();
    assert_eq!((&*machine.error, &*machine.stderr), ("", ""));
    machine
}

#[test]
fn clones_of_one_machine_run_at_once_and_leave_it_as_it_was() {
    for user in users() {
        let stage = Stage::new();
        let mut plan = stage.clone_plan(user);
        plan.talk = lines(&["one"]);
        let report = stage.clones(user, &plan);
        let (state, used) = report.saved.unwrap();
        // Devices alone; and the kernel's memory is in the other file, without what was never used.
        assert!((100_000..2_000_000).contains(&state), "{state}");
        assert!((20 << 20..200 << 20).contains(&used), "{used}");
        assert!(only(report).answers.last().unwrap() == "asked one");

        // The disk has something else in it since, of the same size.
        let content = stage.sparse("workspace", WORKSPACE, b"the new contents");
        plan.disks[2].1 = content;
        let mut two = resumed(&plan, 2);
        two.talk = lines(&["two", "disk workspace", "disk root"]);
        let report = stage.clones(user, &two);
        for machine in &report.machines {
            assert_eq!((&*machine.error, &*machine.stderr), ("", ""), "{user:?}");
            assert_eq!(
                machine.answers,
                [
                    "asked one two",
                    "the new contents of 68719476736",
                    "the root's bytes of 1048576"
                ],
                "{user:?}"
            );
            // The kernel's files aren't needed a second time.
            assert!(
                !machine.command_line.contains("-kernel"),
                "{user:?}: {machine:?}"
            );
        }
        assert_eq!(report.machines.len(), 2);
        assert_eq!(report.ram_digests.len(), 2);
        assert_eq!(report.ram_digests[0], report.ram_digests[1], "{user:?}");

        // With memory of its own it can be saved as fast again.
        let mut own = resumed(&plan, 1);
        own.memory = Memory::Shared;
        own.talk = lines(&["write by the shared", "disk scratch"]);
        let machine = only(stage.clones(user, &own));
        assert_eq!(
            machine.answers,
            ["written", "by the shared of 1048576"],
            "{user:?}"
        );
    }
}

#[test]
fn a_disk_of_another_size_is_known_once_the_driver_takes_it_anew() {
    let stage = Stage::new();
    let mut plan = stage.clone_plan(User::Current);
    stage.clones(User::Current, &plan);
    plan.disks[2].1 = stage.sparse("workspace", 3 << 20, b"the new contents");
    let mut one = resumed(&plan, 1);
    // The serial port, the random numbers and the balloon come first.
    one.talk = lines(&["disk workspace", "rebind virtio5", "disk workspace"]);
    assert_eq!(
        only(stage.clones(User::Current, &one)).answers,
        [
            "the new contents of 68719476736",
            "rebound",
            "the new contents of 3145728"
        ]
    );
}

#[test]
fn a_machine_s_own_memory_is_in_its_state() {
    let stage = Stage::new();
    let mut plan = stage.clone_plan(User::Current);
    plan.memory = Memory::Own;
    plan.talk = lines(&["one"]);
    let report = stage.clones(User::Current, &plan);
    let (state, _) = report.saved.unwrap();
    assert!(state > 20 << 20, "{state}");
    only(report);

    let mut one = resumed(&plan, 1);
    one.memory = Memory::Own;
    one.talk = lines(&["two"]);
    assert_eq!(
        only(stage.clones(User::Current, &one)).answers,
        ["asked one two"]
    );
}

#[test]
fn a_machine_that_could_not_be_saved_goes_on() {
    let stage = Stage::new();
    let check = |plan: &ClonePlan, expect: &str| {
        let report = stage.clones(User::Current, plan);
        let [machine] = report.machines.try_into().unwrap();
        assert_eq!(machine.error, expect);
        assert_eq!(machine.answers.last().unwrap(), "asked again");
        report.saved
    };
    let mut plan = stage.clone_plan(User::Current);
    plan.end = End::SaveInVain;
    plan.state = "/dev/full".into();
    let saved = check(
        &plan,
        "QEMU can't save the machine: Unable to write to file: No space left on device",
    );
    assert!(saved.unwrap().0 > 0);

    // All of the memory is more than the longest file.
    let mut plan = stage.clone_plan(User::Current);
    plan.end = End::SaveInVain;
    plan.memory = Memory::Own;
    plan.max_file_mib = 2;
    let saved = check(
        &plan,
        "QEMU can't save the machine: Unable to write to file: File too large",
    );
    assert_eq!(saved, None);
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let stage = Stage::new();
    let plan = stage.clone_plan(User::Current);
    only(stage.clones(User::Current, &plan));
    let state = fs_err::read(&plan.state).unwrap();

    let check = |plan: &ClonePlan, expect: &str| {
        let report = stage.clones(User::Current, &resumed(plan, 1));
        let [machine] = report.machines.try_into().unwrap();
        assert!(
            machine
                .error
                .starts_with("QEMU doesn't take the saved machine: "),
            "{machine:?}"
        );
        assert!(machine.error.contains(expect), "{machine:?}");
        assert_eq!(machine.answers, [""; 0]);
        assert_eq!(report.ram_digests[0], report.ram_digests[1]);
    };
    let with_state = |state: &[u8]| {
        let path = stage.directory.path().join("another-state");
        fs_err::write(&path, state).unwrap();
        ClonePlan {
            state: path,
            ..plan.clone()
        }
    };
    // Behind all devices QEMU describes them, in JSON and for people: an end byte, a kind and a length are before it.
    // A cut in there changes nothing.
    let description = state
        .windows(12)
        .position(|bytes| bytes == b"{\"page_size\"" || bytes == b"{\"configurat")
        .unwrap();
    for part in [0, 1, 100, description / 2, description - 6] {
        check(&with_state(&state[..part]), "load of migration failed");
    }
    check(&with_state(b"not a state at all"), "Not a migration stream");

    // What another version writes: its machine type has another name.
    let mut other = state.clone();
    let at = state
        .windows(7)
        .position(|bytes| bytes == b"pc-q35-")
        .unwrap();
    other[at + 7] = b'1';
    check(&with_state(&other), "Machine type received is");

    let mut other = plan.clone();
    other.disks.pop();
    check(&other, "Unknown savevm section or instance");
    let mut other = plan.clone();
    other.disks.swap(0, 1);
    check(&other, "device '0000:00:04.0/virtio-blk'");
    let mut other = plan.clone();
    other.memory_mib = 512;
    other.ram = stage.sparse("more-ram", 512 << 20, b"");
    check(&other, "Size mismatch: pc.ram");
}

#[test]
fn a_jailed_process_can_not_change_a_sealed_memory() {
    let stage = Stage::new();
    for user in users() {
        let report = stage.role(user, &["attack-memory"]);
        assert_eq!(
            report,
            "intact=true worked=\n\
             intact=false worked=write,write-again,map,map-again,punch,grow,cut\n",
            "{user:?}"
        );
    }
}

#[test]
fn another_process_shares_the_pages_of_a_sealed_memory() {
    let stage = Stage::new();
    let own = rustix::process::geteuid();
    for user in users() {
        let mut holder = stage.start_role(user, &["hold-memory"]);
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let numbers: Vec<i32> = line
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        let size = base::Size::mib(2);
        let share = |number, name, size| machine::share_of(holder.id(), number, name, size);
        let refusal = |outcome: std::io::Result<_>| {
            outcome
                .map(|_: std::os::fd::OwnedFd| ())
                .unwrap_err()
                .to_string()
        };
        if user == User::Current {
            let shared = std::fs::File::from(share(numbers[0], "held", size).unwrap());
            let mut begin = [0; 10];
            std::os::unix::fs::FileExt::read_exact_at(&shared, &mut begin, 0).unwrap();
            assert_eq!(&begin, b"a template");
            let refused = |number, name, size| refusal(share(number, name, size));
            assert_eq!(
                refused(numbers[1], "plain", size),
                "it isn't a sealed memory file"
            );
            assert_eq!(refused(numbers[0], "else", size), "it has another name");
            assert_eq!(
                refused(numbers[0], "held", base::Size::mib(1)),
                "it has another size"
            );
            // It outlives its holder.
            drop(holder.stdin.take());
            holder.wait().unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&shared, &mut begin, 0).unwrap();
            assert_eq!(
                refusal(machine::share_of(holder.id(), numbers[0], "held", size)),
                "No such file or directory (os error 2)"
            );
        } else {
            // Only root can open it at all, and the file is still another's.
            assert!(own.is_root());
            assert_eq!(
                refusal(share(numbers[0], "held", size)),
                "it belongs to another user"
            );
            drop(holder.stdin.take());
            holder.wait().unwrap();
        }
    }
}
