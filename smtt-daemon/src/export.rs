//! What leaves the daemon by itself: metrics today, one folder entry per format.

pub mod prometheus;
