//! Address ranges of one block by index.
//!
//! The marker reports the ranges of a block in order, some per fact. Ranges that arrive in order are a vector; ranges
//! after a gap (a fact was lost) are kept by index, so that a range costs the same whatever its index.

use std::collections::BTreeMap;

use super::bytes::{tree_bytes, tree_entry_bytes, vec_bytes};

/// Address and length; (0, 0) where not known.
type Range = (u64, u64);

/// The ranges of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockRanges {
    dense: Vec<Range>,
    sparse: BTreeMap<u32, Range>,
}

impl BlockRanges {
    /// Most bytes that one more range adds.
    pub(super) const ONE: usize = {
        let (dense, sparse) = (
            2 * size_of::<Range>(),
            tree_entry_bytes(size_of::<(u32, Range)>()),
        );
        if dense > sparse { dense } else { sparse }
    };

    /// The range with this index; (0, 0) where not known.
    pub(super) fn get(&self, index: u32) -> Range {
        self.dense
            .get(index as usize)
            .or_else(|| self.sparse.get(&index))
            .copied()
            .unwrap_or_default()
    }

    /// Sets the range with this index.
    pub(super) fn set(&mut self, index: u32, range: Range) {
        if let Some(known) = self.dense.get_mut(index as usize) {
            *known = range;
        } else if index as usize == self.dense.len() {
            self.sparse.remove(&index);
            self.dense.push(range);
            while let Some(next) = self.sparse.first_entry()
                && *next.key() as usize == self.dense.len()
            {
                self.dense.push(next.remove());
            }
        } else if range.0 == 0 {
            self.sparse.remove(&index);
        } else {
            self.sparse.insert(index, range);
        }
    }

    /// All ranges in order of index; some are (0, 0).
    pub fn iter(&self) -> impl Iterator<Item = Range> {
        self.dense.iter().chain(self.sparse.values()).copied()
    }

    /// Bytes of the ranges.
    pub(super) fn heap_bytes(&self) -> usize {
        vec_bytes(&self.dense) + tree_bytes(self.sparse.len(), size_of::<(u32, Range)>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_high_index_costs_no_more_than_a_low_one() {
        let mut ranges = BlockRanges::default();
        ranges.set(4095, (8, 8));
        assert!(ranges.heap_bytes() < 512, "{}", ranges.heap_bytes());
        assert_eq!((ranges.get(4095), ranges.get(0)), ((8, 8), (0, 0)));
        ranges.set(4095, (0, 0));
        assert_eq!((ranges.heap_bytes(), ranges.iter().count()), (0, 0));
    }

    #[test]
    fn a_gap_that_is_filled_keeps_the_order() {
        let mut ranges = BlockRanges::default();
        for index in [0, 3, 2, 1, 4] {
            ranges.set(index, (u64::from(index) + 1, 1));
        }
        let all: Vec<_> = ranges.iter().map(|range| range.0).collect();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        assert!(ranges.sparse.is_empty());
    }
}
