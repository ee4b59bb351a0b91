//! What an owned QEMU could try on the memory of a template, which others run on.

use base::Size;
use jail::Confinement;
use machine::{new_ram, sealed_ram};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate, open};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{ExitCode, Stdio};

const SIZE: Size = Size::mib(2);

/// Attacks a sealed memory and one that isn't, each from a process in the jail, and prints what got through.
pub(crate) fn outside() -> ExitCode {
    let plain = File::from(new_ram("plain", SIZE).expect("memory"));
    plain.write_all_at(&vec![7; 2 << 20], 0).expect("memory");
    let sealed = File::from(sealed_ram("sealed", &plain, SIZE).expect("memory"));
    for file in [&sealed, &plain] {
        let (mut ours, theirs) = io::pipe().expect("a pipe");
        let program = std::env::current_exe().expect("it runs from a file");
        let files = jail::program_files(&program).expect("it has libraries");
        let confinement = Confinement {
            program,
            arguments: vec!["attack".into(), file.as_raw_fd().to_string().into()],
            executable_files: files.executable,
            readable_files: files.readable,
            devices: Vec::new(),
            max_file_size: Some(Size::mib(16)),
            max_open_files: 64,
            required: BTreeSet::new(),
        };
        let role = ["/proc/self/exe".into(), "__vmm".into()];
        let stderr = Stdio::from(theirs);
        let mut confined =
            jail::spawn(&role, confinement, &[file.as_fd()], stderr).expect("the jail works");
        let mut report = String::new();
        ours.read_to_string(&mut report).expect("text");
        assert!(
            confined.child.wait().expect("it ends").success(),
            "{report}"
        );
        let mut content = vec![0; 2 << 20];
        let intact =
            file.read_exact_at(&mut content, 0).is_ok() && content.iter().all(|&byte| byte == 7);
        println!("intact={intact} {}", report.trim());
    }
    ExitCode::SUCCESS
}

/// Tries everything, and names what worked.
pub(crate) fn inside(number: &str) -> ExitCode {
    let number: i32 = number.parse().expect("a number");
    let file = inherited(number);
    // As QEMU opens its memory.
    let again = open(
        format!("/proc/self/fd/{number}"),
        OFlags::RDWR,
        Mode::empty(),
    );
    let mut worked = Vec::new();
    let mut attempt = |name: &'static str, outcome: io::Result<()>| {
        if outcome.is_ok() {
            worked.push(name);
        }
    };
    attempt("write", write(file.as_fd()));
    match &again {
        Ok(again) => attempt("write-again", write(again.as_fd())),
        Err(error) => attempt("open", Err((*error).into())),
    }
    attempt("map", map(file.as_fd()));
    attempt(
        "map-again",
        again
            .map_err(Into::into)
            .and_then(|again| map(again.as_fd())),
    );
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    attempt(
        "punch",
        fallocate(&file, hole, 4096, 4096).map_err(Into::into),
    );
    attempt(
        "grow",
        ftruncate(&file, SIZE.bytes() * 2).map_err(Into::into),
    );
    attempt("cut", ftruncate(&file, 4096).map_err(Into::into));
    writeln!(io::stderr(), "worked={}", worked.join(",")).expect("the other end reads");
    ExitCode::SUCCESS
}

/// Holds a sealed memory until standard input ends: what another process can open.
pub(crate) fn hold() {
    let plain = File::from(new_ram("plain", SIZE).expect("memory"));
    plain.write_all_at(b"a template", 0).expect("memory");
    let sealed = sealed_ram("held", &plain, SIZE).expect("memory");
    println!("{} {}", sealed.as_raw_fd(), plain.as_raw_fd());
    io::stdout().flush().expect("the test reads");
    io::copy(&mut io::stdin(), &mut io::sink()).expect("the test holds the other end");
}

fn write(file: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::pwrite(file, b"owned", 0)?;
    Ok(())
}

#[expect(unsafe_code, reason = "mapping memory is unsafe")]
fn map(file: BorrowedFd<'_>) -> io::Result<()> {
    let length = 4096;
    let (read, write) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: the kernel chooses an address where nothing is.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            length,
            read,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    // Read-only first: the right to write may be had later.
    // SAFETY: the range is the one that was just mapped, and nothing refers to it.
    let outcome = unsafe { rustix::mm::mprotect(mapped, length, mprotect_flags(write)) };
    outcome?;
    // SAFETY: the page is mapped for writing, and nothing else in this process refers to it.
    unsafe { mapped.cast::<u8>().write_volatile(1) };
    Ok(())
}

fn mprotect_flags(flags: ProtFlags) -> rustix::mm::MprotectFlags {
    rustix::mm::MprotectFlags::from_bits_truncate(flags.bits())
}

#[expect(
    unsafe_code,
    reason = "an inherited descriptor is known by its number only"
)]
fn inherited(number: i32) -> OwnedFd {
    // SAFETY: whoever started this process keeps it open for it, and nothing else owns it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().expect("it is open")
}
