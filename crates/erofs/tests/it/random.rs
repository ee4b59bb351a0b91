use crate::oracle::{Bench, PLAIN, list};
use base::RelPath;
use proptest::prelude::*;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

#[derive(Debug, Clone)]
enum Body {
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Directory,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_map(|byte| {
        if byte == 0 || byte == b'/' {
            b'_'
        } else {
            byte
        }
    });
    prop_oneof![
        4 => proptest::collection::vec(byte.clone(), 1..6),
        1 => proptest::collection::vec(byte, 200..=255),
        // Few names, so that some directories hold much.
        4 => "[a-c]".prop_map(String::into_bytes),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        (any::<u8>(), 0..9000_usize).prop_map(|(byte, length)| Body::File(vec![byte; length])),
        (1_u8.., 1..4000_usize).prop_map(|(byte, length)| Body::Symlink(vec![byte; length])),
        Just(Body::Directory),
    ]
}

/// Adds the entry at the same place below `root`, where the file system lets it.
fn mirror(root: &Path, path: &RelPath, body: &Body) -> bool {
    let target = root.join(path.as_path());
    if path
        .parent()
        .is_some_and(|parent| fs_err::create_dir_all(root.join(parent.as_path())).is_err())
        || fs_err::symlink_metadata(&target).is_ok()
    {
        return false;
    }
    match body {
        Body::File(contents) => fs_err::write(&target, contents).unwrap(),
        Body::Symlink(to) => {
            fs_err::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(to), &target).unwrap();
        }
        Body::Directory => fs_err::create_dir(&target).unwrap(),
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back_as_it_went_in(
        entries in proptest::collection::vec((proptest::collection::vec(name(), 1..5), body()), 0..60)
    ) {
        let bench = Bench::new();
        let mirrored = tempfile::tempdir().unwrap();
        let mut writer = bench.writer();
        for (components, body) in entries {
            let Ok(path) = RelPath::new(components.join(&b'/')) else { continue };
            // A link to a directory could take the mirror elsewhere: only real directories are parents.
            let through_link = path.components().scan(mirrored.path().to_path_buf(), |at, name| {
                at.push(std::ffi::OsStr::from_bytes(name));
                Some(at.clone())
            }).any(|at| at.is_symlink());
            if through_link || !mirror(mirrored.path(), &path, &body) {
                continue;
            }
            match &body {
                Body::File(contents) => {
                    writer.add_file(&path, PLAIN, &mut contents.as_slice(), u64::MAX).unwrap();
                }
                Body::Symlink(target) => writer.add_symlink(&path, PLAIN, target).unwrap(),
                Body::Directory => writer.add_dir(&path, PLAIN).unwrap(),
            }
        }
        let without_times = |mut lines: Vec<crate::oracle::Line>| {
            for line in &mut lines {
                line.mtime = (0, 0);
            }
            lines
        };
        let lines = bench.listed(writer.finish().unwrap());
        prop_assert_eq!(without_times(lines), without_times(list(mirrored.path())));
    }
}
