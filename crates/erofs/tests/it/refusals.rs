use crate::oracle::{Bench, PLAIN};
use crate::tree::path;
use base::{RelPath, Size};
use erofs::{Error, Extent, Writer};
use std::io::{self, Read};

fn check(act: impl FnOnce(&mut Writer) -> Result<(), Error>, expected: &str) {
    let bench = Bench::new();
    let mut writer = bench.writer();
    writer
        .add_file(&path("file"), PLAIN, &mut b"contents".as_slice(), 8)
        .unwrap();
    writer.add_dir(&path("directory"), PLAIN).unwrap();
    let error = act(&mut writer).expect_err("it is refused");
    assert_eq!(error.to_string(), expected);
    // What was refused left no trace.
    let lines = bench.listed(writer.finish().unwrap());
    let names: Vec<_> = lines.iter().map(|line| line.path.as_slice()).collect();
    assert_eq!(names, [b"directory".as_slice(), b"file"]);
}

#[test]
fn a_path_is_taken_once() {
    let again = "The image has `file` already";
    check(
        |writer| writer.add_symlink(&path("file"), PLAIN, b"x"),
        again,
    );
    check(|writer| writer.add_dir(&path("file"), PLAIN), again);
    check(
        |writer| writer.add_hardlink(&path("file"), &path("file")),
        again,
    );
    check(
        |writer| {
            writer
                .add_file(&path("file"), PLAIN, &mut b"other".as_slice(), 8)
                .map(|_| ())
        },
        again,
    );
    check(
        |writer| writer.add_symlink(&RelPath::root(), PLAIN, b"x"),
        "The image has `.` already",
    );
}

#[test]
fn nothing_lies_below_a_file() {
    let below = "`file/x` lies below something that is not a directory";
    check(|writer| writer.add_dir(&path("file/x"), PLAIN), below);
    check(
        |writer| writer.add_symlink(&path("file/x"), PLAIN, b"x"),
        below,
    );
}

#[test]
fn a_hard_link_leads_to_an_earlier_file() {
    check(
        |writer| writer.add_hardlink(&path("x"), &path("later")),
        "The image has no file `later` that `x` could be a second name of",
    );
    check(
        |writer| writer.add_hardlink(&path("x"), &path("directory")),
        "The image has no file `directory` that `x` could be a second name of",
    );
}

#[test]
fn a_target_is_a_path_that_the_kernel_takes() {
    let bad =
        "The target of the symbolic link `x` is empty, longer than 4095 bytes or holds a NUL byte";
    check(|writer| writer.add_symlink(&path("x"), PLAIN, b""), bad);
    check(|writer| writer.add_symlink(&path("x"), PLAIN, b"a\0b"), bad);
    check(
        |writer| writer.add_symlink(&path("x"), PLAIN, &[b'x'; 4096]),
        bad,
    );
}

#[test]
fn an_extent_lies_within_the_data() {
    let bad = "The data that `x` is said to have is not in the image";
    for (offset, size) in [
        (0, 1),
        (4097, 1),
        (4096, 9),
        (8192, 1),
        (u64::MAX - 4095, 4096),
    ] {
        check(
            |writer| writer.add_existing(&path("x"), PLAIN, Extent { offset, size }),
            bad,
        );
    }
}

#[test]
fn a_file_over_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let add = |writer: &mut Writer, limit| {
        writer
            .add_file(&path("x"), PLAIN, &mut [1; 2048].as_slice(), limit)
            .map(|_| ())
    };
    check(
        |writer| add(writer, 2047),
        &format!("`x` is larger than {}", Size(2047)),
    );
    let bench = Bench::new();
    add(&mut bench.writer(), 2048).unwrap();
}

#[test]
fn a_reader_that_fails_is_named() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let mut reader = b"first part".chain(Broken);
    check(
        |writer| {
            writer
                .add_file(&path("x"), PLAIN, &mut reader, 100)
                .map(|_| ())
        },
        "Can't read the contents of `x`",
    );
}

#[test]
fn a_full_disk_is_an_error() {
    // Every write to this device says that there is no room.
    let full = fs_err::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    assert!(matches!(Writer::create(full, PLAIN), Err(Error::Write(_))));
}

#[test]
fn an_earlier_image_that_is_too_short_is_refused() {
    let bench = Bench::new();
    let finished = bench.writer().finish().unwrap();
    for data_end in [0, 100, finished.size + 4096] {
        assert!(matches!(
            Writer::continue_from(bench.file(), PLAIN, data_end),
            Err(Error::BadExtent { .. })
        ));
    }
}
