//! Tests against the running kernel: the probes, loaded as a library, watch the native workload, whose facts and
//! faults are known exactly.
//!
//! They need root and the marker's native library in `target/marker` (`cargo xtask test kernel` provides both). A lock
//! serialises the tests, so they may be started in parallel; each loads its own tables and reads its own workload only.
//! A test that cannot run here names the missing feature of the kernel.

mod accounts;
mod capabilities;
mod cgroup_limits;
mod clocks;
mod deaths;
mod discovery;
mod evicted;
mod executor_starts;
mod fault_kinds;
mod fault_time;
mod foreign_files;
mod forks;
mod full_disk;
mod garbage;
mod hotness;
mod idle;
mod lab;
mod left_behind;
mod life;
mod losses;
mod machine_oom;
mod many;
mod memory_limit;
mod memory_lock;
mod namespaces;
mod neighbours;
mod nodes;
mod options;
mod overlays;
mod page_faults;
mod page_limits;
mod page_walk_verdicts;
mod page_walks;
mod pages;
mod raw;
mod refusals;
mod restart;
mod resync;
mod reuse;
mod running;
mod services;
mod shares;
mod soak;
mod stale;
mod starts;
mod suspend;
mod touched;
mod upgrade;
mod victim;
