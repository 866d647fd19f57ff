//! Harness of the tests: starts the daemon and Spark, asks both, and reads witnesses that are not our own code.
//!
//! | module | what |
//! |---|---|
//! | [`lab`] | one daemon and one Spark in a folder of their own, and the gates of an application |
//! | [`truth`] | comparisons of what SMTT says with what Spark's REST API says |
//! | [`witness`] | what the kernel says about a process: its faults, its children, its memory |

pub mod lab;
pub mod truth;
pub mod witness;
