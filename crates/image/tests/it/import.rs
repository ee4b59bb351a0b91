use crate::bench::{Bench, root_tar};
use image::{Origin, Silent, import_tar};
use std::error::Error as _;

#[test]
fn a_root_file_system_is_taken_in_with_what_it_says_of_itself() {
    let bench = Bench::new();
    let image = bench
        .import(&[
            ("./usr/bin/sh", b"shell"),
            (
                "./usr/lib/os-release",
                b"PRETTY_NAME=\"Alpine Linux v3.20\"\n",
            ),
            (
                "./var/lib/dpkg/status",
                b"Package: apt\nStatus: install ok installed\nVersion: 2\n",
            ),
        ])
        .unwrap();
    assert_eq!(image.manifest.name, "Alpine Linux v3.20");
    assert_eq!(
        image.manifest.origin,
        Origin::Tar {
            name: "test".into()
        }
    );
    assert_eq!(image.manifest.packages[0].name, "apt");
    assert_eq!(
        image.manifest.size.bytes(),
        fs_err::metadata(image.path()).unwrap().len()
    );
    assert_eq!(bench.store.newest_image().unwrap(), Some(image));
}

#[test]
fn the_same_tar_gives_the_same_digest() {
    let (one, two) = (Bench::new(), Bench::new());
    assert_eq!(one.image("x").digest(), two.image("x").digest());
    assert_ne!(one.image("x").digest(), two.image("y").digest());
}

#[test]
fn what_is_no_root_file_system_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    let error = bench.import(&[("README", b"hello")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "The tar stream is no root file system: it has no `bin/sh`"
    );
    let error = bench
        .import(&[("bin/sh", b"x"), ("../escape", b"x")])
        .unwrap_err();
    assert_eq!(error.to_string(), "Can't take the root file system");
    assert!(
        error
            .source()
            .unwrap()
            .to_string()
            .contains("unusable name")
    );
    let cut = &root_tar(&[("bin/sh", &[1; 10_000])])[..5000];
    import_tar(&bench.store, cut, "cut", "0.0", &mut Silent).unwrap_err();
    import_tar(
        &bench.store,
        b"no tar at all".as_slice(),
        "text",
        "0.0",
        &mut Silent,
    )
    .unwrap_err();
    assert_eq!(bench.store.images().unwrap(), []);
    assert!(bench.unfinished().is_empty());
}
