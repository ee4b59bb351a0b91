//! One sandbox's event loop.

pub mod control;
