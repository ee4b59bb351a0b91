//! The guest program.
fn main() {}
