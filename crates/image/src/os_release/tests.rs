use super::*;

fn check(text: &str, expected: Family) {
    assert_eq!(OsRelease::parse(text).family(), expected, "{text}");
}

#[test]
fn families_are_told_by_id_and_then_by_likeness() {
    check("ID=debian\n", Family::Debian);
    check("ID=ubuntu\nID_LIKE=debian\n", Family::Ubuntu);
    check("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Ubuntu);
    check("ID=kali\nID_LIKE=debian\n", Family::Debian);
    check("ID=fedora\n", Family::Fedora);
    check(
        "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
        Family::Fedora,
    );
    check("ID=endeavouros\nID_LIKE=arch\n", Family::Arch);
    check("ID=alpine\n", Family::Unknown);
    check("", Family::Unknown);
    check("ID_LIKE\n=\n garbage", Family::Unknown);
}

#[test]
fn values_are_unquoted() {
    let release = OsRelease::parse(
        "PRETTY_NAME=\"Debian \\\"GNU\\\"/Linux 12 (bookworm)\"\n# comment\nVERSION_CODENAME='bookworm'\nID=debian",
    );
    assert_eq!(release.name, "Debian \"GNU\"/Linux 12 (bookworm)");
    assert_eq!(release.codename, "bookworm");
}

#[test]
fn a_derivative_uses_the_release_that_it_derives_from() {
    let mint = OsRelease::parse("ID=linuxmint\nUBUNTU_CODENAME=noble\nVERSION_CODENAME=wilma");
    assert_eq!(mint.codename, "noble");
}

#[test]
fn a_host_without_the_file_is_of_unknown_family() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(OsRelease::read(root.path()).family(), Family::Unknown);
    fs_err::create_dir_all(root.path().join("usr/lib")).unwrap();
    fs_err::write(root.path().join("usr/lib/os-release"), "ID=arch").unwrap();
    assert_eq!(OsRelease::read(root.path()).family(), Family::Arch);
}
