//! Rows with many parts (stages by RDD, RDDs by activity) within the memory that the systemd unit gives the daemon. In a
//! process of its own: what it frees stays resident.

mod resident;
mod served;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use smtt_common::counter::{ContextCounters, ContextKey};
use smtt_common::page_walk::WalkCounters;
use smtt_daemon::metrics::Exporter;
use smtt_daemon::shared::Shared;
use smtt_model::cpu::{FigureName, Quantity, Ratio, Role};
use smtt_model::decode::{Fact, RddDescribed};
use smtt_model::readings::{Channel, ChannelFigure, PageWalkReadings, Readings};
use smtt_model::state::{Limits, Tick};

use self::resident::{alone, apply, described, figure, peak, read, shared, within_memory};
use self::served::served;

/// RDDs that page faults of one stage are kept for.
const PARTS: u32 = 256;

/// What page walks are measured with: cycles, and walk cycles of reads and writes.
fn page_walks(contexts: Vec<(ContextKey, WalkCounters)>) -> PageWalkReadings {
    let channel = |role| Channel {
        role,
        event: "an event".to_owned(),
        quantity: Quantity::Cycles,
        pass: 0,
        period: 1000,
        counted: 0,
        sampled: 0,
        samples: 0,
        enabled_ns: 10,
        running_ns: 10,
        fault: String::new(),
    };
    let figure = |name, of| ChannelFigure {
        name,
        quantity: Quantity::Cycles,
        of,
        less: None,
        cycles: Some(0),
        ratio: Some(Ratio::Fraction),
    };
    PageWalkReadings {
        contexts,
        channels: [Role::Cycles, Role::LoadWalkCycles, Role::StoreWalkCycles]
            .map(channel)
            .into(),
        figures: vec![
            figure(FigureName::ReadWalkCycles, 1),
            figure(FigureName::WriteWalkCycles, 2),
        ],
        ..PageWalkReadings::default()
    }
}

/// One page fault for each RDD in each stage of an executor, and a sample of page walks where they are `sampled`, until
/// the executor's bytes are used up.
fn stages_of_many_rdds(shared: &Shared, executor: u64, measured: bool, sampled: bool) {
    for rdd_id in 0..PARTS {
        let described = RddDescribed {
            rdd_id,
            name: format!("{rdd_id:05}{}", "n".repeat(295)),
            ..RddDescribed::default()
        };
        apply(shared, executor, Fact::RddDescribed(Box::new(described)));
    }
    let mut samples = WalkCounters::default();
    samples.events[..3].fill(1000);
    samples.samples[..3].fill(1);
    let fault = ContextCounters {
        read: 1,
        ..ContextCounters::default()
    };
    for stage_id in 0..Limits::default().stages_per_executor as u32 {
        let keys = (0..PARTS).map(|rdd| ContextKey {
            executor: executor << 32 | 1,
            task_attempt_id: 1,
            stage_id,
            rdd_plus_one: rdd + 1,
            stage_attempt: 0,
            activity: 0,
            access_region: 0,
            reserved: 0,
        });
        let walks = keys.clone().filter(|_| sampled).map(|key| (key, samples));
        let tick = Tick {
            readings: Readings {
                page_walks: measured.then(|| page_walks(walks.collect())),
                contexts: keys.map(|key| (key, fault)).collect(),
                ..Readings::default()
            },
            ..Tick::default()
        };
        shared.state().take_in(&tick, 1_000_000);
    }
}

/// Everything that takes many rows, beside a search for findings.
fn ask_beside_a_search(shared: &Arc<Shared>, paths: &[&str], rows: u64) {
    println!("state {} MiB", figure("VmRSS:") >> 20);
    let exporter = Exporter::new(shared.info().metrics);
    served(shared, |socket, _| {
        std::thread::scope(|scope| {
            scope.spawn(|| exporter.find(shared));
            for path in paths {
                let stream = UnixStream::connect(socket).expect("connected");
                let (status, bytes) = read(stream, path);
                println!("{path}: {status}, {bytes} bytes, peak {} MiB", peak() >> 20);
                assert_eq!(status, 200, "{path}");
                let whole = *path != "/v1/stages" || bytes > rows * 300;
                assert!(whole, "{path}: {bytes} bytes are not all rows");
            }
        });
    });
    within_memory();
}

#[test]
fn stages_of_many_rdds_fit_the_memory_of_the_unit() {
    alone("stages_of_many_rdds_fit_the_memory_of_the_unit", || {
        let shared = shared(Limits::default());
        for executor in 1..=4 {
            described(&shared, executor);
            stages_of_many_rdds(&shared, executor, false, false);
        }
        let paths = ["/v1/advise", "/v1/stages?executor=2&limit=9", "/v1/report"];
        ask_beside_a_search(&shared, &paths, 0);
    });
}

#[test]
fn page_walks_of_many_rdds_fit_the_memory_of_the_unit() {
    alone("page_walks_of_many_rdds_fit_the_memory_of_the_unit", || {
        for sampled in [false, true] {
            let shared = shared(Limits::default());
            described(&shared, 1);
            stages_of_many_rdds(&shared, 1, true, sampled);
            let stages = ["/v1/stages?limit=9", "/v1/stages"][usize::from(sampled)];
            let paths = ["/v1/advise", stages, "/v1/rdds", "/v1/report"];
            ask_beside_a_search(&shared, &paths, 40_000);
        }
    });
}

#[test]
fn a_search_for_findings_waits_for_the_answer_that_is_made() {
    let shared = shared(Limits::default());
    described(&shared, 1);
    let exporter = Exporter::new(shared.info().metrics);
    let making = shared.making();
    let answer = making.blocking_lock();
    std::thread::scope(|scope| {
        let search = scope.spawn(|| exporter.find(&shared));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!search.is_finished(), "it is made beside the answer");
        drop(answer);
        search.join().expect("found");
    });
}
