//! Reads of cached blocks: reading node, node of the bytes, and current rate.
//!
//! The marker reports a read once, when it begins. A read counts as a read of the whole block by the node of the CPU
//! that it began on. The node of the bytes is the resolver's result for the same addresses: the last one or, for a
//! block that was not examined yet or whose addresses are stale, the next one. Bytes without a known node on either side
//! are in neither sum, nor are those of a block that moves before the next result.

use std::collections::BTreeMap;

use super::Outcome;
use super::bytes::{Caps, tree_bytes, vec_bytes};
use super::heap::Trust;
use super::memory::Memory;
use super::placement::{LastExamined, RangesId, Resolved, Seen};
use crate::attribute::RddKey;
use crate::decode::{BlockRead, Contents};

/// Maximum number of RDDs with sums of their own; further ones share a row.
const RDDS_MAX: usize = 4096;
/// Time constant of the exponential decay, in nanoseconds: a minute, so that the value of steady reads is their number
/// per minute.
const COOLS_NS: f64 = 60e9;

/// Bytes read, by node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeReads {
    /// Bytes on the node of the CPU that read them.
    pub local_bytes: u64,
    /// Bytes on another node than the CPU that read them.
    pub remote_bytes: u64,
    /// Bytes without a known node (not in memory, not examined, without addresses), or read by a CPU whose node was not
    /// reported.
    pub unknown_bytes: u64,
}

impl NodeReads {
    /// Reads by CPUs of one node of a block with `addressed_bytes` bytes with addresses.
    #[must_use]
    pub fn of(seen: &Seen, addressed_bytes: u64, node: u32, reads: u64) -> Self {
        let scaled = |part: u64| {
            let scaled = u128::from(part) * u128::from(addressed_bytes) * u128::from(reads)
                / u128::from(seen.examined_bytes.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let on = |wanted: bool| {
            let some = seen
                .by_node
                .iter()
                .filter(|(at, _)| (*at == node) == wanted);
            scaled(some.map(|(_, bytes)| *bytes).sum())
        };
        let (local_bytes, remote_bytes) = (on(true), on(false));
        Self {
            local_bytes,
            remote_bytes,
            unknown_bytes: addressed_bytes
                .saturating_mul(reads)
                .saturating_sub(local_bytes)
                .saturating_sub(remote_bytes),
        }
    }

    /// Reads without a known node.
    #[must_use]
    pub const fn unknown(bytes: u64, reads: u64) -> Self {
        Self {
            local_bytes: 0,
            remote_bytes: 0,
            unknown_bytes: bytes.saturating_mul(reads),
        }
    }

    /// Adds other reads.
    pub fn add(&mut self, more: &Self) {
        self.local_bytes = self.local_bytes.saturating_add(more.local_bytes);
        self.remote_bytes = self.remote_bytes.saturating_add(more.remote_bytes);
        self.unknown_bytes = self.unknown_bytes.saturating_add(more.unknown_bytes);
    }

    /// Remote bytes as a share of bytes with known nodes, 0 to 1; `None` without such bytes.
    #[must_use]
    pub fn remote_ratio(&self) -> Option<f64> {
        let known = self.local_bytes.saturating_add(self.remote_bytes);
        (known > 0).then(|| self.remote_bytes as f64 / known as f64)
    }
}

/// The sums of one executor.
#[derive(Debug, Default)]
pub struct ReadsByRdd(BTreeMap<RddKey, NodeReads>);

impl ReadsByRdd {
    /// Adds reads of an RDD.
    pub fn add(&mut self, rdd: RddKey, reads: &NodeReads) {
        if reads == &NodeReads::default() {
            return;
        }
        let known = self.0.contains_key(&rdd) || self.0.len() < RDDS_MAX;
        let key = if known { rdd } else { RddKey::Overflow };
        self.0.entry(key).or_default().add(reads);
    }

    /// Bytes of the sums.
    pub(super) fn bytes(&self) -> usize {
        tree_bytes(self.0.len(), size_of::<(RddKey, NodeReads)>())
    }

    /// Bytes read by RDD.
    pub fn iter(&self) -> impl Iterator<Item = (RddKey, &NodeReads)> {
        self.0.iter().map(|(rdd, reads)| (*rdd, reads))
    }
}

/// Reads of a block that was not examined yet, or whose addresses are stale, by node of the reader.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// The addresses that the reads stand for.
    ranges_id: RangesId,
    reads: Vec<(u32, u64)>,
}

impl Waiting {
    /// Whether the reads that wait are of the block at these addresses; none are of any.
    fn is_at(&self, ranges_id: RangesId) -> bool {
        self.reads.is_empty() || self.ranges_id == ranges_id
    }

    /// Adds a read of the block at the addresses of [`Self::is_at`]; `false` without room.
    fn add(&mut self, ranges_id: RangesId, node: u32, caps: &Caps) -> bool {
        self.ranges_id = ranges_id;
        if let Some((_, reads)) = self.reads.iter_mut().find(|(known, _)| *known == node) {
            *reads += 1;
            return true;
        }
        if !caps.admit(size_of::<(u32, u64)>()) {
            return false;
        }
        self.reads.reserve_exact(1);
        self.reads.push((node, 1));
        true
    }

    /// Takes all reads, placed by the resolver's result for the block; `None` for a block without a result.
    pub fn place(&mut self, seen: Option<&Seen>, addressed_bytes: u64) -> NodeReads {
        let mut sum = NodeReads::default();
        for (node, reads) in std::mem::take(&mut self.reads) {
            sum.add(&match seen {
                Some(seen) => NodeReads::of(seen, addressed_bytes, node, reads),
                None => NodeReads::unknown(addressed_bytes, reads),
            });
        }
        sum
    }

    /// Bytes of the list.
    pub(super) const fn heap_bytes(&self) -> usize {
        vec_bytes(&self.reads)
    }

    /// Whether no reads wait.
    const fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }
}

/// Exponentially decaying rate of reads: every read adds one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadRate {
    value: f64,
    at_ns: u64,
}

impl ReadRate {
    /// Counts a read.
    pub fn read(&mut self, now_ns: u64) {
        self.value = self.per_minute(now_ns) + 1.0;
        self.at_ns = now_ns;
    }

    /// Moving average of reads per minute.
    #[must_use]
    pub fn per_minute(&self, now_ns: u64) -> f64 {
        self.value * (-(now_ns.saturating_sub(self.at_ns) as f64) / COOLS_NS).exp()
    }
}

impl Memory {
    /// A read of a cached block began. `heap` is the state of addresses on the Java heap.
    pub(super) fn block_read(
        &mut self,
        fact: &BlockRead,
        heap: Trust,
        time_ns: u64,
        caps: &Caps,
    ) -> Outcome {
        let Some(mut block) = self.blocks.get_mut(&fact.block_id) else {
            return Outcome::Ignored("block_not_known");
        };
        block.reads += 1;
        block.heat.read(time_ns);
        let bytes = block.addressed_bytes();
        // A few sampled objects do not show how many bytes were read on which node.
        let whole = block.contents != Contents::Objects;
        let has_place = whole && (heap != Trust::Refused || !block.on_heap);
        let reads = match (fact.node, block.ranges_id().filter(|_| has_place)) {
            (Some(node), Some(ranges_id)) => {
                let current = block.is_at_its_addresses(heap);
                match self.last_examined.placed(ranges_id).filter(|_| current) {
                    Some(seen) => NodeReads::of(seen, bytes, node, 1),
                    None => {
                        let mut unplaced = NodeReads::default();
                        if !block.waiting.is_at(ranges_id) {
                            unplaced = block.waiting.place(None, bytes);
                        }
                        if !block.waiting.add(ranges_id, node, caps) {
                            unplaced.add(&NodeReads::unknown(bytes, 1));
                        }
                        unplaced
                    }
                }
            }
            _ => NodeReads::unknown(block.size_bytes, 1),
        };
        block.by_node.add(&reads);
        self.reads.add(block.rdd, &reads);
        Outcome::Applied
    }

    /// Applies the resolver's results. `heap` is the state of addresses on the Java heap.
    pub(super) fn take_examined(&mut self, resolved: Resolved, heap: Trust) {
        self.last_examined = LastExamined::from(resolved);
        let (examined, sums) = (&self.last_examined, &mut self.reads);
        self.blocks.for_each(|block| {
            if block.waiting.is_empty() || !block.is_at_its_addresses(heap) {
                return;
            }
            let Some(ranges_id) = block.ranges_id() else {
                return;
            };
            if let Some(seen) = examined.placed(ranges_id) {
                let seen = Some(seen).filter(|_| block.waiting.is_at(ranges_id));
                let bytes = block.addressed_bytes();
                let reads = block.waiting.place(seen, bytes);
                block.by_node.add(&reads);
                sums.add(block.rdd, &reads);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(by_node: &[(u32, u64)], examined_bytes: u64) -> Seen {
        Seen {
            examined_bytes,
            by_node: by_node.to_vec(),
            ..Seen::default()
        }
    }

    #[test]
    fn bytes_are_local_remote_or_unknown() {
        let reads = NodeReads::of(&seen(&[(0, 300), (1, 100)], 500), 1000, 0, 2);
        assert_eq!(
            reads,
            NodeReads {
                local_bytes: 1200,
                remote_bytes: 400,
                unknown_bytes: 400
            }
        );
        assert_eq!(reads.remote_ratio(), Some(0.25));
        assert_eq!(NodeReads::unknown(1000, 3).remote_ratio(), None);
    }

    #[test]
    fn what_waits_is_placed_once() {
        let caps = Caps::new(crate::state::Limits::default(), 32);
        let at = |addresses| RangesId {
            serial: 1,
            addresses,
        };
        let mut waiting = Waiting::default();
        for node in [1, 0, 1] {
            assert!(waiting.add(at(7), node, &caps));
        }
        assert!(!waiting.add(at(7), 2, &caps), "there is room for two nodes");
        assert!(waiting.is_at(at(7)) && !waiting.is_at(at(8)));
        let reads = waiting.place(Some(&seen(&[(1, 10)], 10)), 10);
        assert_eq!((reads.local_bytes, reads.remote_bytes), (20, 10));
        assert!(waiting.is_empty() && waiting.is_at(at(8)));
        assert_eq!(waiting.place(None, 10), NodeReads::default());
        assert_eq!(waiting.heap_bytes(), 0);
    }

    #[test]
    fn steady_reads_have_their_rate_as_heat() {
        let mut heat = ReadRate::default();
        let second = 1_000_000_000;
        for read in 0..600 {
            heat.read(read * second);
        }
        let rate = heat.per_minute(600 * second);
        assert!((59.0..61.0).contains(&rate), "{rate}");
        assert!(heat.per_minute(1200 * second) < 0.01);
    }

    #[test]
    fn sums_are_kept_for_so_many_rdds() {
        let mut sums = ReadsByRdd::default();
        for rdd in 0..10_000 {
            sums.add(RddKey::Id(rdd), &NodeReads::unknown(1, 1));
        }
        assert_eq!(sums.iter().count(), RDDS_MAX + 1);
        assert_eq!(
            sums.iter()
                .map(|(_, reads)| reads.unknown_bytes)
                .sum::<u64>(),
            10_000
        );
    }
}
