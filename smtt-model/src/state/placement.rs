//! Where the bytes of blocks and of execution memory were when the resolver last looked.
//!
//! Pure, as all of the state: what to look at goes out as [`Targets`], what was seen comes back as [`Resolved`].
//! Figures are bytes of the owner itself: of a page that it shares with others only its own bytes count, so what is
//! present, swapped, never touched and not mapped adds up to its size. Figures stand for the addresses that were
//! looked at; when the owner has others by now, they are not shown any more.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::{Block, Executor, State};

/// A block or page of execution memory at certain addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RangesId {
    /// Tells it from every other one of its executor, also from later ones of the same name.
    pub serial: u64,
    /// Stands for its addresses.
    pub addresses: u64,
}

/// One range of addresses of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Index in [`Targets::owners`].
    pub owner: usize,
    /// First address.
    pub address: u64,
    /// Length in bytes; not zero, and the end is an address.
    pub length: u64,
}

/// What there is to look at in one executor.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Blocks and pages of execution memory that have addresses.
    pub owners: Vec<RangesId>,
    /// Of each owner, whether it is on the Java heap.
    pub on_heap: Vec<bool>,
    /// Their addresses.
    pub ranges: Vec<Target>,
    /// The last collection, where those on the heap are current after it; `None` where they are as told, or left out.
    pub collection: Option<u64>,
}

/// How page sizes were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizesBy {
    /// Not at all: the kernel does not say, or not to us.
    #[default]
    Nothing,
    /// By the process's page tables: what the hardware's translation uses.
    PageTables,
    /// By the frames' flags: a large frame may still be mapped in small pieces.
    Frames,
}

impl SizesBy {
    /// Its name, where there are sizes.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::PageTables => Some("page tables"),
            Self::Frames => Some("frames"),
        }
    }
}

/// What was seen, in bytes of the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pages of the machine's base size that it has a part in.
    pub pages: u64,
    /// Of them, pages that were looked at.
    pub examined_pages: u64,
    /// Bytes in pages that were looked at: the sum of the next four.
    pub examined_bytes: u64,
    /// Bytes in memory.
    pub present_bytes: u64,
    /// Bytes swapped out.
    pub swapped_bytes: u64,
    /// Bytes that have never had memory, or have given it back.
    pub untouched_bytes: u64,
    /// Bytes at addresses that are in no mapping of the process.
    pub unmapped_bytes: u64,
    /// Of those in memory, bytes in the kernel's page of zeros: read, never written.
    pub zero_bytes: u64,
    /// Bytes in memory by page size in bytes.
    pub by_page_size: Vec<(u64, u64)>,
    /// Bytes in memory by NUMA node. The page of zeros is on no node.
    pub by_node: Vec<(u32, u64)>,
    /// Of those in memory, bytes whose node could not be told: the page was moving.
    pub node_unknown_bytes: u64,
    /// Page frame numbers of its first pages, `None` for one that is not in memory; empty where they were not asked for
    /// or may not be known.
    pub frames: Vec<Option<u64>>,
}

fn add_to<Key: Ord + Copy>(list: &mut Vec<(Key, u64)>, key: Key, bytes: u64) {
    match list.binary_search_by_key(&key, |(known, _)| *known) {
        Ok(at) => list[at].1 = list[at].1.saturating_add(bytes),
        Err(at) => list.insert(at, (key, bytes)),
    }
}

impl Seen {
    /// Adds bytes in memory on pages of that size.
    pub fn add_page_size(&mut self, page_bytes: u64, bytes: u64) {
        add_to(&mut self.by_page_size, page_bytes, bytes);
    }

    /// Adds bytes in memory on that node.
    pub fn add_node(&mut self, node: u32, bytes: u64) {
        add_to(&mut self.by_node, node, bytes);
    }

    /// Adds what another one has; of several owners no frames are kept.
    pub fn add(&mut self, more: &Self) {
        self.frames.clear();
        for (sum, more) in [
            (&mut self.pages, more.pages),
            (&mut self.examined_pages, more.examined_pages),
            (&mut self.examined_bytes, more.examined_bytes),
            (&mut self.present_bytes, more.present_bytes),
            (&mut self.swapped_bytes, more.swapped_bytes),
            (&mut self.untouched_bytes, more.untouched_bytes),
            (&mut self.unmapped_bytes, more.unmapped_bytes),
            (&mut self.zero_bytes, more.zero_bytes),
            (&mut self.node_unknown_bytes, more.node_unknown_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (size, bytes) in &more.by_page_size {
            self.add_page_size(*size, *bytes);
        }
        for (node, bytes) in &more.by_node {
            self.add_node(*node, *bytes);
        }
    }
}

/// What the resolver saw of one executor in one round.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// When it began to look, nanoseconds since boot.
    pub time_ns: u64,
    /// The machine's base page size in bytes.
    pub page_bytes: u64,
    /// How page sizes were told.
    pub sizes_by: SizesBy,
    /// What it saw of each owner, in the order of [`Targets::owners`].
    pub owners: Vec<(RangesId, Seen)>,
}

/// The last round of an executor, by serial of the owner.
#[derive(Debug, Default)]
pub struct LastExamined {
    /// When the resolver began to look, nanoseconds since boot.
    pub time_ns: u64,
    /// The machine's base page size in bytes.
    pub page_bytes: u64,
    /// How page sizes were told.
    pub sizes_by: SizesBy,
    seen: HashMap<u64, (u64, Seen)>,
}

impl From<Resolved> for LastExamined {
    fn from(resolved: Resolved) -> Self {
        Self {
            time_ns: resolved.time_ns,
            page_bytes: resolved.page_bytes,
            sizes_by: resolved.sizes_by,
            seen: resolved
                .owners
                .into_iter()
                .map(|(mark, seen)| (mark.serial, (mark.addresses, seen)))
                .collect(),
        }
    }
}

impl LastExamined {
    /// What was seen of an owner, if it was looked at where it is now.
    #[must_use]
    pub fn of(&self, mark: RangesId) -> Option<&Seen> {
        self.seen
            .get(&mark.serial)
            .filter(|(addresses, _)| *addresses == mark.addresses)
            .map(|(_, seen)| seen)
    }
}

/// What the resolver has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveCounts {
    /// Pages that it looked at.
    pub pages: u64,
    /// CPU time that it took, in nanoseconds.
    pub cpu_ns: u64,
    /// Executors that it has looked at, once per round.
    pub looks: u64,
    /// Looks that were thrown away because the executor ended in the middle.
    pub ended: u64,
    /// Looks that failed: the kernel did not let it.
    pub refused: u64,
    /// Slices of looks whose sight of the Java heap was thrown away: a collection came in between.
    pub discarded: u64,
    /// Bytes that were told at addresses in no mapping, summed over looks.
    pub unmapped_bytes: u64,
}

/// What stands for the ranges of an owner, kept while they come and go: a block may have thousands, and every read of
/// it and every listing asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerRanges {
    /// Sum of what stands for each of them.
    addresses: u64,
    ranges: u64,
    /// Wide enough for any number of impossible lengths, so that what is added can be taken away again.
    bytes: u128,
}

impl OwnerRanges {
    /// One range only.
    pub(super) fn at(address: u64, length: u64) -> Self {
        let mut placed = Self::default();
        placed.add(0, (address, length));
        placed
    }

    fn one(index: usize, range: (u64, u64)) -> u64 {
        let mut hasher = DefaultHasher::new();
        (index, range).hash(&mut hasher);
        hasher.finish()
    }

    /// The range of that index is known now.
    pub(super) fn add(&mut self, index: usize, range: (u64, u64)) {
        if is_usable(range) {
            self.addresses = self.addresses.wrapping_add(Self::one(index, range));
            self.ranges += 1;
            self.bytes = self.bytes.saturating_add(u128::from(range.1));
        }
    }

    /// The range of that index was this one, and is not any more.
    pub(super) fn remove(&mut self, index: usize, range: (u64, u64)) {
        if is_usable(range) {
            self.addresses = self.addresses.wrapping_sub(Self::one(index, range));
            self.ranges = self.ranges.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(u128::from(range.1));
        }
    }

    /// Ranges whose addresses are known.
    pub(super) const fn ranges(&self) -> u64 {
        self.ranges
    }

    /// Bytes whose addresses are known.
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// What stands for the owner at its addresses; `None` where it has none.
    pub(super) fn mark(&self, serial: u64) -> Option<RangesId> {
        (self.ranges > 0).then_some(RangesId {
            serial,
            addresses: self.addresses,
        })
    }
}

const fn is_usable((address, length): (u64, u64)) -> bool {
    address != 0 && length > 0 && address.checked_add(length).is_some()
}

/// Ranges that can be looked at.
fn usable(ranges: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> {
    ranges.iter().copied().filter(|range| is_usable(*range))
}

impl Executor {
    /// Blocks of bytes that have addresses, and with `all` objects of samples and pages of execution memory too.
    pub(super) fn targets(&self, all: bool) -> Targets {
        let mut targets = Targets {
            collection: self.heap.current_collection(),
            ..Targets::default()
        };
        let heap = self.heap.trust().can_be_looked_at();
        let mut add = |mark: Option<RangesId>, on_heap: bool, ranges: &[(u64, u64)]| {
            if on_heap && !heap {
                return;
            }
            if let Some(mark) = mark {
                let owner = targets.owners.len();
                targets.owners.push(mark);
                targets.on_heap.push(on_heap);
                targets
                    .ranges
                    .extend(usable(ranges).map(|(address, length)| Target {
                        owner,
                        address,
                        length,
                    }));
            }
        };
        let blocks = self.memory.blocks.values();
        for block in blocks.filter(|block| all || block.sampled_objects().is_none()) {
            add(block.mark(), block.on_heap, &block.ranges);
        }
        for page in self.memory.pages.values().filter(|_| all) {
            add(
                page.mark(),
                page.on_heap,
                &[(page.address, page.size_bytes)],
            );
        }
        targets
    }

    /// Bytes that have addresses, or that pages with sampled objects have, for shares of a budget.
    fn addressed_bytes(&self) -> u64 {
        let blocks = self.memory.blocks.values();
        let pages = self.memory.pages.values();
        blocks
            .map(Block::claimed_bytes)
            .chain(
                pages
                    .filter(|page| page.address != 0)
                    .map(|page| page.size_bytes),
            )
            .fold(0, u64::saturating_add)
    }
}

impl State {
    /// Living executors that have told addresses, with their bytes.
    #[must_use]
    pub fn to_resolve(&self) -> Vec<(u64, u64)> {
        self.executors()
            .iter()
            .filter(|(_, executor)| executor.died_ns.is_none())
            .map(|(key, executor)| (*key, executor.addressed_bytes()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect()
    }

    /// What there is to look at in an executor; nothing when it is not alive.
    #[must_use]
    pub fn targets(&self, executor: u64) -> Targets {
        self.executors()
            .get(&executor)
            .filter(|executor| executor.died_ns.is_none())
            .map_or_else(Targets::default, |executor| executor.targets(true))
    }

    /// Takes in what was seen of an executor. It stands in for everything that was seen before.
    pub fn resolved(&mut self, executor: u64, resolved: Resolved) {
        let Some(executor) = self
            .executors
            .get_mut(&executor)
            .filter(|executor| executor.died_ns.is_none())
        else {
            return;
        };
        executor.memory.looked(resolved);
    }

    /// What the resolver has done since the start; `None` while it is switched off.
    #[must_use]
    pub const fn resolve_counts(&self) -> Option<&ResolveCounts> {
        self.resolve_counts.as_ref()
    }

    /// Sets what the resolver has done since the start.
    pub fn set_resolve_counts(&mut self, counts: ResolveCounts) {
        self.resolve_counts = Some(counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_for_where_every_range_is() {
        let (mut moved, at_home) = (OwnerRanges::at(4096, 100), OwnerRanges::at(4096, 100));
        assert_eq!(moved.mark(7), at_home.mark(7));
        assert_ne!(moved.mark(7), moved.mark(8));
        moved.remove(0, (4096, 100));
        assert_eq!((moved.mark(7), moved.bytes()), (None, 0));
        moved.add(0, (8192, 100));
        assert_ne!(moved.mark(7), at_home.mark(7));
        moved.remove(0, (8192, 100));
        moved.add(0, (4096, 100));
        assert_eq!(moved, at_home);
        // Two that change places are not where they were.
        let pair = |first, second| {
            let mut placed = OwnerRanges::at(first, 10);
            placed.add(1, (second, 10));
            placed
        };
        assert_ne!(pair(4096, 8192).mark(7), pair(8192, 4096).mark(7));
        assert_eq!(pair(4096, 8192).bytes(), 20);
        for impossible in [(0, 1), (1, 0), (u64::MAX, 2)] {
            assert_eq!(OwnerRanges::at(impossible.0, impossible.1).mark(7), None);
        }
    }
}
