use crate::oracle::Bench;
use crate::reader::Reader;
use base::RelPath;
use erofs::Meta;
use erofs::tar::{Action, Filter, Kind, Limits, TarError, append};
use tar::{Builder, EntryType, Header};

const LIMITS: Limits = Limits {
    entries: 100,
    bytes: 1 << 20,
};

#[derive(Default)]
struct Rules {
    captured: Vec<(RelPath, Vec<u8>)>,
}

impl Filter for Rules {
    fn decide(&mut self, path: &RelPath, _: Kind, meta: &mut Meta) -> Action {
        match path.file_name() {
            Some(b"skip") => Action::Skip,
            Some(b"empty") => Action::Empty,
            Some(b"capture") => Action::Capture,
            Some(b"owned") => {
                meta.uid = 77;
                Action::Keep
            }
            _ => Action::Keep,
        }
    }

    fn captured(&mut self, path: &RelPath, bytes: &[u8]) {
        self.captured.push((path.clone(), bytes.to_vec()));
    }
}

/// A header with the name as it is: `Builder` would refuse some of them.
fn header(name: &[u8], kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o640);
    header.set_uid(1000);
    header.set_gid(1000);
    header.set_mtime(99);
    header.set_size(size as u64);
    header.set_cksum();
    header
}

fn entry(builder: &mut Builder<Vec<u8>>, name: &[u8], kind: EntryType, contents: &[u8]) {
    builder
        .append(&header(name, kind, contents.len()), contents)
        .unwrap();
}

fn link(builder: &mut Builder<Vec<u8>>, name: &[u8], kind: EntryType, target: &[u8]) {
    let mut header = header(name, kind, 0);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_cksum();
    builder.append(&header, [].as_slice()).unwrap();
}

fn import(fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> (Bench, Rules, Result<(), TarError>) {
    let mut builder = Builder::new(Vec::new());
    fill(&mut builder);
    let stream = builder.into_inner().unwrap();
    let bench = Bench::new();
    let mut rules = Rules::default();
    let mut writer = bench.writer();
    let result = append(&mut writer, stream.as_slice(), LIMITS, &mut rules).map(|_| ());
    writer.finish().unwrap();
    (bench, rules, result)
}

fn refused(fill: impl FnOnce(&mut Builder<Vec<u8>>), expected: &str) {
    let error = import(fill).2.expect_err("it is refused");
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text = format!("{text}: {source}");
    }
    assert_eq!(text, expected);
}

#[test]
fn a_root_file_system_comes_in_with_owners_links_and_devices() {
    let (bench, _, result) = import(|tar| {
        entry(tar, b"./", EntryType::Directory, b"");
        entry(tar, b"./etc/", EntryType::Directory, b"");
        entry(tar, b"./etc/name", EntryType::Regular, b"name");
        link(tar, b"./etc/second", EntryType::Link, b"./etc/name");
        link(tar, b"bin", EntryType::Symlink, b"../../usr/bin");
        entry(tar, b"fifo", EntryType::Fifo, b"");
        let mut null = header(b"null", EntryType::Char, 0);
        null.set_device_major(1).unwrap();
        null.set_device_minor(3).unwrap();
        null.set_cksum();
        tar.append(&null, [].as_slice()).unwrap();
        let mut sudo = header(b"sudo", EntryType::Regular, 0);
        sudo.set_mode(0o104_755);
        sudo.set_cksum();
        tar.append(&sudo, [].as_slice()).unwrap();
    });
    result.unwrap();
    let reader = Reader::open(&bench.image());
    let file = reader.find("etc/second");
    assert_eq!(
        (file.links, file.uid, file.mode, file.mtime),
        (2, 1000, 0o100_640, (99, 0))
    );
    assert_eq!(reader.contents(&file), b"name");
    assert_eq!(reader.contents(&reader.find("bin")), b"../../usr/bin");
    assert_eq!(reader.find("null").raw, 1 << 8 | 3);
    assert_eq!(reader.root().mode, 0o040_640);
    assert_eq!(reader.find("sudo").mode, 0o104_755);
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_a_directory_is_merged() {
    let (bench, _, result) = import(|tar| {
        entry(tar, b"d/old", EntryType::Regular, b"old");
        entry(tar, b"f", EntryType::Regular, b"first");
        link(tar, b"g", EntryType::Link, b"f");
        entry(tar, b"f", EntryType::Regular, b"second");
        entry(tar, b"d", EntryType::Directory, b"");
        entry(tar, b"f/below", EntryType::Regular, b"");
    });
    assert_eq!(
        result.unwrap_err().to_string(),
        "`f/below` lies below something that is not a directory"
    );
    let reader = Reader::open(&bench.image());
    assert_eq!(reader.contents(&reader.find("f")), b"second");
    assert_eq!(reader.contents(&reader.find("g")), b"first");
    assert_eq!(reader.contents(&reader.find("d/old")), b"old");
}

#[test]
fn the_filter_skips_empties_captures_and_changes() {
    let (bench, rules, result) = import(|tar| {
        for name in ["skip", "empty", "capture", "owned"] {
            entry(tar, name.as_bytes(), EntryType::Regular, name.as_bytes());
        }
    });
    result.unwrap();
    assert_eq!(
        rules.captured,
        [(RelPath::new(b"capture").unwrap(), b"capture".to_vec())]
    );
    let reader = Reader::open(&bench.image());
    let names: Vec<_> = reader.entries(&reader.root()).into_iter().skip(2).collect();
    let seen: Vec<_> = names
        .iter()
        .map(|(name, inode)| (name.as_slice(), inode.size, inode.uid))
        .collect();
    assert_eq!(
        seen,
        [
            (b"capture".as_slice(), 7, 1000),
            (b"empty", 0, 1000),
            (b"owned", 5, 77)
        ]
    );
}

#[test]
fn long_names_and_parts_of_a_second_come_from_pax_records() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(250));
    let (bench, _, result) = import(|tar| {
        let mtime = "1700000000.123456789";
        tar.append_pax_extensions([
            ("path", long.as_bytes()),
            ("mtime", mtime.as_bytes()),
            ("uid", b"3000000000".as_slice()),
            ("SCHILY.xattr.user.x", b"ignored".as_slice()),
        ])
        .unwrap();
        entry(tar, b"short", EntryType::Regular, b"x");
        tar.append_pax_extensions([("mtime", b"-1.25".as_slice())])
            .unwrap();
        entry(tar, b"before", EntryType::Regular, b"x");
    });
    result.unwrap();
    let reader = Reader::open(&bench.image());
    let file = reader.find(&long);
    assert_eq!(
        (file.mtime, file.uid),
        ((1_700_000_000, 123_456_789), 3_000_000_000)
    );
    assert_eq!(reader.find("before").mtime, (-2, 750_000_000));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for (name, reason) in [
        ("../x", "it has a `.` or `..` component"),
        ("a/../../x", "it has a `.` or `..` component"),
        ("/etc/passwd", "it has an empty component"),
        ("a//b", "it has an empty component"),
    ] {
        let expected = format!(
            "The tar stream has an entry with an unusable name: `{name}` is not a path below the workspace: {reason}"
        );
        refused(
            |tar| entry(tar, name.as_bytes(), EntryType::Regular, b"x"),
            &expected,
        );
        refused(
            |tar| {
                entry(tar, b"x", EntryType::Regular, b"x");
                link(tar, b"y", EntryType::Link, name.as_bytes());
            },
            &expected,
        );
    }
}

#[test]
fn a_hard_link_to_a_later_entry_is_refused() {
    refused(
        |tar| {
            link(tar, b"y", EntryType::Link, b"x");
            entry(tar, b"x", EntryType::Regular, b"x");
        },
        "The image has no file `x` that `y` could be a second name of",
    );
}

#[test]
fn limits_hold_exactly() {
    let fill = |count: usize| {
        move |tar: &mut Builder<Vec<u8>>| {
            for number in 0..count {
                entry(tar, format!("{number}").as_bytes(), EntryType::Regular, b"");
            }
        }
    };
    let too_large = "The tar stream holds more than 100 entries or 1 MiB";
    import(fill(100)).2.unwrap();
    refused(fill(101), too_large);
    let half = vec![1; 1 << 19];
    let halves = |rest: &'static [u8]| {
        let half = half.clone();
        move |tar: &mut Builder<Vec<u8>>| {
            entry(tar, b"a", EntryType::Regular, &half);
            entry(tar, b"b", EntryType::Regular, &half);
            entry(tar, b"c", EntryType::Regular, rest);
        }
    };
    import(halves(b"")).2.unwrap();
    refused(halves(b"x"), too_large);
}

#[test]
fn a_stream_that_is_cut_off_is_an_error() {
    let mut builder = Builder::new(Vec::new());
    entry(&mut builder, b"file", EntryType::Regular, &[1; 10_000]);
    let stream = builder.into_inner().unwrap();
    for length in [100, 512, 5000] {
        let bench = Bench::new();
        let result = append(
            &mut bench.writer(),
            &stream[..length],
            LIMITS,
            &mut Rules::default(),
        );
        assert!(result.is_err(), "{length}: {result:?}");
    }
}
