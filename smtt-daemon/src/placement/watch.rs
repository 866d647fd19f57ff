//! Checks that the reported addresses on the Java heap stay valid while pages are inspected.

use std::collections::HashSet;

use smtt_model::state::{RangesId, Seen, Targets};

use super::sample::Run;
use crate::shared::Shared;

/// Watches the collections of one executor during one inspection.
pub struct Watch<'round> {
    shared: &'round Shared,
    executor: u64,
    targets: &'round Targets,
    /// Number of collections that have begun; `None` where it is unavailable.
    begun: &'round dyn Fn() -> Option<u64>,
    /// The epoch of the addresses: the collection after which they are valid; `None` where collections are not counted.
    after: Option<u64>,
    /// Whether all addresses were valid when the slice began.
    open: bool,
    /// Whether each owner is still at the address that it had when the inspection began.
    valid: Vec<bool>,
    /// Results of the slice's owners on the heap as they were before the slice.
    before: Vec<(usize, Seen)>,
}

impl<'round> Watch<'round> {
    /// A watch for one inspection. Call it before the first slice.
    pub fn new(
        shared: &'round Shared,
        executor: u64,
        targets: &'round Targets,
        begun: &'round dyn Fn() -> Option<u64>,
    ) -> Self {
        Self {
            shared,
            executor,
            targets,
            begun,
            after: targets.collection,
            open: true,
            valid: vec![true; targets.owners.len()],
            before: Vec::new(),
        }
    }

    fn collected(&self, after: u64) -> bool {
        (self.begun)() != Some(after)
    }

    /// Checks the addresses. Call it before each slice.
    pub fn begin_slice(&mut self) {
        self.before.clear();
        let Some(after) = self.after else {
            return;
        };
        self.open = !self.collected(after);
        if self.open {
            return;
        }
        // The marker has reported new addresses. Owners whose address did not change can still be inspected.
        let state = self.shared.state();
        let Some(now) = state.current_collection(self.executor) else {
            return;
        };
        let targets = state.targets(self.executor);
        drop(state);
        let marks: HashSet<RangesId> = targets.owners.into_iter().collect();
        for (valid, mark) in self.valid.iter_mut().zip(&self.targets.owners) {
            *valid &= marks.contains(mark);
        }
        self.after = Some(now);
        self.open = !self.collected(now);
    }

    /// Whether a run may be inspected; saves the results of its owner as they were before the slice.
    pub fn admits(&mut self, run: Run, seen: &[Seen]) -> bool {
        let Some(range) = self.targets.ranges.get(run.range) else {
            return false;
        };
        if self.after.is_none() || !self.targets.on_heap[range.owner] {
            return true;
        }
        if !self.open || !self.valid[range.owner] {
            return false;
        }
        if self.before.iter().all(|(owner, _)| *owner != range.owner) {
            self.before.push((range.owner, seen[range.owner].clone()));
        }
        true
    }

    /// Discards the slice's results on the heap if a collection began during the slice; returns whether none did.
    pub fn end_slice(&mut self, seen: &mut [Seen]) -> bool {
        let Some(after) = self.after.filter(|_| !self.before.is_empty()) else {
            return true;
        };
        if !self.collected(after) {
            return true;
        }
        for (owner, before) in self.before.drain(..) {
            seen[owner] = before;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use smtt_common::context::HeapAddresses;

    use super::*;
    use smtt_model::decode::{BlockFact, Event, Fact};
    use smtt_model::state::Limits;

    use crate::shared::DaemonInfo;

    const EXECUTOR: u64 = (7 << 32) | 1;

    fn apply(shared: &Shared, fact: Fact) {
        shared.state().apply(Event {
            time_ns: 1,
            executor: EXECUTOR,
            pid: 1,
            tid: 1,
            uid: 1000,
            fact,
        });
    }

    /// Reports that all addresses are valid after that collection.
    fn settled(shared: &Shared, collection: u64) {
        shared
            .state()
            .set_collections(EXECUTOR, HeapAddresses::FOLLOWED, collection);
        apply(
            shared,
            Fact::AddressesReported {
                collection,
                moved_facts: 0,
            },
        );
    }

    fn stored(shared: &Shared, partition: u32, on_heap: bool, address: u64) {
        let fact = BlockFact {
            block_id: format!("rdd_7_{partition}"),
            rdd_id: Some(7),
            partition: Some(partition),
            size_bytes: 4096,
            serialized: true,
            on_heap,
            range_total: 1,
            ranges: vec![(address, 4096)],
            ..BlockFact::default()
        };
        apply(shared, Fact::BlockStored(Box::new(fact)));
    }

    fn shared() -> Shared {
        let info = DaemonInfo {
            version: String::new(),
            kernel_side: String::new(),
            telemetry_path: String::new(),
            metrics: crate::metrics::MetricsSettings::at_once(1),
            doctor: Vec::new,
        };
        Shared::new(info, Limits::default())
    }

    /// A slice over every range; returns whether each was admitted, in the order of their addresses.
    fn slice(watch: &mut Watch<'_>, targets: &Targets, seen: &mut [Seen]) -> Vec<bool> {
        watch.begin_slice();
        let mut order: Vec<usize> = (0..targets.ranges.len()).collect();
        order.sort_by_key(|index| targets.ranges[*index].address);
        order
            .into_iter()
            .map(|range| {
                let run = Run {
                    range,
                    address: targets.ranges[range].address,
                    pages: 1,
                };
                let admitted = watch.admits(run, seen);
                if admitted {
                    seen[targets.ranges[range].owner].examined_pages += 1;
                }
                admitted
            })
            .collect()
    }

    #[test]
    fn results_on_the_heap_are_discarded_when_a_collection_begins() {
        let shared = shared();
        stored(&shared, 0, true, 0x1000);
        stored(&shared, 1, true, 0x4000);
        stored(&shared, 2, false, 0x9000);
        settled(&shared, 3);
        let targets = shared.state().targets(EXECUTOR);
        assert_eq!((targets.owners.len(), targets.collection), (3, Some(3)));
        let collections = Cell::new(3);
        let begun = || Some(collections.get());
        let mut watch = Watch::new(&shared, EXECUTOR, &targets, &begun);
        let mut seen = vec![Seen::default(); 3];
        let looked = |seen: &[Seen]| seen.iter().map(|seen| seen.examined_pages).sum::<u64>();

        assert_eq!(slice(&mut watch, &targets, &mut seen), [true, true, true]);
        assert!(watch.end_slice(&mut seen));
        assert_eq!(looked(&seen), 3);

        assert_eq!(slice(&mut watch, &targets, &mut seen), [true, true, true]);
        collections.set(4);
        assert!(!watch.end_slice(&mut seen));
        assert_eq!(looked(&seen), 4, "results off the heap are kept");

        assert_eq!(slice(&mut watch, &targets, &mut seen), [false, false, true]);
        assert!(watch.end_slice(&mut seen));

        // One owner moved and all addresses are reported: the other owner is still at its address.
        stored(&shared, 1, true, 0x6000);
        settled(&shared, 4);
        assert_eq!(slice(&mut watch, &targets, &mut seen), [true, false, true]);
        assert!(watch.end_slice(&mut seen));
    }

    #[test]
    fn nothing_of_the_heap_is_a_target_while_it_is_stale() {
        let shared = shared();
        stored(&shared, 0, true, 0x1000);
        stored(&shared, 1, false, 0x9000);
        settled(&shared, 1);
        shared
            .state()
            .set_collections(EXECUTOR, HeapAddresses::FOLLOWED, 2);
        let targets = shared.state().targets(EXECUTOR);
        assert_eq!((targets.on_heap, targets.collection), (vec![false], None));
    }
}
