//! Tests of the protocol: what two honest ends do to each other, and what a hostile one can't do.

#![allow(
    clippy::unwrap_used,
    reason = "the lint knows tests only by their attribute, not their helpers"
)]

mod codec;
mod flow;
mod hostile;
mod limits;
mod raw;
mod rest;
mod seeds;
