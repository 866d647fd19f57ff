//! Where bytes are, as rows: by RDD, block, task attempt or executor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ExecutorId, Filter, Listing, NO_RDD, OVERFLOW};
use crate::attribute::RddKey;
use crate::state::figures::{Figures, NodeRow, Owner, PageSizeRow, each, reads_by_rdd};
use crate::state::{Executor, NodeReads, SampleRow, SizesBy, State};

/// What one row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesBy {
    /// An RDD on an executor: its blocks and the execution memory that was allocated while it was current.
    Rdd,
    /// A block.
    Block,
    /// A task attempt: its execution memory.
    Task,
    /// An executor: everything that was told.
    Executor,
}

/// Where bytes were when the resolver last looked. Figures that were not measured are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PagesRow {
    /// The executor.
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
    /// Objects of blocks that are stored as objects that were looked at: the sample that `sample` rests on. No other
    /// figure has them.
    pub sampled_objects: Option<u64>,
    /// What the sample says of blocks that are stored as objects.
    pub sample: Option<SampleRow>,
    /// Of the held bytes, those that the next figures stand for: their addresses are known and were looked at. Objects
    /// have no contiguous bytes (see `sample`), and what is new was not looked at yet.
    pub resolved_bytes: Option<u64>,
    /// Bytes in memory.
    pub present_bytes: Option<u64>,
    /// Bytes swapped out.
    pub swapped_bytes: Option<u64>,
    /// Bytes that have never had memory, or have given it back.
    pub untouched_bytes: Option<u64>,
    /// Bytes at addresses that are in no mapping: the addresses were out of date.
    pub unmapped_bytes: Option<u64>,
    /// Of those in memory, bytes in the kernel's page of zeros: read, never written; on no node.
    pub zero_page_bytes: Option<u64>,
    /// Of those in memory, bytes on pages larger than the machine's base size.
    pub huge_page_bytes: Option<u64>,
    /// Bytes in memory by page size.
    pub page_sizes: Option<Vec<PageSizeRow>>,
    /// How page sizes were told: `page tables` (what the hardware translates by) or `frames`.
    pub page_sizes_by: Option<String>,
    /// Bytes in memory by NUMA node, by node number.
    pub nodes: Option<Vec<NodeRow>>,
    /// Of those in memory, bytes whose node could not be told.
    pub node_unknown_bytes: Option<u64>,
    /// Blocks and pages of execution memory that are on more than one node; a lower bound where it was sampled.
    pub spanning_nodes: Option<u64>,
    /// Pages of the machine's base size that the bytes lie in.
    pub pages: Option<u64>,
    /// Of them, pages that were looked at.
    pub examined_pages: Option<u64>,
    /// Whether the figures are estimated from a part of the pages.
    pub estimated: Option<bool>,
    /// Reads of the blocks that are in memory; absent where there are none.
    pub reads: Option<u64>,
    /// Reads of a block per minute, a running value, the mean over the blocks.
    pub reads_per_minute: Option<f64>,
    /// How hot they are, by the next field: share of checks that found an access to a page of them, 0 to 1, or reads
    /// of a block per minute.
    pub hotness: Option<f64>,
    /// By what the hotness was found: `damon` or `block reads`.
    pub hotness_method: Option<String>,
    /// Bytes of blocks in regions of which the last window found an access; absent without DAMON.
    pub hot_bytes: Option<u64>,
    /// Of the held bytes, those that DAMON's figures stand for.
    pub checked_bytes: Option<u64>,
    /// Bytes of blocks that were read by a CPU of the node that they were on, since the RDD or the block was first
    /// seen.
    pub read_local_bytes: Option<u64>,
    /// Bytes that were read by a CPU of another node.
    pub read_remote_bytes: Option<u64>,
    /// Share of the second in both, 0 to 1.
    pub remote_access_ratio: Option<f64>,
    /// What can be said of the addresses: `fixed`, or where some bytes are on the Java heap `current` (no collection
    /// since they were told), `stale` (one has begun: those are left out until they are told again), `polled` or
    /// `as told` (they may have moved since). Absent where nothing has an address.
    pub addresses: Option<String>,
    /// Time since it was looked at, in nanoseconds.
    pub age_ns: Option<u64>,
}

impl Figures {
    fn fill(&self, row: &mut PagesRow, executor: &Executor, now_ns: u64) {
        let looked = &executor.memory.looked;
        row.held_bytes = self.held_bytes;
        row.addresses = self.addressed.then(|| {
            let trust = executor.heap.trust();
            if self.on_heap { trust.name() } else { "fixed" }.to_owned()
        });
        if self.blocks > 0 {
            row.reads = Some(self.reads);
            row.reads_per_minute = Some(self.reads_per_minute / self.blocks as f64);
            row.hotness = row.reads_per_minute;
            row.hotness_method = Some("block reads".to_owned());
        }
        let sizes_known = looked.sizes_by != SizesBy::Nothing;
        row.sample = self.sample.row(looked.page_bytes, sizes_known);
        row.sampled_objects = row.sample.as_ref().map(|_| self.sample.objects());
        if row.sample.is_some() {
            row.age_ns = Some(now_ns.saturating_sub(looked.time_ns));
        }
        if let Some(hotness) = self.touched.hotness() {
            row.hotness = Some(hotness);
            row.hotness_method = Some("damon".to_owned());
            row.hot_bytes = Some(self.touched.hot_bytes);
            row.checked_bytes = Some(self.touched.checked_bytes);
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
        row.age_ns = Some(now_ns.saturating_sub(looked.time_ns));
        if sizes_known {
            row.zero_page_bytes = Some(self.scaled(seen.zero_bytes));
            row.huge_page_bytes = self.huge_page_bytes(looked.page_bytes);
            row.page_sizes_by = looked.sizes_by.name().map(str::to_owned);
        }
        row.page_sizes = placed.page_sizes;
    }
}

/// What tells one row from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Rdd(RddKey),
    Block(RddKey, String),
    Task(Option<u64>),
    Executor,
}

impl Owner<'_> {
    /// The row that it counts in; `None` for none.
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
    /// Where the bytes are that the filter lets through.
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
                        let touched = executor.touched(block.mark(), block.on_heap, now_ns);
                        figures.add_touched(touched);
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
                    // They are of whole RDDs, and of all of them.
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

/// Its conditions on executors alone.
fn of_executors(filter: &Filter) -> Filter {
    Filter {
        app: filter.app.clone(),
        executor: filter.executor.clone(),
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
