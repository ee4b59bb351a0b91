use base::Size;

/// Names that one import looks at. A repository of 200,000 files stays below it.
pub const MAX_ENTRIES: u64 = 250_000;
/// Bytes of all paths that one import holds at a time.
pub const MAX_PATH_BYTES: u64 = 32 * 1024 * 1024;
/// The largest file that comes out.
pub const MAX_FILE: Size = Size::gib(2);
/// Bytes of all files that come out together.
pub const MAX_TOTAL: Size = Size::gib(8);
/// How often a file that changes while it is read, or a directory that fails, is asked for.
pub const MAX_TRIES: u8 = 3;
/// Bytes beyond its size that a file may send. It may grow while it is read, but a reader that goes on for
/// ever is no file.
pub const MAX_EXCESS: u64 = 16 * 1024 * 1024;
/// Names that are kept of what was left out; the rest is counted.
pub const MAX_NAMED: usize = 32;
/// Bytes of paths in one request. With everything around them they fit one frame of the wire (32 KiB).
pub(super) const MAX_REQUEST_PATHS: usize = 24 * 1024;
/// Files up to this size are held in memory until their digest says whether they are new at all.
pub(super) const MAX_BUFFERED: usize = 256 * 1024;
/// Files above this size are read after all smaller ones, so that a large log doesn't hold up the sources.
pub(super) const SMALL_FILE: u64 = 1024 * 1024;
/// The coarsest step of a Linux kernel's file times in nanoseconds (`CONFIG_HZ=100`), twice over.
pub(super) const CLOCK_STEP_NS: i64 = 20_000_000;

/// What one import may bring out. The defaults are the `MAX_` constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Names looked at; more is an error.
    pub entries: u64,
    /// Bytes of paths held; more is an error.
    pub path_bytes: u64,
    /// Largest file; a larger one stays behind and is named.
    pub file: Size,
    /// All files together; what does not fit stays behind and is named.
    pub total: Size,
    /// Bytes read from the guest in this import; what is left waits for the next one (`Counts::deferred`).
    pub read: Size,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: MAX_ENTRIES,
            path_bytes: MAX_PATH_BYTES,
            file: MAX_FILE,
            total: MAX_TOTAL,
            read: Size(u64::MAX),
        }
    }
}
