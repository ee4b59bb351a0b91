use crate::stage::{SECRET, Stage, User, stray_descriptor, untouched, users};
use jail::{Layer, Posture};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};

type Report = BTreeMap<String, Result<String, String>>;

/// A process of the attacker's user outside of the jail.
struct Outsider(Child);

impl Outsider {
    fn start(stage: &Stage) -> Self {
        Self(stage.probe(&["hang"]).spawn().unwrap())
    }

    fn id(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn run(mut command: Command) -> (bool, String) {
    let output = command
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

fn plan(stage: &Stage, outsider: &Outsider) -> String {
    let plan = crate::plan::Plan {
        outsider: outsider.id(),
        ..stage.plan()
    };
    serde_json::to_string(&plan).unwrap()
}

#[test]
fn an_owned_vmm_reaches_nothing() {
    for user in users() {
        let stage = Stage::new(user);
        let outsider = Outsider::start(&stage);
        let stray = stray_descriptor(&stage.file());

        let (success, output) = run(stage.probe(&["supervise", &plan(&stage, &outsider)]));
        assert!(success, "{user:?}: {output}");
        let mut lines = output.lines();
        let posture: Posture = serde_json::from_str(lines.next().unwrap()).unwrap();
        let mut report: Report = serde_json::from_str(lines.next().unwrap()).unwrap();
        let report_descriptor: i32 = lines.next().unwrap().parse().unwrap();

        // Parts of Landlock may be newer than the host's kernel; nothing else may be missing.
        let missing: Vec<_> = posture
            .missing()
            .filter(|(_, reason)| !reason.starts_with("needs Linux "))
            .collect();
        assert_eq!(missing, [], "{user:?}");
        assert!(posture.has(Layer::Files), "{user:?}");
        // The standard three, the report, and the one by which it lists them.
        let descriptors = report.remove("descriptors").unwrap().unwrap();
        let mut numbers: Vec<i32> = descriptors
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        numbers.sort_unstable();
        let listing = numbers
            .iter()
            .copied()
            .find(|number| ![0, 1, 2, report_descriptor].contains(number));
        let mut expected = vec![0, 1, 2, report_descriptor, listing.unwrap()];
        expected.sort_unstable();
        assert_eq!(numbers, expected, "{user:?}");
        assert_ne!(listing, Some(stray.as_raw_fd()), "{user:?}");

        let through: Vec<_> = report
            .iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .collect();
        assert!(through.is_empty(), "{user:?}: {through:#?}");

        // The host's own view.
        assert!(!output.contains(SECRET), "{user:?}: {output}");
        assert_eq!(
            fs_err::read_to_string(stage.file()).unwrap(),
            SECRET,
            "{user:?}"
        );
        let metadata = fs_err::metadata(stage.file()).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o600, "{user:?}");
        assert!(metadata.mtime() > 0, "{user:?}");
        assert!(!stage.plan().absent.exists(), "{user:?}");
        assert!(untouched(stage.tcp.accept()), "{user:?}");
        assert!(untouched(stage.udp.recv(&mut [0; 16])), "{user:?}");
        assert!(untouched(stage.unix.accept()), "{user:?}");
        assert!(untouched(stage.unix_abstract.accept()), "{user:?}");
    }
}

/// Without this, the test above could pass because an attack is written wrongly.
#[test]
fn each_attack_works_outside_of_the_jail() {
    for user in users() {
        let stage = Stage::new(user);
        let outsider = Outsider::start(&stage);
        let (success, output) = run(stage.probe(&["unconfined", &plan(&stage, &outsider)]));
        assert!(success, "{user:?}: {output}");
        let report: Report = serde_json::from_str(output.trim()).unwrap();
        let mut refused: Vec<&str> = report
            .iter()
            .filter(|(_, outcome)| outcome.is_err())
            .map(|(name, _)| name.as_str())
            .collect();
        // An ordinary user has none to begin with.
        if user == User::Nobody || !rustix::process::geteuid().is_root() {
            refused.retain(|name| *name != "have capabilities");
        }
        assert!(refused.is_empty(), "{user:?}: {refused:#?} of {report:#?}");
    }
}

#[test]
fn a_host_without_namespaces_is_named_in_the_posture() {
    for user in users() {
        let stage = Stage::new(user);
        let outsider = Outsider::start(&stage);
        let (success, output) =
            run(stage.probe(&["supervise-without-namespaces", &plan(&stage, &outsider)]));
        assert!(success, "{user:?}: {output}");
        let mut lines = output.lines();
        let posture: Posture = serde_json::from_str(lines.next().unwrap()).unwrap();
        let missing: Vec<Layer> = posture
            .missing()
            .filter(|(_, reason)| !reason.starts_with("needs Linux "))
            .map(|(layer, _)| layer)
            .collect();
        assert_eq!(
            missing,
            [Layer::UserNamespace, Layer::NetworkNamespace],
            "{user:?}"
        );
        // What the other layers hold back doesn't depend on it.
        let mut report: Report = serde_json::from_str(lines.next().unwrap()).unwrap();
        report.remove("descriptors");
        let through: Vec<_> = report
            .iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .collect();
        assert!(through.is_empty(), "{user:?}: {through:#?}");
        assert!(untouched(stage.tcp.accept()), "{user:?}");
    }
}

#[test]
fn a_demanded_layer_that_is_missing_stops_the_start() {
    for user in users() {
        let stage = Stage::new(user);
        let plan = crate::plan::Plan {
            required: [Layer::NetworkNamespace].into(),
            outsider: 1,
            ..stage.plan()
        };
        let plan = serde_json::to_string(&plan).unwrap();
        let (success, output) = run(stage.probe(&["supervise-without-namespaces", &plan]));
        assert!(!success, "{user:?}: {output}");
        assert!(
            output.contains("`NetworkNamespace` is demanded, but missing"),
            "{user:?}: {output}"
        );
    }
}
