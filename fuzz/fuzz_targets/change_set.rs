//! Change sets from anybody's JSON.
#![no_main]

#[path = "../drivers/change_set.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    driver::drive(bytes);
});
