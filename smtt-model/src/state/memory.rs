//! Memory that Spark has told about: cached blocks, and pages and grants of execution memory, of one executor.
//!
//! Every change of a table goes through [`Memory::hold`] and [`Memory::release`], so that the sums per RDD are at
//! hand without a walk through the tables; a test compares the two.

use std::collections::HashMap;

use super::accessed::LastAccessed;
use super::memory_held::MemoryHeld;
use super::placement::{LastExamined, OwnerRanges, RangesId};
use super::reads::{NodeReads, ReadRate, ReadsByRdd, Waiting};
use super::unlisted_blocks::UnlistedBlocks;
use super::{Limits, Outcome};
use crate::attribute::{AddressMap, Owner, RddKey, StageKey};
use crate::decode::{BlockFact, BlockRemoved, Contents, PageAllocated, PageFreed};

/// Most ranges that one block may have; the others are counted.
const RANGES_PER_BLOCK: usize = 4096;
/// What an object of a sample claims besides its bytes: a base page.
const OBJECT_CLAIM_BYTES: u64 = 4096;

/// A block in memory.
#[derive(Clone, Debug)]
pub struct Block {
    serial: u64,
    /// RDD whose partition it holds.
    pub rdd: RddKey,
    /// Partition that it holds.
    pub partition: Option<u32>,
    /// Size in bytes as Spark accounts for it.
    pub size_bytes: u64,
    /// On the Java heap.
    pub on_heap: bool,
    /// Serialised bytes, else objects, whose size is Spark's estimate.
    pub serialized: bool,
    /// What it is made of.
    pub contents: Contents,
    /// Stored by a thread without a task.
    pub without_task: bool,
    /// Task attempt that stored it.
    pub task: Option<u64>,
    /// Stage of that task, where it was known.
    pub stage: Option<StageKey>,
    /// Ranges that it has, also those that were not told or not kept.
    pub range_total: u64,
    /// Address and length of each range; (0, 0) where not told yet.
    pub ranges: Vec<(u64, u64)>,
    placed: OwnerRanges,
    /// How often it was read.
    pub reads: u64,
    /// How often of late.
    pub heat: ReadRate,
    /// What was read of it, by where it was.
    pub by_node: NodeReads,
    /// Reads from before it was looked at.
    pub(super) waiting: Waiting,
    /// When it was stored, or first told of; nanoseconds since boot.
    pub stored_ns: u64,
    told_ns: u64,
}

/// What tells one piece of execution memory from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SparkPageKey {
    /// A page, by task attempt and Spark's page number.
    SparkPage(Option<u64>, u64),
    /// Bytes granted without a page, by task attempt and consumer.
    Grant(Option<u64>, String),
}

/// A page or grant of execution memory.
#[derive(Clone, Debug)]
pub struct SparkPage {
    serial: u64,
    /// RDD that was current when it was allocated.
    pub rdd: RddKey,
    /// Task attempt that owns it.
    pub task: Option<u64>,
    /// Where it is; zero without an address.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// On the Java heap.
    pub on_heap: bool,
    /// Class that asked for it.
    pub consumer: String,
    told_ns: u64,
    /// The resync in which a grant was last told, so that several grants of one consumer add up once.
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

/// The part of so many bytes that is not on the Java heap: all or nothing.
const fn off_heap(on_heap: bool, bytes: u64) -> u64 {
    if on_heap { 0 } else { bytes }
}

/// What a page or grant of that size holds.
fn held_by_page(on_heap: bool, bytes: u64) -> MemoryHeld {
    MemoryHeld {
        execution_bytes: bytes,
        pages: 1,
        execution_off_heap_bytes: off_heap(on_heap, bytes),
        ..MemoryHeld::default()
    }
}

impl Block {
    /// When something was last told of it, its addresses among it; nanoseconds since boot.
    #[must_use]
    pub const fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Tells it from every other block or page of its executor.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// What stands for it at its addresses; `None` where it has none.
    #[must_use]
    pub fn mark(&self) -> Option<RangesId> {
        self.placed.mark(self.serial)
    }

    /// Bytes whose addresses are known; of objects those of the sample.
    #[must_use]
    pub fn addressed_bytes(&self) -> u64 {
        self.placed.bytes()
    }

    /// Objects of its sample whose addresses are known; `None` where its ranges are no sample.
    #[must_use]
    pub fn sampled_objects(&self) -> Option<u64> {
        (self.contents == Contents::Objects).then(|| self.placed.ranges())
    }

    /// Bytes by which it claims its part of the resolver's budget: an object may be small, but lies in a page.
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
    /// When something was last told of it, its address among it; nanoseconds since boot.
    #[must_use]
    pub const fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Tells it from every other block or page of its executor.
    #[must_use]
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// What stands for it at its address; `None` where it has none.
    #[must_use]
    pub fn mark(&self) -> Option<RangesId> {
        OwnerRanges::at(self.address, self.size_bytes).mark(self.serial)
    }

    fn held(&self) -> MemoryHeld {
        held_by_page(self.on_heap, self.size_bytes)
    }
}

/// Blocks, pages and their addresses.
#[derive(Debug, Default)]
pub struct Memory {
    /// By Spark's name of the block.
    pub blocks: HashMap<String, Block>,
    /// Blocks without a row in that table: only their sizes.
    pub crowd: UnlistedBlocks,
    /// By task and page number, or task and consumer.
    pub pages: HashMap<SparkPageKey, SparkPage>,
    /// Addresses of both.
    pub addresses: AddressMap,
    /// Blocks that had no room in the table when they were stored, since the start.
    pub blocks_over_cap: u64,
    /// Pages that had no room in the table, since the start.
    pub pages_over_cap: u64,
    /// Ranges that were impossible or had no room, since the start.
    pub ranges_refused: u64,
    /// Where their bytes were when the resolver last looked.
    pub looked: LastExamined,
    /// How often their bytes were accessed when the kernel's monitor last looked.
    pub touched: LastAccessed,
    /// What was read of blocks, by where it was.
    pub reads: ReadsByRdd,
    held: HashMap<RddKey, MemoryHeld>,
    all: MemoryHeld,
    next_serial: u64,
}

impl Memory {
    /// What an RDD holds.
    #[must_use]
    pub fn held(&self, rdd: RddKey) -> MemoryHeld {
        self.held.get(&rdd).copied().unwrap_or_default()
    }

    /// What every RDD holds that holds anything.
    pub fn holders(&self) -> impl Iterator<Item = (RddKey, &MemoryHeld)> {
        self.held.iter().map(|(rdd, held)| (*rdd, held))
    }

    /// What all hold together.
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

    /// A block was stored, or is told again.
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
            // A block's further ranges are not a further block, nor is one that is told again.
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

    /// The collector moved a block. Of a block that is not known (any more) this is no news: it may have been
    /// removed between the collection and the telling, and then the removal was told first.
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
        // The same bytes in other pieces: all that was known of the ranges is out of date.
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
                // The marker could not find out where it is.
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

    /// Execution memory was allocated, or is told again. `resync` is the resync that is under way. Also says by
    /// how many bytes the task's memory changed.
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

    /// Execution memory was freed. Also says by how many bytes the task's memory changed.
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

    /// A grant has another size now.
    fn resized(&mut self, rdd: RddKey, on_heap: bool, before: u64, after: u64) {
        self.hold(rdd, &held_by_page(on_heap, after));
        self.release(rdd, &held_by_page(on_heap, before));
    }

    /// Removes a page and its addresses; returns its size in bytes.
    fn page_forgotten(&mut self, key: &SparkPageKey) -> Option<u64> {
        let page = self.pages.remove(key)?;
        self.addresses
            .remove(page.address, page.size_bytes, page.serial);
        self.release(page.rdd, &page.held());
        Some(page.size_bytes)
    }

    /// Drops pages of which `gone` says that their task is over; returns how many.
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

    /// Everything is free: the process is gone.
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

    /// After everything alive was told again: drops what was last told before `since_ns`; returns how many.
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
