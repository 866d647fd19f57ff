//! The paper's figures, for comparison with ours. Unavailable figures are absent.

/// Figures of one workload on one node, in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// Name of the workload.
    pub workload: &'static str,
    /// Memory held by RDDs, as a share of the executor's memory.
    pub rdd_share: f64,
    /// Page-walk cycles of reads, as a share of the execution cycles.
    pub walk_read: Option<f64>,
    /// Page-walk cycles of writes, as a share of the execution cycles.
    pub walk_write: Option<f64>,
}

const fn paper(workload: &'static str, rdd_share: f64, walks: Option<(f64, f64)>) -> Paper {
    let (walk_read, walk_write) = match walks {
        Some((read, write)) => (Some(read), Some(write)),
        None => (None, None),
    };
    Paper {
        workload,
        rdd_share,
        walk_read,
        walk_write,
    }
}

/// Figures on one node, by workload, in the paper's order.
pub const PAPER: [Paper; 8] = [
    paper("LogisticRegression", 80.10, Some((1.63, 1.91))),
    paper("SVM", 76.55, Some((1.72, 2.03))),
    paper("MatrixFactorization", 8.73, Some((0.34, 0.46))),
    paper("PageRank", 56.52, Some((4.55, 4.91))),
    paper("SVDPlusPlus", 71.32, None),
    paper("TriangleCount", 71.17, Some((4.87, 5.21))),
    paper("RDDRelation", 35.52, None),
    paper("PageViewStream", 13.91, None),
];

/// Average memory share of RDDs on one and on two nodes, in per cent, as the paper prints it: the mean of the eight
/// figures above is 51.73, so the paper averages in another way.
pub const RDD_SHARE_AVERAGE: [f64; 2] = [40.74, 32.01];
/// Average page-walk overhead of reads on one and on two nodes, in per cent.
pub const WALK_READ_AVERAGE: [f64; 2] = [2.20, 2.15];
/// Average page-walk overhead of writes on one and on two nodes, in per cent.
pub const WALK_WRITE_AVERAGE: [f64; 2] = [2.55, 2.52];
/// The paper's machines.
pub const MACHINES: &str = "2 x Xeon E5620 (Westmere), 32 GB, SparkBench";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_the_shares_is_what_is_said_of_it() {
        let mean = PAPER.iter().map(|paper| paper.rdd_share).sum::<f64>() / 8.0;
        assert!((mean - 51.73).abs() < 0.005, "{mean}");
    }
}
