use super::{BLOCK_BYTES, Block, Entries, KEPT_BLOCKS, ListWriter, MAGIC, decode_tail};
use crate::codec::Encoder;
use crate::testing::{any_files, path};
use crate::{BaselineError, Entry, Kind, Listing, Malformed};
use base::{Digest, RelPath};
use proptest::prelude::*;
use std::os::unix::fs::FileExt as _;

const NAME: &str = "list";

/// Files in directories of ten, many enough for several blocks.
fn many(count: usize) -> Vec<Entry> {
    let entry = |path: String, kind| Entry {
        path: RelPath::new(path).unwrap(),
        kind,
        mode: 0o644,
        size: 7,
        mtime: (-5, 6),
        digest: Some(Digest::of(b"content")),
        offset: 4096,
        target: Vec::new(),
    };
    let mut entries = Vec::new();
    for at in 0..count {
        if at.is_multiple_of(10) {
            let mut dir = entry(format!("dir-{:05}", at / 10), Kind::Dir);
            (dir.size, dir.digest, dir.offset) = (0, None, 0);
            entries.push(dir);
        }
        let file = entry(format!("dir-{:05}/file-{at}", at / 10), Kind::File);
        entries.push(file);
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    entries
}

struct Bed(tempfile::TempDir);

impl Bed {
    fn of(entries: &[Entry]) -> Self {
        let bed = Self(tempfile::tempdir().unwrap());
        let mut list = ListWriter::new(bed.create(NAME)).unwrap();
        for entry in entries {
            list.push(entry).unwrap();
        }
        list.finish(b"about it").unwrap();
        bed
    }

    fn create(&self, name: &str) -> fs_err::File {
        fs_err::File::create(self.0.path().join(name)).unwrap()
    }

    fn open(&self) -> Result<Entries, BaselineError> {
        let (entries, about) = Entries::open(self.0.path(), NAME)?;
        assert_eq!(about, b"about it");
        Ok(entries)
    }

    fn bytes(&self) -> Vec<u8> {
        fs_err::read(self.0.path().join(NAME)).unwrap()
    }

    fn put(&self, bytes: &[u8]) {
        fs_err::write(self.0.path().join(NAME), bytes).unwrap();
    }

    /// The blocks' part of the list and what its index says.
    fn parts(&self) -> (Vec<u8>, Vec<Block>) {
        let bytes = self.bytes();
        let (rest, length) = bytes.split_last_chunk::<8>().unwrap();
        let tail = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        let (blocks, tail) = rest.split_at(rest.len() - tail);
        let (_, index) = decode_tail(tail, blocks.len() as u64).unwrap();
        (blocks.to_vec(), index)
    }

    /// A list whose digests are right, whatever it says.
    fn forge(&self, blocks: &[u8], index: &[Block], count: u64) {
        let mut tail = Encoder::new(MAGIC);
        tail.bytes(b"about it");
        tail.u64(count);
        for block in index {
            tail.u32(u32::try_from(block.length).unwrap());
            tail.u32(u32::try_from(block.entries).unwrap());
            tail.raw(block.digest.as_bytes());
            tail.short(block.first.as_bytes());
        }
        let tail = tail.finish();
        let length = (tail.len() as u64).to_le_bytes();
        self.put(&[blocks, &tail, &length].concat());
    }
}

fn check_same(list: &Entries, entries: &Vec<Entry>, at: &RelPath) {
    assert_eq!(list.find(at).unwrap(), entries.find(at).unwrap(), "{at}");
    assert_eq!(list.below(at).unwrap(), entries.below(at).unwrap(), "{at}");
    let children = list.children(at).unwrap();
    assert_eq!(children, entries.children(at).unwrap(), "{at}");
    // Against what the words mean, too.
    let linear = entries.iter().find(|entry| entry.path == *at);
    assert_eq!(list.find(at).unwrap().as_ref(), linear, "{at}");
    let below = |entry: &&Entry| entry.path != *at && entry.path.is_within(at);
    let linear: Vec<Entry> = entries.iter().filter(below).cloned().collect();
    assert_eq!(list.below(at).unwrap(), linear, "{at}");
    for name in children {
        assert!(at.join(&name).is_ok_and(|path| path.is_within(at)), "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Looking something up gives what going through all entries gives.
    #[test]
    fn lookups_are_those_of_a_plain_list(files in any_files(), count in 0_usize..900, asked in any_files()) {
        let mut entries = files.entries();
        entries.extend(many(count));
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let bed = Bed::of(&entries);
        let list = bed.open().unwrap();
        prop_assert_eq!(list.len(), entries.len() as u64);
        prop_assert_eq!(&list.to_vec().unwrap(), &entries);
        let asked = asked.entries().into_iter().chain(files.entries()).map(|entry| entry.path);
        for at in asked.chain([RelPath::root(), path("dir-00020"), path("dir-0002"), path("zz")]) {
            check_same(&list, &entries, &at);
        }
        for at in entries.iter().step_by(37) {
            check_same(&list, &entries, &at.path);
        }
    }

    /// Whatever bit of the file is wrong is noticed, at the latest when what it is part of is asked for.
    #[test]
    fn damage_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8, cut in any::<bool>()) {
        let entries = many(400);
        let bed = Bed::of(&entries);
        let mut bytes = bed.bytes();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1_u8 << bit;
        }
        bed.put(&bytes);
        let outcome = bed.open().and_then(|list| list.to_vec());
        prop_assert!(outcome.is_err(), "byte {at}");
        if cut {
            prop_assert!(bed.open().is_err(), "what is cut off is not opened");
        }
    }

    /// Bytes that are no list are refused, and no more.
    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), named in any::<bool>()) {
        let bed = Bed::of(&[]);
        let magic: &[u8] = if named { &MAGIC } else { b"" };
        bed.put(&[magic, &bytes].concat());
        prop_assert!(bed.open().is_err());
    }
}

#[test]
fn an_empty_list() {
    let list = Bed::of(&[]).open().unwrap();
    assert!(list.is_empty());
    assert_eq!(list.to_vec().unwrap(), []);
    check_same(&list, &Vec::new(), &path("a"));
    check_same(&list, &Vec::new(), &RelPath::root());
}

#[test]
fn damage_concerns_its_own_block_alone() {
    let entries = many(2000);
    let bed = Bed::of(&entries);
    let (blocks, index) = bed.parts();
    assert!(index.len() > 5 && blocks.len() > 5 * BLOCK_BYTES);
    let mut bytes = bed.bytes();
    bytes[usize::try_from(index[2].offset).unwrap() + 50] ^= 1;
    bed.put(&bytes);
    let list = bed.open().unwrap();
    let (hit, spared) = (&index[2].first, &index[4].first);
    assert_eq!(list.find(spared).unwrap().unwrap().path, *spared);
    assert!(matches!(
        list.find(hit),
        Err(BaselineError::List {
            source: Malformed::Damaged,
            ..
        })
    ));
}

#[test]
fn little_is_read_and_little_is_kept() {
    let entries = many(9000);
    let bed = Bed::of(&entries);
    let list = bed.open().unwrap();
    let kept = || list.open.kept.lock().unwrap().len();
    assert_eq!(kept(), 0, "opening reads no entry");
    list.find(&entries[4000].path).unwrap();
    assert_eq!(kept(), 1);
    list.to_vec().unwrap();
    assert!(list.open.blocks.len() > KEPT_BLOCKS);
    assert_eq!(kept(), KEPT_BLOCKS);
    for block in list.open.kept.lock().unwrap().iter() {
        assert!(block.1.bytes.len() < 2 * BLOCK_BYTES);
    }
}

#[test]
fn an_open_list_outlives_its_file() {
    let entries = many(500);
    let bed = Bed::of(&entries);
    let list = bed.open().unwrap();
    drop(bed);
    assert_eq!(list.to_vec().unwrap(), entries);
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let bed = Bed::of(&many(500));
    let list = bed.open().unwrap();
    bed.create(NAME).set_len(100).unwrap();
    assert!(matches!(list.to_vec(), Err(BaselineError::Io { .. })));
}

#[test]
fn a_copy_says_something_else_of_the_same() {
    let entries = many(1000);
    let bed = Bed::of(&entries);
    let list = bed.open().unwrap();
    let digest = |name: &str, about: &[u8]| {
        let copy = list.copy_to(bed.create(name)).unwrap();
        copy.finish(about).unwrap()
    };
    assert_ne!(digest("other", b"more"), digest("same", b"about it"));
    let (other, about) = Entries::open(bed.0.path(), "other").unwrap();
    assert_eq!((&other, about.as_slice()), (&list, b"more".as_slice()));
    assert_eq!(other.to_vec().unwrap(), entries);
    let same = fs_err::read(bed.0.path().join("same")).unwrap();
    assert_eq!(same, bed.bytes());
    let fewer = Bed::of(&entries[1..]).open().unwrap();
    assert_ne!(fewer, list);
}

#[test]
fn the_longest_entries_fit() {
    let long = |byte: u8| {
        let part = [byte; 255];
        RelPath::new([part.as_slice(); 15].join(b"/".as_slice())).unwrap()
    };
    let mut entries = many(3);
    entries.truncate(1);
    entries[0].path = long(b'a');
    for byte in b'b'..=b'z' {
        entries.push(Entry {
            path: long(byte),
            kind: Kind::Symlink,
            mode: 0o777,
            size: 4095,
            digest: Some(Digest::of(&[byte; 4095])),
            offset: 0,
            target: vec![byte; 4095],
            ..entries[0].clone()
        });
    }
    let list = Bed::of(&entries).open().unwrap();
    assert_eq!(list.to_vec().unwrap(), entries);
}

/// Lists whose digests are right and whose content is not: nothing of them is believed, and nothing panics.
#[test]
fn forged_lists_are_refused() {
    let entries = many(900);
    let bed = Bed::of(&entries);
    let refused = |what: &str| {
        let outcome = bed.open().and_then(|list| list.to_vec());
        let nonsense = matches!(
            outcome,
            Err(BaselineError::List {
                source: Malformed::Nonsense,
                ..
            })
        );
        assert!(nonsense, "{what}: {outcome:?}");
    };
    let (blocks, _) = bed.parts();
    let index = || Bed::of(&entries).parts().1;
    let count = index().len() as u64;
    assert!(count > 3);
    bed.forge(&blocks, &index(), count);
    assert_eq!(bed.open().unwrap().to_vec().unwrap(), entries, "the forge");

    bed.forge(&blocks, &index(), count - 1);
    refused("a block too many");
    bed.forge(&blocks, &index(), u64::MAX);
    refused("more blocks than there can be");
    bed.forge(&blocks, &index()[1..], count - 1);
    refused("a block that the index leaves out");
    let mut swapped = index();
    swapped.swap(0, 1);
    bed.forge(&blocks, &swapped, count);
    refused("blocks out of order");
    let mut changed = index();
    changed[1].entries += 1;
    bed.forge(&blocks, &changed, count);
    refused("an entry that is not there");
    changed[1].entries = 0;
    bed.forge(&blocks, &changed, count);
    refused("a block of nothing");
    changed[1].entries = u64::from(u32::MAX);
    bed.forge(&blocks, &changed, count);
    refused("more entries than there can be");
    let mut changed = index();
    changed[1].length += 1;
    changed[2].length -= 1;
    bed.forge(&blocks, &changed, count);
    let outcome = bed.open().and_then(|list| list.to_vec());
    assert!(outcome.is_err(), "blocks of other lengths");
    let mut changed = index();
    changed[1].length = usize::try_from(u32::MAX).unwrap();
    bed.forge(&blocks, &changed, count);
    refused("a block of gigabytes");
    let mut changed = index();
    changed[2].first = path(format!("{}x", changed[2].first));
    bed.forge(&blocks, &changed, count);
    refused("another first path than the block's");

    // One block, filled by hand.
    let entry = |path: &str, kind: u8| {
        let mut out = Encoder::bare();
        out.short(path.as_bytes());
        out.byte(kind);
        out.u32(0o755);
        out.time((0, 0));
        out.into_bytes()
    };
    let forge = |first: &str, content: &[Vec<u8>]| {
        let bytes = content.concat();
        let block = Block {
            offset: 8,
            length: bytes.len(),
            entries: content.len() as u64,
            digest: Digest::of(&bytes),
            first: path(first),
        };
        bed.forge(&[&MAGIC, bytes.as_slice()].concat(), &[block], 1);
    };
    forge("a", &[entry("a", 1), entry("b", 1)]);
    assert_eq!(bed.open().unwrap().to_vec().unwrap().len(), 2, "the forge");
    forge("a", &[entry("a", 1), entry("c", 1), entry("b", 1)]);
    refused("entries out of order");
    forge("a", &[entry("a", 1), entry("a", 1)]);
    refused("a path twice");
    forge("a", &[entry("a", 1), entry("b/../../c", 1)]);
    refused("a path that leads out");
    forge("a", &[entry("a", 1), entry("b", 3)]);
    refused("a kind that there isn't");
    forge("a", &[entry("a", 1), entry("b", 0)]);
    refused("a file cut off");
    forge("a", &[entry("a", 1), entry("b", 1), vec![0; 1]]);
    refused("something at the end");
    let mut long = entry("b", 1);
    long[0] = 255;
    forge("a", &[entry("a", 1), long]);
    refused("a path longer than the block");
}

#[test]
fn another_version_is_told_from_damage() {
    let bed = Bed::of(&many(3));
    let file = fs_err::OpenOptions::new()
        .write(true)
        .open(bed.0.path().join(NAME))
        .unwrap();
    file.file().write_all_at(b"\x01", 7).unwrap();
    assert!(matches!(
        bed.open(),
        Err(BaselineError::List {
            source: Malformed::Foreign,
            ..
        })
    ));
}
