//! One RDD as one executor saw it: what its contexts cost, and the most that it held.

use std::collections::BTreeMap;

use smtt_common::counter::FaultCounters;
use smtt_common::page_walk::WalkCounters;

use super::block_history::BlockHistory;
use super::memory_held::MemoryHeld;
use super::page_walks::{Distribution, Walks};
use crate::attribute::Doing;
use crate::decode::RddDescribed;

/// One RDD, as one executor saw it.
#[derive(Clone, Debug, Default)]
pub struct Rdd {
    /// Name, level and lineage, once told.
    pub described: Option<RddDescribed>,
    /// Its page faults, by context.
    pub faults: FaultCounters,
    /// The same by what was being done.
    pub doing: BTreeMap<Doing, FaultCounters>,
    /// Its sampled page walks and cycles, by context.
    pub walks: Walks,
    /// The same by what was being done.
    pub doing_walks: BTreeMap<Doing, WalkCounters>,
    /// How its ratios are distributed over tasks.
    pub distribution: Distribution,
    /// Sampled faults whose address lies in memory of this RDD.
    pub samples_by_address: u64,
    /// Sampled page walks whose address lies in memory of this RDD.
    pub walk_samples_by_address: u64,
    /// Most that it ever held.
    pub peak: Peak,
    /// What became of its blocks.
    pub uses: BlockHistory,
    /// When something of it last happened, nanoseconds since boot.
    pub(super) last_active_ns: u64,
}

/// The most that something ever held.
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
    /// Something may have grown.
    pub(super) fn see(&mut self, held: &MemoryHeld) {
        self.storage_bytes = self.storage_bytes.max(held.storage_bytes);
        self.blocks = self.blocks.max(held.blocks);
        self.execution_bytes = self.execution_bytes.max(held.execution_bytes);
    }
}
