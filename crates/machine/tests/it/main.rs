//! Real machines: QEMU with its emulator and Debian's kernel. The kernel comes from the directory that
//! `EFIMERA_TEST_DATA` names (`cargo xtask test` prepares it).

#![expect(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../role/plan.rs"]
mod plan;

mod clone;
mod probe;
mod seeds;
mod stage;
mod vm;
