//! Placeholder replaced by the marker's native library.
