use crate::bench::Bench;
use image::{ImageError, Silent, Store};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

fn error(bench: &Bench, name: &str) -> String {
    bench.store.image(name).unwrap_err().to_string()
}

#[test]
fn an_image_is_found_by_digest_and_by_its_beginning() {
    let bench = Bench::new();
    let image = bench.image("one");
    let hex = image.digest().hex();
    for name in [&hex, &hex[..4], &hex[..12], &format!("sha256:{hex}")] {
        assert_eq!(bench.store.image(name).unwrap(), image);
    }
    assert_eq!(
        error(&bench, &hex[..3]),
        format!("There is no image `{}`", &hex[..3])
    );
    assert_eq!(error(&bench, "../images"), "There is no image `../images`");
    assert_eq!(error(&bench, ""), "There is no image ``");
    assert_eq!(error(&bench, "a\x1b[2J"), r"There is no image `a\x1b[2J`");
}

#[test]
fn several_images_that_begin_alike_are_told_apart_by_more_digits() {
    let bench = Bench::new();
    let image = bench.image("one");
    // A copy under another digest that begins with the same four digits.
    let hex = image.digest().hex();
    let mut other = hex.clone();
    other.replace_range(63..64, if hex.ends_with('0') { "1" } else { "0" });
    let images = bench.data().join("images");
    fs_err::create_dir(images.join(&other)).unwrap();
    let manifest = fs_err::read_to_string(images.join(&hex).join("manifest.json")).unwrap();
    fs_err::write(
        images.join(&other).join("manifest.json"),
        manifest.replace(&hex, &other),
    )
    .unwrap();
    assert_eq!(
        error(&bench, &hex[..8]),
        format!(
            "`{}` is the beginning of several images' digests",
            &hex[..8]
        )
    );
    assert_eq!(bench.store.image(&hex).unwrap(), image);
}

#[test]
fn images_are_opened_checked_and_private() {
    let bench = Bench::new();
    let image = bench.image("one");
    let mut bytes = Vec::new();
    image
        .open(&mut Silent)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(base::Digest::of(&bytes), image.digest());
    let mode =
        |path: &std::path::Path| fs_err::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&image.path()), 0o600);
    assert_eq!(mode(image.path().parent().unwrap()), 0o700);
    assert_eq!(mode(&bench.data()), 0o700);
}

#[test]
fn an_image_that_was_cut_in_half_says_so_and_how_to_go_on() {
    let bench = Bench::new();
    let image = bench.image("one");
    image.open(&mut Silent).unwrap();
    let file = fs_err::OpenOptions::new()
        .write(true)
        .open(image.path())
        .unwrap();
    file.set_len(image.manifest.size.bytes() / 2).unwrap();
    let error = image.open(&mut Silent).unwrap_err();
    assert!(matches!(error, ImageError::Altered { .. }));
    assert!(
        error
            .to_string()
            .ends_with("`efimera image build` builds it anew"),
        "{error}"
    );
}

#[test]
fn a_damaged_image_is_replaced_by_building_it_again() {
    let bench = Bench::new();
    let image = bench.image("one");
    fs_err::write(image.path(), b"damaged").unwrap();
    let again = bench.image("one");
    assert_eq!(again.digest(), image.digest());
    again.open(&mut Silent).unwrap();
    assert!(bench.unfinished().is_empty());
}

#[test]
fn removed_images_are_gone_and_others_stay() {
    let bench = Bench::new();
    let (one, two) = (bench.image("one"), bench.image("two"));
    bench.store.remove_image(&one).unwrap();
    assert_eq!(bench.store.images().unwrap(), [two]);
    assert!(bench.store.remove_image(&one).is_err());
    assert!(bench.unfinished().is_empty());
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_hides_no_other() {
    let bench = Bench::new();
    let image = bench.image("one");
    let broken = bench.data().join("images/broken");
    fs_err::create_dir(&broken).unwrap();
    fs_err::write(broken.join("manifest.json"), b"{").unwrap();
    let empty = bench.data().join("kernels/empty");
    fs_err::create_dir(&empty).unwrap();
    assert_eq!(bench.store.images().unwrap(), [image]);
    let faulty: Vec<_> = bench
        .store
        .faulty()
        .unwrap()
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(faulty, [broken, empty]);
}

#[test]
fn leftovers_of_a_killed_build_go_after_a_day_and_not_before() {
    let bench = Bench::new();
    let old = bench.data().join("images/.new-old");
    let fresh = bench.data().join("images/.new-fresh");
    for path in [&old, &fresh] {
        fs_err::create_dir(path).unwrap();
        fs_err::write(path.join("root.erofs"), b"half").unwrap();
    }
    let long_ago = SystemTime::now() - Duration::from_hours(25);
    fs_err::File::open(&old)
        .unwrap()
        .file()
        .set_modified(long_ago)
        .unwrap();
    Store::open(&bench.data()).unwrap();
    assert_eq!(bench.unfinished(), [fresh]);
}
