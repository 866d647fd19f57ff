//! One RDD in one executor: the cost of its contexts and the peak of its memory.

use std::collections::BTreeMap;

use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::WalkCounters;

use super::block_history::BlockHistory;
use super::bytes::{HeapBytes, tree_bytes, vec_bytes};
use super::memory_held::MemoryHeld;
use super::page_walks::{Distribution, Walks};
use crate::attribute::Doing;
use crate::decode::RddDescribed;

/// One RDD in one executor.
#[derive(Clone, Debug, Default)]
pub struct Rdd {
    /// Name, storage level and lineage, once reported.
    pub described: Option<RddDescribed>,
    /// Page faults of the RDD, by context.
    pub faults: FaultCounters,
    /// Page faults of the RDD, by activity.
    pub doing: BTreeMap<Doing, FaultCounters>,
    /// Sampled page walks and cycles of the RDD, by context.
    pub walks: Walks,
    /// Sampled page walks and cycles of the RDD, by activity.
    pub doing_walks: BTreeMap<Doing, WalkCounters>,
    /// Distribution of the RDD's ratios over tasks.
    pub distribution: Distribution,
    /// Sampled faults with an address in memory of this RDD.
    pub samples_by_address: u64,
    /// Sampled page walks with an address in memory of this RDD.
    pub walk_samples_by_address: u64,
    /// Peak of the RDD's memory.
    pub peak: Peak,
    /// Peak since [`super::State::take_recent_peaks`].
    pub recent: Peak,
    /// History of the RDD's blocks.
    pub block_history: BlockHistory,
    /// Time of the RDD's last event, in nanoseconds since boot.
    pub(super) last_active_ns: u64,
}

impl HeapBytes for RddDescribed {
    fn heap_bytes(&self) -> usize {
        self.name.capacity()
            + self.call_site.capacity()
            + self.storage_level_text.capacity()
            + vec_bytes(&self.parents)
            + self.node.capacity()
            + self.node_id.capacity()
    }
}

impl HeapBytes for Rdd {
    fn heap_bytes(&self) -> usize {
        self.described.as_ref().map_or(0, HeapBytes::heap_bytes)
            + tree_bytes(self.doing.len(), size_of::<(Doing, FaultCounters)>())
            + tree_bytes(self.doing_walks.len(), size_of::<(Doing, WalkCounters)>())
            + self.walks.heap_bytes()
            + self.distribution.heap_bytes()
    }
}

/// Peaks of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes of blocks in memory.
    pub storage_bytes: u64,
    /// Blocks in memory.
    pub blocks: u64,
    /// Bytes of execution memory.
    pub execution_bytes: u64,
}

impl Peak {
    /// Raises the peaks to `held` where it is larger.
    pub(super) fn see(&mut self, held: &MemoryHeld) {
        self.storage_bytes = self.storage_bytes.max(held.storage_bytes);
        self.blocks = self.blocks.max(held.blocks);
        self.execution_bytes = self.execution_bytes.max(held.execution_bytes);
    }
}
