//! How often the memory of blocks is accessed, as measured by the kernel's DAMON.
//!
//! As with the resolver, figures stand for the addresses that were examined; a block that has moved has no figures
//! until it is examined again.

use super::bytes::FlatTable;
use super::{Executor, RangesId, State, Targets};

/// Time for which a result is shown, in nanoseconds: blocks that do not fit one window take turns.
const KEPT_NS: u64 = 300_000_000_000;

/// Result of one window for a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accessed {
    /// Bytes of the block that were checked.
    pub checked_bytes: u64,
    /// Bytes in regions with at least one access in the window. Part of `checked_bytes`.
    pub hot_bytes: u64,
    /// Sum over the checked bytes of the share of checks that found an access.
    pub accessed: f64,
}

impl Accessed {
    /// Share of checks that found an access, 0 to 1; `None` where nothing was checked.
    #[must_use]
    pub fn hotness(&self) -> Option<f64> {
        (self.checked_bytes > 0).then(|| self.accessed / self.checked_bytes as f64)
    }

    /// Adds the result for another block.
    pub fn add(&mut self, more: &Self) {
        self.checked_bytes = self.checked_bytes.saturating_add(more.checked_bytes);
        self.hot_bytes = self.hot_bytes.saturating_add(more.hot_bytes);
        self.accessed += more.accessed;
    }
}

/// Results for an executor's blocks, by serial of the block.
#[derive(Debug, Default)]
pub struct LastAccessed {
    found: FlatTable<u64, Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    addresses: u64,
    time_ns: u64,
    accessed: Accessed,
}

impl LastAccessed {
    /// Bytes of the results.
    pub(super) fn bytes(&self) -> usize {
        self.found.bytes()
    }

    /// Whether there is no result yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Result for a block from the last window that covered it, if the block has not moved since and the result is
    /// recent.
    #[must_use]
    pub fn of(&self, ranges_id: RangesId, now_ns: u64) -> Option<&Accessed> {
        self.found
            .get(&ranges_id.serial)
            .filter(|found| {
                found.addresses == ranges_id.addresses
                    && now_ns.saturating_sub(found.time_ns) < KEPT_NS
            })
            .map(|found| &found.accessed)
    }
}

impl Executor {
    /// Result for a block, if the block has not moved since.
    #[must_use]
    pub fn accessed(
        &self,
        ranges_id: Option<RangesId>,
        on_heap: bool,
        now_ns: u64,
    ) -> Option<&Accessed> {
        self.memory
            .accessed
            .of(self.current_ranges(ranges_id, on_heap)?, now_ns)
    }
}

impl State {
    /// An executor's blocks of bytes with addresses; empty where the executor is dead. Sampled objects are excluded:
    /// they share their pages with other objects on the heap.
    #[must_use]
    pub fn block_targets(&self, executor: u64) -> Targets {
        self.executors()
            .get(&executor)
            .filter(|executor| executor.died_ns.is_none())
            .map_or_else(Targets::default, |executor| executor.targets(false))
    }

    /// Applies the results of a window that ended at `time_ns` for an executor's blocks.
    pub fn accessed(&mut self, executor: u64, time_ns: u64, blocks: Vec<(RangesId, Accessed)>) {
        self.change_known(executor, |executor, caps| {
            if executor.died_ns.is_some() {
                return;
            }
            let known = &mut executor.memory.accessed.found;
            known.retain(|_, found| time_ns.saturating_sub(found.time_ns) < KEPT_NS);
            for (ranges_id, accessed) in blocks {
                let found = Found {
                    addresses: ranges_id.addresses,
                    time_ns,
                    accessed,
                };
                if caps.admit(known.row_bytes(&ranges_id.serial)) {
                    known.insert(ranges_id.serial, found);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_stands_for_where_and_when_it_was() {
        let ranges_id = |serial, addresses| RangesId { serial, addresses };
        let accessed = Accessed {
            checked_bytes: 4096,
            hot_bytes: 4096,
            accessed: 1024.0,
        };
        let last = LastAccessed {
            found: FlatTable::from_iter([(
                1,
                Found {
                    addresses: 7,
                    time_ns: 10,
                    accessed,
                },
            )]),
        };
        assert_eq!(last.of(ranges_id(1, 7), 11), Some(&accessed));
        assert_eq!(last.of(ranges_id(1, 8), 11), None, "it has moved");
        assert_eq!(last.of(ranges_id(2, 7), 11), None, "it is another block");
        assert_eq!(
            last.of(ranges_id(1, 7), 10 + KEPT_NS),
            None,
            "it is long ago"
        );
        assert_eq!(accessed.hotness(), Some(0.25));
        assert_eq!(Accessed::default().hotness(), None);
    }
}
