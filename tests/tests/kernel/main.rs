//! Tests against the running kernel: the probes, loaded as a library, watch the native workload, whose facts and
//! faults are known exactly.
//!
//! They need root and the marker's native library in `target/marker` (`cargo xtask test kernel` sees to both). The
//! tests take turns by themselves, so they may be started in parallel; each loads tables of its own and looks at its
//! own workload only. A test that cannot run here says which feature of the kernel is missing.

mod discovery;
mod garbage;
mod hotness;
mod lab;
mod life;
mod losses;
mod many;
mod nodes;
mod page_faults;
mod page_limits;
mod page_walk_verdicts;
mod page_walks;
mod pages;
mod refusals;
mod resync;
