//! Facts received from an executor, by kind.

use std::collections::BTreeMap;

use super::bytes::tree_bytes;
use crate::decode::Fact;
use crate::sort::small::Gather as _;

/// Facts received, by the name of the marker's entry point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactCounts(BTreeMap<&'static str, u64>);

impl FactCounts {
    /// Counts a fact of the marker; ignores others.
    pub fn count(&mut self, fact: &Fact) {
        if let Some(entry) = entry(fact) {
            *self.0.entry(entry).or_default() += 1;
        }
    }

    /// Bytes of the counts.
    pub(super) fn heap_bytes(&self) -> usize {
        tree_bytes(self.0.len(), size_of::<(&str, u64)>())
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Facts by kind; kinds without facts are left out.
    #[must_use]
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let named = |(entry, count): (&&str, &u64)| ((*entry).to_owned(), *count);
        self.0.iter().map(named).gather()
    }
}

/// Whether the marker reported the fact, not the kernel side.
pub(super) fn is_reported(fact: &Fact) -> bool {
    entry(fact).is_some()
}

/// The marker's entry point; `None` for records of the kernel side.
fn entry(fact: &Fact) -> Option<&'static str> {
    Some(match fact {
        Fact::ProcessForked { .. }
        | Fact::ProcessGone { .. }
        | Fact::TaskUsed(_)
        | Fact::WorkerUsed(_)
        | Fact::SignalSent(_)
        | Fact::OomKilled(_)
        | Fact::FaultSample { .. }
        | Fact::WalkSample { .. } => return None,
        Fact::ExecutorDescribed(_) => "executorDescribed",
        Fact::ThreadRegistered(_) => "threadRegistered",
        Fact::ThreadGone(_) => "threadGone",
        Fact::RddDescribed(_) => "rddDescribed",
        Fact::StageDescribed(_) => "stageDescribed",
        Fact::JobDescribed(_) => "jobDescribed",
        Fact::TaskStarted(_) => "taskStarted",
        Fact::TaskEnded(_) => "taskEnded",
        Fact::TaskBegun { .. } => "taskBegun",
        Fact::TaskHeap(_) => "taskHeap",
        Fact::HelperBegun { .. } => "helperBegun",
        Fact::HelperEnded { .. } => "helperEnded",
        Fact::TaskMetrics(_) => "taskMetrics",
        Fact::TaskHeapSoFar { .. } => "taskHeapSoFar",
        Fact::Exhausted(_) => "resourceExhausted",
        Fact::MemoryReported(_) => "memoryTold",
        Fact::PeaksReported(_) => "peaksTold",
        Fact::BlockStored(_) => "blockStored",
        Fact::BlockRead(_) => "blockRead",
        Fact::BlockMoved(_) => "blockMoved",
        Fact::BlockRemoved(_) => "blockRemoved",
        Fact::PageAllocated(_) => "pageAllocated",
        Fact::PageFreed(_) => "pageFreed",
        Fact::ConsumerUsed(_) => "consumerUsed",
        Fact::Span(_) => "span",
        Fact::Fetched(_) => "shuffleFetched",
        Fact::Paused(_) => "collectorPaused",
        Fact::PythonWorker(_) => "pythonWorker",
        Fact::ResyncReported { .. } => "resyncTold",
        Fact::ResyncDone { .. } => "resyncDone",
        Fact::AddressesReported { .. } => "addressesTold",
    })
}

#[cfg(test)]
mod tests {
    use smtt_common::event::MARKER_FACTS;

    use super::*;
    use crate::decode::encode::payload;

    #[test]
    fn every_kind_of_fact_is_counted_under_its_entry_point() {
        for schema in MARKER_FACTS {
            // Where there are ranges, the last word says how many: one.
            let words = vec![1; schema.words.len()];
            let strings = vec!["x"; schema.strings.len()];
            let ranges = if schema.ranges { &[(4096, 1)][..] } else { &[] };
            let text = payload(&words, ranges, &strings);
            let header = smtt_common::event::RecordHeader {
                kind: schema.kind.0,
                payload_bytes: text.len() as u32,
                executor: 1,
                ..smtt_common::event::RecordHeader::default()
            };
            let event = crate::decode::decode(&header, &text).expect("a fact");
            let mut counts = FactCounts::default();
            counts.count(&event.fact);
            assert_eq!(
                counts.by_kind(),
                BTreeMap::from([(schema.entry.to_owned(), 1)])
            );
        }
    }
}
