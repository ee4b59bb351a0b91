//! The guest program and the initramfs that carries it.
