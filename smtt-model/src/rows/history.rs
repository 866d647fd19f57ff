//! Rows of the memory that each executor held over time.

use serde::{Deserialize, Serialize};

use super::{ExecutorId, Filter, Listing};
use crate::state::State;
use crate::state::history::Point;

/// Memory that one executor held over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Time between two points, in nanoseconds.
    pub interval_ns: u64,
    /// Points in order of time, the oldest first.
    pub points: Vec<Point>,
}

impl State {
    /// Memory over time of the executors that the filter selects.
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
