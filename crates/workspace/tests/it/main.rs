//! What anybody may see of the crate: the seeds of the fuzz targets, replayed.

mod seeds;
