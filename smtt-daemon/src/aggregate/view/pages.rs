//! Where bytes are, as rows: by RDD, block, task attempt or executor.

use super::sample::{Sample, SampleRow};
use super::{Filter, Listing, NO_RDD, OVERFLOW, Who};
use crate::aggregate::Block;
use crate::aggregate::Executor;
use crate::aggregate::Mark;
use crate::aggregate::NodeReads;
use crate::aggregate::Page;
use crate::aggregate::Seen;
use crate::aggregate::SizesBy;
use crate::aggregate::State;
use crate::aggregate::Touched;
use crate::attribute::{RddKey, StageKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    pub who: Who,
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
    pub looked_pages: Option<u64>,
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

/// Bytes on pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSizeRow {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Bytes on such pages.
    pub bytes: u64,
}

/// Bytes on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Number of the node.
    pub node: u32,
    /// Bytes on it.
    pub bytes: u64,
}

/// Figures of one row, scaled from what was looked at to all of its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    held_bytes: u64,
    resolved_bytes: u64,
    spanning_nodes: u64,
    /// Some bytes have addresses.
    addressed: bool,
    /// Some of those are on the heap.
    on_heap: bool,
    seen: Seen,
    sample: Sample,
    blocks: u64,
    reads: u64,
    reads_per_minute: f64,
    /// What was read of the blocks that are in memory, by where it was.
    by_node: NodeReads,
    touched: Touched,
}

impl Figures {
    /// Adds a block or page: what it holds, how many bytes have addresses, and what was seen of them there.
    fn add(
        &mut self,
        owner: &Owner<'_>,
        held_bytes: u64,
        addressed: u64,
        on_heap: bool,
        seen: Option<&Seen>,
    ) {
        self.held_bytes = self.held_bytes.saturating_add(held_bytes);
        if addressed > 0 {
            self.addressed = true;
            self.on_heap |= on_heap;
        }
        if let Some(objects) = owner.sampled_objects() {
            self.sample.add(held_bytes, objects, addressed, seen);
        } else if let Some(seen) = seen {
            self.resolved_bytes = self.resolved_bytes.saturating_add(addressed);
            self.spanning_nodes += u64::from(seen.by_node.len() > 1);
            self.seen.add(seen);
        }
    }

    /// Adds what another one has.
    pub fn merge(&mut self, more: &Self) {
        self.held_bytes = self.held_bytes.saturating_add(more.held_bytes);
        self.resolved_bytes = self.resolved_bytes.saturating_add(more.resolved_bytes);
        self.spanning_nodes += more.spanning_nodes;
        self.addressed |= more.addressed;
        self.on_heap |= more.on_heap;
        self.seen.add(&more.seen);
        self.sample.merge(&more.sample);
        self.blocks += more.blocks;
        self.reads += more.reads;
        self.reads_per_minute += more.reads_per_minute;
        self.by_node.add(&more.by_node);
        self.touched.add(&more.touched);
    }

    fn add_touched(&mut self, touched: Option<&Touched>) {
        if let Some(touched) = touched {
            self.touched.add(touched);
        }
    }

    /// How often its blocks are accessed; nothing is checked without DAMON.
    #[must_use]
    pub const fn touched(&self) -> &Touched {
        &self.touched
    }

    fn add_reads(&mut self, block: &Block, now_ns: u64) {
        self.blocks += 1;
        self.reads += block.reads;
        self.reads_per_minute += block.heat.per_minute(now_ns);
        self.by_node.add(&block.by_node);
    }

    /// Whether anything was looked at.
    #[must_use]
    pub const fn is_measured(&self) -> bool {
        self.seen.looked_bytes > 0
    }

    /// A part of what was looked at, as a part of all bytes.
    fn scaled(&self, part: u64) -> u64 {
        if self.seen.looked_bytes == 0 {
            return 0;
        }
        let scaled =
            u128::from(part) * u128::from(self.resolved_bytes) / u128::from(self.seen.looked_bytes);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// What a sample of objects says, on a machine with such base pages; `None` when none was looked at.
    #[must_use]
    pub fn sample(&self, base: u64) -> Option<SampleRow> {
        self.sample.row(base, true)
    }

    /// Objects in that sample.
    #[must_use]
    pub const fn sampled_objects(&self) -> u64 {
        self.sample.objects()
    }

    /// Bytes swapped out; `None` when nothing was looked at.
    #[must_use]
    pub fn swapped_bytes(&self) -> Option<u64> {
        self.is_measured()
            .then(|| self.scaled(self.seen.swapped_bytes))
    }

    /// Bytes in memory on pages larger than `base` bytes; `None` where sizes are not known.
    #[must_use]
    pub fn huge_page_bytes(&self, base: u64) -> Option<u64> {
        let known = !self.seen.by_page_size.is_empty() || self.seen.present_bytes == 0;
        let huge = self
            .seen
            .by_page_size
            .iter()
            .filter(|(size, _)| *size > base);
        (self.is_measured() && known).then(|| self.scaled(huge.map(|(_, bytes)| bytes).sum()))
    }

    /// Bytes in memory by node; `None` when nothing was looked at.
    #[must_use]
    pub fn nodes(&self) -> Option<Vec<NodeRow>> {
        self.is_measured().then(|| {
            let by_node = self.seen.by_node.iter();
            by_node
                .map(|(node, bytes)| NodeRow {
                    node: *node,
                    bytes: self.scaled(*bytes),
                })
                .collect()
        })
    }

    pub(in crate::aggregate) fn fill(&self, row: &mut PagesRow, executor: &Executor, now_ns: u64) {
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
        if !self.is_measured() {
            return;
        }
        let seen = &self.seen;
        let swapped = self.scaled(seen.swapped_bytes);
        let untouched = self.scaled(seen.untouched_bytes);
        let unmapped = self.scaled(seen.unmapped_bytes);
        row.resolved_bytes = Some(self.resolved_bytes);
        row.swapped_bytes = Some(swapped);
        row.untouched_bytes = Some(untouched);
        row.unmapped_bytes = Some(unmapped);
        // What is left, so that rounding does not make the sum another one.
        row.present_bytes = Some(if seen.present_bytes == 0 {
            0
        } else {
            self.resolved_bytes
                .saturating_sub(swapped)
                .saturating_sub(untouched)
                .saturating_sub(unmapped)
        });
        row.nodes = self.nodes();
        row.node_unknown_bytes = Some(self.scaled(seen.node_unknown_bytes));
        row.spanning_nodes = Some(self.spanning_nodes);
        row.pages = Some(seen.pages);
        row.looked_pages = Some(seen.looked_pages);
        row.estimated = Some(seen.looked_pages < seen.pages);
        row.age_ns = Some(now_ns.saturating_sub(looked.time_ns));
        if sizes_known {
            row.zero_page_bytes = Some(self.scaled(seen.zero_bytes));
            row.huge_page_bytes = self.huge_page_bytes(looked.page_bytes);
            row.page_sizes_by = looked.sizes_by.name().map(str::to_owned);
            let sizes = seen.by_page_size.iter();
            row.page_sizes = Some(
                sizes
                    .map(|(page_bytes, bytes)| PageSizeRow {
                        page_bytes: *page_bytes,
                        bytes: self.scaled(*bytes),
                    })
                    .collect(),
            );
        }
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

/// Every block and page of an executor with what was seen of it.
fn each<'a>(
    executor: &'a Executor,
    mut take: impl FnMut(Owner<'a>, u64, u64, bool, Option<&'a Seen>),
) {
    let seen = |mark: Option<Mark>, on_heap: bool| executor.looked(mark, on_heap);
    for (name, block) in &executor.memory.blocks {
        take(
            Owner::Block(name, block),
            block.size_bytes,
            block.addressed_bytes(),
            block.on_heap,
            seen(block.mark(), block.on_heap),
        );
    }
    for page in executor.memory.pages.values() {
        take(
            Owner::Page(page),
            page.size_bytes,
            if page.address == 0 {
                0
            } else {
                page.size_bytes
            },
            page.on_heap,
            seen(page.mark(), page.on_heap),
        );
    }
}

enum Owner<'a> {
    Block(&'a str, &'a Block),
    Page(&'a Page),
}

impl Owner<'_> {
    /// See [`Block::sampled_objects`].
    fn sampled_objects(&self) -> Option<u64> {
        match self {
            Self::Block(_, block) => block.sampled_objects(),
            Self::Page(_) => None,
        }
    }

    fn rdd(&self) -> RddKey {
        match self {
            Self::Block(_, block) => block.rdd,
            Self::Page(page) => page.rdd,
        }
    }

    fn stage(&self, executor: &Executor) -> Option<StageKey> {
        match self {
            Self::Block(_, block) => block.stage,
            Self::Page(page) => {
                let task = executor.tasks.tasks.get(&page.task?)?;
                task.stage
            }
        }
    }

    /// Task attempt that stored or holds it.
    const fn task(&self) -> Option<u64> {
        match self {
            Self::Block(_, block) => block.task,
            Self::Page(page) => page.task,
        }
    }

    /// Whether it is that block.
    fn is_block(&self, wanted: &str) -> bool {
        matches!(self, Self::Block(name, _) if *name == wanted)
    }

    /// The row that it counts in; `None` for none.
    fn key(&self, executor: &Executor, by: PagesBy) -> Option<Key> {
        match (by, self) {
            (PagesBy::Rdd, _) => Some(Key::Rdd(executor.row_of(self.rdd()))),
            (PagesBy::Block, Self::Block(name, block)) => {
                Some(Key::Block(block.rdd, (*name).to_owned()))
            }
            (PagesBy::Task, Self::Page(page)) => Some(Key::Task(page.task)),
            (PagesBy::Executor, _) => Some(Key::Executor),
            (PagesBy::Block, Self::Page(_)) | (PagesBy::Task, Self::Block(..)) => None,
        }
    }
}

/// What was read of each RDD's blocks, by where it was, as its executor's rows stand for it.
#[must_use]
pub fn reads_by_rdd(executor: &Executor) -> BTreeMap<RddKey, NodeReads> {
    let mut sums: BTreeMap<RddKey, NodeReads> = BTreeMap::new();
    for (rdd, reads) in executor.memory.reads.iter() {
        sums.entry(executor.row_of(rdd)).or_default().add(reads);
    }
    sums
}

/// Figures of each RDD of an executor that holds memory.
#[must_use]
pub fn by_rdd(executor: &Executor, now_ns: u64) -> BTreeMap<RddKey, Figures> {
    let mut figures: BTreeMap<RddKey, Figures> = BTreeMap::new();
    each(executor, |owner, held, addressed, on_heap, seen| {
        let figures = figures.entry(executor.row_of(owner.rdd())).or_default();
        figures.add(&owner, held, addressed, on_heap, seen);
        if let Owner::Block(_, block) = owner {
            figures.add_touched(executor.touched(block.mark(), block.on_heap, now_ns));
        }
    });
    figures
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
            let who = Who::new(executor);
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
