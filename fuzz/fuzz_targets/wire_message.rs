//! Messages from anybody: what decodes is the same after another round.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::message::{Control, Reply, Request, decode, encode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = decode::<Request>(bytes) {
        assert_eq!(decode(&encode(&request)), Ok(request));
    }
    if let Ok(reply) = decode::<Reply>(bytes) {
        assert_eq!(decode(&encode(&reply)), Ok(reply));
    }
    if let Ok(control) = decode::<Control>(bytes) {
        assert_eq!(decode(&encode(&control)), Ok(control));
    }
});
