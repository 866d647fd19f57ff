//! Applications that several tests run.

use anyhow::Result;
use xtask::spark::Application;

use crate::lab::SparkLab;

/// Two executors with one core each, in JVMs of their own.
pub const LOCAL_CLUSTER: &str = "local-cluster[2,1,1024]";

/// A PageRank that takes about ten seconds.
pub const PAGE_RANK: [&str; 5] = ["20000", "8", "3", "4", "MEMORY_ONLY_SER"];
/// The result line of [`PAGE_RANK`], with and without the marker, on every version.
pub const PAGE_RANK_RESULT: &str =
    "RESULT pagerank 20000 pages, sum 19821.3, top 624.49 148.74 100.70";

/// Caches RDDs at all storage levels; gates `cached`, `unpersisted`, `evicted` and `end`.
///
/// # Errors
/// When set-up has not been done.
pub fn storage(lab: &SparkLab) -> Result<Application> {
    Ok(
        Application::java(&lab.paths, LOCAL_CLUSTER, "Storage", &["4"])?
            // The test searches memory for the pattern; Spark 4.3 compresses serialised blocks by default.
            .conf("spark.rdd.compress", "false")
            // A small storage region, so that the large RDD evicts other blocks.
            .conf("spark.memory.fraction", "0.25")
            .conf("spark.memory.offHeap.enabled", "true")
            .conf("spark.memory.offHeap.size", "128m")
            .with_marker(&lab.paths),
    )
}
