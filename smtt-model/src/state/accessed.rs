//! How often the memory of blocks is accessed, as the kernel's monitor found it.
//!
//! Figures stand for the addresses that were looked at, as those of the resolver; a block that has moved has none
//! until it was looked at again.

use std::collections::HashMap;

use super::{Executor, RangesId, State, Targets};

/// How long what was found is shown, in nanoseconds: where there is too much for one window, blocks take turns.
const KEPT_NS: u64 = 300_000_000_000;

/// What one window found of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accessed {
    /// Bytes of it that were checked.
    pub checked_bytes: u64,
    /// Of them, bytes in regions of which at least one check of the window found an access.
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

    /// Adds what was found of another block.
    pub fn add(&mut self, more: &Self) {
        self.checked_bytes = self.checked_bytes.saturating_add(more.checked_bytes);
        self.hot_bytes = self.hot_bytes.saturating_add(more.hot_bytes);
        self.accessed += more.accessed;
    }
}

/// What was found of an executor's blocks, by serial of the block.
#[derive(Debug, Default)]
pub struct LastAccessed {
    found: HashMap<u64, Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    addresses: u64,
    time_ns: u64,
    touched: Accessed,
}

impl LastAccessed {
    /// Whether nothing was found yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What was found of a block in the last window that looked at it, if that was where it is now and not long ago.
    #[must_use]
    pub fn of(&self, mark: RangesId, now_ns: u64) -> Option<&Accessed> {
        self.found
            .get(&mark.serial)
            .filter(|found| {
                found.addresses == mark.addresses && now_ns.saturating_sub(found.time_ns) < KEPT_NS
            })
            .map(|found| &found.touched)
    }
}

impl Executor {
    /// What was found of a block, if that was where it is now.
    #[must_use]
    pub fn touched(&self, mark: Option<RangesId>, on_heap: bool, now_ns: u64) -> Option<&Accessed> {
        self.memory.touched.of(self.known(mark, on_heap)?, now_ns)
    }
}

impl State {
    /// Blocks of bytes of an executor that have addresses; nothing when it is not alive. A sample of objects shares its
    /// pages with whatever else is on the heap.
    #[must_use]
    pub fn block_targets(&self, executor: u64) -> Targets {
        self.executors()
            .get(&executor)
            .filter(|executor| executor.died_ns.is_none())
            .map_or_else(Targets::default, |executor| executor.targets(false))
    }

    /// Takes in what a window that ended at `time_ns` found of an executor's blocks.
    pub fn touched(&mut self, executor: u64, time_ns: u64, blocks: Vec<(RangesId, Accessed)>) {
        let Some(executor) = self
            .executors
            .get_mut(&executor)
            .filter(|executor| executor.died_ns.is_none())
        else {
            return;
        };
        let known = &mut executor.memory.touched.found;
        known.retain(|_, found| time_ns.saturating_sub(found.time_ns) < KEPT_NS);
        known.extend(blocks.into_iter().map(|(mark, touched)| {
            let found = Found {
                addresses: mark.addresses,
                time_ns,
                touched,
            };
            (mark.serial, found)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_stands_for_where_and_when_it_was() {
        let mark = |serial, addresses| RangesId { serial, addresses };
        let touched = Accessed {
            checked_bytes: 4096,
            hot_bytes: 4096,
            accessed: 1024.0,
        };
        let last = LastAccessed {
            found: HashMap::from([(
                1,
                Found {
                    addresses: 7,
                    time_ns: 10,
                    touched,
                },
            )]),
        };
        assert_eq!(last.of(mark(1, 7), 11), Some(&touched));
        assert_eq!(last.of(mark(1, 8), 11), None, "it has moved");
        assert_eq!(last.of(mark(2, 7), 11), None, "it is another block");
        assert_eq!(last.of(mark(1, 7), 10 + KEPT_NS), None, "it is long ago");
        assert_eq!(touched.hotness(), Some(0.25));
        assert_eq!(Accessed::default().hotness(), None);
    }
}
