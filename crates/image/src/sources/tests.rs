use super::*;

fn bookworm() -> OsRelease {
    OsRelease::parse("ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME=\"Debian 12\"")
}

/// What is kept of files below `etc/apt`, as a deb822 text.
fn check(files: &[(&str, &str)], expected: Result<&str, &str>) {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join("etc/apt").join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }
    let kept = of_host(root.path(), &bookworm()).map(|sources| to_deb822(&sources));
    assert_eq!(
        kept.as_deref().map_err(ToString::to_string),
        expected.map_err(str::to_owned)
    );
}

const DEBIAN: &str = "\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

const KEPT: &str = "\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

";

#[test]
fn deb822_files_are_read() {
    check(&[("sources.list.d/debian.sources", DEBIAN)], Ok(KEPT));
}

#[test]
fn one_line_files_are_read() {
    check(
        &[(
            "sources.list",
            "deb-src http://mirror.example/debian bookworm main\n\
             # deb http://mirror.example/debian bookworm main\n\
             deb [arch=amd64 Signed-By=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/x bookworm main # why\n\
             deb http://mirror.example/debian/ bookworm-updates main non-free-firmware\n",
        )],
        Ok("\
Types: deb
URIs: http://mirror.example/x
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian/
Suites: bookworm-updates
Components: main non-free-firmware

"),
    );
}

#[test]
fn third_parties_and_disabled_sources_are_left_out() {
    check(
        &[
            ("sources.list.d/debian.sources", DEBIAN),
            (
                "sources.list.d/old.list.disabled",
                "deb http://mirror.example/debian bookworm main",
            ),
            (
                "sources.list.d/docker.list",
                "deb http://third.example/linux/debian bookworm stable main",
            ),
            (
                "sources.list.d/own-key.list",
                "deb [signed-by=/etc/apt/keyrings/x.gpg] http://third.example/debian bookworm main",
            ),
            (
                "sources.list.d/versioned.list",
                "deb http://third.example/debian/12/prod bookworm main",
            ),
            (
                "sources.list.d/off.sources",
                &DEBIAN
                    .replace("Types: deb\n", "Types: deb\nEnabled: no\n")
                    .replace("mirror", "off")
                    .replace("Types: deb deb-src", "Types: deb-src"),
            ),
            (
                "sources.list.d/other-suite.list",
                "deb http://mirror.example/debian trixie main",
            ),
        ],
        Ok(KEPT),
    );
}

#[test]
fn a_host_without_usable_sources_is_told_so() {
    check(
        &[],
        Err("None of the host's package sources is one of Debian 12 bookworm itself"),
    );
    let error = of_host(Path::new("/nowhere"), &OsRelease::parse("ID=debian")).unwrap_err();
    assert!(matches!(error, SourcesError::NoCodename));
}

#[test]
fn passwords_and_host_keys_stay_out_of_the_image() {
    let sources = parse_lines(
        "deb [signed-by=/etc/keys/mine.gpg] https://user:pa@ss@mirror.example/debian bookworm main",
    );
    assert_eq!(
        to_deb822(&without_secrets(&sources)),
        "Types: deb\nURIs: https://mirror.example/debian\nSuites: bookworm\nComponents: main\n\n"
    );
    assert_eq!(without_credentials("cdrom:[Debian]/"), "cdrom:[Debian]/");
}

#[test]
fn a_manifest_names_releases_without_addresses() {
    assert_eq!(
        releases(&parse_deb822(DEBIAN)),
        [
            "bookworm main contrib",
            "bookworm-backports main contrib",
            "bookworm-security main",
            "bookworm-updates main contrib"
        ]
    );
}
