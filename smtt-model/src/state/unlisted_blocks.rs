//! Sizes of blocks beyond the limit of the table of blocks, so that the sums of an RDD with very many partitions still
//! equal Spark's.

use super::bytes::FlatTable;
use super::memory_held::MemoryHeld;
use crate::attribute::RddKey;
use crate::decode::BlockFact;

/// Unlisted blocks per row of the table of blocks. An unlisted block takes 40 bytes, a row of the table ten times that.
const PER_ROW: usize = 16;

/// One block.
#[derive(Clone, Copy, Debug)]
struct Small {
    size_bytes: u64,
    serialized: bool,
    told_ns: u64,
}

impl Small {
    fn held(self) -> MemoryHeld {
        MemoryHeld {
            storage_bytes: self.size_bytes,
            blocks: 1,
            estimated_blocks: u64::from(!self.serialized),
            ..MemoryHeld::default()
        }
    }
}

/// The blocks, by RDD and partition.
#[derive(Debug, Default)]
pub struct UnlistedBlocks {
    blocks: FlatTable<(u32, u32), Small>,
}

impl UnlistedBlocks {
    /// A block is stored or reported again. Returns what it held before and what it holds now; `None` where it is no
    /// block of an RDD or this table is full too. `rows` is the size of the table of blocks.
    pub(super) fn stored(
        &mut self,
        fact: &BlockFact,
        time_ns: u64,
        rows: usize,
    ) -> Option<(RddKey, MemoryHeld, MemoryHeld)> {
        let key = (fact.rdd_id?, fact.partition?);
        if !self.blocks.contains_key(&key) && self.blocks.len() >= rows.saturating_mul(PER_ROW) {
            return None;
        }
        let now = Small {
            size_bytes: fact.size_bytes,
            serialized: fact.serialized,
            told_ns: time_ns,
        };
        let before = self.blocks.insert(key, now);
        let before = before.map_or_else(MemoryHeld::default, Small::held);
        Some((RddKey::Id(key.0), before, now.held()))
    }

    /// A block is removed or has a row in the table of blocks now. Returns what it held.
    pub(super) fn removed(
        &mut self,
        rdd: Option<u32>,
        partition: Option<u32>,
    ) -> Option<(RddKey, MemoryHeld)> {
        let key = (rdd?, partition?);
        let small = self.blocks.remove(&key)?;
        Some((RddKey::Id(key.0), small.held()))
    }

    /// Removes blocks last reported before `since_ns`. Returns what each held.
    pub(super) fn sweep(&mut self, since_ns: u64) -> Vec<(RddKey, MemoryHeld)> {
        let old = |small: &Small| small.told_ns < since_ns;
        let gone = self.blocks.iter().filter(|(_, small)| old(small));
        let gone = gone
            .map(|((rdd, _), small)| (RddKey::Id(*rdd), small.held()))
            .collect();
        self.blocks.retain(|_, small| !old(small));
        gone
    }

    /// Number of unlisted blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no unlisted blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// Bytes that the block adds to the table.
    pub(super) fn row_bytes(&self, fact: &BlockFact) -> usize {
        fact.rdd_id
            .zip(fact.partition)
            .map_or(0, |key| self.blocks.row_bytes(&key))
    }
}
