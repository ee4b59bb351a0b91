//! Confinement of the VMM process.
