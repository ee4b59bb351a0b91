//! A monitor's client that is fed whatever an owned QEMU could send.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../drivers/qmp.rs"]
mod driver;

fuzz_target!(|bytes: &[u8]| {
    _ = driver::drive(bytes);
});
