//! Spark's memory in one executor, as the marker reports it: cached blocks, and Spark pages and grants of execution
//! memory.
//!
//! Every change of a table goes through [`Memory::hold`] and [`Memory::release`], so that the sums per RDD are
//! available without a scan of the tables; a test compares the two.

use std::collections::HashMap;

use super::accessed::LastAccessed;
use super::memory_held::MemoryHeld;
use super::placement::{LastExamined, OwnerRanges, RangesId};
use super::reads::{NodeReads, ReadRate, ReadsByRdd, Waiting};
use super::unlisted_blocks::UnlistedBlocks;
use super::{Limits, Outcome};
use crate::attribute::{AddressMap, Owner, RddKey, StageKey};
use crate::decode::{BlockFact, BlockRemoved, Contents, PageAllocated, PageFreed};

/// Maximum number of ranges per block; further ones are counted as refused.
const RANGES_PER_BLOCK: usize = 4096;
/// Bytes that a sampled object adds to the claim on the resolver's budget: one base page.
const OBJECT_CLAIM_BYTES: u64 = 4096;

/// A block in memory.
#[derive(Clone, Debug)]
pub struct Block {
    serial: u64,
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
    pub ranges: Vec<(u64, u64)>,
    placed: OwnerRanges,
    /// Reads of the block.
    pub reads: u64,
    /// Moving rate of reads of the block.
    pub heat: ReadRate,
    /// Bytes read of the block, by node.
    pub by_node: NodeReads,
    /// Reads from before the block's pages were examined.
    pub(super) waiting: Waiting,
    /// Time when the block was stored or first reported, in nanoseconds since boot.
    pub stored_ns: u64,
    told_ns: u64,
}

/// Key of a piece of execution memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SparkPageKey {
    /// A Spark page, by task attempt and Spark's page number.
    SparkPage(Option<u64>, u64),
    /// Bytes granted without a page, by task attempt and consumer.
    Grant(Option<u64>, String),
}

/// A Spark page or a grant of execution memory.
#[derive(Clone, Debug)]
pub struct SparkPage {
    serial: u64,
    /// RDD that was current at the allocation.
    pub rdd: RddKey,
    /// Task attempt that owns the memory.
    pub task: Option<u64>,
    /// Address of the memory; zero where it has none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory is on the Java heap.
    pub on_heap: bool,
    /// Class of the consumer that allocated the memory.
    pub consumer: String,
    told_ns: u64,
    /// Resync in which the grant was last reported, so that several grants of one consumer add up once.
    told_in: Option<u64>,
}

/// `after - before`, as far as it fits.
fn difference(after: u64, before: u64) -> i64 {
    if after >= before {
        i64::try_from(after - before).unwrap_or(i64::MAX)
    } else {
        i64::try_from(before - after).map_or(i64::MIN, |less| -less)
    }
}

/// The off-heap part of `bytes`: all or nothing.
const fn off_heap(on_heap: bool, bytes: u64) -> u64 {
    if on_heap { 0 } else { bytes }
}

/// Memory held by a Spark page or grant of this size.
fn held_by_page(on_heap: bool, bytes: u64) -> MemoryHeld {
    MemoryHeld {
        execution_bytes: bytes,
        pages: 1,
        execution_off_heap_bytes: off_heap(on_heap, bytes),
        ..MemoryHeld::default()
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
    pub fn mark(&self) -> Option<RangesId> {
        self.placed.mark(self.serial)
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

    fn held(&self) -> MemoryHeld {
        MemoryHeld {
            storage_bytes: self.size_bytes,
            blocks: 1,
            estimated_blocks: u64::from(!self.serialized),
            storage_off_heap_bytes: off_heap(self.on_heap, self.size_bytes),
            ..MemoryHeld::default()
        }
    }
}

impl SparkPage {
    /// Time of the last report about the memory or its address, in nanoseconds since boot.
    #[must_use]
    pub const fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Serial number, unique among the blocks and Spark pages of the executor.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// Identity of the memory at its address; `None` where it has none.
    #[must_use]
    pub fn mark(&self) -> Option<RangesId> {
        OwnerRanges::at(self.address, self.size_bytes).mark(self.serial)
    }

    fn held(&self) -> MemoryHeld {
        held_by_page(self.on_heap, self.size_bytes)
    }
}

/// Blocks, Spark pages and their addresses.
#[derive(Debug, Default)]
pub struct Memory {
    /// Blocks by Spark's name.
    pub blocks: HashMap<String, Block>,
    /// Sizes of blocks beyond the limit of `blocks`.
    pub crowd: UnlistedBlocks,
    /// Spark pages by task and page number, and grants by task and consumer.
    pub pages: HashMap<SparkPageKey, SparkPage>,
    /// Addresses of blocks and Spark pages.
    pub addresses: AddressMap,
    /// Blocks stored beyond the limit of the table, since the start.
    pub blocks_over_cap: u64,
    /// Spark pages beyond the limit of the table, since the start.
    pub pages_over_cap: u64,
    /// Ranges that were impossible or beyond the limit, since the start.
    pub ranges_refused: u64,
    /// The resolver's last results.
    pub looked: LastExamined,
    /// DAMON's last results.
    pub touched: LastAccessed,
    /// Bytes read of blocks, by RDD and node.
    pub reads: ReadsByRdd,
    held: HashMap<RddKey, MemoryHeld>,
    all: MemoryHeld,
    next_serial: u64,
}

impl Memory {
    /// Memory that an RDD holds.
    #[must_use]
    pub fn held(&self, rdd: RddKey) -> MemoryHeld {
        self.held.get(&rdd).copied().unwrap_or_default()
    }

    /// Memory by RDD, for each RDD that holds any.
    pub fn holders(&self) -> impl Iterator<Item = (RddKey, &MemoryHeld)> {
        self.held.iter().map(|(rdd, held)| (*rdd, held))
    }

    /// Memory that all RDDs hold together.
    #[must_use]
    pub const fn total(&self) -> MemoryHeld {
        self.all
    }

    fn hold(&mut self, rdd: RddKey, more: &MemoryHeld) {
        self.held.entry(rdd).or_default().add(more);
        self.all.add(more);
    }

    fn release(&mut self, rdd: RddKey, less: &MemoryHeld) {
        if let Some(held) = self.held.get_mut(&rdd) {
            held.take(less);
            self.all.take(less);
            if held.is_nothing() {
                self.held.remove(&rdd);
            }
        }
    }

    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    /// A block was stored or is reported again.
    pub(super) fn block_stored(
        &mut self,
        fact: &BlockFact,
        stage: Option<StageKey>,
        time_ns: u64,
        limits: &Limits,
    ) -> Outcome {
        let rdd = RddKey::of_fact(fact.rdd_id);
        let known = self.blocks.get(&fact.block_id);
        if known.is_none() && self.blocks.len() >= limits.blocks_per_executor {
            let rows = limits.blocks_per_executor;
            let crowd = self.crowd.stored(fact, time_ns, rows);
            let told_before = crowd
                .as_ref()
                .is_some_and(|(_, before, _)| before.blocks > 0);
            // Further ranges of a block, and blocks that are reported again, do not count as another block.
            if fact.range_first == 0 && !told_before {
                self.blocks_over_cap += 1;
            }
            if let Some((rdd, before, now)) = crowd {
                self.hold(rdd, &now);
                self.release(rdd, &before);
            }
            return Outcome::OverCap("blocks");
        }
        let same = known.is_some_and(|block| {
            block.size_bytes == fact.size_bytes
                && block.range_total == fact.range_total
                && block.rdd == rdd
                && block.on_heap == fact.on_heap
                && block.serialized == fact.serialized
                && block.contents == fact.contents()
        });
        if !same {
            let (reads, heat, by_node) = known
                .map(|block| (block.reads, block.heat, block.by_node))
                .unwrap_or_default();
            let stored_ns = known
                .filter(|_| fact.told_again)
                .map_or(time_ns, |block| block.stored_ns);
            self.remove_block(&fact.block_id);
            self.leave_crowd(fact.rdd_id, fact.partition);
            let block = Block {
                serial: self.serial(),
                rdd,
                partition: fact.partition,
                size_bytes: fact.size_bytes,
                on_heap: fact.on_heap,
                serialized: fact.serialized,
                contents: fact.contents(),
                without_task: fact.without_task,
                task: fact.task_attempt_id,
                stage,
                range_total: fact.range_total,
                ranges: Vec::new(),
                placed: OwnerRanges::default(),
                reads,
                heat,
                by_node,
                waiting: Waiting::default(),
                stored_ns,
                told_ns: time_ns,
            };
            self.hold(rdd, &block.held());
            self.blocks.insert(fact.block_id.clone(), block);
        }
        self.place_ranges(fact, time_ns, limits);
        Outcome::Applied
    }

    /// The collector moved a block. Unknown blocks are ignored: a block may be removed between the collection and the
    /// report of its move, and then the removal is reported first.
    pub(super) fn block_moved(
        &mut self,
        fact: &BlockFact,
        time_ns: u64,
        limits: &Limits,
    ) -> Outcome {
        let Some(block) = self.blocks.get(&fact.block_id) else {
            return Outcome::Ignored("block_not_known");
        };
        let stage = block.stage;
        if block.range_total == fact.range_total {
            self.place_ranges(fact, time_ns, limits);
            return Outcome::Applied;
        }
        // The same bytes in other pieces: everything known about the ranges is stale.
        let fact = BlockFact {
            told_again: true,
            ..fact.clone()
        };
        self.block_stored(&fact, stage, time_ns, limits)
    }

    fn place_ranges(&mut self, fact: &BlockFact, time_ns: u64, limits: &Limits) {
        let Some(block) = self.blocks.get_mut(&fact.block_id) else {
            return;
        };
        block.told_ns = time_ns;
        let owner = Owner {
            serial: block.serial,
            is_block: true,
            on_heap: block.on_heap,
            rdd: block.rdd,
        };
        let first = usize::try_from(fact.range_first).unwrap_or(usize::MAX);
        for (offset, range) in fact.ranges.iter().enumerate() {
            let Some(index) = first
                .checked_add(offset)
                .filter(|index| *index < RANGES_PER_BLOCK)
            else {
                self.ranges_refused += 1;
                continue;
            };
            if block.ranges.len() <= index {
                block.ranges.resize(index + 1, (0, 0));
            }
            let old = block.ranges[index];
            if old == *range {
                continue;
            }
            self.addresses.remove(old.0, old.1, owner.serial);
            block.placed.remove(index, old);
            block.ranges[index] = (0, 0);
            if range.0 == 0 {
                // The marker could not determine the address.
                continue;
            }
            if self.addresses.len() < limits.ranges_per_executor
                && self.addresses.insert(range.0, range.1, owner)
            {
                block.ranges[index] = *range;
                block.placed.add(index, *range);
            } else {
                self.ranges_refused += 1;
            }
        }
    }

    fn remove_block(&mut self, block_id: &str) -> bool {
        let Some(mut block) = self.blocks.remove(block_id) else {
            return false;
        };
        let unseen = block.waiting.place(None, block.addressed_bytes());
        self.reads.add(block.rdd, &unseen);
        for (address, length) in &block.ranges {
            self.addresses.remove(*address, *length, block.serial);
        }
        self.release(block.rdd, &block.held());
        true
    }

    fn leave_crowd(&mut self, rdd: Option<u32>, partition: Option<u32>) -> bool {
        let left = self.crowd.removed(rdd, partition);
        if let Some((rdd, held)) = &left {
            self.release(*rdd, held);
        }
        left.is_some()
    }

    /// A block left memory.
    pub(super) fn block_removed(&mut self, fact: &BlockRemoved) -> Outcome {
        if self.remove_block(&fact.block_id) || self.leave_crowd(fact.rdd_id, fact.partition) {
            Outcome::Applied
        } else {
            Outcome::Ignored("block_not_known")
        }
    }

    /// Execution memory was allocated or is reported again. `resync` is the resync in progress. Also returns the change
    /// of the task's memory in bytes.
    pub(super) fn page_allocated(
        &mut self,
        fact: &PageAllocated,
        resync: Option<u64>,
        time_ns: u64,
        limits: &Limits,
    ) -> (Outcome, i64) {
        let key = match fact.page_number {
            Some(number) => SparkPageKey::SparkPage(fact.task_attempt_id, number),
            None => SparkPageKey::Grant(fact.task_attempt_id, fact.consumer.clone()),
        };
        let told_in = resync.filter(|_| fact.told_again);
        if let Some(page) = self.pages.get_mut(&key) {
            page.told_ns = time_ns;
            if matches!(key, SparkPageKey::Grant(..)) {
                let (rdd, on_heap, before) = (page.rdd, page.on_heap, page.size_bytes);
                let adds = !fact.told_again || (told_in.is_some() && page.told_in == told_in);
                page.size_bytes = if adds {
                    before.saturating_add(fact.size_bytes)
                } else {
                    fact.size_bytes
                };
                page.told_in = told_in.or(page.told_in);
                let after = page.size_bytes;
                self.resized(rdd, on_heap, before, after);
                return (Outcome::Applied, difference(after, before));
            }
            if page.address == fact.address && page.size_bytes == fact.size_bytes {
                return (Outcome::Applied, 0);
            }
        }
        let before = self.page_forgotten(&key).unwrap_or(0);
        if self.pages.len() >= limits.spark_pages_per_executor {
            self.pages_over_cap += 1;
            return (Outcome::OverCap("pages"), 0);
        }
        let page = SparkPage {
            serial: self.serial(),
            rdd: RddKey::of_fact(fact.rdd_id),
            task: fact.task_attempt_id,
            address: fact.address,
            size_bytes: fact.size_bytes,
            on_heap: fact.on_heap,
            consumer: fact.consumer.clone(),
            told_ns: time_ns,
            told_in,
        };
        if page.address != 0 {
            let owner = Owner {
                serial: page.serial,
                is_block: false,
                on_heap: page.on_heap,
                rdd: page.rdd,
            };
            if self.addresses.len() >= limits.ranges_per_executor
                || !self.addresses.insert(page.address, page.size_bytes, owner)
            {
                self.ranges_refused += 1;
            }
        }
        let grown = difference(page.size_bytes, before);
        self.hold(page.rdd, &page.held());
        self.pages.insert(key, page);
        (Outcome::Applied, grown)
    }

    /// Execution memory was freed. Also returns the change of the task's memory in bytes.
    pub(super) fn page_freed(&mut self, fact: &PageFreed) -> (Outcome, i64) {
        let Some(number) = fact.page_number else {
            let key = SparkPageKey::Grant(fact.task_attempt_id, fact.consumer.clone());
            let Some(grant) = self.pages.get_mut(&key) else {
                return (Outcome::Ignored("page_not_known"), 0);
            };
            let (rdd, on_heap, before) = (grant.rdd, grant.on_heap, grant.size_bytes);
            grant.size_bytes = before.saturating_sub(fact.size_bytes);
            let after = grant.size_bytes;
            self.resized(rdd, on_heap, before, after);
            if after == 0 {
                self.page_forgotten(&key);
            }
            return (Outcome::Applied, difference(after, before));
        };
        match self.page_forgotten(&SparkPageKey::SparkPage(fact.task_attempt_id, number)) {
            Some(bytes) => (Outcome::Applied, difference(0, bytes)),
            None => (Outcome::Ignored("page_not_known"), 0),
        }
    }

    /// The size of a grant has changed.
    fn resized(&mut self, rdd: RddKey, on_heap: bool, before: u64, after: u64) {
        self.hold(rdd, &held_by_page(on_heap, after));
        self.release(rdd, &held_by_page(on_heap, before));
    }

    /// Removes a Spark page and its addresses; returns its size in bytes.
    fn page_forgotten(&mut self, key: &SparkPageKey) -> Option<u64> {
        let page = self.pages.remove(key)?;
        self.addresses
            .remove(page.address, page.size_bytes, page.serial);
        self.release(page.rdd, &page.held());
        Some(page.size_bytes)
    }

    /// Drops Spark pages for which `gone` is true; returns their number.
    pub(super) fn drop_pages(&mut self, gone: impl Fn(&SparkPage) -> bool) -> u64 {
        let keys: Vec<SparkPageKey> = self
            .pages
            .iter()
            .filter(|(_, page)| gone(page))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            self.page_forgotten(key);
        }
        keys.len() as u64
    }

    /// Clears all memory: the process is gone.
    pub(super) fn clear(&mut self) {
        for block in self.blocks.values_mut() {
            let unseen = block.waiting.place(None, block.addressed_bytes());
            self.reads.add(block.rdd, &unseen);
        }
        self.blocks.clear();
        self.crowd = UnlistedBlocks::default();
        self.pages.clear();
        self.held.clear();
        self.all = MemoryHeld::default();
        self.addresses = AddressMap::default();
        self.looked = LastExamined::default();
        self.touched = LastAccessed::default();
    }

    /// After a complete snapshot: drops everything last reported before `since_ns`; returns the number of dropped
    /// entries.
    pub(super) fn sweep(&mut self, since_ns: u64) -> u64 {
        let blocks: Vec<String> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.told_ns < since_ns)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &blocks {
            self.remove_block(name);
        }
        for (rdd, held) in self.crowd.sweep(since_ns) {
            self.release(rdd, &held);
        }
        blocks.len() as u64 + self.drop_pages(|page| page.told_ns < since_ns)
    }
}
