//! Estimates for blocks stored as objects, from a sample of their objects. Estimates are shares, never bytes, because
//! the other objects are not examined.
//!
//! The sample is stratified by block: an evenly spaced sample of each block's elements is examined. Within a block an
//! object's weight is its size; among blocks a block's weight is its size in Spark's accounts, independent of its
//! number of sampled objects: blocks stored when the executor had many samples already have fewer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Seen;

/// Shares, from 0 to 1, of the bytes of a row's blocks of objects: estimates from the sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// Always true: the sample stands for the whole.
    pub estimated: bool,
    /// Blocks with examined objects.
    pub blocks: u64,
    /// Size of those blocks as Spark estimates it, in bytes.
    pub held_bytes: u64,
    /// Bytes of the examined objects, with headers, without the objects that they refer to.
    pub object_bytes: u64,
    /// Share in physical memory.
    pub present_share: f64,
    /// Share swapped out.
    pub swapped_share: f64,
    /// Share without physical memory: the page was returned to the kernel.
    pub untouched_share: f64,
    /// Share at addresses outside of every mapping, because the addresses were stale.
    pub unmapped_share: f64,
    /// Share of the bytes in memory by page size; absent where page sizes are unknown.
    pub page_sizes: Option<Vec<PageSizeShare>>,
    /// Share of the bytes in memory on pages larger than the machine's base size; absent where page sizes are unknown.
    pub huge_page_share: Option<f64>,
    /// Share by NUMA node of the bytes in memory whose node is known, in order of node number.
    pub nodes: Vec<NodeShare>,
}

/// Share on pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageSizeShare {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Share on pages of this size, 0 to 1.
    pub share: f64,
}

/// Share on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeShare {
    /// Number of the node.
    pub node: u32,
    /// Share on this node, 0 to 1.
    pub share: f64,
}

/// Sums over blocks of objects, each weighted by the block's size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    blocks: u64,
    objects: u64,
    object_bytes: u64,
    held_bytes: u64,
    present: f64,
    swapped: f64,
    untouched: f64,
    unmapped: f64,
    by_page_size: BTreeMap<u64, f64>,
    by_node: BTreeMap<u32, f64>,
}

impl Sample {
    /// Adds a block with `objects` addressed objects, if any of them were examined.
    pub(super) fn add(
        &mut self,
        held_bytes: u64,
        objects: u64,
        object_bytes: u64,
        seen: Option<&Seen>,
    ) {
        let Some(seen) = seen.filter(|seen| seen.examined_bytes > 0) else {
            return;
        };
        self.blocks += 1;
        self.objects += objects;
        self.object_bytes = self.object_bytes.saturating_add(object_bytes);
        self.held_bytes = self.held_bytes.saturating_add(held_bytes);
        // A block of size zero in Spark's accounts still has some weight.
        let each = held_bytes.max(1) as f64 / seen.examined_bytes as f64;
        self.present += seen.present_bytes as f64 * each;
        self.swapped += seen.swapped_bytes as f64 * each;
        self.untouched += seen.untouched_bytes as f64 * each;
        self.unmapped += seen.unmapped_bytes as f64 * each;
        for (size, bytes) in &seen.by_page_size {
            *self.by_page_size.entry(*size).or_default() += *bytes as f64 * each;
        }
        for (node, bytes) in &seen.by_node {
            *self.by_node.entry(*node).or_default() += *bytes as f64 * each;
        }
    }

    /// Adds another sum.
    pub(super) fn merge(&mut self, more: &Self) {
        self.blocks += more.blocks;
        self.objects += more.objects;
        self.object_bytes = self.object_bytes.saturating_add(more.object_bytes);
        self.held_bytes = self.held_bytes.saturating_add(more.held_bytes);
        self.present += more.present;
        self.swapped += more.swapped;
        self.untouched += more.untouched;
        self.unmapped += more.unmapped;
        for (size, weight) in &more.by_page_size {
            *self.by_page_size.entry(*size).or_default() += weight;
        }
        for (node, weight) in &more.by_node {
            *self.by_node.entry(*node).or_default() += weight;
        }
    }

    /// Number of objects.
    pub(crate) const fn objects(&self) -> u64 {
        self.objects
    }

    /// The shares, on a machine with this base page size; `None` where no object was examined.
    pub(crate) fn row(&self, base_page_bytes: u64, sizes_known: bool) -> Option<SampleRow> {
        if self.blocks == 0 {
            return None;
        }
        let all = self.present + self.swapped + self.untouched + self.unmapped;
        let sized: f64 = self.by_page_size.values().sum();
        let placed: f64 = self.by_node.values().sum();
        // Starts from plus zero: the sum of no floats is minus zero, which would be printed.
        let huge = self
            .by_page_size
            .range(base_page_bytes.saturating_add(1)..)
            .fold(0.0, |sum, (_, weight)| sum + weight);
        let sizes = self.by_page_size.iter();
        Some(SampleRow {
            estimated: true,
            blocks: self.blocks,
            held_bytes: self.held_bytes,
            object_bytes: self.object_bytes,
            present_share: share(self.present, all),
            swapped_share: share(self.swapped, all),
            untouched_share: share(self.untouched, all),
            unmapped_share: share(self.unmapped, all),
            page_sizes: sizes_known.then(|| {
                sizes
                    .map(|(page_bytes, weight)| PageSizeShare {
                        page_bytes: *page_bytes,
                        share: share(*weight, sized),
                    })
                    .collect()
            }),
            huge_page_share: (sizes_known && sized > 0.0).then(|| share(huge, sized)),
            nodes: self
                .by_node
                .iter()
                .map(|(node, weight)| NodeShare {
                    node: *node,
                    share: share(*weight, placed),
                })
                .collect(),
        })
    }
}

fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample that is in memory, by node.
    fn seen(nodes: &[(u32, u64)]) -> Seen {
        let mut seen = Seen::default();
        for (node, bytes) in nodes {
            seen.examined_bytes += bytes;
            seen.present_bytes += bytes;
            seen.add_node(*node, *bytes);
            seen.add_page_size(4096, *bytes);
        }
        seen
    }

    #[test]
    fn blocks_count_by_what_they_hold_and_not_by_how_many_objects_were_looked_at() {
        let mut sample = Sample::default();
        sample.add(3_000_000, 2, 48, Some(&seen(&[(0, 48)])));
        sample.add(1_000_000, 32, 768, Some(&seen(&[(1, 768)])));
        sample.add(9_000_000, 32, 768, None);
        let row = sample.row(4096, true).expect("a sample");
        assert_eq!((row.blocks, sample.objects()), (2, 34));
        assert_eq!((row.held_bytes, row.object_bytes), (4_000_000, 816));
        let nodes: Vec<(u32, f64)> = row.nodes.iter().map(|on| (on.node, on.share)).collect();
        assert_eq!(nodes, [(0, 0.75), (1, 0.25)]);
        assert_eq!((row.present_share, row.swapped_share), (1.0, 0.0));
        assert_eq!(row.huge_page_share, Some(0.0));
        assert!(row.huge_page_share.is_some_and(f64::is_sign_positive));
        assert!(row.estimated);
    }

    #[test]
    fn what_was_not_measured_is_absent() {
        let mut sample = Sample::default();
        sample.add(1000, 32, 768, None);
        sample.add(1000, 32, 768, Some(&Seen::default()));
        assert_eq!(sample.row(4096, true), None);
        sample.add(1000, 32, 768, Some(&seen(&[(0, 768)])));
        let row = sample.row(4096, false).expect("a sample");
        assert_eq!((row.page_sizes, row.huge_page_share), (None, None));
    }

    #[test]
    fn merged_samples_are_those_of_all_blocks() {
        let (mut one, mut other, mut both) =
            (Sample::default(), Sample::default(), Sample::default());
        for (sum, node, held) in [(&mut one, 0, 500), (&mut other, 1, 1500)] {
            let seen = seen(&[(node, 24)]);
            sum.add(held, 1, 24, Some(&seen));
            both.add(held, 1, 24, Some(&seen));
        }
        one.merge(&other);
        assert_eq!(one, both);
    }
}
