//! What the fuzzer starts from, and what it once found: replayed in every ordinary run.

use std::path::Path;

#[path = "../../../../fuzz/drivers/qmp.rs"]
mod driver;

#[test]
fn seeds_of_the_monitor() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/qmp");
    let mut count = 0;
    for entry in fs_err::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let (events, outcome) = driver::drive(&fs_err::read(&path).unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("good-") {
            assert_eq!(outcome, Ok(()), "{name}");
            assert!(events.contains(&machine::Event::Ready), "{name}");
        } else if name.starts_with("bad-") {
            assert!(outcome.is_err(), "{name}: {events:?}");
        }
        count += 1;
    }
    assert!(count >= 10, "they are there");
}
