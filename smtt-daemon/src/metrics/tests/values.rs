//! Series whose values follow from single facts: each has a value that no other one has.

use smtt_common::context::Activity;
use smtt_common::counter::Unattributed;
use smtt_common::page_walk::WalkCounters;
use smtt_model::cpu::{FigureName, Quantity, Ratio, Role};
use smtt_model::decode::{BlockRead, Span};
use smtt_model::readings::{Calibration, Channel, ChannelFigure, CostPerWalk, PageWalkReadings};
use smtt_model::state::SlotFileCounters;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// Labels of the executor, and of the RDD `links`.
const EXECUTOR: &str = r#"application_id="app-1",user="1000",executor_id="0""#;
const LINKS: &str =
    r#"application_id="app-1",application_name="Page \"Rank\"\\",user="1000",rdd="links""#;

fn at(shared: &Shared, time_ns: u64, fact: Fact) {
    shared.state().apply(Event {
        time_ns,
        executor: 1,
        pid: 1,
        tid: 1,
        uid: 1000,
        fact,
    });
}

fn with_rdd(limits: Limits) -> Exported {
    let shared = shared_within(MetricsSettings::at_once(100), limits);
    described(&shared, 1, "0");
    let said = RddDescribed {
        rdd_id: 7,
        name: "links".to_owned(),
        ..RddDescribed::default()
    };
    at(&shared, 1, Fact::RddDescribed(Box::new(said)));
    shared
}

fn stored(rdd: u32, partition: u32, task_attempt_id: Option<u64>) -> Fact {
    Fact::BlockStored(Box::new(BlockFact {
        block_id: format!("rdd_{rdd}_{partition}"),
        rdd_id: Some(rdd),
        partition: Some(partition),
        size_bytes: 1000,
        task_attempt_id,
        ..BlockFact::default()
    }))
}

fn removed(partition: u32, activity: Option<Activity>) -> Fact {
    Fact::BlockRemoved(BlockRemoved {
        block_id: format!("rdd_7_{partition}"),
        rdd_id: Some(7),
        partition: Some(partition),
        activity,
    })
}

fn are(text: &str, all: &[(String, &str)]) {
    for (series, expected) in all {
        assert_eq!(value(text, series), Some(*expected), "{series} in\n{text}");
    }
}

#[test]
fn blocks_spills_refusals_and_savings_have_their_values() {
    let shared = with_rdd(Limits {
        blocks_per_executor: 18,
        ..Limits::default()
    });
    for partition in 0..18 {
        at(&shared, SECOND, stored(7, partition, None));
    }
    for partition in 0..12 {
        at(
            &shared,
            2 * SECOND,
            removed(partition, Some(Activity::EVICT)),
        );
    }
    // The application itself lets one go: that is no eviction.
    at(&shared, 2 * SECOND, removed(17, None));
    for _ in 0..3 {
        let read = BlockRead {
            block_id: "rdd_7_12".to_owned(),
            rdd_id: Some(7),
            partition: Some(12),
            ..BlockRead::default()
        };
        at(&shared, 3 * SECOND, Fact::BlockRead(read));
    }
    // A task stores ten blocks again, one each second after its begin.
    let task = TaskStarted {
        task_attempt_id: 5,
        ..TaskStarted::default()
    };
    at(&shared, 10 * SECOND, Fact::TaskStarted(task));
    for partition in 0..10 {
        let now = (11 + u64::from(partition)) * SECOND;
        at(&shared, now, stored(7, partition, Some(5)));
    }
    // Of seven further blocks three have a row.
    for partition in 0..7 {
        at(&shared, 21 * SECOND, stored(8, partition, None));
    }
    let spill = Span {
        task_attempt_id: Some(5),
        activity: Activity::SPILL.0,
        duration_ns: 2_000_000,
        ..Span::default()
    };
    at(&shared, 22 * SECOND, Fact::Span(spill));
    let slots = SlotFileCounters {
        facts_emitted: 0,
        slots_refused: 6,
    };
    shared.state().set_slots(1, slots);
    shared.exporter.find(&shared);
    let text = scrape(&shared, "");
    let rdd = |name: &str| format!("{name}{{{LINKS}}}");
    let executor = |name: &str| format!("{name}{{{EXECUTOR}}}");
    let finding = format!(r#"rule="evicted_and_stored_again",severity="high",{LINKS}"#);
    let saving = |end: &str| format!("smtt_finding_saving_seconds{{{finding},end=\"{end}\"}}");
    are(
        &text,
        &[
            (rdd("smtt_rdd_blocks_stored_total"), "28"),
            (rdd("smtt_rdd_blocks_stored_again_total"), "10"),
            (rdd("smtt_rdd_blocks_evicted_total"), "12"),
            (rdd("smtt_rdd_block_reads_total"), "3"),
            (rdd("smtt_rdd_partitions_cached"), "15"),
            (rdd("smtt_rdd_storage_memory_bytes"), "15000"),
            (executor("smtt_executor_spills_total"), "1"),
            (executor("smtt_executor_spill_seconds_total"), "0.002"),
            (executor("smtt_executor_slots_refused_total"), "6"),
            (
                format!(r#"smtt_executor_rows_refused_total{{{EXECUTOR},table="blocks"}}"#),
                "4",
            ),
            (format!("smtt_finding{{{finding}}}"), "1"),
            // The task's ten seconds at most.
            (saving("low"), "0"),
            (saving("expected"), "5"),
            (saving("high"), "10"),
        ],
    );
}

#[test]
fn page_walks_have_shares_of_the_rdds_cycles_and_of_the_applications() {
    let shared = with_rdd(Limits::default());
    let channel = |role: Role, quantity| Channel {
        role,
        event: format!("event of {role}"),
        quantity,
        pass: 0,
        period: 1000,
        counted: 7000,
        sampled: 6000,
        samples: 6,
        enabled_ns: 3 * SECOND,
        running_ns: 2 * SECOND,
        fault: String::new(),
    };
    let figure = |name, quantity, of, ratio| ChannelFigure {
        name,
        quantity,
        of,
        less: None,
        cycles: Some(0),
        ratio: Some(ratio),
    };
    // Thousands of events, each thousand a sample.
    let walks = |thousands: [u64; 5]| {
        let mut counters = WalkCounters::default();
        for (channel, count) in thousands.into_iter().enumerate() {
            counters.events[channel] = count * 1000;
            counters.samples[channel] = count;
        }
        counters
    };
    let of_rdd = ContextKey {
        executor: 1,
        rdd_plus_one: 8,
        activity: Activity::COMPUTE.0,
        ..ContextKey::default()
    };
    // No core gives all of these; each figure goes through the same code.
    let page_walks = PageWalkReadings {
        contexts: vec![
            (of_rdd, walks([100, 20, 2, 30, 1])),
            (
                ContextKey::without_context(1, Unattributed::GC),
                walks([300, 5, 5, 5, 5]),
            ),
        ],
        channels: vec![
            channel(Role::Cycles, Quantity::Cycles),
            channel(Role::LoadWalkCycles, Quantity::Cycles),
            channel(Role::StoreWalkCycles, Quantity::Cycles),
            channel(Role::LoadWalkPending, Quantity::Occupancy),
            channel(Role::LoadWalksCompleted, Quantity::Count),
        ],
        figures: vec![
            figure(
                FigureName::ReadWalkCycles,
                Quantity::Cycles,
                1,
                Ratio::Fraction,
            ),
            figure(
                FigureName::WriteWalkCycles,
                Quantity::Cycles,
                2,
                Ratio::Fraction,
            ),
            figure(
                FigureName::ReadWalkOccupancy,
                Quantity::Occupancy,
                3,
                Ratio::Occupancy,
            ),
            figure(
                FigureName::DtlbReadMisses,
                Quantity::Count,
                4,
                Ratio::Estimated,
            ),
        ],
        ..PageWalkReadings::default()
    };
    let cost = CostPerWalk {
        cycles: 25.0,
        low: 24.0,
        high: 26.0,
    };
    shared.state().set_calibration(Some(Calibration {
        read: Some(cost),
        ..Calibration::default()
    }));
    let readings = Readings {
        page_walks: Some(page_walks),
        ..Readings::default()
    };
    shared.state().add(&readings, 5 * SECOND);
    let text = scrape(&shared, "");
    let counter = |name: &str, access: &str| format!("{name}{{{LINKS},access=\"{access}\"}}");
    let ratio = |name: &str, access: &str, of: &str| {
        format!("{name}{{{LINKS},access=\"{access}\",cycles_of=\"{of}\"}}")
    };
    let (share, occupancy, estimate) = (
        "smtt_rdd_page_walk_ratio",
        "smtt_rdd_page_walk_occupancy_per_cycle",
        "smtt_rdd_page_walk_estimated_ratio",
    );
    are(
        &text,
        &[
            (counter("smtt_rdd_page_walk_cycles_total", "read"), "20000"),
            (counter("smtt_rdd_page_walk_cycles_total", "write"), "2000"),
            (
                counter("smtt_rdd_page_walk_occupancy_total", "read"),
                "30000",
            ),
            (counter("smtt_rdd_dtlb_misses_total", "read"), "1000"),
            (format!("smtt_rdd_page_walk_samples_total{{{LINKS}}}"), "53"),
            (ratio(share, "read", "rdd"), "0.2"),
            (ratio(share, "read", "application"), "0.05"),
            (ratio(share, "write", "rdd"), "0.02"),
            (ratio(share, "write", "application"), "0.005"),
            (ratio(occupancy, "read", "rdd"), "0.3"),
            (ratio(occupancy, "read", "application"), "0.075"),
            // A thousand misses of 25 cycles each.
            (ratio(estimate, "read", "rdd"), "0.25"),
            (ratio(estimate, "read", "application"), "0.0625"),
            (
                format!(r#"smtt_executor_cycles_total{{{EXECUTOR},attribution="attributed"}}"#),
                "100000",
            ),
            (
                format!(r#"smtt_executor_cycles_total{{{EXECUTOR},attribution="unattributed"}}"#),
                "300000",
            ),
        ],
    );
}
