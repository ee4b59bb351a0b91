use crate::oracle::{Bench, Line, PLAIN};
use crate::reader::Reader;
use base::{Digest, RelPath};
use erofs::{Extent, Meta, Special, Writer};
use std::os::unix::fs::MetadataExt as _;

pub(crate) fn path(bytes: impl AsRef<[u8]>) -> RelPath {
    RelPath::new(bytes.as_ref()).unwrap()
}

fn add(writer: &mut Writer, name: impl AsRef<[u8]>, contents: &[u8]) {
    let written = writer
        .add_file(&path(name), PLAIN, &mut &*contents, u64::MAX)
        .unwrap();
    assert_eq!(written.digest, Digest::of(contents));
    assert_eq!(written.extent.size, contents.len() as u64);
}

fn line(name: impl AsRef<[u8]>, kind: &'static str, contents: &[u8]) -> Line {
    let (seconds, nanoseconds) = PLAIN.mtime;
    Line {
        path: name.as_ref().to_vec(),
        kind,
        mtime: (seconds, nanoseconds.into()),
        contents: contents.to_vec(),
    }
}

#[test]
fn an_image_without_any_entry_is_a_root_directory() {
    let bench = Bench::new();
    assert_eq!(bench.list(|_| {}), []);
    let root = Reader::open(&bench.image()).root();
    assert_eq!(
        (root.mode, root.links, root.mtime),
        (0o040_755, 2, (1_700_000_000, 123_456_789))
    );
}

#[test]
fn files_of_every_length_around_a_block_come_back() {
    let contents: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let lengths = [
        0,
        1,
        4031,
        4032,
        4033,
        4095,
        4096,
        4097,
        8192,
        1 << 20,
        (1 << 20) + 1,
        3 << 20,
    ];
    let bench = Bench::new();
    let lines = bench.list(|writer| {
        for length in lengths {
            add(writer, format!("{length:07}"), &contents[..length]);
        }
    });
    let expected: Vec<_> = lengths
        .iter()
        .map(|length| line(format!("{length:07}"), "file", &contents[..*length]))
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn long_names_odd_names_and_deep_trees_come_back() {
    let deep = vec!["d".repeat(14); 256].join("/");
    let names: [&[u8]; 6] = [
        b"new\nline",
        b"\xff\xfe\x80",
        b" ",
        b"!before the dots",
        &[b'n'; 255],
        deep.as_bytes(),
    ];
    let bench = Bench::new();
    let lines = bench.list(|writer| {
        for name in names {
            add(writer, name, name);
        }
    });
    let files: Vec<_> = lines
        .into_iter()
        .filter(|line| line.kind == "file")
        .collect();
    let mut expected: Vec<_> = names.iter().map(|name| line(name, "file", name)).collect();
    expected.sort();
    assert_eq!(files, expected);
}

#[test]
fn symbolic_links_of_every_length_come_back() {
    let bench = Bench::new();
    let targets: Vec<Vec<u8>> = [1, 100, 4031, 4032, 4033, 4095]
        .iter()
        .map(|length| vec![b't'; *length])
        .collect();
    let lines = bench.list(|writer| {
        for target in &targets {
            writer
                .add_symlink(&path(format!("{:04}", target.len())), PLAIN, target)
                .unwrap();
        }
    });
    let expected: Vec<_> = targets
        .iter()
        .map(|target| line(format!("{:04}", target.len()), "symlink", target))
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn owners_modes_times_and_devices_are_kept_exactly() {
    let bench = Bench::new();
    let odd = Meta {
        mode: 0o7641,
        uid: 4_000_000_000,
        gid: 70_000,
        mtime: (-5, 999_999_999),
    };
    let mut writer = bench.writer();
    writer
        .add_file(&path("dir/file"), odd, &mut b"x".as_slice(), 1)
        .unwrap();
    writer
        .add_special(&path("char"), PLAIN, Special::Char { major: 5, minor: 1 })
        .unwrap();
    writer
        .add_special(
            &path("block"),
            PLAIN,
            Special::Block {
                major: 259,
                minor: 70_000,
            },
        )
        .unwrap();
    writer
        .add_special(&path("fifo"), PLAIN, Special::Fifo)
        .unwrap();
    writer
        .add_special(&path("socket"), PLAIN, Special::Socket)
        .unwrap();
    writer.add_dir(&RelPath::root(), odd).unwrap();
    writer.finish().unwrap();

    let reader = Reader::open(&bench.image());
    let file = reader.find("dir/file");
    assert_eq!(
        (file.mode, file.uid, file.gid),
        (0o107_641, 4_000_000_000, 70_000)
    );
    assert_eq!(file.mtime, (-5, 999_999_999));
    assert_eq!(reader.root().mode, 0o047_641);
    assert_eq!(reader.find("dir").mode, 0o040_755);
    let char = reader.find("char");
    assert_eq!((char.mode, char.raw), (0o020_755, 5 << 8 | 1));
    let block = reader.find("block");
    // new_encode_dev: the lower 8 bits of the minor, 12 of the major, the rest of the minor.
    assert_eq!(
        (block.mode, block.raw),
        (0o060_755, 0x70 | 259 << 8 | 0x111 << 20)
    );
    assert_eq!(reader.find("fifo").mode, 0o010_755);
    assert_eq!(reader.find("socket").mode, 0o140_755);
}

#[test]
fn hard_links_share_one_inode() {
    let bench = Bench::new();
    let lines = bench.list(|writer| {
        add(writer, "a/first", b"shared");
        writer
            .add_hardlink(&path("b/second"), &path("a/first"))
            .unwrap();
        writer.add_hardlink(&path("0"), &path("b/second")).unwrap();
    });
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contents == b"shared")
            .count(),
        3
    );
    let reader = Reader::open(&bench.image());
    assert_eq!(reader.inodes(), 4);
    assert_eq!(reader.find("a/first"), reader.find("b/second"));
    assert_eq!(reader.find("0").links, 3);
}

#[test]
fn directories_count_their_subdirectories_and_know_their_parent() {
    let bench = Bench::new();
    let mut writer = bench.writer();
    for name in ["a/b", "a/c", "a/d/e"] {
        writer.add_dir(&path(name), PLAIN).unwrap();
    }
    writer.finish().unwrap();
    let reader = Reader::open(&bench.image());
    let a = reader.find("a");
    assert_eq!(
        (reader.root().links, a.links, reader.find("a/b").links),
        (3, 5, 2)
    );
    assert_eq!(reader.entries(&reader.find("a/d"))[1], (b"..".to_vec(), a));
    assert_eq!(
        reader.entries(&reader.root())[1],
        (b"..".to_vec(), reader.root())
    );
}

#[test]
fn a_directory_of_a_hundred_thousand_entries_is_sorted_and_whole() {
    let bench = Bench::new();
    let mut writer = bench.writer();
    for number in (0..100_000).rev() {
        add(&mut writer, format!("large/{number:x}"), b"");
    }
    writer.finish().unwrap();
    let reader = Reader::open(&bench.image());
    assert_eq!(reader.entries(&reader.find("large")).len(), 100_002);
    let check = std::process::Command::new("fsck.erofs")
        .arg(bench.image())
        .output()
        .unwrap();
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stderr)
    );
}

#[test]
fn directories_of_every_size_around_a_block_come_back() {
    for count in 13..=17 {
        // Fifteen names of 250 bytes and the dots fill most of a block; the last name varies the rest.
        for last in [1, 60, 120, 255] {
            let bench = Bench::new();
            let mut writer = bench.writer();
            for number in 0..count {
                add(&mut writer, format!("{number:0250}"), b"");
            }
            add(&mut writer, "z".repeat(last), b"");
            writer.finish().unwrap();
            let reader = Reader::open(&bench.image());
            assert_eq!(reader.entries(&reader.root()).len(), count + 3);
            bench.extract();
        }
    }
}

#[test]
fn addresses_and_sizes_beyond_32_bits_are_kept() {
    let bench = Bench::new();
    let file = bench.file();
    let data_end = 5 << 30;
    file.set_len(data_end).unwrap();
    let mut writer = Writer::continue_from(file, PLAIN, data_end).unwrap();
    let zeros = Extent {
        offset: 4096,
        size: data_end - 4096,
    };
    writer.add_existing(&path("zeros"), PLAIN, zeros).unwrap();
    add(&mut writer, "after", b"after");
    assert_eq!(writer.finish().unwrap().data_end, data_end + 4096);
    let reader = Reader::open(&bench.image());
    assert_eq!(reader.find("zeros").size, zeros.size);
    assert_eq!(reader.contents(&reader.find("after")), b"after");
}

#[test]
fn zeros_cost_no_disk_and_keep_what_follows() {
    let bench = Bench::new();
    let mut writer = bench.writer();
    add(&mut writer, "zeros", &vec![0; 64 << 20]);
    add(&mut writer, "after", b"after");
    let finished = writer.finish().unwrap();
    assert!(finished.file.metadata().unwrap().blocks() * 512 < 4 << 20);
    let lines = bench.listed(finished);
    assert_eq!(
        lines,
        [
            line("after", "file", b"after"),
            line("zeros", "file", &vec![0; 64 << 20])
        ]
    );
}

#[test]
fn the_order_of_the_names_does_not_matter() {
    let image = |names: &[&str]| {
        let bench = Bench::new();
        let mut writer = bench.writer();
        add(&mut writer, "data", b"data");
        for name in names {
            writer
                .add_symlink(&path(name), PLAIN, name.as_bytes())
                .unwrap();
        }
        writer
            .add_dir(
                &path("d"),
                Meta {
                    mode: 0o700,
                    ..PLAIN
                },
            )
            .unwrap();
        writer.finish().unwrap();
        fs_err::read(bench.image()).unwrap()
    };
    assert_eq!(image(&["a", "d/b", "d/c"]), image(&["d/c", "a", "d/b"]));
    assert_ne!(image(&["a"]), image(&["b"]));
}

#[test]
fn a_later_image_takes_over_data_of_an_earlier_one() {
    let bench = Bench::new();
    let mut writer = bench.writer();
    let kept = writer
        .add_file(&path("kept"), PLAIN, &mut b"kept".as_slice(), 4)
        .unwrap();
    add(&mut writer, "gone", &[1; 10_000]);
    let first = writer.finish().unwrap();

    let mut writer = Writer::continue_from(first.file, PLAIN, first.data_end).unwrap();
    writer
        .add_existing(&path("moved/kept"), PLAIN, kept.extent)
        .unwrap();
    add(&mut writer, "new", b"new");
    let lines = bench.listed(writer.finish().unwrap());
    assert_eq!(
        lines,
        [
            line("moved", "directory", b""),
            line("moved/kept", "file", b"kept"),
            line("new", "file", b"new")
        ]
    );
}

#[test]
fn a_file_that_was_abandoned_leaves_nothing_behind() {
    let bench = Bench::new();
    let lines = bench.list(|writer| {
        writer.begin_file().unwrap();
        // More than the writer's buffer, so that some of it is on disk already.
        writer.write(&vec![b'x'; 5 << 20]).unwrap();
        writer.abandon_file().unwrap();
        add(writer, "zeros", &vec![0; 3 << 20]);
        writer.write(b"never ended").unwrap();
    });
    assert_eq!(lines, [line("zeros", "file", &vec![0; 3 << 20])]);
}

#[test]
fn removed_names_are_gone_with_what_lies_below() {
    let bench = Bench::new();
    let lines = bench.list(|writer| {
        add(writer, "a/b/c", b"c");
        add(writer, "a/d", b"d");
        assert!(writer.remove(&path("a/b")));
        assert!(!writer.remove(&path("a/b")));
        assert!(!writer.remove(&path("a/d/e")));
        assert!(!writer.remove(&RelPath::root()));
    });
    assert_eq!(
        lines,
        [line("a", "directory", b""), line("a/d", "file", b"d")]
    );
}
