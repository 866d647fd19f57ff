//! What one page walk costs here: the basis of estimated ratios on cores that count walks but not their cycles.

use serde::{Deserialize, Serialize};

/// Cycles that one page walk costs, with its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostPerWalk {
    /// Median over the repetitions.
    pub cycles: f64,
    /// Smallest of the repetitions.
    pub low: f64,
    /// Largest of the repetitions.
    pub high: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Walks for reads; absent where they could not be measured.
    pub read: Option<CostPerWalk>,
    /// Walks for writes; absent where they could not be measured.
    pub write: Option<CostPerWalk>,
    /// How it was measured, or `configured`.
    pub method: String,
    /// Times that the measurement was repeated.
    pub repetitions: u32,
}
