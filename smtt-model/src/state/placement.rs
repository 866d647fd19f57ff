//! Placement of the bytes of blocks and execution memory at the resolver's last scan.
//!
//! Pure, like the whole state: the resolver takes [`Targets`] and returns [`Resolved`]. Figures are bytes of the owner
//! itself: of a page shared with others only the owner's bytes count, so bytes present, swapped, untouched and unmapped
//! add up to the owner's size. Figures stand for the addresses that were examined and are hidden once the owner has
//! others.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use super::bytes::{FlatTable, vec_bytes};
use super::{Block, Executor, State};

/// Identity of a block or Spark page at certain addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RangesId {
    /// Serial number of the owner in its executor, never reused, also not for the same name.
    pub serial: u64,
    /// Checksum of the owner's addresses.
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

/// Memory of one executor for the resolver to examine.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Blocks and Spark pages with addresses.
    pub owners: Vec<RangesId>,
    /// Whether each owner is on the Java heap.
    pub on_heap: Vec<bool>,
    /// Address ranges of the owners.
    pub ranges: Vec<Target>,
    /// Last collection, where heap addresses are current after it; `None` where they are as reported, or left out.
    pub collection: Option<u64>,
}

/// Source of the page sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizesBy {
    /// Unavailable: the kernel does not report page sizes, or not to this process.
    #[default]
    #[serde(rename = "nothing")]
    Nothing,
    /// From the process's page tables, which the hardware translates by.
    #[serde(rename = "page tables")]
    PageTables,
    /// From the frames' flags: a large frame may still be mapped as small pages.
    #[serde(rename = "frames")]
    Frames,
}

impl SizesBy {
    /// The name in every output; `None` where sizes are unavailable.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::PageTables => Some("page tables"),
            Self::Frames => Some("frames"),
        }
    }
}

/// The resolver's result for one owner, in bytes of the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pages of the machine's base size that contain bytes of the owner.
    pub pages: u64,
    /// Pages that were examined. Part of `pages`.
    pub examined_pages: u64,
    /// Bytes on examined pages: the sum of the next four fields.
    pub examined_bytes: u64,
    /// Bytes in physical memory.
    pub present_bytes: u64,
    /// Bytes swapped out.
    pub swapped_bytes: u64,
    /// Bytes without physical memory: never touched, or returned to the kernel.
    pub untouched_bytes: u64,
    /// Bytes at addresses outside of every mapping of the process.
    pub unmapped_bytes: u64,
    /// Bytes in the kernel's zero page: read, never written. Part of `present_bytes`.
    pub zero_bytes: u64,
    /// Bytes in physical memory by page size in bytes.
    pub by_page_size: Vec<(u64, u64)>,
    /// Bytes in physical memory by NUMA node. The zero page is on no node.
    pub by_node: Vec<(u32, u64)>,
    /// Bytes whose node could not be determined because the page was moving. Part of `present_bytes`.
    pub node_unknown_bytes: u64,
    /// Page frame numbers of the owner's first pages, `None` for a page that is not in memory; empty where frames were
    /// not requested or are not permitted.
    pub frames: Vec<Option<u64>>,
}

fn add_to<Key: Ord + Copy>(list: &mut Vec<(Key, u64)>, key: Key, bytes: u64) {
    match list.binary_search_by_key(&key, |(known, _)| *known) {
        Ok(at) => list[at].1 = list[at].1.saturating_add(bytes),
        Err(at) => list.insert(at, (key, bytes)),
    }
}

impl Seen {
    fn heap_bytes(&self) -> usize {
        vec_bytes(&self.by_page_size) + vec_bytes(&self.by_node) + vec_bytes(&self.frames)
    }

    /// Adds bytes in memory on pages of this size.
    pub fn add_page_size(&mut self, page_bytes: u64, bytes: u64) {
        add_to(&mut self.by_page_size, page_bytes, bytes);
    }

    /// Adds bytes in memory on this node.
    pub fn add_node(&mut self, node: u32, bytes: u64) {
        add_to(&mut self.by_node, node, bytes);
    }

    /// Adds the result for another owner; a sum of several owners keeps no frames.
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

/// The resolver's results for one executor in one round.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// Start of the scan, in nanoseconds since boot.
    pub time_ns: u64,
    /// The machine's base page size in bytes.
    pub page_bytes: u64,
    /// Source of the page sizes.
    pub sizes_by: SizesBy,
    /// Result for each owner, in the order of [`Targets::owners`].
    pub owners: Vec<(RangesId, Seen)>,
}

/// Results of the last round for an executor, by serial of the owner.
#[derive(Debug, Default)]
pub struct LastExamined {
    /// Start of the scan, in nanoseconds since boot.
    pub time_ns: u64,
    /// The machine's base page size in bytes.
    pub page_bytes: u64,
    /// Source of the page sizes.
    pub sizes_by: SizesBy,
    seen: FlatTable<u64, (u64, Seen)>,
    /// What the results hold outside of the table.
    held: usize,
}

impl From<Resolved> for LastExamined {
    fn from(resolved: Resolved) -> Self {
        let held = resolved.owners.iter().map(|(_, seen)| seen.heap_bytes());
        Self {
            held: held.sum(),
            time_ns: resolved.time_ns,
            page_bytes: resolved.page_bytes,
            sizes_by: resolved.sizes_by,
            seen: resolved
                .owners
                .into_iter()
                .map(|(ranges_id, seen)| (ranges_id.serial, (ranges_id.addresses, seen)))
                .collect(),
        }
    }
}

impl LastExamined {
    /// Bytes of the results.
    pub(super) fn bytes(&self) -> usize {
        self.seen.bytes() + self.held
    }

    /// The result for an owner, if its addresses have not changed since.
    #[must_use]
    pub fn of(&self, ranges_id: RangesId) -> Option<&Seen> {
        self.seen
            .get(&ranges_id.serial)
            .filter(|(addresses, _)| *addresses == ranges_id.addresses)
            .map(|(_, seen)| seen)
    }

    /// As [`Self::of`], where any of its bytes was examined.
    pub(super) fn placed(&self, ranges_id: RangesId) -> Option<&Seen> {
        self.of(ranges_id).filter(|seen| seen.examined_bytes > 0)
    }
}

/// Counts of the resolver since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveCounts {
    /// Pages examined.
    pub pages: u64,
    /// CPU time used, in nanoseconds.
    pub cpu_ns: u64,
    /// Scans of an executor, one per executor and round.
    pub looks: u64,
    /// Scans discarded because the executor ended during the scan.
    pub ended: u64,
    /// Scans that failed because the kernel refused access.
    pub refused: u64,
    /// Slices of scans whose results for the Java heap were discarded because a collection happened in between.
    pub discarded: u64,
    /// Bytes with reported addresses outside of every mapping, summed over scans.
    pub unmapped_bytes: u64,
}

/// Checksum of an owner's ranges, updated as ranges are added and removed: a block may have thousands, and every read
/// and every listing needs the checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerRanges {
    /// Sum of the checksums of the ranges.
    addresses: u64,
    ranges: u64,
    /// Wide enough for any number of impossible lengths, so that every addition can be undone.
    bytes: u128,
}

impl OwnerRanges {
    /// The checksum of a single range.
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

    /// Adds the range with this index.
    pub(super) fn add(&mut self, index: usize, range: (u64, u64)) {
        if is_usable(range) {
            self.addresses = self.addresses.wrapping_add(Self::one(index, range));
            self.ranges += 1;
            self.bytes = self.bytes.saturating_add(u128::from(range.1));
        }
    }

    /// Removes the range with this index.
    pub(super) fn remove(&mut self, index: usize, range: (u64, u64)) {
        if is_usable(range) {
            self.addresses = self.addresses.wrapping_sub(Self::one(index, range));
            self.ranges = self.ranges.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(u128::from(range.1));
        }
    }

    /// Number of ranges with known addresses.
    pub(super) const fn ranges(&self) -> u64 {
        self.ranges
    }

    /// Bytes with known addresses.
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Identity of the owner at its addresses; `None` where it has none.
    pub(super) fn ranges_id(&self, serial: u64) -> Option<RangesId> {
        (self.ranges > 0).then_some(RangesId {
            serial,
            addresses: self.addresses,
        })
    }
}

const fn is_usable((address, length): (u64, u64)) -> bool {
    address != 0 && length > 0 && address.checked_add(length).is_some()
}

impl Executor {
    /// Blocks of bytes with addresses; with `all` also sampled objects and Spark pages.
    pub(super) fn targets(&self, all: bool) -> Targets {
        let mut targets = Targets {
            collection: self.heap.current_collection(),
            ..Targets::default()
        };
        let heap = self.heap.trust().can_be_inspected();
        let mut add =
            |ranges_id: RangesId, on_heap: bool, ranges: &mut dyn Iterator<Item = (u64, u64)>| {
                let owner = targets.owners.len();
                targets.owners.push(ranges_id);
                targets.on_heap.push(on_heap);
                let usable = ranges.filter(|range| is_usable(*range));
                targets
                    .ranges
                    .extend(usable.map(|(address, length)| Target {
                        owner,
                        address,
                        length,
                    }));
            };
        let blocks = self.memory.blocks.values();
        for block in blocks.filter(|block| all || block.sampled_objects().is_none()) {
            if let Some(ranges_id) = block.ranges_id().filter(|_| heap || !block.on_heap) {
                add(ranges_id, block.on_heap, &mut block.ranges.iter());
            }
        }
        for page in self.memory.pages.values().filter(|_| all) {
            if let Some(ranges_id) = page.ranges_id().filter(|_| heap || !page.on_heap) {
                let range = (page.address, page.size_bytes);
                add(ranges_id, page.on_heap, &mut std::iter::once(range));
            }
        }
        targets
    }

    /// Bytes with addresses, and bytes of pages with sampled objects: the claim on the resolver's budget.
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
    /// Living executors that have reported addresses, with their bytes.
    #[must_use]
    pub fn to_resolve(&self) -> Vec<(u64, u64)> {
        self.executors()
            .iter()
            .filter(|(_, executor)| executor.died_ns.is_none())
            .map(|(key, executor)| (*key, executor.addressed_bytes()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect()
    }

    /// Targets of an executor; empty where it is dead.
    #[must_use]
    pub fn targets(&self, executor: u64) -> Targets {
        self.executors()
            .get(&executor)
            .filter(|executor| executor.died_ns.is_none())
            .map_or_else(Targets::default, |executor| executor.targets(true))
    }

    /// Applies the results for an executor. They replace all earlier ones.
    pub fn resolved(&mut self, executor: u64, resolved: Resolved) {
        self.change_known(executor, |executor, caps| {
            let held = resolved.owners.iter().map(|(_, seen)| seen.heap_bytes());
            let rows = resolved.owners.len() * 2 * size_of::<(u64, (u64, Seen))>();
            caps.give_back(executor.memory.last_examined.bytes());
            // Results that do not fit leave none: old ones would stand for other addresses.
            let fits = caps.admit(held.sum::<usize>() + rows);
            if executor.died_ns.is_none() {
                let resolved = if fits { resolved } else { Resolved::default() };
                executor
                    .memory
                    .take_examined(resolved, executor.heap.trust());
            }
        });
    }

    /// Counts of the resolver since the start; `None` while it is switched off.
    #[must_use]
    pub const fn resolve_counts(&self) -> Option<&ResolveCounts> {
        self.resolve_counts.as_ref()
    }

    /// Sets the counts of the resolver since the start.
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
        assert_eq!(moved.ranges_id(7), at_home.ranges_id(7));
        assert_ne!(moved.ranges_id(7), moved.ranges_id(8));
        moved.remove(0, (4096, 100));
        assert_eq!((moved.ranges_id(7), moved.bytes()), (None, 0));
        moved.add(0, (8192, 100));
        assert_ne!(moved.ranges_id(7), at_home.ranges_id(7));
        moved.remove(0, (8192, 100));
        moved.add(0, (4096, 100));
        assert_eq!(moved, at_home);
        // Two that change places are not where they were.
        let pair = |first, second| {
            let mut placed = OwnerRanges::at(first, 10);
            placed.add(1, (second, 10));
            placed
        };
        assert_ne!(pair(4096, 8192).ranges_id(7), pair(8192, 4096).ranges_id(7));
        assert_eq!(pair(4096, 8192).bytes(), 20);
        for impossible in [(0, 1), (1, 0), (u64::MAX, 2)] {
            assert_eq!(
                OwnerRanges::at(impossible.0, impossible.1).ranges_id(7),
                None
            );
        }
    }
}
