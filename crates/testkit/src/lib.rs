//! Helpers for tests: clean homes, git shapes, real machines.
