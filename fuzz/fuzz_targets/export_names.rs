//! Names from anybody.
#![no_main]

#[path = "../drivers/names.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    driver::drive(bytes);
});
