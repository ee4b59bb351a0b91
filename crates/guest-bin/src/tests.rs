use super::*;

/// One entry as a reader of the format sees it.
#[derive(Debug, PartialEq)]
struct Entry {
    name: String,
    mode: u32,
    device: (u32, u32),
    contents: Vec<u8>,
}

fn read(mut archive: &[u8]) -> Vec<Entry> {
    let whole = archive.len();
    let mut entries = Vec::new();
    loop {
        assert_eq!(&archive[..6], b"070701");
        let field = |at: usize| {
            u32::from_str_radix(
                std::str::from_utf8(&archive[6 + at * 8..][..8]).unwrap(),
                16,
            )
            .unwrap()
        };
        let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
        let device = (field(9), field(10));
        let name = std::str::from_utf8(&archive[110..][..name_size]).unwrap();
        let name = name.strip_suffix('\0').unwrap().to_owned();
        let aligned =
            |at: usize| (whole - archive.len() + at).next_multiple_of(4) - (whole - archive.len());
        let start = aligned(110 + name_size);
        let contents = archive[start..][..size].to_vec();
        archive = &archive[aligned(start + size)..];
        if name == "TRAILER!!!" {
            assert!(archive.is_empty());
            return entries;
        }
        entries.push(Entry {
            name,
            mode,
            device,
            contents,
        });
    }
}

#[test]
fn an_initramfs_holds_init_console_and_the_modules_in_order() {
    let modules: [(&str, &[u8]); 2] = [("00-a.ko", b"first"), ("01-b.ko", b"")];
    let entries = read(&initramfs_with(b"program", modules));
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| (entry.name.as_str(), entry.mode))
        .collect();
    assert_eq!(
        seen,
        [
            ("dev", 0o040_755),
            ("modules", 0o040_755),
            ("proc", 0o040_755),
            ("sys", 0o040_755),
            ("dev/console", 0o020_600),
            ("init", 0o100_755),
            ("modules/00-a.ko", 0o100_644),
            ("modules/01-b.ko", 0o100_644),
        ]
    );
    assert_eq!(entries[4].device, (5, 1));
    assert_eq!(entries[5].contents, b"program");
    assert_eq!(entries[6].contents, b"first");
}

#[test]
fn every_length_of_name_and_contents_keeps_the_alignment() {
    let contents = [7; 9];
    for length in 0..9 {
        let name = "n".repeat(length + 1);
        let entries = read(&initramfs_with(
            &contents[..length],
            [(name.as_str(), &contents[..9 - length])],
        ));
        assert_eq!(entries[5].contents, &contents[..length]);
        assert_eq!(entries[6].contents, &contents[..9 - length]);
    }
}

#[test]
fn the_guest_is_a_static_executable_without_traces_of_the_building_host() {
    assert_eq!(&GUEST[..4], b"\x7fELF");
    // A dynamic executable has a program header of type 3 (PT_INTERP, elf(5)); a static one has none.
    let number = |at: usize, length: usize| {
        GUEST[at..][..length]
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, entry_size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let kinds: Vec<_> = (0..count)
        .map(|index| number(table + index * entry_size, 4))
        .collect();
    assert!(kinds.contains(&1) && !kinds.contains(&3), "{kinds:?}");
    let names = |needle: &[u8]| GUEST.windows(needle.len()).any(|window| window == needle);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    assert!(!names(root.as_os_str().as_encoded_bytes()));
}
