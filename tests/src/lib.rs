//! Harness of the tests: starts the daemon and Spark, asks both, and reads witnesses that are not our own code.
//!
//! | module | what |
//! |---|---|
//! | [`lab`] | one daemon and one Spark in a folder of their own, and the gates of an application |
//! | [`truth`] | comparisons of what SMTT says with what Spark's REST API says |
//!
//! Processes, Spark, the daemon and the witnesses of `/proc` are shared with `cargo xtask`, in its library.

pub mod lab;
pub mod truth;

pub use xtask::witness;
