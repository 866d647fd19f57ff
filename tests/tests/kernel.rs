//! Tests against the running kernel: the probes, loaded as a library, watch the native workload, whose facts and
//! faults are known exactly.
//!
//! They need root and the marker's native library in `target/marker` (`cargo xtask test kernel` sees to both). The
//! tests take turns by themselves, so they may be started in parallel; each loads tables of its own and looks at its
//! own workload only. A test that cannot run here says which feature of the kernel is missing.

#[path = "kernel/counts.rs"]
mod counts;
#[path = "kernel/discovery.rs"]
mod discovery;
#[path = "kernel/garbage.rs"]
mod garbage;
#[path = "kernel/hotness.rs"]
mod hotness;
#[path = "kernel/lab.rs"]
mod lab;
#[path = "kernel/life.rs"]
mod life;
#[path = "kernel/losses.rs"]
mod losses;
#[path = "kernel/many.rs"]
mod many;
#[path = "kernel/nodes.rs"]
mod nodes;
#[path = "kernel/page_limits.rs"]
mod page_limits;
#[path = "kernel/pages.rs"]
mod pages;
#[path = "kernel/resync.rs"]
mod resync;
#[path = "kernel/walk_verdicts.rs"]
mod walk_verdicts;
#[path = "kernel/walks.rs"]
mod walks;
