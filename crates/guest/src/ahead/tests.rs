use super::{MOST, SUPERBLOCK_LEN, extent, read_metadata};
use std::io::Write as _;

fn superblock(magic: u32, block_bits: u8, blocks: u32, metadata: u32) -> [u8; SUPERBLOCK_LEN] {
    let mut bytes = [0; SUPERBLOCK_LEN];
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[12] = block_bits;
    bytes[36..40].copy_from_slice(&blocks.to_le_bytes());
    bytes[40..44].copy_from_slice(&metadata.to_le_bytes());
    bytes
}

#[test]
fn metadata_is_what_lies_behind_the_data() {
    let find = |magic, bits, blocks, metadata| {
        extent(&superblock(magic, bits, blocks, metadata))
            .map(|(offset, length)| (offset, length.get()))
    };
    let magic = 0xe0f5_e1e2;
    assert_eq!(find(magic, 12, 110, 100), Some((409_600, 40_960)));
    assert_eq!(find(magic, 9, 110, 100), Some((51_200, 5_120)));
    let last = u64::from(u32::MAX - 1) << 12;
    assert_eq!(find(magic, 12, u32::MAX, u32::MAX - 1), Some((last, 4096)));
    assert_eq!(find(magic, 12, u32::MAX, 1), Some((4096, MOST)));
    // What makes no sense is left alone.
    assert_eq!(find(magic, 12, 100, 100), None);
    assert_eq!(find(magic, 12, 99, 100), None);
    assert_eq!(find(magic, 64, 110, 100), None);
    assert_eq!(find(magic, 0, 110, 100), None);
    assert_eq!(find(1, 12, 110, 100), None);
    assert_eq!(extent(&superblock(magic, 12, 110, 100)[..43]), None);
}

#[test]
fn what_can_not_be_read_ahead_is_no_fault() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    read_metadata(file.path());
    file.write_all(&[0; 1024]).unwrap();
    file.write_all(&superblock(0xe0f5_e1e2, 12, 110, 100))
        .unwrap();
    read_metadata(file.path());
    read_metadata(std::path::Path::new("/nonexistent"));
}
