//! The jail as an owned QEMU would find it. The attacker is the program `jail-probe`; the host decides whether
//! an attack came through, and every attack is shown to work outside of the jail.
#![expect(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../probe/plan.rs"]
mod plan;

mod attacks;
mod life;
mod stage;
