//! Tests against real Spark: what SMTT says is compared with Spark's REST API and with the kernel.
//!
//! They need root, a finished `cargo xtask setup` and a built daemon: `cargo xtask test spark` sees to all of
//! it. Applications wait at gates (see `Barrier.java`): no task runs while two sides are compared. The tests
//! take turns by themselves, because two Sparks at once would starve each other.

mod addresses;
mod advise;
mod execution;
mod experiment;
mod fail_open;
mod late;
mod losses;
mod many;
mod matrix;
mod page_faults;
mod page_walks;
mod pages;
mod python;
mod slow_disk;
mod storage;
mod tasks;
mod trace;
