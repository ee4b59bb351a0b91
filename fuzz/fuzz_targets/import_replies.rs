//! A guest's whole side of an export, bytes from anybody.
#![no_main]

#[path = "../drivers/import.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    driver::drive(bytes);
});
