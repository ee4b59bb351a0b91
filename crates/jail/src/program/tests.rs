use super::{interpreter, parse_list, program_files};
use crate::ProgramError;
use std::path::{Path, PathBuf};

fn list(text: &str) -> Result<Vec<PathBuf>, String> {
    parse_list(text.as_bytes())
}

#[test]
fn glibc_lists_libraries_with_their_paths() {
    let paths = list(
        "\tlinux-vdso.so.1 (0x00007ffd1c5f2000)\n\
         \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f0000000000)\n\
         \t/lib64/ld-linux-x86-64.so.2 (0x00007f1111111111)\n",
    );
    assert_eq!(
        paths,
        Ok(vec![
            "/lib/x86_64-linux-gnu/libz.so.1".into(),
            "/lib64/ld-linux-x86-64.so.2".into()
        ])
    );
}

#[test]
fn a_path_may_hold_spaces_and_parentheses() {
    let paths = list("\tliba.so => /opt/a (b) c/liba.so (0x00007f0000000000)\n");
    assert_eq!(paths, Ok(vec!["/opt/a (b) c/liba.so".into()]));
}

#[test]
fn a_missing_library_is_named() {
    assert_eq!(
        list("\tlibgone.so.3 => not found\n"),
        Err("libgone.so.3".to_owned())
    );
}

#[test]
fn a_static_program_lists_nothing() {
    assert_eq!(list("\tstatically linked\n"), Ok(Vec::new()));
}

#[test]
fn a_script_is_no_program() {
    let directory = tempfile::tempdir().unwrap();
    for text in ["", "#!/bin/sh\n", "\u{7f}ELF"] {
        let path = directory.path().join("script");
        fs_err::write(&path, text).unwrap();
        assert!(
            matches!(interpreter(&path), Err(ProgramError::NotElf(_))),
            "{text:?}"
        );
    }
}

#[test]
fn a_program_of_the_host_has_loader_and_libraries() {
    let shell = Path::new("/bin/sh").canonicalize().unwrap();
    let files = program_files(&shell).unwrap();
    let loader = interpreter(&shell).unwrap().unwrap();
    assert!(files.executable.contains(&shell));
    assert!(files.executable.contains(&loader));
    assert!(
        files
            .executable
            .iter()
            .any(|path| path.to_string_lossy().contains("libc.")),
        "{files:?}"
    );
    assert!(
        files.executable.iter().all(|path| path.is_file()),
        "{files:?}"
    );
}
