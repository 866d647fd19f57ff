//! History of the blocks of cached RDDs: stored, read, removed, stored again.

use super::bytes::{Caps, FlatTable};
use crate::decode::BlockFact;

/// Maximum number of partitions of one executor that are kept as having left its memory.
const LEFT_MAX: usize = 16_384;

/// History of the blocks of one RDD on one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHistory {
    /// Blocks that were stored.
    pub stored: u64,
    /// Blocks whose partition had been in memory before and had left it. Part of `stored`.
    pub stored_again: u64,
    /// Blocks that were in memory before the daemon traced the executor: their earlier reads are unknown.
    pub found: u64,
    /// Blocks that left memory.
    pub removed: u64,
    /// Blocks evicted to make room for others. Part of `removed`.
    pub evicted: u64,
    /// Reads of blocks that were in memory already: one per task and block.
    pub reads: u64,
    /// Time when the last block was stored, in nanoseconds since boot; zero where none was.
    pub last_stored_ns: u64,
    /// Time when the last block left memory, in nanoseconds since boot; zero where none did.
    pub last_removed_ns: u64,
    /// Time of tasks that stored blocks again, in nanoseconds: until they had stored them, once they have ended until
    /// their end.
    pub again_ns: u64,
    /// Blocks whose task's begin is not known, of those that were stored again.
    pub again_unknown: u64,
}

impl BlockHistory {
    /// Counts a report of a block. `known`: the block is in memory already; `left`: its partition had left memory
    /// before; `took_ns`: the time since its task began or stored another such block.
    pub(super) fn stored(
        &mut self,
        fact: &BlockFact,
        known: bool,
        left: bool,
        now_ns: u64,
        took_ns: Option<u64>,
    ) {
        // Further ranges of a block do not count as another block.
        if known || fact.range_first > 0 {
            return;
        }
        if fact.reported_again {
            self.found += 1;
        } else {
            self.stored += 1;
            self.stored_again += u64::from(left);
            if left {
                self.again_ns = self.again_ns.saturating_add(took_ns.unwrap_or(0));
                self.again_unknown += u64::from(took_ns.is_none());
            }
        }
        self.last_stored_ns = self.last_stored_ns.max(now_ns);
    }

    /// Counts the rest of a task whose last block that it stored again is one of these.
    pub(super) fn task_ended(&mut self, rest_ns: u64) {
        self.again_ns = self.again_ns.saturating_add(rest_ns);
    }

    /// Counts a block that left memory.
    pub(super) fn removed(&mut self, evicted: bool, now_ns: u64) {
        self.removed += 1;
        self.evicted += u64::from(evicted);
        self.last_removed_ns = self.last_removed_ns.max(now_ns);
    }

    /// Until when blocks were in memory. `held`: some are at `now_ns`.
    pub(crate) const fn until_ns(&self, held: bool, now_ns: u64) -> u64 {
        if held || self.last_removed_ns == 0 {
            now_ns
        } else {
            self.last_removed_ns
        }
    }

    /// Time for which blocks were in memory after the last one was stored; `None` where none was.
    pub(crate) fn kept_ns(&self, until_ns: u64) -> Option<u64> {
        (self.last_stored_ns > 0).then(|| until_ns.saturating_sub(self.last_stored_ns))
    }

    /// Time of the tasks that stored blocks again, where it is known of each.
    pub(crate) fn again_known_ns(&self) -> Option<u64> {
        (self.stored_again > 0 && self.again_unknown == 0).then_some(self.again_ns)
    }

    /// Adds the history of an RDD that is folded into this row.
    pub(super) fn fold(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.stored, other.stored),
            (&mut self.stored_again, other.stored_again),
            (&mut self.found, other.found),
            (&mut self.removed, other.removed),
            (&mut self.evicted, other.evicted),
            (&mut self.reads, other.reads),
            (&mut self.again_ns, other.again_ns),
            (&mut self.again_unknown, other.again_unknown),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.last_stored_ns = self.last_stored_ns.max(other.last_stored_ns);
        self.last_removed_ns = self.last_removed_ns.max(other.last_removed_ns);
    }
}

/// Partitions of cached RDDs that left memory. When full, new entries are dropped; counts derived from it are lower
/// bounds.
#[derive(Debug, Default)]
pub(super) struct LeftPartitions(FlatTable<(u32, u32), ()>);

impl LeftPartitions {
    /// A partition left memory.
    pub(super) fn add(&mut self, rdd: Option<u32>, partition: Option<u32>, caps: &Caps) {
        if let Some(key) = rdd.zip(partition)
            && self.0.len() < LEFT_MAX
            && caps.admit(self.0.row_bytes(&key))
        {
            self.0.insert(key, ());
        }
    }

    /// Whether the partition of a newly stored block had left memory before; removes the entry.
    pub(super) fn take(&mut self, fact: &BlockFact, known: bool) -> bool {
        !known
            && fact.range_first == 0
            && fact
                .rdd_id
                .zip(fact.partition)
                .is_some_and(|key| self.0.remove(&key).is_some())
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(partition: u32) -> BlockFact {
        BlockFact {
            block_id: format!("rdd_7_{partition}"),
            rdd_id: Some(7),
            partition: Some(partition),
            ..BlockFact::default()
        }
    }

    #[test]
    fn blocks_are_kept_until_the_last_one_goes() {
        let mut history = BlockHistory::default();
        let kept = |history: &BlockHistory, held, now| history.kept_ns(history.until_ns(held, now));
        assert_eq!(kept(&history, true, 9), None);
        history.stored(&block(0), false, false, 10, None);
        history.stored(&block(1), false, false, 20, None);
        assert_eq!(kept(&history, true, 50), Some(30));
        history.removed(false, 60);
        assert_eq!(kept(&history, true, 70), Some(50));
        history.removed(true, 80);
        assert_eq!(kept(&history, false, 500), Some(60));
        assert_eq!((history.removed, history.evicted), (2, 1));
    }

    #[test]
    fn a_partition_that_comes_back_is_told_from_a_new_one() {
        let caps = Caps::new(crate::state::Limits::default(), 1 << 20);
        let (mut uses, mut left) = (BlockHistory::default(), LeftPartitions::default());
        for (partition, known) in [(0, false), (0, true), (1, false)] {
            let had_left = left.take(&block(partition), known);
            uses.stored(&block(partition), known, had_left, 5, Some(2));
        }
        assert_eq!((uses.stored, uses.stored_again), (2, 0));
        left.add(Some(7), Some(1), &caps);
        left.add(None, Some(1), &caps);
        let had_left = left.take(&block(1), false);
        uses.stored(&block(1), false, had_left, 9, Some(3));
        assert_eq!(
            (uses.stored, uses.stored_again, uses.last_stored_ns),
            (3, 1, 9)
        );
        // Only what came back counts.
        assert_eq!((uses.again_ns, uses.again_unknown), (3, 0));
        assert!(!left.take(&block(1), false), "it came back once");
    }

    #[test]
    fn what_was_there_before_is_not_stored() {
        let mut uses = BlockHistory::default();
        let found = BlockFact {
            reported_again: true,
            ..block(3)
        };
        uses.stored(&found, false, false, 5, None);
        assert_eq!((uses.stored, uses.found), (0, 1));
        let second = BlockFact {
            range_first: 64,
            ..block(3)
        };
        uses.stored(&second, false, false, 6, None);
        assert_eq!((uses.stored, uses.found), (0, 1));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut left = LeftPartitions::default();
        let caps = Caps::new(crate::state::Limits::default(), 1 << 20);
        for partition in 0..LEFT_MAX as u32 + 10 {
            left.add(Some(1), Some(partition), &caps);
        }
        assert_eq!(left.0.len(), LEFT_MAX);
    }
}
