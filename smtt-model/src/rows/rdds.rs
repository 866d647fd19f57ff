//! RDDs and blocks as rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ExecutorId, Filter, Listing, NO_RDD, OVERFLOW, PageWalkRow};
use crate::attribute::{Doing, RddKey};
use crate::state::{Block, Executor, FaultFigures, MemoryHeld, Rdd, State};

/// The marker's hook that tells reads of cached blocks, and its class.
const READ_HOOKS: [&str; 2] = ["RDD.getOrCompute", "RDD"];

/// One RDD on one executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RddRow {
    /// The executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Id of the RDD; absent in the rows `(no RDD)` and `(overflow)`.
    pub rdd_id: Option<u32>,
    /// Its name; absent where it has none or it is not known yet.
    pub name: Option<String>,
    /// Where in the application it was made.
    pub call_site: Option<String>,
    /// Its storage level as Spark writes it; before it was told, what its blocks show; absent without any.
    pub storage_level: Option<String>,
    /// Its partitions.
    pub partitions: Option<u64>,
    /// Ids of its parents.
    pub parents: Vec<u32>,
    /// Its blocks in the memory of this executor.
    pub partitions_cached: u64,
    /// Page faults in contexts that name it.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Bytes of its blocks in memory, as Spark accounts for them.
    pub storage_memory_bytes: u64,
    /// Whether some of them are objects, whose size Spark only estimates.
    pub storage_memory_estimated: bool,
    /// Most that they ever were.
    pub storage_memory_peak_bytes: u64,
    /// Bytes of execution memory that were allocated while it was current and are still live.
    pub execution_memory_bytes: u64,
    /// Most that they ever were.
    pub execution_memory_peak_bytes: u64,
    /// Of the storage memory, bytes outside of the Java heap.
    pub storage_memory_off_heap_bytes: u64,
    /// Of the execution memory, bytes outside of the Java heap.
    pub execution_memory_off_heap_bytes: u64,
    /// Blocks of it that were stored on this executor since the daemon watches it.
    pub blocks_stored: u64,
    /// Of them, blocks of partitions that had been in its memory before and had left it; a lower bound.
    pub blocks_stored_again: u64,
    /// Blocks that were there before the daemon was.
    pub blocks_found: u64,
    /// Blocks that left its memory.
    pub blocks_removed: u64,
    /// Of them, blocks that were evicted because others needed the room.
    pub blocks_evicted: u64,
    /// Reads of its blocks: one per task and block that was there before; absent where the marker does not see them.
    pub block_reads: Option<u64>,
    /// Time since its last block was stored, in nanoseconds; absent without any.
    pub last_stored_age_ns: Option<u64>,
    /// Tasks of this executor that started after its last block was stored; a lower bound.
    pub tasks_since_stored: u64,
    /// By what its faults are attributed: `context`.
    pub attributed_by: String,
    /// Sampled faults whose address lies in its blocks or pages.
    pub samples_by_address: u64,
    /// Its page faults by what was being done.
    pub contexts: Vec<DoingRow>,
    /// Sampled page walks whose address lies in its blocks or pages; absent where samples have no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_samples_by_address: Option<u64>,
    /// Its page walks.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// Page faults of one RDD while one thing was being done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoingRow {
    /// What the thread was doing.
    pub activity: String,
    /// Whether Spark read or wrote the RDD.
    pub access: String,
    /// Which memory of Spark it concerned.
    pub region: String,
    /// Its page faults.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Its page walks.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// One address range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First address in the executor.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

/// One block in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRow {
    /// The executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Spark's name of the block.
    pub block_id: String,
    /// RDD whose partition it holds.
    pub rdd_id: Option<u32>,
    /// Partition that it holds.
    pub partition: Option<u32>,
    /// Size in bytes as Spark accounts for it.
    pub size_bytes: u64,
    /// Whether the size is Spark's estimate (objects), else the bytes themselves.
    pub size_estimated: bool,
    /// Where its bytes are; of objects where some of them are, as a sample.
    pub ranges: Vec<Range>,
    /// Ranges that it has, of objects those of the sample; more than are listed when some were not told or had no room.
    pub range_total: u64,
    /// On the Java heap.
    pub on_heap: bool,
    /// Serialised bytes, else objects.
    pub serialized: bool,
    /// What it is made of: `bytes` (serialised), `columns` (a cached DataFrame: its buffers have addresses), `array` (of
    /// numbers), or `objects`, which have no contiguous bytes: the ranges are a sample of them.
    pub contents: String,
    /// Task attempt that stored it; absent for a replica or one that a thread without a task stored.
    pub task_attempt_id: Option<u64>,
    /// Stage of that task.
    pub stage_id: Option<u32>,
    /// How often it was read.
    pub reads: u64,
    /// Time since it was stored, in nanoseconds.
    pub age_ns: u64,
}

/// A storage level that blocks show when it was not told. Replication and disk cannot be seen there.
fn level_of(block: &Block) -> &'static str {
    match (block.on_heap, block.serialized) {
        (true, false) => "Memory Deserialized (from blocks)",
        (true, true) => "Memory Serialized (from blocks)",
        (false, _) => "OffHeap Memory Serialized (from blocks)",
    }
}

/// The level that each RDD's blocks show.
fn levels_of(executor: &Executor) -> BTreeMap<RddKey, &'static str> {
    let blocks = executor.memory.blocks.values();
    let of_rdds = blocks.filter(|block| block.rdd.id().is_some());
    of_rdds.map(|block| (block.rdd, level_of(block))).collect()
}

/// RDDs that worked in the stages that the filter lets through, or that these compute.
fn rdds_of_stages(executor: &Executor, filter: &Filter) -> BTreeSet<RddKey> {
    let mut rdds = BTreeSet::new();
    for (key, stage) in &executor.tasks.stages {
        if filter.stage(Some(*key)) {
            let said = stage.described.as_ref();
            rdds.extend(said.and_then(|said| said.rdd_id).map(RddKey::Id));
            rdds.extend(stage.rdds.keys());
        }
    }
    rdds
}

impl State {
    /// RDDs that the filter lets through. Rows without `rdd_id` stand for work of no RDD, and for RDDs that had no
    /// room.
    #[must_use]
    pub fn list_rdds(&self, filter: &Filter) -> Listing<RddRow> {
        self.listing(filter, |_, executor, rows| {
            let mut held: BTreeMap<RddKey, MemoryHeld> = BTreeMap::new();
            for (rdd, holds) in executor.memory.holders() {
                held.entry(executor.row_of(rdd)).or_default().add(holds);
            }
            let mut keys: Vec<RddKey> = executor.rdds.keys().copied().collect();
            keys.extend(held.keys().filter(|key| !executor.rdds.contains_key(key)));
            keys.sort_unstable();
            let levels = levels_of(executor);
            let staged = filter
                .stage
                .as_ref()
                .map(|_| rdds_of_stages(executor, filter));
            rows.extend(
                keys.into_iter()
                    .filter(|key| filter.rdd(executor, *key))
                    .filter(|key| staged.as_ref().is_none_or(|staged| staged.contains(key)))
                    .map(|key| {
                        let held = held.get(&key).copied().unwrap_or_default();
                        self.rdd_row(executor, key, held, levels.get(&key).copied())
                    }),
            );
        })
    }

    fn rdd_row(
        &self,
        executor: &Executor,
        key: RddKey,
        held: MemoryHeld,
        level: Option<&'static str>,
    ) -> RddRow {
        let nothing = Rdd::default();
        let rdd = executor.rdds.get(&key).unwrap_or(&nothing);
        let said = rdd.described.as_ref();
        let name = match key {
            RddKey::None => Some(NO_RDD.to_owned()),
            RddKey::Overflow => Some(OVERFLOW.to_owned()),
            RddKey::Id(_) => said
                .map(|said| said.name.clone())
                .filter(|name| !name.is_empty()),
        };
        RddRow {
            who: ExecutorId::new(executor),
            rdd_id: key.id(),
            name,
            call_site: said
                .map(|said| said.call_site.clone())
                .filter(|site| !site.is_empty()),
            storage_level: said
                .map(level_told)
                .filter(|level| !level.is_empty())
                .or_else(|| level.map(str::to_owned)),
            partitions: said.map(|said| said.partitions),
            parents: said.map_or_else(Vec::new, |said| said.parents.clone()),
            partitions_cached: if key == RddKey::None { 0 } else { held.blocks },
            faults: self.figures(&rdd.faults),
            storage_memory_bytes: held.storage_bytes,
            storage_memory_estimated: held.estimated_blocks > 0,
            storage_memory_peak_bytes: rdd.peak.storage_bytes.max(held.storage_bytes),
            execution_memory_bytes: held.execution_bytes,
            execution_memory_peak_bytes: rdd.peak.execution_bytes.max(held.execution_bytes),
            storage_memory_off_heap_bytes: held.storage_off_heap_bytes,
            execution_memory_off_heap_bytes: held.execution_off_heap_bytes,
            blocks_stored: rdd.uses.stored,
            blocks_stored_again: rdd.uses.stored_again,
            blocks_found: rdd.uses.found,
            blocks_removed: rdd.uses.removed,
            blocks_evicted: rdd.uses.evicted,
            block_reads: sees_reads(executor).then_some(rdd.uses.reads),
            last_stored_age_ns: (rdd.uses.last_stored_ns > 0)
                .then(|| self.now_ns().saturating_sub(rdd.uses.last_stored_ns)),
            tasks_since_stored: tasks_after(executor, rdd.uses.last_stored_ns),
            attributed_by: "context".to_owned(),
            samples_by_address: rdd.samples_by_address,
            contexts: doing_rows(self, executor, rdd),
            page_walk_samples_by_address: (executor.walk_agreement.share().is_some()
                || rdd.walk_samples_by_address > 0)
                .then_some(rdd.walk_samples_by_address),
            walks: self.walks_of(executor, &rdd.walks, Some(&rdd.distribution)),
        }
    }

    /// Blocks that the filter lets through.
    #[must_use]
    pub fn list_blocks(&self, filter: &Filter) -> Listing<BlockRow> {
        let now_ns = self.now_ns();
        self.listing(filter, |_, executor, rows| {
            let who = ExecutorId::new(executor);
            rows.extend(
                executor
                    .memory
                    .blocks
                    .iter()
                    .filter(|(name, block)| {
                        filter.rdd(executor, block.rdd)
                            && filter.stage(block.stage)
                            && filter.block.as_ref().is_none_or(|wanted| wanted == *name)
                    })
                    .map(|(name, block)| BlockRow {
                        who: who.clone(),
                        block_id: name.clone(),
                        rdd_id: block.rdd.id(),
                        partition: block.partition,
                        size_bytes: block.size_bytes,
                        size_estimated: !block.serialized,
                        ranges: block
                            .ranges
                            .iter()
                            .filter(|(_, length)| *length > 0)
                            .map(|(address, length)| Range {
                                address: *address,
                                length: *length,
                            })
                            .collect(),
                        range_total: block.range_total,
                        on_heap: block.on_heap,
                        serialized: block.serialized,
                        contents: block.contents.name().to_owned(),
                        task_attempt_id: block.task.filter(|_| !block.without_task),
                        stage_id: block.stage.map(|stage| stage.id),
                        reads: block.reads,
                        age_ns: now_ns.saturating_sub(block.stored_ns),
                    }),
            );
        })
    }
}

/// Whether the marker sees when cached blocks are read.
fn sees_reads(executor: &Executor) -> bool {
    executor.described.as_ref().is_some_and(|said| {
        let mut missing = said.missing_hook_names.split(',').map(str::trim);
        !missing.any(|name| READ_HOOKS.contains(&name))
    })
}

/// Tasks that started after that moment; none where there is no such moment.
fn tasks_after(executor: &Executor, time_ns: u64) -> u64 {
    if time_ns == 0 {
        return 0;
    }
    let starts = executor
        .tasks
        .tasks
        .values()
        .filter_map(|task| task.start_ns);
    starts.filter(|start| *start > time_ns).count() as u64
}

/// What was done in an RDD's contexts: faults, walks or both.
fn doing_rows(state: &State, executor: &Executor, rdd: &Rdd) -> Vec<DoingRow> {
    let all: BTreeSet<&Doing> = rdd.doing.keys().chain(rdd.doing_walks.keys()).collect();
    all.into_iter()
        .map(|doing| DoingRow {
            activity: doing.activity.name().unwrap_or("unknown").to_owned(),
            access: doing.access.name().unwrap_or("unknown").to_owned(),
            region: doing.region.name().unwrap_or("unknown").to_owned(),
            faults: state.figures(&rdd.doing.get(doing).copied().unwrap_or_default()),
            walks: state.walks_sum(
                executor,
                &rdd.doing_walks.get(doing).copied().unwrap_or_default(),
            ),
        })
        .collect()
}

/// The level as Spark describes it, but "None" where nothing is stored: Spark's own words for that level,
/// "Serialized 1x Replicated", sound as if something were.
fn level_told(said: &crate::decode::RddDescribed) -> String {
    use smtt_common::event::marker::storage_level::{DISK, MEMORY};
    if said.storage_level & (DISK | MEMORY) == 0 && !said.storage_level_text.is_empty() {
        return "None".to_owned();
    }
    said.storage_level_text.clone()
}
