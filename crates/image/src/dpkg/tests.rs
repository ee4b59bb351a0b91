use super::*;

#[test]
fn installed_packages_are_listed_by_name() {
    let status = "\
Package: zsh
Status: install ok installed
Version: 5.9-4
Description: shell
 Version: not this one

Package: gone
Status: deinstall ok config-files
Version: 1

Package: apt
Status: install ok installed
Conffiles:
 /etc/apt 0
Version: 2.6.1
";
    let seen: Vec<_> = installed(status.as_bytes())
        .into_iter()
        .map(|package| (package.name, package.version))
        .collect();
    assert_eq!(
        seen,
        [
            ("apt".into(), "2.6.1".into()),
            ("zsh".into(), "5.9-4".into())
        ]
    );
    assert_eq!(installed(b""), []);
    assert_eq!(installed(b"\xff\n\n\n:\n"), []);
}
