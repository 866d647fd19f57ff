//! Tests against real Spark: compare SMTT's answers with Spark's REST API and with the kernel.
//!
//! They need root, a finished `cargo xtask setup` and a built daemon: `cargo xtask test spark` provides all three.
//! Applications wait at gates (see `Barrier.java`): no task runs while a test compares two sides. A lock serialises the
//! tests, because two Sparks at once would starve each other.

mod accounts;
mod addresses;
mod advise;
mod advise_stages;
mod collections;
mod containers;
mod deaths;
mod execution;
mod experiment;
mod fail_open;
mod fetches;
mod functions;
mod helpers;
mod jobs;
mod late;
mod losses;
mod many;
mod matrix;
mod memory;
mod memory_python;
mod page_faults;
mod page_walks;
mod pages;
mod python;
mod python_used;
mod releases;
mod slow_disk;
mod splits;
mod storage;
mod tasks;
#[cfg(target_arch = "x86_64")]
mod thread_context;
mod touched;
mod trace;
mod upgrade;
