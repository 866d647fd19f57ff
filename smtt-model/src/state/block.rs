//! A cached block of one executor.

use super::block_ranges::BlockRanges;
use super::bytes::HeapBytes;
use super::heap::Trust;
use super::memory_held::{MemoryHeld, off_heap};
use super::placement::{OwnerRanges, RangesId};
use super::reads::{NodeReads, ReadRate, Waiting};
use crate::attribute::{RddKey, StageKey};
use crate::decode::Contents;

/// Bytes that a sampled object adds to the claim on the resolver's budget: one base page.
const OBJECT_CLAIM_BYTES: u64 = 4096;

/// A block in memory.
#[derive(Clone, Debug)]
pub struct Block {
    pub(super) serial: u64,
    /// RDD that the block belongs to.
    pub rdd: RddKey,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Size in bytes as Spark accounts for it.
    pub size_bytes: u64,
    /// Whether the block is on the Java heap.
    pub on_heap: bool,
    /// Whether the block holds serialised bytes instead of objects, whose size is Spark's estimate.
    pub serialized: bool,
    /// Contents of the block.
    pub contents: Contents,
    /// Whether a thread outside of a task stored the block.
    pub without_task: bool,
    /// Task attempt that stored the block.
    pub task: Option<u64>,
    /// Stage of the task that stored the block, where known.
    pub stage: Option<StageKey>,
    /// Ranges of the block, including ranges that were not reported or not kept.
    pub range_total: u64,
    /// Address and length of each range; (0, 0) where not reported yet.
    pub ranges: BlockRanges,
    pub(super) placed: OwnerRanges,
    /// Reads of the block.
    pub reads: u64,
    /// Moving rate of reads of the block.
    pub heat: ReadRate,
    /// Bytes read of the block, by node.
    pub by_node: NodeReads,
    /// Reads without a place so far.
    pub(super) waiting: Waiting,
    /// Time when the block was stored or first reported, in nanoseconds since boot.
    pub stored_ns: u64,
    pub(super) told_ns: u64,
}

impl HeapBytes for Block {
    fn heap_bytes(&self) -> usize {
        self.ranges.heap_bytes() + self.waiting.heap_bytes()
    }
}

impl Block {
    /// Time of the last report about the block or its addresses, in nanoseconds since boot.
    #[must_use]
    pub const fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Serial number, unique among the blocks and Spark pages of the executor.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// Identity of the block at its addresses; `None` where it has none.
    #[must_use]
    pub fn ranges_id(&self) -> Option<RangesId> {
        self.placed.ranges_id(self.serial)
    }

    /// Whether its addresses are not stale; `heap` is the state of addresses on the Java heap.
    #[must_use]
    pub(super) const fn is_at_its_addresses(&self, heap: Trust) -> bool {
        heap.can_be_inspected() || !self.on_heap
    }

    /// Bytes with known addresses; for objects, bytes of the sample.
    #[must_use]
    pub fn addressed_bytes(&self) -> u64 {
        self.placed.bytes()
    }

    /// Sampled objects with known addresses; `None` where the ranges are no sample.
    #[must_use]
    pub fn sampled_objects(&self) -> Option<u64> {
        (self.contents == Contents::Objects).then(|| self.placed.ranges())
    }

    /// Claim on the resolver's budget, in bytes: even a small object needs a page to be examined.
    #[must_use]
    pub fn claimed_bytes(&self) -> u64 {
        let objects = self.sampled_objects().unwrap_or(0);
        self.addressed_bytes()
            .saturating_add(objects.saturating_mul(OBJECT_CLAIM_BYTES))
    }

    /// Memory that it holds.
    pub(super) fn held(&self) -> MemoryHeld {
        MemoryHeld {
            storage_bytes: self.size_bytes,
            blocks: 1,
            estimated_blocks: u64::from(!self.serialized),
            storage_off_heap_bytes: off_heap(self.on_heap, self.size_bytes),
            ..MemoryHeld::default()
        }
    }
}
