//! Placement of an executor's bytes, summed per RDD, block, task or executor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::object_sample::{Sample, SampleRow};
use super::{Accessed, Block, Executor, NodeReads, RangesId, Seen, SparkPage};
use crate::attribute::{RddKey, StageKey};

/// Bytes on pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSizeRow {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Bytes on pages of this size.
    pub bytes: u64,
}

/// Bytes on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Number of the node.
    pub node: u32,
    /// Bytes on this node.
    pub bytes: u64,
}

/// Figures of one row, scaled from the examined bytes to all of its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub(crate) held_bytes: u64,
    pub(crate) resolved_bytes: u64,
    pub(crate) spanning_nodes: u64,
    /// Some bytes have addresses.
    pub(crate) addressed: bool,
    /// Some bytes with addresses are on the Java heap.
    pub(crate) on_heap: bool,
    pub(crate) seen: Seen,
    pub(crate) sample: Sample,
    pub(crate) blocks: u64,
    pub(crate) reads: u64,
    pub(crate) reads_per_minute: f64,
    /// Bytes read of the blocks in memory, by node.
    pub(crate) by_node: NodeReads,
    pub(crate) accessed: Accessed,
}

impl Figures {
    /// Adds a block or Spark page: bytes held, bytes with addresses, and the resolver's result for these.
    pub(crate) fn add(
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

    /// Adds the figures of another row.
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
        self.accessed.add(&more.accessed);
    }

    pub(crate) fn add_accessed(&mut self, accessed: Option<&Accessed>) {
        if let Some(accessed) = accessed {
            self.accessed.add(accessed);
        }
    }

    /// How often the row's blocks are accessed; empty without DAMON.
    #[must_use]
    pub const fn accessed(&self) -> &Accessed {
        &self.accessed
    }

    pub(crate) fn add_reads(&mut self, block: &Block, now_ns: u64) {
        self.blocks += 1;
        self.reads += block.reads;
        self.reads_per_minute += block.heat.per_minute(now_ns);
        self.by_node.add(&block.by_node);
    }

    /// Whether any page was examined.
    #[must_use]
    pub const fn is_measured(&self) -> bool {
        self.seen.examined_bytes > 0
    }

    /// Scales a part of the examined bytes to all bytes.
    pub(crate) fn scaled(&self, part: u64) -> u64 {
        if self.seen.examined_bytes == 0 {
            return 0;
        }
        let scaled = u128::from(part) * u128::from(self.resolved_bytes)
            / u128::from(self.seen.examined_bytes);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// Figures of the sampled objects, on a machine with this base page size; `None` where no object was examined.
    #[must_use]
    pub fn sample(&self, base: u64) -> Option<SampleRow> {
        self.sample.row(base, true)
    }

    /// Examined objects.
    #[must_use]
    pub const fn sampled_objects(&self) -> u64 {
        self.sample.objects()
    }

    /// Bytes swapped out; `None` where no page was examined.
    #[must_use]
    pub fn swapped_bytes(&self) -> Option<u64> {
        self.is_measured()
            .then(|| self.scaled(self.seen.swapped_bytes))
    }

    /// Bytes in memory on pages larger than `base` bytes; `None` where page sizes are unknown.
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

    /// Bytes in memory by node; `None` where no page was examined.
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

    /// Placement of all bytes, with page sizes where the machine reports them; `None` where no page was examined.
    #[must_use]
    pub fn placed(&self, sizes_known: bool) -> Option<Placed> {
        if !self.is_measured() {
            return None;
        }
        let seen = &self.seen;
        let swapped_bytes = self.scaled(seen.swapped_bytes);
        let untouched_bytes = self.scaled(seen.untouched_bytes);
        let unmapped_bytes = self.scaled(seen.unmapped_bytes);
        // The remainder, so that the four parts add up despite rounding.
        let present_bytes = if seen.present_bytes == 0 {
            0
        } else {
            self.resolved_bytes
                .saturating_sub(swapped_bytes)
                .saturating_sub(untouched_bytes)
                .saturating_sub(unmapped_bytes)
        };
        let sizes = seen.by_page_size.iter();
        Some(Placed {
            present_bytes,
            swapped_bytes,
            untouched_bytes,
            unmapped_bytes,
            page_sizes: sizes_known.then(|| {
                sizes
                    .map(|(page_bytes, bytes)| PageSizeRow {
                        page_bytes: *page_bytes,
                        bytes: self.scaled(*bytes),
                    })
                    .collect()
            }),
            nodes: self.nodes().unwrap_or_default(),
        })
    }
}

/// Placement of the bytes of one row. The first four fields add up to the bytes with known addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Bytes in memory.
    pub present_bytes: u64,
    /// Bytes swapped out.
    pub swapped_bytes: u64,
    /// Bytes without physical memory.
    pub untouched_bytes: u64,
    /// Bytes at addresses in no mapping.
    pub unmapped_bytes: u64,
    /// Bytes in memory by page size; absent where sizes are not known.
    pub page_sizes: Option<Vec<PageSizeRow>>,
    /// Bytes in memory by node.
    pub nodes: Vec<NodeRow>,
}

/// Calls back for every block and Spark page of an executor with the resolver's result.
pub(crate) fn each<'a>(
    executor: &'a Executor,
    mut take: impl FnMut(Owner<'a>, u64, u64, bool, Option<&'a Seen>),
) {
    let seen = |ranges_id: Option<RangesId>, on_heap: bool| executor.examined(ranges_id, on_heap);
    for (name, block) in &executor.memory.blocks {
        take(
            Owner::Block(name, block),
            block.size_bytes,
            block.addressed_bytes(),
            block.on_heap,
            seen(block.ranges_id(), block.on_heap),
        );
    }
    for page in executor.memory.pages.values() {
        take(
            Owner::SparkPage(page),
            page.size_bytes,
            if page.address == 0 {
                0
            } else {
                page.size_bytes
            },
            page.on_heap,
            seen(page.ranges_id(), page.on_heap),
        );
    }
}

/// A block or a page of execution memory.
pub(crate) enum Owner<'a> {
    Block(&'a str, &'a Block),
    SparkPage(&'a SparkPage),
}

impl Owner<'_> {
    /// See [`Block::sampled_objects`].
    pub(crate) fn sampled_objects(&self) -> Option<u64> {
        match self {
            Self::Block(_, block) => block.sampled_objects(),
            Self::SparkPage(_) => None,
        }
    }

    pub(crate) fn rdd(&self) -> RddKey {
        match self {
            Self::Block(_, block) => block.rdd,
            Self::SparkPage(page) => page.rdd,
        }
    }

    pub(crate) fn stage(&self, executor: &Executor) -> Option<StageKey> {
        match self {
            Self::Block(_, block) => block.stage,
            Self::SparkPage(page) => {
                let task = executor.tasks.tasks.get(&page.task?)?;
                task.stage
            }
        }
    }

    /// Task attempt that stored or holds the memory.
    pub(crate) const fn task(&self) -> Option<u64> {
        match self {
            Self::Block(_, block) => block.task,
            Self::SparkPage(page) => page.task,
        }
    }

    /// Whether the owner is the block with this name.
    pub(crate) fn is_block(&self, wanted: &str) -> bool {
        matches!(self, Self::Block(name, _) if crate::glob::matches(wanted, name))
    }
}

/// Bytes read of each RDD's blocks, by node, under the key of the RDD's row.
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
            figures.add_accessed(executor.accessed(block.ranges_id(), block.on_heap, now_ns));
        }
    });
    figures
}
