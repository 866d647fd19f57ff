//! The metrics of a small state, in both formats.
