use super::*;
use crate::os_release::OsRelease;

fn host() -> HostFacts {
    HostFacts {
        os: OsRelease::parse("ID=debian"),
        root: false,
        user: "me".into(),
        user_namespaces: true,
        subordinate_ids: true,
        programs: ["mmdebstrap".into(), "newuidmap".into()].into(),
        kernel_release: "6.1".into(),
        architecture: "x86_64".into(),
    }
}

#[test]
fn each_thing_that_is_missing_is_an_error_of_its_own() {
    let check = |host: HostFacts, expected: Result<&str, &str>| {
        let mode = mode(&host).map_err(|error| error.to_string());
        assert_eq!(
            mode.as_deref()
                .map_err(|text| text.split(';').next().unwrap_or_default()),
            expected
        );
    };
    check(host(), Ok("unshare"));
    check(
        HostFacts {
            root: true,
            subordinate_ids: false,
            programs: ["mmdebstrap".into()].into(),
            ..host()
        },
        Ok("root"),
    );
    check(
        HostFacts {
            programs: [].into(),
            ..host()
        },
        Err("Building a base image needs `mmdebstrap`"),
    );
    let ids = "Building a base image without root needs `newuidmap` and a range of ids in /etc/subuid and /etc/subgid";
    check(
        HostFacts {
            subordinate_ids: false,
            ..host()
        },
        Err(ids),
    );
    check(
        HostFacts {
            programs: ["mmdebstrap".into()].into(),
            ..host()
        },
        Err(ids),
    );
    check(
        HostFacts {
            user_namespaces: false,
            ..host()
        },
        Err("Building a base image without root needs user namespaces, which this host forbids"),
    );
}

#[test]
fn packages_are_named_once_in_order() {
    let names = packages(&["zsh".into(), "git".into()]);
    assert!(
        names.starts_with("build-essential,ca-certificates,curl,git,less,"),
        "{names}"
    );
    assert!(names.ends_with(",sudo,zsh"), "{names}");
    assert_eq!(names.matches("git").count(), 1);
}

#[test]
fn settings_for_the_network_are_taken_from_the_host() {
    let dump = "\
APT \"\";
Acquire::http::Proxy \"http://proxy.example:3142/\";
Acquire::https::CaInfo \"/etc/ssl/mine.pem\";
Acquire::Retries \"3\";
Acquire::RetriesOf \"x\";
Acquire::Languages \"de\";
DPkg::Post-Invoke:: \"rm -f /\";
";
    assert_eq!(
        network_settings(dump),
        [
            "Acquire::http::Proxy \"http://proxy.example:3142/\"",
            "Acquire::https::CaInfo \"/etc/ssl/mine.pem\"",
            "Acquire::Retries \"3\""
        ]
    );
}
