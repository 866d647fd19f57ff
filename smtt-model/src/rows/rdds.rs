//! RDDs and blocks as rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::for_advise::matters;
use super::page_walks::is_sampled;
use super::{ExecutorId, Filter, Listing, NO_RDD, OVERFLOW, PageWalkRow};
use crate::attribute::{Doing, RddKey};
use crate::decode::{Contents, RddDescribed};
use crate::glob::matches;
use crate::sort::small::{Gather as _, sort_by};
use crate::state::{Block, Executor, FaultFigures, MemoryHeld, Rdd, State};

/// The marker's hook that reports reads of cached blocks, and the class of that hook.
const READ_HOOKS: [&str; 2] = ["RDD.getOrCompute", "RDD"];

/// One RDD on one executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RddRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Id of the RDD; absent in the rows `(no RDD)` and `(overflow)`.
    pub rdd_id: Option<u32>,
    /// Name of the RDD; absent where it has none or the name is not known yet.
    pub name: Option<String>,
    /// Call site in the application that created the RDD.
    pub call_site: Option<String>,
    /// Plan node of the query, or operation outside of queries, that made the RDD, as Spark names it: `Exchange`, `map`;
    /// absent where Spark has none and where the marker is older.
    #[serde(default)]
    pub node: Option<String>,
    /// Spark's id of that node: equal for the RDDs of one node, unique in the application.
    #[serde(default)]
    pub node_id: Option<String>,
    /// SQL execution that the RDD worked for first, by the ids of stages; absent outside of SQL executions, and until the
    /// driver's plugin has described a stage.
    #[serde(default)]
    pub sql_execution_id: Option<u64>,
    /// Description of that SQL execution.
    #[serde(default)]
    pub sql_description: Option<String>,
    /// Storage level as Spark writes it, or the level derived from the RDD's blocks until it is reported; absent
    /// without a level.
    pub storage_level: Option<String>,
    /// Name of the level in Spark's `StorageLevel`, such as `MEMORY_AND_DISK`; absent until the level is reported, and
    /// for levels without a name.
    #[serde(default)]
    pub storage_level_name: Option<String>,
    /// Partitions of the RDD.
    pub partitions: Option<u64>,
    /// Ids of the RDD's parents.
    pub parents: Vec<u32>,
    /// Blocks of the RDD in this executor's memory.
    pub partitions_cached: u64,
    /// Page faults in contexts that name the RDD.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Bytes of the RDD's blocks in memory, as Spark accounts for them.
    pub storage_memory_bytes: u64,
    /// Whether `storage_memory_bytes` includes blocks stored as objects, whose size is Spark's estimate.
    pub storage_memory_estimated: bool,
    /// Peak of `storage_memory_bytes`.
    pub storage_memory_peak_bytes: u64,
    /// Bytes of live execution memory that were allocated while the RDD was current.
    pub execution_memory_bytes: u64,
    /// Peak of `execution_memory_bytes`.
    pub execution_memory_peak_bytes: u64,
    /// Bytes of the RDD's blocks outside of the Java heap. Part of `storage_memory_bytes`.
    pub storage_memory_off_heap_bytes: u64,
    /// Bytes of execution memory outside of the Java heap. Part of `execution_memory_bytes`.
    pub execution_memory_off_heap_bytes: u64,
    /// Blocks of the RDD stored on this executor since the daemon traces it.
    pub blocks_stored: u64,
    /// Stored blocks whose partition had been in this executor's memory before and had left it; a lower bound. Part of
    /// `blocks_stored`.
    pub blocks_stored_again: u64,
    /// Time of the tasks that stored these blocks again, from their begin, in nanoseconds: of a task that runs until it last
    /// stored one, of the others until their end. Absent where no block was, and where the begin of such a task is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_stored_again_ns: Option<u64>,
    /// Blocks of the RDD that were in memory before the daemon traced the executor.
    pub blocks_found: u64,
    /// Blocks of the RDD that left this executor's memory.
    pub blocks_removed: u64,
    /// Blocks of the RDD evicted to make room for others. Part of `blocks_removed`.
    pub blocks_evicted: u64,
    /// Reads of the RDD's blocks, one per task and block that was in memory already; absent where the marker cannot
    /// hook reads.
    pub block_reads: Option<u64>,
    /// Time since the RDD's last block was stored, in nanoseconds; absent where none was stored.
    pub last_stored_age_ns: Option<u64>,
    /// Time for which blocks of the RDD were in memory after the last one was stored, in nanoseconds; absent where none
    /// was stored.
    pub kept_ns: Option<u64>,
    /// Tasks of this executor that started after the RDD's last block was stored, and ended while it had blocks in
    /// memory; a lower bound.
    pub tasks_since_stored: u64,
    /// How page faults are attributed to the RDD: `context`.
    pub attributed_by: AttributedBy,
    /// Sampled page faults with an address in the RDD's blocks or Spark pages.
    pub samples_by_address: u64,
    /// Page faults of the RDD by activity, access and memory region.
    pub contexts: Vec<DoingRow>,
    /// Sampled page walks with an address in the RDD's blocks or Spark pages; absent where samples have no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk_samples_by_address: Option<u64>,
    /// Page walks in contexts that name the RDD.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// What page faults are attributed to an RDD by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributedBy {
    /// The context that the faulting thread published, which names the RDD.
    #[default]
    Context,
}

/// Page faults of one RDD during one activity. Figures of page walks are absent where none was sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoingRow {
    /// Activity of the thread.
    pub activity: String,
    /// Whether Spark read or wrote the RDD.
    pub access: String,
    /// Spark's memory region: storage, execution or none.
    pub region: String,
    /// Page faults of the RDD during the activity.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Page walks of the RDD during the activity.
    #[serde(flatten)]
    pub walks: PageWalkRow,
}

/// One address range in an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

/// One cached block in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the RDD that the block belongs to.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Size of the block in bytes, as Spark accounts for it.
    pub size_bytes: u64,
    /// Whether `size_bytes` is Spark's estimate (objects) instead of the exact size.
    pub size_estimated: bool,
    /// Address ranges of the block's bytes; for a block stored as objects, of a sample of its objects.
    pub ranges: Vec<Range>,
    /// Address ranges of the block or of its sample, including ranges that were not reported or not kept.
    pub range_total: u64,
    /// Whether the block is on the Java heap.
    pub on_heap: bool,
    /// Whether the block holds serialised bytes instead of objects.
    pub serialized: bool,
    /// Contents of the block: `bytes` (serialised), `columns` (a cached DataFrame: its buffers have addresses), `array`
    /// (of numbers), or `objects` (not contiguous: the ranges are a sample).
    pub contents: Contents,
    /// Task attempt that stored the block; absent for a replica and for a block stored outside of a task.
    pub task_attempt_id: Option<u64>,
    /// Stage of the task that stored the block.
    pub stage_id: Option<u32>,
    /// Reads of the block.
    pub reads: u64,
    /// Time since the block was stored, in nanoseconds.
    pub age_ns: u64,
}

/// The storage level derived from a block, for an RDD whose level was not reported. Blocks do not show replication and
/// disk.
fn level_of(block: &Block) -> &'static str {
    match (block.on_heap, block.serialized) {
        (true, false) => "Memory Deserialized (from blocks)",
        (true, true) => "Memory Serialized (from blocks)",
        (false, _) => "OffHeap Memory Serialized (from blocks)",
    }
}

/// The storage level of each RDD, derived from its blocks.
fn levels_of(executor: &Executor) -> BTreeMap<RddKey, &'static str> {
    let blocks = executor.memory.blocks.values();
    let of_rdds = blocks.filter(|block| block.rdd.id().is_some());
    of_rdds.map(|block| (block.rdd, level_of(block))).gather()
}

/// RDDs that worked in the stages that the filter selects, or that these stages compute.
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

/// SQL execution of the first stage that worked on each RDD or computes it: its id and description.
#[must_use]
pub fn queries_of(executor: &Executor) -> BTreeMap<RddKey, (u64, &str)> {
    let mut queries = BTreeMap::new();
    for stage in executor.tasks.stages.values() {
        let Some(said) = &stage.described else {
            continue;
        };
        if let Some(id) = said.sql_execution_id {
            let last = said.rdd_id.map(RddKey::Id);
            for rdd in stage.rdds.keys().copied().chain(last) {
                let query = (id, said.sql_description.as_str());
                queries.entry(rdd).or_insert(query);
            }
        }
    }
    queries
}

/// RDDs of which a stage has no description yet, so that their SQL execution is not known.
#[must_use]
pub fn without_stage(executor: &Executor) -> BTreeSet<RddKey> {
    let mut described = BTreeSet::new();
    let mut without: BTreeSet<RddKey> = executor.rdds.keys().copied().gather();
    for stage in executor.tasks.stages.values() {
        if let Some(said) = &stage.described {
            described.extend(stage.rdds.keys().copied());
            described.extend(said.rdd_id.map(RddKey::Id));
        }
    }
    without.retain(|rdd| !described.contains(rdd));
    without
}

/// What a row of an RDD has.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// All, for every RDD; else what the rules of `advise` use, for the RDDs that they are about.
    pub whole: bool,
    /// Its SQL execution.
    pub queries: bool,
}

impl State {
    /// RDDs that the filter selects. Rows without `rdd_id` are `(no RDD)` and `(overflow)`.
    #[must_use]
    pub fn list_rdds(&self, filter: &Filter) -> Listing<RddRow> {
        let wanted = Wanted {
            whole: true,
            queries: true,
        };
        self.rdd_listing(filter, wanted)
    }

    /// RDDs that the filter selects, with what is wanted of them.
    pub(super) fn rdd_listing(&self, filter: &Filter, wanted: Wanted) -> Listing<RddRow> {
        let Wanted { whole, queries } = wanted;
        self.listing(filter, |_, executor, rows| {
            let mut held: BTreeMap<RddKey, MemoryHeld> = BTreeMap::new();
            for (rdd, holds) in executor.memory.holders() {
                held.entry(executor.row_of(rdd)).or_default().add(holds);
            }
            let mut keys: Vec<RddKey> = executor.rdds.keys().copied().collect();
            keys.extend(held.keys().filter(|key| !executor.rdds.contains_key(key)));
            keys.retain(|key| {
                let (rdd, holds) = (executor.rdds.get(key), held.contains_key(key));
                filter.in_part(key) && (whole || matters(*key, rdd, holds))
            });
            sort_by(&mut keys, Ord::cmp);
            let levels = levels_of(executor);
            let queries = if queries {
                queries_of(executor)
            } else {
                BTreeMap::new()
            };
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
                        let level = levels.get(&key).copied();
                        let row = self.rdd_row(executor, key, held, level, whole);
                        let query = queries.get(&key).filter(|_| key.id().is_some());
                        RddRow {
                            sql_execution_id: query.map(|(id, _)| *id),
                            sql_description: query
                                .map(|(_, text)| (*text).to_owned())
                                .filter(|text| !text.is_empty()),
                            ..row
                        }
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
        whole: bool,
    ) -> RddRow {
        let nothing = Rdd::default();
        let rdd = executor.rdds.get(&key).unwrap_or(&nothing);
        let now_ns = executor.died_ns.unwrap_or_else(|| self.now_ns());
        let until_ns = rdd.block_history.until_ns(held.blocks > 0, now_ns);
        let said = rdd.described.as_ref();
        let text = |of: fn(&RddDescribed) -> &String| {
            said.map(of).filter(|text| !text.is_empty()).cloned()
        };
        let name = match key {
            RddKey::None => Some(NO_RDD.to_owned()),
            RddKey::Overflow => Some(OVERFLOW.to_owned()),
            RddKey::Id(_) => text(|said| &said.name),
        };
        RddRow {
            who: ExecutorId::new(executor),
            rdd_id: key.id(),
            name,
            call_site: text(|said| &said.call_site),
            node: text(|said| &said.node),
            node_id: text(|said| &said.node_id),
            sql_execution_id: None,
            sql_description: None,
            storage_level: said
                .map(level_told)
                .filter(|level| !level.is_empty())
                .or_else(|| level.map(str::to_owned)),
            storage_level_name: said.and_then(|said| level_name(said.storage_level)),
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
            blocks_stored: rdd.block_history.stored,
            blocks_stored_again: rdd.block_history.stored_again,
            blocks_stored_again_ns: rdd.block_history.again_known_ns(),
            blocks_found: rdd.block_history.found,
            blocks_removed: rdd.block_history.removed,
            blocks_evicted: rdd.block_history.evicted,
            block_reads: sees_reads(executor).then_some(rdd.block_history.reads),
            last_stored_age_ns: (rdd.block_history.last_stored_ns > 0).then(|| {
                self.now_ns()
                    .saturating_sub(rdd.block_history.last_stored_ns)
            }),
            kept_ns: rdd.block_history.kept_ns(until_ns),
            tasks_since_stored: tasks_within(executor, rdd.block_history.last_stored_ns, until_ns),
            attributed_by: AttributedBy::Context,
            samples_by_address: rdd.samples_by_address,
            contexts: if whole {
                doing_rows(self, executor, rdd)
            } else {
                Vec::new()
            },
            page_walk_samples_by_address: (executor.walk_agreement.share().is_some()
                || rdd.walk_samples_by_address > 0)
                .then_some(rdd.walk_samples_by_address),
            walks: if whole || is_sampled(&rdd.walks.life) {
                self.walks_of(executor, &rdd.walks, Some(&rdd.distribution))
            } else {
                PageWalkRow::default()
            },
        }
    }

    /// Blocks that the filter selects.
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
                            && filter
                                .block
                                .as_ref()
                                .is_none_or(|wanted| matches(wanted, name))
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
                            .map(|(address, length)| Range { address, length })
                            .collect(),
                        range_total: block.range_total,
                        on_heap: block.on_heap,
                        serialized: block.serialized,
                        contents: block.contents,
                        task_attempt_id: block.task.filter(|_| !block.without_task),
                        stage_id: block.stage.map(|stage| stage.id),
                        reads: block.reads,
                        age_ns: now_ns.saturating_sub(block.stored_ns),
                    }),
            );
        })
    }
}

/// Whether the marker reports reads of cached blocks.
fn sees_reads(executor: &Executor) -> bool {
    executor.described.as_ref().is_some_and(|said| {
        let mut missing = said.missing_hook_names.split(',').map(str::trim);
        !missing.any(|name| READ_HOOKS.contains(&name))
    })
}

/// Tasks that started after `begin_ns` and ended until `end_ns`; 0 where `begin_ns` is 0.
fn tasks_within(executor: &Executor, begin_ns: u64, end_ns: u64) -> u64 {
    if begin_ns == 0 {
        return 0;
    }
    let tasks = executor.tasks.tasks.values();
    let within = tasks.filter(|task| {
        task.start_ns.is_some_and(|start| start > begin_ns)
            && task.end_ns.is_some_and(|end| end <= end_ns)
    });
    within.count() as u64
}

/// Page faults and page walks of an RDD, by activity.
fn doing_rows(state: &State, executor: &Executor, rdd: &Rdd) -> Vec<DoingRow> {
    let all: BTreeSet<&Doing> = rdd.doing.keys().chain(rdd.doing_walks.keys()).gather();
    all.into_iter()
        .map(|doing| DoingRow {
            activity: doing.activity.name().unwrap_or("unknown").to_owned(),
            access: doing.access.name().unwrap_or("unknown").to_owned(),
            region: doing.region.name().unwrap_or("unknown").to_owned(),
            faults: state.figures(&rdd.doing.get(doing).copied().unwrap_or_default()),
            walks: state.walks_part(executor, rdd.doing_walks.get(doing)),
        })
        .collect()
}

/// The level as Spark describes it, but "None" where nothing is stored: Spark's description of that level, "Serialized
/// 1x Replicated", suggests the opposite.
fn level_told(said: &crate::decode::RddDescribed) -> String {
    use smtt_common::event::marker::storage_level::{DISK, MEMORY};
    if said.storage_level & (DISK | MEMORY) == 0 && !said.storage_level_text.is_empty() {
        return "None".to_owned();
    }
    said.storage_level_text.clone()
}

/// Name of a level in Spark's `StorageLevel`; `None` for levels that it has no constant for.
fn level_name(bits: u64) -> Option<String> {
    use smtt_common::event::marker::storage_level::{
        DESERIALIZED, DISK, MEMORY, OFF_HEAP, REPLICATION_SHIFT,
    };
    let name = match bits & (DISK | MEMORY | OFF_HEAP | DESERIALIZED) {
        0 => return Some("NONE".to_owned()),
        kind if kind == DISK => "DISK_ONLY",
        kind if kind == MEMORY | DESERIALIZED => "MEMORY_ONLY",
        kind if kind == MEMORY => "MEMORY_ONLY_SER",
        kind if kind == DISK | MEMORY | DESERIALIZED => "MEMORY_AND_DISK",
        kind if kind == DISK | MEMORY => "MEMORY_AND_DISK_SER",
        kind if kind == DISK | MEMORY | OFF_HEAP => "OFF_HEAP",
        _ => return None,
    };
    match (name, bits >> REPLICATION_SHIFT) {
        (_, 0 | 1) => Some(name.to_owned()),
        ("OFF_HEAP", _) => None,
        (_, 2) | ("DISK_ONLY", 3) => Some(format!("{name}_{}", bits >> REPLICATION_SHIFT)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::level_name;
    use smtt_common::event::marker::storage_level::{
        DESERIALIZED, DISK, MEMORY, OFF_HEAP, REPLICATION_SHIFT,
    };

    /// What Spark 4.0.5 answers for each of its names: disk, memory, off heap, deserialized, replication.
    const SPARK: &str = "
        NONE 0 0 0 0 1
        DISK_ONLY 1 0 0 0 1
        DISK_ONLY_2 1 0 0 0 2
        DISK_ONLY_3 1 0 0 0 3
        MEMORY_ONLY 0 1 0 1 1
        MEMORY_ONLY_2 0 1 0 1 2
        MEMORY_ONLY_SER 0 1 0 0 1
        MEMORY_ONLY_SER_2 0 1 0 0 2
        MEMORY_AND_DISK 1 1 0 1 1
        MEMORY_AND_DISK_2 1 1 0 1 2
        MEMORY_AND_DISK_SER 1 1 0 0 1
        MEMORY_AND_DISK_SER_2 1 1 0 0 2
        OFF_HEAP 1 1 1 0 1";

    #[test]
    fn levels_have_the_names_of_spark() {
        let mut named = 0;
        for line in SPARK.lines().filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let flag = |at: usize, bit: u64| if words[at] == "1" { bit } else { 0 };
            let flags = flag(1, DISK) | flag(2, MEMORY) | flag(3, OFF_HEAP) | flag(4, DESERIALIZED);
            let copies: u64 = words[5].parse().expect("a number");
            let name = level_name(flags | copies << REPLICATION_SHIFT);
            assert_eq!(name.as_deref(), Some(words[0]));
            named += 1;
        }
        // No other flags and replications have a name.
        let known = |bits: &u64| {
            level_name(bits & 0xf | (bits >> 4) << REPLICATION_SHIFT)
                .is_some_and(|name| name != "NONE")
        };
        let all = (16..96).filter(known).count();
        assert_eq!(all, named - 1, "of five replications");
    }
}
