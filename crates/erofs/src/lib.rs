//! Writer and reader of uncompressed EROFS images.
