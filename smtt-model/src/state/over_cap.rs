//! The overflow row of a table, and rows that are folded into it.

use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::WalkCounters;

use super::bytes::{HeapBytes, Table};
use super::faults;
use super::helpers::HelperSum;
use super::used::Used;
use crate::sort::small;

/// The overflow row of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverCap {
    /// Rows folded into the overflow row or refused, since the start.
    pub rows: u64,
    /// Page faults of the folded rows.
    pub faults: FaultCounters,
    /// Sampled page walks and cycles of the folded rows.
    pub walks: WalkCounters,
    /// What the tasks of the folded rows used.
    pub used: Used,
    /// What threads used that helped the tasks of folded stages, or of stages without room for a sum.
    pub helpers: HelperSum,
}

impl OverCap {
    /// Whether the overflow row has anything to show.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.rows > 0 || self.helpers != HelperSum::default()
    }

    fn add(&mut self, more: &Self) {
        self.rows += more.rows;
        faults::add(&mut self.faults, &more.faults);
        self.walks.add(&more.walks);
        self.used.add(&more.used);
        self.helpers.add(&more.helpers);
    }
}

/// Removes up to `most` rows of `table` that `may_go` selects, the oldest first, and folds their faults into `over`.
/// Returns the number of removed rows. Callers take an eighth of the table at a time, so that a flood of new rows does
/// not scan the table for each row.
pub(super) fn fold<K: Copy + Eq + std::hash::Hash + HeapBytes, V: HeapBytes>(
    table: &mut Table<K, V>,
    over: &mut OverCap,
    most: usize,
    may_go: impl Fn(&V) -> bool,
    order: impl Fn(&V) -> u64,
    counted: impl Fn(&V) -> OverCap,
) -> usize {
    let mut old: Vec<(u64, K)> = table
        .iter()
        .filter(|(_, row)| may_go(row))
        .map(|(key, row)| (order(row), *key))
        .collect();
    small::sort_by_key(&mut old, |(order, _)| *order);
    old.truncate(most);
    let freed = old.len();
    for (_, key) in old {
        if let Some(row) = table.remove(&key) {
            over.add(&counted(&row));
        }
    }
    freed
}
