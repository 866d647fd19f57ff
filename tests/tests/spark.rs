//! Tests against real Spark: what SMTT says is compared with Spark's REST API and with the kernel.
//!
//! They need root, a finished `cargo xtask setup` and a built daemon: `cargo xtask test spark` sees to all of
//! it. Applications wait at gates (see `Barrier.java`): no task runs while two sides are compared. The tests
//! take turns by themselves, because two Sparks at once would starve each other.

#[path = "spark/addresses.rs"]
mod addresses;
#[path = "spark/advise.rs"]
mod advise;
#[path = "spark/execution.rs"]
mod execution;
#[path = "spark/experiment.rs"]
mod experiment;
#[path = "spark/fail_open.rs"]
mod fail_open;
#[path = "spark/faults.rs"]
mod faults;
#[path = "spark/heap.rs"]
mod heap;
#[path = "spark/late.rs"]
mod late;
#[path = "spark/losses.rs"]
mod losses;
#[path = "spark/many.rs"]
mod many;
#[path = "spark/matrix.rs"]
mod matrix;
#[path = "spark/pages.rs"]
mod pages;
#[path = "spark/python.rs"]
mod python;
#[path = "spark/slow_disk.rs"]
mod slow_disk;
#[path = "spark/storage.rs"]
mod storage;
#[path = "spark/tasks.rs"]
mod tasks;
#[path = "spark/trace.rs"]
mod trace;
#[path = "spark/walks.rs"]
mod walks;

/// Two executors with one core each, in JVMs of their own.
const LOCAL_CLUSTER: &str = "local-cluster[2,1,1024]";

/// A PageRank that takes about ten seconds, and its result.
const PAGE_RANK: [&str; 5] = ["20000", "8", "3", "4", "MEMORY_ONLY_SER"];
/// What it prints, with and without the marker, on every version.
const PAGE_RANK_RESULT: &str = "RESULT pagerank 20000 pages, sum 19821.3, top 624.49 148.74 100.70";
