//! What the fuzzer starts from, and what it once found: replayed in every ordinary run.

use fs_err as fs;
use std::path::{Path, PathBuf};
use wire::message::{Control, Reply, Request, decode};
use wire::{Mux, Side};

fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let mut seeds: Vec<_> = fs::read_dir(dir.join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 8, "{target} has its seeds");
    seeds
}

#[test]
fn seeds_of_the_multiplexer() {
    for (path, bytes) in seeds("wire_mux") {
        for side in [Side::Opener, Side::Answerer] {
            let mut mux = Mux::new(side);
            for _ in 0..4 {
                if side == Side::Opener {
                    mux.open(b"?").unwrap();
                }
            }
            let result = mux.receive(&bytes);
            let good = path.to_string_lossy().contains("good-answerer");
            if good && side == Side::Answerer {
                assert_eq!(result, Ok(()), "{}", path.display());
            }
            while mux.next_event().is_some() {}
        }
    }
}

#[test]
fn seeds_of_the_messages() {
    for (path, bytes) in seeds("wire_message") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let decoded = [
            decode::<Request>(&bytes).is_ok(),
            decode::<Reply>(&bytes).is_ok(),
            decode::<Control>(&bytes).is_ok(),
        ];
        let good = name.starts_with("request-") && decoded[0]
            || name.starts_with("reply-") && decoded[1]
            || name.starts_with("control-") && decoded[2]
            || name.starts_with("bad-") && decoded == [false; 3]
            || name.starts_with("found-");
        assert!(good, "{name} is what its name says: {decoded:?}");
    }
}
