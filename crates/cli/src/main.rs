//! efimera.
fn main() {}
