//! The product as a person uses it: the built binary, in a clean home, with real machines.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests panic with what went wrong"
)]

mod cli;
mod tree;
mod vm;

use testkit::Env;

/// A clean home for the efimera that was built with these tests.
fn env() -> Env {
    Env::new(env!("CARGO_BIN_EXE_efimera"))
}

/// The same on a computer that was never set up.
fn bare() -> Env {
    Env::without_data(env!("CARGO_BIN_EXE_efimera"))
}

/// Where image and kernel of all tests are.
fn data() -> std::path::PathBuf {
    std::env::var_os(testkit::DATA).unwrap().into()
}
