//! Spark's memory in one executor, as the marker reports it: cached blocks, and Spark pages and grants of execution
//! memory.
//!
//! Every change of a table goes through [`Memory::hold`] and [`Memory::release`], so that the sums per RDD are
//! available without a scan of the tables; a test compares the two.

use std::collections::BTreeMap;

use super::Outcome;
use super::accessed::LastAccessed;
use super::block::Block;
use super::block_ranges::BlockRanges;
use super::bytes::{Caps, FlatTable, HeapBytes, Table};
use super::memory_held::MemoryHeld;
use super::placement::{LastExamined, OwnerRanges};
use super::reads::{ReadsByRdd, Waiting};
use super::spark_page::{SparkPage, SparkPageKey, held_by_page};
use super::unlisted_blocks::UnlistedBlocks;
use crate::attribute::{AddressMap, Owner, RddKey, StageKey};
use crate::decode::{BlockFact, BlockRemoved, PageAllocated, PageFreed};

/// Maximum number of ranges per block; further ones are counted as refused.
const RANGES_PER_BLOCK: usize = 4096;

/// `after - before`, as far as it fits.
fn difference(after: u64, before: u64) -> i64 {
    if after >= before {
        i64::try_from(after - before).unwrap_or(i64::MAX)
    } else {
        i64::try_from(before - after).map_or(i64::MIN, |less| -less)
    }
}

/// Blocks, Spark pages and their addresses.
#[derive(Debug, Default)]
pub struct Memory {
    /// Blocks by Spark's name.
    pub blocks: Table<String, Block>,
    /// Sizes of blocks beyond the limit of `blocks`.
    pub unlisted: UnlistedBlocks,
    /// Spark pages by task and page number, and grants by task and consumer.
    pub pages: Table<SparkPageKey, SparkPage>,
    /// Addresses of blocks and Spark pages.
    pub addresses: AddressMap,
    /// Blocks stored beyond the limit of the table, since the start.
    pub blocks_over_cap: u64,
    /// Spark pages beyond the limit of the table, since the start.
    pub pages_over_cap: u64,
    /// Ranges that were impossible or beyond the limit, since the start.
    pub ranges_refused: u64,
    /// The resolver's last results.
    pub last_examined: LastExamined,
    /// DAMON's last results.
    pub accessed: LastAccessed,
    /// Bytes read of blocks, by RDD and node.
    pub reads: ReadsByRdd,
    held: FlatTable<RddKey, MemoryHeld>,
    all: MemoryHeld,
    next_serial: u64,
}

impl Memory {
    /// Memory that an RDD holds.
    #[must_use]
    pub fn held(&self, rdd: RddKey) -> MemoryHeld {
        self.held.get(&rdd).copied().unwrap_or_default()
    }

    /// Whether an RDD holds memory.
    pub(super) fn holds(&self, rdd: RddKey) -> bool {
        self.held.contains_key(&rdd)
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
        match self.held.get_mut(&rdd) {
            Some(held) => held.add(more),
            None => drop(self.held.insert(rdd, *more)),
        }
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

    /// Bytes of all tables.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
            + self.unlisted.bytes()
            + self.pages.bytes()
            + self.addresses.bytes()
            + self.last_examined.bytes()
            + self.accessed.bytes()
            + self.reads.bytes()
            + self.held.bytes()
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
        caps: &Caps,
    ) -> Outcome {
        let rdd = RddKey::of_fact(fact.rdd_id);
        let known = self.blocks.get(&fact.block_id);
        let full = self.blocks.len() >= caps.blocks_per_executor;
        let bytes = self.blocks.row_bytes(fact.block_id.capacity()) + self.held.row_bytes(&rdd);
        if known.is_none() && (full || !caps.admit(bytes)) {
            let rows = caps.blocks_per_executor;
            let more = self.unlisted.row_bytes(fact) + self.held.row_bytes(&rdd);
            let unlisted = if caps.admit(more) {
                self.unlisted.stored(fact, time_ns, rows)
            } else {
                None
            };
            let told_before = unlisted
                .as_ref()
                .is_some_and(|(_, before, _)| before.blocks > 0);
            // Further ranges of a block, and blocks that are reported again, do not count as another block.
            if fact.range_first == 0 && !told_before {
                self.blocks_over_cap += 1;
            }
            if let Some((rdd, before, now)) = unlisted {
                self.hold(rdd, &now);
                self.release(rdd, &before);
            }
            return Outcome::OverCap(if full { "blocks" } else { "bytes" });
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
                .filter(|_| fact.reported_again)
                .map_or(time_ns, |block| block.stored_ns);
            self.remove_block(&fact.block_id);
            self.leave_unlisted(fact.rdd_id, fact.partition);
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
                ranges: BlockRanges::default(),
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
        self.place_ranges(fact, time_ns, caps);
        Outcome::Applied
    }

    /// The collector moved a block. Unknown blocks are ignored: a block may be removed between the collection and the
    /// report of its move, and then the removal is reported first.
    pub(super) fn block_moved(&mut self, fact: &BlockFact, time_ns: u64, caps: &Caps) -> Outcome {
        let Some(block) = self.blocks.get(&fact.block_id) else {
            return Outcome::Ignored("block_not_known");
        };
        let stage = block.stage;
        if block.range_total == fact.range_total {
            self.place_ranges(fact, time_ns, caps);
            return Outcome::Applied;
        }
        // The same bytes in other pieces: everything known about the ranges is stale.
        let fact = BlockFact {
            reported_again: true,
            ..fact.clone()
        };
        self.block_stored(&fact, stage, time_ns, caps)
    }

    fn place_ranges(&mut self, fact: &BlockFact, time_ns: u64, caps: &Caps) {
        let Some(mut block) = self.blocks.get_mut(&fact.block_id) else {
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
            let at = index as u32;
            let old = block.ranges.get(at);
            if old == *range && old.0 != 0 {
                continue;
            }
            if old.0 != 0 {
                self.addresses.remove(old.0, old.1, owner.serial);
                block.placed.remove(index, old);
                block.ranges.set(at, (0, 0));
            }
            if range.0 == 0 {
                // The marker could not determine the address.
                continue;
            }
            if self.addresses.len() < caps.ranges_per_executor
                && caps.admit(AddressMap::RANGE_BYTES + BlockRanges::ONE)
                && self.addresses.insert(range.0, range.1, owner)
            {
                block.ranges.set(at, *range);
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
        for (address, length) in block.ranges.iter() {
            self.addresses.remove(address, length, block.serial);
        }
        self.addresses.gone(block.serial);
        self.release(block.rdd, &block.held());
        true
    }

    fn leave_unlisted(&mut self, rdd: Option<u32>, partition: Option<u32>) -> bool {
        let left = self.unlisted.removed(rdd, partition);
        if let Some((rdd, held)) = &left {
            self.release(*rdd, held);
        }
        left.is_some()
    }

    /// A block left memory.
    pub(super) fn block_removed(&mut self, fact: &BlockRemoved) -> Outcome {
        if self.remove_block(&fact.block_id) || self.leave_unlisted(fact.rdd_id, fact.partition) {
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
        caps: &Caps,
    ) -> (Outcome, i64) {
        let key = match fact.page_number {
            Some(number) => SparkPageKey::SparkPage(fact.task_attempt_id, number),
            None => SparkPageKey::Grant(fact.task_attempt_id, fact.consumer.clone()),
        };
        let told_in = resync.filter(|_| fact.reported_again);
        let is_grant = matches!(key, SparkPageKey::Grant(..));
        // Size before and now, where the entry stays.
        let known = self.pages.get_mut(&key).map(|mut page| {
            page.told_ns = time_ns;
            let before = page.size_bytes;
            if is_grant {
                let adds = !fact.reported_again || (told_in.is_some() && page.told_in == told_in);
                page.size_bytes = if adds {
                    before.saturating_add(fact.size_bytes)
                } else {
                    fact.size_bytes
                };
                page.told_in = told_in.or(page.told_in);
            }
            let stays = is_grant || (page.address, before) == (fact.address, fact.size_bytes);
            stays.then_some((page.rdd, page.on_heap, before, page.size_bytes))
        });
        if let Some(Some((rdd, on_heap, before, after))) = known {
            if is_grant {
                self.resized(rdd, on_heap, before, after);
            }
            return (Outcome::Applied, difference(after, before));
        }
        let before = self.page_forgotten(&key).unwrap_or(0);
        if self.pages.len() >= caps.spark_pages_per_executor {
            self.pages_over_cap += 1;
            return (Outcome::OverCap("pages"), 0);
        }
        let rdd = RddKey::of_fact(fact.rdd_id);
        let bytes = self
            .pages
            .row_bytes(key.heap_bytes() + fact.consumer.capacity())
            + self.held.row_bytes(&rdd);
        if !caps.admit(bytes) {
            self.pages_over_cap += 1;
            return (Outcome::OverCap("bytes"), 0);
        }
        let mut page = SparkPage {
            serial: self.serial(),
            rdd,
            task: fact.task_attempt_id,
            address: fact.address,
            size_bytes: fact.size_bytes,
            on_heap: fact.on_heap,
            consumer: fact.consumer.clone(),
            placed: false,
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
            page.placed = self.addresses.len() < caps.ranges_per_executor
                && caps.admit(AddressMap::RANGE_BYTES)
                && self.addresses.insert(page.address, page.size_bytes, owner);
            self.ranges_refused += u64::from(!page.placed);
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
            let Some(mut grant) = self.pages.get_mut(&key) else {
                return (Outcome::Ignored("page_not_known"), 0);
            };
            let (rdd, on_heap, before) = (grant.rdd, grant.on_heap, grant.size_bytes);
            grant.size_bytes = before.saturating_sub(fact.size_bytes);
            let after = grant.size_bytes;
            drop(grant);
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
        // A range that was refused has no piece, and a search for one visits every piece below it.
        if page.placed {
            self.addresses
                .remove(page.address, page.size_bytes, page.serial);
            self.addresses.gone(page.serial);
        }
        self.release(page.rdd, &page.held());
        Some(page.size_bytes)
    }

    /// Drops Spark pages for which `gone` is true; returns their number.
    pub(super) fn drop_pages(&mut self, mut gone: impl FnMut(&SparkPage) -> bool) -> u64 {
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

    /// Bytes that each task holds by its pages and grants.
    pub(super) fn held_by_task(&self) -> BTreeMap<u64, u64> {
        let mut held = BTreeMap::new();
        for (_, page) in self.pages.iter() {
            if let Some(task) = page.task {
                let sum: &mut u64 = held.entry(task).or_default();
                *sum = sum.saturating_add(page.size_bytes);
            }
        }
        held
    }

    /// Clears all memory: the process is gone.
    pub(super) fn clear(&mut self) {
        let reads = &mut self.reads;
        self.blocks.for_each(|block| {
            let unseen = block.waiting.place(None, block.addressed_bytes());
            reads.add(block.rdd, &unseen);
        });
        self.blocks = Table::default();
        self.unlisted = UnlistedBlocks::default();
        self.pages = Table::default();
        self.held = FlatTable::default();
        self.all = MemoryHeld::default();
        self.addresses = AddressMap::default();
        self.last_examined = LastExamined::default();
        self.accessed = LastAccessed::default();
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
        for (rdd, held) in self.unlisted.sweep(since_ns) {
            self.release(rdd, &held);
        }
        blocks.len() as u64 + self.drop_pages(|page| page.told_ns < since_ns)
    }
}
