//! The loss ledger: every named loss, hop by hop in the order of flow, and the check that the sums agree: attempted =
//! delivered + sum of losses (+ records in flight between two hops).

pub mod trace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::counter::{COUNTERS, Counter, ExecutorCounters};
use smtt_common::event::RecordHeader;

use self::trace::{FollowCounts, TraceCounts};
use crate::decode::{DecodeError, Event, decode_cut};
use crate::sort::small::Gather as _;

/// Counts of the ring reader since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Records read from the ring.
    pub taken: u64,
    /// Records shorter than their own header.
    pub malformed: u64,
}

/// Counts of the decoder since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeCounts {
    /// Records given to the decoder.
    pub attempted: u64,
    /// Records that were decoded into events.
    pub decoded: u64,
    /// Records that could not be decoded, by cause.
    pub lost: BTreeMap<&'static str, u64>,
    /// Strings that were cut because they were longer than a marker sends.
    pub strings_cut: u64,
}

impl DecodeCounts {
    /// Decodes one record and counts the result.
    ///
    /// # Errors
    /// As [`decode_cut`].
    pub fn decode(&mut self, header: &RecordHeader, payload: &[u8]) -> Result<Event, DecodeError> {
        let result = decode_cut(header, payload).map(|(event, cut)| {
            self.strings_cut = self.strings_cut.saturating_add(u64::from(cut));
            event
        });
        self.count(&result);
        result
    }

    /// Counts one result of the decoder.
    pub fn count(&mut self, result: &Result<Event, DecodeError>) {
        self.attempted += 1;
        match result {
            Ok(_) => self.decoded += 1,
            Err(error) => *self.lost.entry(error.cause()).or_default() += 1,
        }
    }
}

/// Result of applying an event to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The event changed the state.
    Applied,
    /// The named table is full; the event is counted in its overflow row.
    OverCap(&'static str),
    /// The event has no effect, for the named reason.
    Ignored(&'static str),
}

/// Counts of events applied to the state since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateCounts {
    /// Events given to the state.
    pub attempted: u64,
    /// Events that the state has applied.
    pub applied: u64,
    /// Events refused because a table was full, by table.
    pub over_cap: BTreeMap<&'static str, u64>,
    /// Events without effect (duplicate or out of date), by reason.
    pub ignored: BTreeMap<&'static str, u64>,
}

impl AggregateCounts {
    /// Counts one event.
    pub fn count(&mut self, outcome: Outcome) {
        self.attempted += 1;
        match outcome {
            Outcome::Applied => self.applied += 1,
            Outcome::OverCap(table) => *self.over_cap.entry(table).or_default() += 1,
            Outcome::Ignored(reason) => *self.ignored.entry(reason).or_default() += 1,
        }
    }
}

/// Facts emitted by markers and seen by the kernel side, for executors whose slot file is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkerCounts {
    /// Facts that the markers have emitted, by their own count.
    pub emitted: u64,
    /// Facts of the same executors that the kernel side saw.
    pub seen: u64,
}

/// Inputs of the ledger, read at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerInputs {
    /// Counts of the markers; `None` where no slot file is open.
    pub marker: Option<MarkerCounts>,
    /// Counters summed over all executors since the start.
    pub executors: ExecutorCounters,
    /// Global counters of the kernel side.
    pub kernel: [u64; COUNTERS],
    /// Counts of the ring reader.
    pub source: SourceCounts,
    /// Counts of the decoder.
    pub decode: DecodeCounts,
    /// Counts of the state.
    pub aggregate: AggregateCounts,
    /// Counts of the trace writer; `None` where trace records are not written.
    pub trace: Option<TraceCounts>,
    /// Counts of live clients; `None` where no client has followed yet.
    pub follow: Option<FollowCounts>,
}

/// Name of the hop between the markers and the kernel side.
pub const MARKER: &str = "marker";

/// What that hop loses, as a difference of counts that are read one after the other: facts on their way are in it.
pub const NOT_SEEN: &str = "not_seen";

/// Name of the hop of facts from processes that are no executors.
pub const UNREGISTERED: &str = "unregistered";

/// Name of the hop of facts whose entry points only a newer marker has.
pub const NEWER_MARKER: &str = "newer_marker";

/// One hop of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Name: `marker`, `unregistered`, `newer_marker` (where there were such facts), `kernel`, `ring`, `source`, `decode`, `aggregate`, `trace`, `follow`.
    pub name: String,
    /// Records that entered the hop.
    pub attempted: u64,
    /// Records that went on to the next hop.
    pub delivered: u64,
    /// Records that were lost at this hop, by cause; causes without a loss are left out.
    pub lost: BTreeMap<String, u64>,
    /// Records between this hop and the next when the counters were read.
    pub in_flight: u64,
    /// Whether attempted = delivered + lost + in flight.
    pub consistent: bool,
}

impl Hop {
    /// Sum of the hop's losses.
    #[must_use]
    pub fn lost_total(&self) -> u64 {
        self.lost
            .values()
            .fold(0, |sum, more| sum.saturating_add(*more))
    }

    fn new(hop: &str, attempted: u64, delivered: u64, lost: &[(String, u64)]) -> Self {
        let lost = lost
            .iter()
            .filter(|(_, count)| *count > 0)
            .cloned()
            .gather();
        Self {
            name: hop.to_owned(),
            attempted,
            delivered,
            lost,
            in_flight: 0,
            consistent: true,
        }
    }

    /// `attempted` minus everything that is accounted for.
    fn missing(&self) -> i128 {
        i128::from(self.attempted)
            - i128::from(self.delivered)
            - i128::from(self.lost_total())
            - i128::from(self.in_flight)
    }
}

/// Computes the ledger. `previous` holds the inputs of the previous reading: the kernel side's counters cannot be read
/// atomically, so a difference is an error only if it exceeds the growth of the counters since then.
#[must_use]
pub fn ledger(now: &LedgerInputs, previous: &LedgerInputs) -> Vec<Hop> {
    let before = hops(previous);
    let mut hops = hops(now);
    for (hop, before) in hops.iter_mut().zip(&before) {
        let moved = hop
            .attempted
            .saturating_sub(before.attempted)
            .max(hop.delivered.saturating_sub(before.delivered));
        if matches!(hop.name.as_str(), "ring" | "source") {
            let waiting = u64::try_from(hop.missing()).unwrap_or(0);
            hop.in_flight = waiting;
            // Records that neither move nor arrive are not in flight.
            let stuck = waiting > 0 && moved == 0;
            hop.consistent = !stuck && hop.missing() == 0;
        } else {
            hop.consistent = hop.missing().unsigned_abs()
                <= u128::from(if hop.name == "kernel" { moved } else { 0 });
        }
    }
    if now.trace.is_none() {
        hops.retain(|hop| hop.name != "trace");
    }
    if now.follow.is_none() {
        hops.retain(|hop| hop.name != "follow");
    }
    if now.executors.facts_unknown == 0 {
        hops.retain(|hop| hop.name != NEWER_MARKER);
    }
    if now.marker.is_none() {
        hops.retain(|hop| hop.name != MARKER);
    }
    hops
}

fn named(counts: &BTreeMap<&'static str, u64>, prefix: &str) -> Vec<(String, u64)> {
    counts
        .iter()
        .map(|(cause, count)| (format!("{prefix}{cause}"), *count))
        .collect()
}

fn hops(inputs: &LedgerInputs) -> Vec<Hop> {
    let LedgerInputs {
        marker,
        executors,
        kernel,
        source,
        decode,
        aggregate,
        trace,
        follow,
    } = inputs;
    let counter = |counter: Counter| kernel.get(counter.0 as usize).copied().unwrap_or(0);
    let lost = |causes: &[(&str, u64)]| -> Vec<(String, u64)> {
        causes
            .iter()
            .map(|(cause, count)| ((*cause).to_owned(), *count))
            .collect()
    };
    let marker = marker.unwrap_or_default();
    let submitted = counter(Counter::RECORDS_SUBMITTED);
    let mut aggregate_lost = named(&aggregate.over_cap, "over_cap_");
    aggregate_lost.extend(named(&aggregate.ignored, ""));
    vec![
        // Lost here: facts emitted before the probes were attached or before the executor described itself.
        Hop::new(
            MARKER,
            marker.emitted,
            marker.seen,
            &lost(&[(NOT_SEEN, marker.emitted.saturating_sub(marker.seen))]),
        ),
        // Facts of processes that are no executors. Any process may send them, so they are no loss of a traced one.
        Hop::new(
            UNREGISTERED,
            counter(Counter::FACTS_UNKNOWN_PROCESS),
            0,
            &lost(&[("unknown_process", counter(Counter::FACTS_UNKNOWN_PROCESS))]),
        ),
        // What a newer marker tells beyond the facts that this version knows. No figure of this version lacks them.
        Hop::new(
            NEWER_MARKER,
            executors.facts_unknown,
            0,
            &lost(&[("unknown_fact", executors.facts_unknown)]),
        ),
        Hop::new(
            "kernel",
            [
                executors.facts_seen.saturating_sub(executors.facts_unknown),
                counter(Counter::EXECUTORS_REFUSED),
                executors.samples_seen,
                executors.records_seen,
                counter(Counter::RECORDS_WITHOUT_EXECUTOR),
            ]
            .into_iter()
            .fold(0, u64::saturating_add),
            submitted,
            &lost(&[
                ("facts_rate_limited", executors.facts_rate_limited),
                ("facts_too_long", executors.facts_too_long),
                ("facts_unreadable", executors.facts_unreadable),
                ("executors_refused", counter(Counter::EXECUTORS_REFUSED)),
                ("facts_ring_full", executors.facts_ring_full),
                ("samples_rate_limited", executors.samples_rate_limited),
                ("samples_ring_full", executors.samples_ring_full),
                ("records_ring_full", executors.records_ring_full),
                ("records_rate_limited", executors.records_rate_limited),
                (
                    "records_without_executor",
                    counter(Counter::RECORDS_WITHOUT_EXECUTOR),
                ),
            ]),
        ),
        Hop::new("ring", submitted, source.taken, &[]),
        Hop::new(
            "source",
            source.taken,
            decode.attempted,
            &lost(&[("malformed", source.malformed)]),
        ),
        Hop::new(
            "decode",
            decode.attempted,
            decode.decoded,
            &named(&decode.lost, ""),
        ),
        Hop::new(
            "aggregate",
            aggregate.attempted,
            aggregate.applied,
            &aggregate_lost,
        ),
        trace_hop(trace.as_ref().unwrap_or(&TraceCounts::default())),
        follow_hop(follow.as_ref().unwrap_or(&FollowCounts::default())),
    ]
}

/// Accesses sent to live clients, counted once per client.
fn follow_hop(follow: &FollowCounts) -> Hop {
    Hop {
        in_flight: follow.waiting,
        ..Hop::new(
            "follow",
            follow.attempted,
            follow.delivered,
            &named(&follow.lost, ""),
        )
    }
}

/// Accesses written to disk: queued records are counted, not derived from the difference.
fn trace_hop(trace: &TraceCounts) -> Hop {
    let lost: Vec<(String, u64)> = trace.lost.clone().into_iter().collect();
    Hop {
        in_flight: trace.queued + trace.held,
        ..Hop::new("trace", trace.attempted, trace.written, &lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> LedgerInputs {
        let mut kernel = [0; COUNTERS];
        kernel[Counter::FACTS_UNKNOWN_PROCESS.0 as usize] = 5;
        kernel[Counter::EXECUTORS_REFUSED.0 as usize] = 2;
        kernel[Counter::RECORDS_SUBMITTED.0 as usize] = 105;
        LedgerInputs {
            marker: Some(MarkerCounts {
                emitted: 120,
                seen: 100,
            }),
            executors: ExecutorCounters {
                facts_seen: 100,
                facts_ring_full: 3,
                facts_rate_limited: 2,
                records_seen: 10,
                ..ExecutorCounters::default()
            },
            kernel,
            source: SourceCounts {
                taken: 100,
                malformed: 1,
            },
            decode: DecodeCounts {
                attempted: 90,
                decoded: 89,
                lost: BTreeMap::from([("truncated", 1)]),
                strings_cut: 0,
            },
            aggregate: AggregateCounts {
                attempted: 89,
                applied: 80,
                over_cap: BTreeMap::from([("rdds", 4)]),
                ignored: BTreeMap::from([("block_not_known", 5)]),
            },
            trace: Some(TraceCounts {
                attempted: 60,
                written: 40,
                lost: BTreeMap::from([("disk_full".to_owned(), 5)]),
                queued: 7,
                held: 8,
                ..TraceCounts::default()
            }),
            follow: Some(FollowCounts {
                attempted: 12,
                delivered: 5,
                lost: BTreeMap::from([("client_too_slow", 4)]),
                waiting: 3,
            }),
        }
    }

    #[test]
    fn facts_of_a_newer_marker_have_a_hop_of_their_own() {
        let mut now = inputs();
        now.executors.facts_seen += 7;
        now.executors.facts_unknown = 7;
        now.marker = Some(MarkerCounts {
            emitted: 127,
            seen: 107,
        });
        let hops = ledger(&now, &LedgerInputs::default());
        let newer = hops.iter().find(|hop| hop.name == NEWER_MARKER);
        let newer = newer.expect("there were such facts");
        assert_eq!((newer.attempted, newer.delivered), (7, 0));
        assert_eq!(newer.lost["unknown_fact"], 7);
        for hop in &hops {
            assert!(hop.missing() == 0 && hop.consistent, "{hop:?}");
        }
    }

    #[test]
    fn every_hop_adds_up() {
        let hops = ledger(&inputs(), &LedgerInputs::default());
        let names: Vec<_> = hops.iter().map(|hop| hop.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "marker",
                "unregistered",
                "kernel",
                "ring",
                "source",
                "decode",
                "aggregate",
                "trace",
                "follow"
            ]
        );
        for hop in &hops {
            assert_eq!(hop.missing(), 0, "{hop:?}");
            assert!(hop.consistent, "{hop:?}");
        }
        assert_eq!((hops[3].in_flight, hops[4].in_flight), (5, 9));
        assert_eq!(
            hops[6].lost,
            BTreeMap::from([
                ("over_cap_rdds".to_owned(), 4),
                ("block_not_known".to_owned(), 5)
            ])
        );
    }

    #[test]
    fn a_difference_that_stays_is_flagged() {
        let mut now = inputs();
        now.executors.facts_seen += 1;
        assert!(
            ledger(&now, &LedgerInputs::default())[2].consistent,
            "counters were moving"
        );
        assert!(!ledger(&now, &now)[2].consistent, "they stood still");
        now.aggregate.applied -= 1;
        assert!(
            !ledger(&now, &LedgerInputs::default())[6].consistent,
            "no race excuses this one"
        );
    }

    #[test]
    fn records_that_never_arrive_are_flagged() {
        let hops = ledger(&inputs(), &inputs());
        assert_eq!(hops[3].in_flight, 5);
        assert!(!hops[3].consistent);
        let mut more = inputs();
        more.source.taken = 200;
        assert!(
            !ledger(&more, &inputs())[3].consistent,
            "more came out than went in"
        );
    }

    #[test]
    fn a_trace_record_that_is_nowhere_is_flagged() {
        let mut now = inputs();
        if let Some(trace) = &mut now.trace {
            trace.held -= 1;
        }
        assert!(!ledger(&now, &LedgerInputs::default())[7].consistent);
        now.trace = None;
        now.follow = None;
        let hops = ledger(&now, &LedgerInputs::default());
        assert!(
            hops.iter()
                .all(|hop| hop.name != "trace" && hop.name != "follow")
        );
    }

    #[test]
    fn without_a_slot_file_there_is_no_marker_hop() {
        let now = LedgerInputs {
            marker: None,
            ..inputs()
        };
        assert_eq!(ledger(&now, &LedgerInputs::default())[0].name, UNREGISTERED);
    }
}
