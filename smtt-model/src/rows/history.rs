//! What executors held over time, as rows.

use serde::{Deserialize, Serialize};

use super::{ExecutorId, Filter, Listing};
use crate::state::State;
use crate::state::history::Point;

/// What one executor held over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// The executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Between two points, in nanoseconds.
    pub interval_ns: u64,
    /// The points, the oldest first.
    pub points: Vec<Point>,
}

impl State {
    /// What the executors held over time that the filter lets through.
    #[must_use]
    pub fn list_history(&self, filter: &Filter) -> Listing<HistoryRow> {
        self.listing(filter, |_, executor, rows| {
            rows.push(HistoryRow {
                who: ExecutorId::new(executor),
                interval_ns: executor.history.interval_ns,
                points: executor.history.points.clone(),
            });
        })
    }
}
