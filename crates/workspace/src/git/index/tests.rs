use super::{Index, IndexFault, ObjectFormat};
use proptest::prelude::*;

/// An index of version 2 with these paths, each of an empty object name.
fn sample(paths: &[&[u8]]) -> Vec<u8> {
    let mut out = b"DIRC\0\0\0\x02".to_vec();
    out.extend(u32::try_from(paths.len()).unwrap().to_be_bytes());
    for path in paths {
        let start = out.len();
        out.extend([7; 24]);
        out.extend(0o100_644_u32.to_be_bytes());
        out.extend([0; 12 + 20]);
        out.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
        out.extend(*path);
        let length = out.len() - start;
        out.resize(start + (length + 8) / 8 * 8, 0);
    }
    let sum = super::checksum(ObjectFormat::Sha1, &out);
    out.extend(sum);
    out
}

#[test]
fn reads_what_it_writes() {
    let bytes = sample(&[b"a", b"dir/\xff", b"exactly-8"]);
    let mut index = Index::parse(&bytes, ObjectFormat::Sha1).unwrap();
    assert_eq!(index.to_bytes(ObjectFormat::Sha1), bytes);
    index.entries[1].set_skip_worktree();
    index.tree_cache = Some(b"cache".to_vec());
    let again = Index::parse(&index.to_bytes(ObjectFormat::Sha1), ObjectFormat::Sha1).unwrap();
    assert!(again.entries[1].skips_worktree() && !again.entries[0].skips_worktree());
    assert_eq!(again.tree_cache.as_deref(), Some(b"cache".as_slice()));
    assert_eq!(
        again.to_bytes(ObjectFormat::Sha1),
        index.to_bytes(ObjectFormat::Sha1)
    );
}

#[test]
fn refuses_what_is_none() {
    let whole = sample(&[b"a", b"b"]);
    for end in 0..whole.len() - 20 {
        assert!(
            Index::parse(&whole[..end], ObjectFormat::Sha1).is_err(),
            "cut at {end}"
        );
    }
    let mut lying = whole.clone();
    lying[8..12].fill(0xff);
    assert!(matches!(
        Index::parse(&lying, ObjectFormat::Sha1),
        Err(IndexFault::Broken(_))
    ));
    let mut split = whole[..whole.len() - 20].to_vec();
    split.extend(b"link\0\0\0\0");
    split.extend([0; 20]);
    assert_eq!(
        Index::parse(&split, ObjectFormat::Sha1).unwrap_err(),
        IndexFault::Split
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(at in 0_usize..200, byte in any::<u8>(), version in 2_u8..5) {
        let mut bytes = sample(&[b"a", b"some/longer/path", b"z"]);
        bytes[7] = version;
        let length = bytes.len();
        bytes[at % length] = byte;
        if let Ok(index) = Index::parse(&bytes, ObjectFormat::Sha1) {
            index.to_bytes(ObjectFormat::Sha1);
        }
    }
}
