//! Rows of page placement: where bytes are, by RDD, block, task attempt or executor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ExecutorId, Filter, Listing, NO_RDD, OVERFLOW};
use crate::attribute::RddKey;
use crate::state::figures::{Figures, NodeRow, Owner, PageSizeRow, each, reads_by_rdd};
use crate::state::{Executor, NodeReads, SampleRow, SizesBy, State, Trust};

/// What one row of page placement stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesBy {
    /// An RDD on an executor: its blocks and the execution memory that was allocated while it was current.
    Rdd,
    /// A block.
    Block,
    /// A task attempt: its execution memory.
    Task,
    /// An executor: all memory that it has reported.
    Executor,
}

/// Source of the hotness of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HotnessMethod {
    /// DAMON's checks of the pages.
    #[serde(rename = "damon")]
    Damon,
    /// Spark's reads of the blocks.
    #[serde(rename = "block reads")]
    BlockReads,
}

/// State of the addresses of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressState {
    /// No byte is on the Java heap.
    #[serde(rename = "fixed")]
    Fixed,
    /// Bytes on the Java heap may have moved, as the state reports it.
    #[serde(untagged)]
    OnHeap(Trust),
}

/// Where bytes were at the resolver's last scan. Figures that were not measured are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PagesRow {
    /// Identity of the executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Id of the RDD.
    pub rdd_id: Option<u32>,
    /// Name of the RDD.
    pub name: Option<String>,
    /// Spark's name of the block.
    pub block_id: Option<String>,
    /// Task attempt that owns the execution memory.
    pub task_attempt_id: Option<u64>,
    /// Bytes of blocks and execution memory, as Spark accounts for them.
    pub held_bytes: u64,
    /// Examined objects of blocks that are stored as objects: the sample behind `sample`. These objects are in no other
    /// figure.
    pub sampled_objects: Option<u64>,
    /// Figures estimated from the sampled objects, for blocks that are stored as objects.
    pub sample: Option<SampleRow>,
    /// Bytes behind the figures that follow: their addresses are known and their pages were examined. Excludes blocks
    /// stored as objects, which have no contiguous bytes (see `sample`), and memory that is too new.
    pub resolved_bytes: Option<u64>,
    /// Bytes in physical memory.
    pub present_bytes: Option<u64>,
    /// Bytes swapped out.
    pub swapped_bytes: Option<u64>,
    /// Bytes without physical memory: never touched, or returned to the kernel.
    pub untouched_bytes: Option<u64>,
    /// Bytes at addresses outside of every mapping, because the addresses were stale.
    pub unmapped_bytes: Option<u64>,
    /// Bytes in the kernel's zero page: read, never written; they belong to no node. Part of `present_bytes`.
    pub zero_page_bytes: Option<u64>,
    /// Bytes on pages larger than the machine's base size. Part of `present_bytes`.
    pub huge_page_bytes: Option<u64>,
    /// Bytes in physical memory by page size.
    pub page_sizes: Option<Vec<PageSizeRow>>,
    /// Source of the page sizes: `page tables` (the hardware's translations) or `frames`.
    pub page_sizes_by: Option<SizesBy>,
    /// Bytes in physical memory by NUMA node, in order of node number.
    pub nodes: Option<Vec<NodeRow>>,
    /// Bytes whose node could not be determined. Part of `present_bytes`.
    pub node_unknown_bytes: Option<u64>,
    /// Blocks and Spark pages on more than one NUMA node; a lower bound where pages were sampled.
    pub spanning_nodes: Option<u64>,
    /// Pages of the machine's base size that contain the bytes.
    pub pages: Option<u64>,
    /// Pages that the resolver examined. Part of `pages`.
    pub examined_pages: Option<u64>,
    /// Whether the figures are extrapolated from a sample of the pages.
    pub estimated: Option<bool>,
    /// Reads of the blocks in memory; absent without such blocks.
    pub reads: Option<u64>,
    /// Moving average of reads per minute, as the mean over the blocks.
    pub reads_per_minute: Option<f64>,
    /// Hotness of the blocks, in the unit of `hotness_method`: the share of DAMON's checks that found an access, 0 to
    /// 1, or reads of a block per minute.
    pub hotness: Option<f64>,
    /// Source of `hotness`: `damon` or `block reads`.
    pub hotness_method: Option<HotnessMethod>,
    /// Bytes of blocks in regions with an access in DAMON's last window; absent without DAMON.
    pub hot_bytes: Option<u64>,
    /// Bytes that DAMON's figures stand for. Part of `held_bytes`.
    pub checked_bytes: Option<u64>,
    /// Bytes of blocks read by a CPU of the node that held them, since the RDD or the block was first recorded.
    pub read_local_bytes: Option<u64>,
    /// Bytes of blocks read by a CPU of another node than the one that held them.
    pub read_remote_bytes: Option<u64>,
    /// `read_remote_bytes` as a share of local and remote bytes read, 0 to 1.
    pub remote_access_ratio: Option<f64>,
    /// State of the addresses: `fixed` where no byte is on the Java heap, else `current` (no collection since they were
    /// reported), `stale` (a collection has begun: these bytes are left out until their addresses are reported again),
    /// `polled` or `unverified` (they may have moved). Absent where nothing has an address.
    pub addresses: Option<AddressState>,
    /// Time since the pages were examined, in nanoseconds.
    pub age_ns: Option<u64>,
}

impl Figures {
    fn fill(&self, row: &mut PagesRow, executor: &Executor, now_ns: u64) {
        let last_examined = &executor.memory.last_examined;
        row.held_bytes = self.held_bytes;
        row.addresses = self.addressed.then(|| {
            if self.on_heap {
                AddressState::OnHeap(executor.heap.trust())
            } else {
                AddressState::Fixed
            }
        });
        if self.blocks > 0 {
            row.reads = Some(self.reads);
            row.reads_per_minute = Some(self.reads_per_minute / self.blocks as f64);
            row.hotness = row.reads_per_minute;
            row.hotness_method = Some(HotnessMethod::BlockReads);
        }
        let sizes_known = last_examined.sizes_by != SizesBy::Nothing;
        row.sample = self.sample.row(last_examined.page_bytes, sizes_known);
        row.sampled_objects = row.sample.as_ref().map(|_| self.sample.objects());
        if row.sample.is_some() {
            row.age_ns = Some(now_ns.saturating_sub(last_examined.time_ns));
        }
        if let Some(hotness) = self.accessed.hotness() {
            row.hotness = Some(hotness);
            row.hotness_method = Some(HotnessMethod::Damon);
            row.hot_bytes = Some(self.accessed.hot_bytes);
            row.checked_bytes = Some(self.accessed.checked_bytes);
        }
        let Some(placed) = self.placed(sizes_known) else {
            return;
        };
        let seen = &self.seen;
        row.resolved_bytes = Some(self.resolved_bytes);
        row.present_bytes = Some(placed.present_bytes);
        row.swapped_bytes = Some(placed.swapped_bytes);
        row.untouched_bytes = Some(placed.untouched_bytes);
        row.unmapped_bytes = Some(placed.unmapped_bytes);
        row.nodes = Some(placed.nodes);
        row.node_unknown_bytes = Some(self.scaled(seen.node_unknown_bytes));
        row.spanning_nodes = Some(self.spanning_nodes);
        row.pages = Some(seen.pages);
        row.examined_pages = Some(seen.examined_pages);
        row.estimated = Some(seen.examined_pages < seen.pages);
        row.age_ns = Some(now_ns.saturating_sub(last_examined.time_ns));
        if sizes_known {
            row.zero_page_bytes = Some(self.scaled(seen.zero_bytes));
            row.huge_page_bytes = self.huge_page_bytes(last_examined.page_bytes);
            row.page_sizes_by = sizes_known.then_some(last_examined.sizes_by);
        }
        row.page_sizes = placed.page_sizes;
    }
}

/// Identity of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Rdd(RddKey),
    Block(RddKey, String),
    Task(Option<u64>),
    Executor,
}

impl Owner<'_> {
    /// Key of the row that this memory counts in; `None` where no row includes it.
    fn key(&self, executor: &Executor, by: PagesBy) -> Option<Key> {
        match (by, self) {
            (PagesBy::Rdd, _) => Some(Key::Rdd(executor.row_of(self.rdd()))),
            (PagesBy::Block, Self::Block(name, block)) => {
                Some(Key::Block(block.rdd, (*name).to_owned()))
            }
            (PagesBy::Task, Self::SparkPage(page)) => Some(Key::Task(page.task)),
            (PagesBy::Executor, _) => Some(Key::Executor),
            (PagesBy::Block, Self::SparkPage(_)) | (PagesBy::Task, Self::Block(..)) => None,
        }
    }
}

impl State {
    /// Page placement of the memory that the filter selects.
    #[must_use]
    pub fn list_pages(&self, filter: &Filter, by: PagesBy) -> Listing<PagesRow> {
        let now_ns = self.now_ns();
        self.listing(filter, |_, executor, rows| {
            let mut figures: BTreeMap<Key, Figures> = BTreeMap::new();
            each(executor, |owner, held, addressed, on_heap, seen| {
                let wanted = filter.rdd(executor, executor.row_of(owner.rdd()))
                    && (filter.stage.is_none() || filter.stage(owner.stage(executor)))
                    && filter
                        .task
                        .is_none_or(|wanted| owner.task() == Some(wanted))
                    && filter
                        .block
                        .as_deref()
                        .is_none_or(|wanted| owner.is_block(wanted));
                if let Some(key) = owner.key(executor, by).filter(|_| wanted) {
                    let figures = figures.entry(key).or_default();
                    figures.add(&owner, held, addressed, on_heap, seen);
                    if let Owner::Block(_, block) = owner {
                        let accessed = executor.accessed(block.ranges_id(), block.on_heap, now_ns);
                        figures.add_accessed(accessed);
                        figures.add_reads(block, now_ns);
                    }
                }
            });
            let reads = reads_by_rdd(executor);
            let who = ExecutorId::new(executor);
            rows.extend(figures.into_iter().map(|(key, figures)| {
                let mut row = PagesRow {
                    who: who.clone(),
                    ..PagesRow::default()
                };
                let read = match &key {
                    // Reads by node are kept per RDD, so they do not apply to one task or block.
                    Key::Rdd(rdd) if filter.task.is_none() && filter.block.is_none() => {
                        reads.get(rdd).copied()
                    }
                    Key::Executor if *filter == of_executors(filter) => {
                        let mut all = NodeReads::default();
                        reads.values().for_each(|more| all.add(more));
                        Some(all)
                    }
                    Key::Block(..) => Some(figures.by_node),
                    _ => None,
                };
                if let Some((read, ratio)) =
                    read.and_then(|read| Some((read, read.remote_ratio()?)))
                {
                    row.read_local_bytes = Some(read.local_bytes);
                    row.read_remote_bytes = Some(read.remote_bytes);
                    row.remote_access_ratio = Some(ratio);
                }
                match key {
                    Key::Rdd(rdd) => {
                        row.rdd_id = rdd.id();
                        row.name = name(executor, rdd);
                    }
                    Key::Block(rdd, block) => {
                        row.rdd_id = rdd.id();
                        row.block_id = Some(block);
                    }
                    Key::Task(task) => row.task_attempt_id = task,
                    Key::Executor => {}
                }
                figures.fill(&mut row, executor, now_ns);
                row
            }));
            if filter.spanning == Some(true) {
                rows.retain(|row| row.spanning_nodes.is_some_and(|spanning| spanning > 0));
            }
        })
    }
}

/// The filter's conditions on executors alone.
fn of_executors(filter: &Filter) -> Filter {
    Filter {
        app: filter.app.clone(),
        user: filter.user,
        application: filter.application.clone(),
        executor: filter.executor.clone(),
        key: filter.key,
        part: filter.part,
        ..Filter::default()
    }
}

fn name(executor: &Executor, rdd: RddKey) -> Option<String> {
    match rdd {
        RddKey::None => Some(NO_RDD.to_owned()),
        RddKey::Overflow => Some(OVERFLOW.to_owned()),
        RddKey::Id(_) => executor
            .rdds
            .get(&rdd)?
            .described
            .as_ref()
            .map(|said| said.name.clone())
            .filter(|name| !name.is_empty()),
    }
}
