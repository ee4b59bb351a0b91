use super::*;
use rustix::process::{WaitOptions, waitpid};
use std::fs::File;
use std::io::Read as _;

fn text(word: &str) -> CString {
    CString::new(word).unwrap()
}

/// Starts `argv` with what `prepare` does in it, and gives how that went, its standard output and its end's code.
fn start_and_wait(
    argv: &[&str],
    prepare: &mut dyn FnMut() -> Result<(), Errno>,
) -> Result<(String, i32), Errno> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let null: OwnedFd = fs_err::File::open("/dev/null")
        .unwrap()
        .into_parts()
        .0
        .into();
    let argv: Vec<CString> = argv.iter().map(|word| text(word)).collect();
    let started = start(
        &Image {
            program: &argv[0],
            argv: &argv,
            environment: &[text("COLOUR=green")],
            descriptors: [&null, &theirs, &null],
        },
        prepare,
    );
    drop(theirs);
    let pid = started?;
    let mut said = String::new();
    File::from(ours).read_to_string(&mut said).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    Ok((said, status.exit_status().unwrap_or(-1)))
}

#[test]
fn a_program_has_its_words_environment_and_descriptors() {
    let script = r#"echo "$1 $COLOUR"; test -t 0 || read nothing || exit 7"#;
    let ran = start_and_wait(&["/bin/sh", "-c", script, "sh", "leaf"], &mut || Ok(()));
    assert_eq!(ran, Ok(("leaf green\n".to_owned(), 7)));
}

#[test]
fn what_is_prepared_is_the_childs_alone() {
    let before = rustix::process::getcwd(Vec::new()).unwrap();
    let ran = start_and_wait(&["/bin/sh", "-c", "pwd"], &mut || {
        rustix::process::setsid()?;
        rustix::process::chdir("/usr")
    });
    assert_eq!(ran, Ok(("/usr\n".to_owned(), 0)));
    assert_eq!(rustix::process::getcwd(Vec::new()).unwrap(), before);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let ran = start_and_wait(&["/nowhere/to/be/found"], &mut || Ok(()));
    assert_eq!(ran, Err(Errno::NOENT));
}

#[test]
fn what_cannot_be_prepared_is_an_error() {
    let ran = start_and_wait(&["/bin/sh", "-c", "echo ran"], &mut || Err(Errno::NODEV));
    assert_eq!(ran, Err(Errno::NODEV));
}
