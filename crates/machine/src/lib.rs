//! QEMU: probe, command line, QMP, life of one machine.
