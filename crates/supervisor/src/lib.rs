//! One sandbox's event loop.
