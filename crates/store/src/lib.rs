//! Records, results, baselines on disk.
