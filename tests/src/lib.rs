//! Harness of the tests: starts the daemon and Spark, asks both, and reads witnesses that are not our own code.
//!
//! | module | what |
//! |---|---|
//! | [`jvm`] | small Spark applications in one JVM, here or in an emulated machine |
//! | [`lab`] | one daemon and one Spark in a folder of their own, and the gates of an application |
//! | [`memory`] | memory whose every first touch is one page fault, clocks, processors |
//! | [`node`] | CPUs and memory of one NUMA node, and where another process's pages are |
//! | [`page_walk`] | work whose page walks are known, and plain counts of it |
//! | [`truth`] | comparisons of what SMTT says with what Spark's REST API says |
//!
//! Processes, Spark, the daemon and the witnesses of `/proc` are shared with `cargo xtask`, in its library.

pub mod jvm;
pub mod lab;
pub mod memory;
pub mod node;
pub mod page_walk;
pub mod truth;

pub use xtask::witness;
