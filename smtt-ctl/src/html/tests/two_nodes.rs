//! A machine with every feature: two nodes, counters of page walks, pages of several sizes, swap.

use std::collections::BTreeMap;

use super::*;
use smtt_model::advise::surroundings::Process;
use smtt_model::advise::{View, advise};
use smtt_model::rows::{CourseRow, WorkState};
use smtt_model::rows::{
    EventShown, FigureRow, Number, PageWalkRow, PageWalksShown, SpanRow, Spread,
};
use smtt_model::state::{Measured, SizesBy, Trust};

const EXECUTORS: u64 = 2;
/// Id, name, MiB on each of two executors, share of cycles in walks, share of bytes on huge pages.
const RDDS: [(u32, &str, u64, f64, f64); 4] = [
    (7, "links", 1536, 0.31, 0.02),
    (12, "user factors", 640, 0.12, 0.0),
    (15, "ranks", 220, 0.04, 0.9),
    (23, "In-memory table visits", 90, 0.011, 0.5),
];

fn walks(ratio: f64, cycles: u64) -> PageWalkRow {
    let figure = |share: f64| {
        let events = share * cycles as f64;
        let spread = |value: f64| Spread {
            value,
            low: value * 0.97,
            high: Some(value * 1.03),
        };
        FigureRow {
            events: spread(events),
            samples: (events / 2e6) as u64,
            ratio_is: Some("fraction".to_owned()),
            ratio: Some(spread(share)),
            ratio_of_executor: Some(spread(share / 4.0)),
            ..FigureRow::default()
        }
    };
    PageWalkRow {
        page_walks: BTreeMap::from([
            ("page_walk_read_cycles".to_owned(), figure(ratio)),
            ("page_walk_write_cycles".to_owned(), figure(ratio / 6.0)),
        ]),
        flat: BTreeMap::from([
            ("cycles".to_owned(), Number::Whole(cycles)),
            ("page_walk_read_ratio".to_owned(), Number::Real(ratio)),
        ]),
    }
}

fn of(executor: u64) -> ExecutorId {
    ExecutorId {
        application_id: Some("app-20261121100000-0001".to_owned()),
        executor_id: Some(executor.to_string()),
        pid: 4000 + executor as u32,
        uid: Some(1000),
        ..ExecutorId::default()
    }
}

/// Placement of an RDD's bytes: most of executor 0's bytes are on its own node.
fn places(executor: u64, mib: u64, huge: f64) -> (Vec<PageSizeRow>, Vec<NodeRow>) {
    let bytes = mib * MIB;
    let large = ((bytes as f64 * huge) as u64)
        .next_multiple_of(2 * MIB)
        .min(bytes);
    let sizes = [(4096, bytes - large), (2 * MIB, large)];
    let near = bytes / 10 * if executor == 0 { 8 } else { 4 };
    let nodes = [(executor as u32, near), (1 - executor as u32, bytes - near)];
    let mut nodes: Vec<NodeRow> = nodes
        .into_iter()
        .map(|(node, bytes)| NodeRow { node, bytes })
        .collect();
    nodes.sort_by_key(|row| row.node);
    let sizes = sizes.into_iter().filter(|(_, bytes)| *bytes > 0);
    let sizes = sizes.map(|(page_bytes, bytes)| PageSizeRow { page_bytes, bytes });
    (sizes.collect(), nodes)
}

fn rdd_row(executor: u64, (id, name, mib, ratio, _): (u32, &str, u64, f64, f64)) -> RddRow {
    RddRow {
        who: of(executor),
        rdd_id: Some(id),
        name: Some(name.to_owned()),
        call_site: Some(format!("{name} at Recommend.scala:{}", 20 + id)),
        node: Some(name.to_owned()),
        storage_level: Some("memory, serialised".to_owned()),
        partitions: Some(64),
        partitions_cached: 32,
        storage_memory_bytes: mib * MIB,
        storage_memory_peak_bytes: mib * MIB,
        blocks_stored: 40,
        blocks_stored_again: if id == 12 { 8 } else { 0 },
        blocks_removed: if id == 12 { 8 } else { 0 },
        blocks_evicted: if id == 12 { 8 } else { 0 },
        block_reads: Some(if id == 23 { 0 } else { 320 }),
        last_stored_age_ns: Some(300_000_000_000),
        kept_ns: Some(300_000_000_000),
        tasks_since_stored: 400,
        faults: FaultFigures {
            page_faults: Some(mib * 256),
            page_faults_read: Some(mib * 16),
            page_faults_write: Some(mib * 240),
            page_faults_major: Some(if id == 12 { 1800 } else { 0 }),
            ..FaultFigures::default()
        },
        walks: walks(ratio, 40_000_000_000),
        ..RddRow::default()
    }
}

fn pages_row(executor: u64, (id, name, mib, _, huge): (u32, &str, u64, f64, f64)) -> PagesRow {
    let (sizes, nodes) = places(executor, mib, huge);
    let swapped = if id == 12 { mib * MIB / 16 } else { 0 };
    let read = mib * MIB * 10;
    PagesRow {
        who: of(executor),
        rdd_id: Some(id),
        name: Some(name.to_owned()),
        held_bytes: mib * MIB + swapped,
        resolved_bytes: Some(mib * MIB + swapped),
        present_bytes: Some(mib * MIB),
        swapped_bytes: Some(swapped),
        untouched_bytes: Some(0),
        zero_page_bytes: Some(0),
        unmapped_bytes: Some(0),
        page_sizes: Some(sizes),
        page_sizes_by: Some(SizesBy::PageTables),
        nodes: Some(nodes),
        reads: Some(320),
        hotness: Some(4.5),
        read_local_bytes: Some(read / 10 * 6),
        read_remote_bytes: Some(read / 10 * 4),
        remote_access_ratio: Some(0.4),
        estimated: Some(true),
        ..PagesRow::default()
    }
}

fn history(executor: u64) -> HistoryRow {
    let point = |at: u64| Point {
        time_ns: at * 2_000_000_000,
        page_faults: Some(at * at * 900),
        rdds: RDDS
            .iter()
            .enumerate()
            .filter(|(order, _)| at > *order as u64 * 12)
            .map(|(order, &(id, _, mib, _, huge))| {
                let mib = mib * (at - order as u64 * 12).min(30) / 30;
                let (sizes, nodes) = places(executor, mib, huge);
                RddPoint {
                    rdd_id: Some(id),
                    storage_heap_bytes: if id == 23 { 0 } else { mib * MIB },
                    storage_off_heap_bytes: if id == 23 { mib * MIB } else { 0 },
                    execution_heap_bytes: if at % 9 < 4 { 48 * MIB } else { 0 },
                    pages: Some(Box::new(PagePoint {
                        present_bytes: mib * MIB,
                        page_sizes: Some(sizes),
                        nodes: Some(nodes),
                        ..PagePoint::default()
                    })),
                    ..RddPoint::default()
                }
            })
            .collect(),
        stages: vec![StagePoint {
            stage_id: Some(3 + (at / 30) as u32),
            execution_bytes: (at % 9) * 24 * MIB,
            tasks: 2,
            largest_task_bytes: (at % 9) * 14 * MIB,
            ..StagePoint::default()
        }],
        ..Point::default()
    };
    HistoryRow {
        who: of(executor),
        interval_ns: 2_000_000_000,
        points: (1..120).map(point).collect(),
    }
}

fn around() -> Surroundings {
    let process = Process {
        memory_nodes: Some(vec![0, 1]),
        cpu_nodes: Some(vec![0, 1]),
        options: Some(vec!["-Xmx4096m".to_owned()]),
        user_ns: Some(220_000_000_000),
        system_ns: Some(30_000_000_000),
        ..Process::default()
    };
    Surroundings {
        transparent_huge_pages: Some("madvise".to_owned()),
        memory_bytes: Some(16 << 30),
        swap_bytes: Some(4 << 30),
        swap_used_bytes: Some(90 * MIB),
        swappiness: Some(60),
        nodes: Some(vec![0, 1]),
        processes: (0..EXECUTORS)
            .map(|executor| (4000 + executor as u32, process.clone()))
            .collect(),
        ..Surroundings::default()
    }
}

fn measured() -> PageWalksShown {
    let event = |role: &str, event: &str| EventShown {
        role: role.to_owned(),
        event: event.to_owned(),
        period: 2_000_003,
        counted: 9_000_000_000,
        sampled: 8_990_000_000,
        samples: 4500,
        counted_share: Some(1.0),
        ..EventShown::default()
    };
    PageWalksShown {
        uarch: "Skylake server".to_owned(),
        events: vec![
            event("cycles", "cpu/event=0x3c/"),
            event("load_walk_cycles", "cpu/event=0x08,umask=0x10,cmask=1/"),
        ],
        notes: vec![
            "Reads and writes are counted apart; with more than one page walker their sum is an upper bound."
                .to_owned(),
        ],
        ..PageWalksShown::default()
    }
}

fn whole() -> Facts {
    let executors: Vec<ExecutorRow> = (0..EXECUTORS)
        .map(|executor| ExecutorRow {
            who: of(executor),
            application_name: Some("Recommend".to_owned()),
            host: Some("worker-3".to_owned()),
            spark_version: Some("4.0.5".to_owned()),
            java_version: Some("17.0.17".to_owned()),
            state: smtt_model::rows::ExecutorState::Alive,
            heap_addresses: Trust::Current,
            heap_max_bytes: Some(4 << 30),
            watched_ns: 600_000_000_000,
            faults: FaultFigures {
                page_faults: Some(700_000),
                page_faults_major: Some(2200),
                ..FaultFigures::default()
            },
            page_faults_first_minute: Some(420_000),
            storage_memory_bytes: 2486 * MIB,
            storage_memory_peak_bytes: 2486 * MIB,
            execution_memory_peak_bytes: 200 * MIB,
            tasks_succeeded: 480,
            spans: BTreeMap::from([(
                "spill".to_owned(),
                SpanRow {
                    count: 40,
                    duration_ns: 31_000_000_000,
                },
            )]),
            walks: walks(0.18, 200_000_000_000),
            ..ExecutorRow::default()
        })
        .collect();
    let each = || (0..EXECUTORS).flat_map(|executor| RDDS.map(|rdd| (executor, rdd)));
    let rdds: Vec<RddRow> = each()
        .map(|(executor, rdd)| rdd_row(executor, rdd))
        .collect();
    let pages: Vec<PagesRow> = each()
        .map(|(executor, rdd)| pages_row(executor, rdd))
        .collect();
    let stages: Vec<StageRow> = (0..EXECUTORS)
        .flat_map(|executor| {
            (3..6).map(move |stage| StageRow {
                who: of(executor),
                stage_id: Some(stage),
                name: Some(format!("reduceByKey at Recommend.scala:{}", 40 + stage)),
                execution_memory_peak_bytes: 190 * MIB,
                tasks_succeeded: 80,
                walks: walks(0.2, 60_000_000_000),
                ..StageRow::default()
            })
        })
        .collect();
    let surroundings = around();
    let view = View {
        executors: executors.clone(),
        rdds: rdds.clone(),
        pages: pages.clone(),
        stages: stages.clone(),
        measured: Measured {
            page_faults: true,
            access: true,
            major: true,
        },
        now_unix_ms: 1_795_000_000_000,
        ..View::default()
    };
    let advice = advise(&view, &surroundings);
    Facts {
        application: ApplicationReport {
            application_id: of(0).application_id,
            application_name: Some("Recommend".to_owned()),
            executors,
            ..ApplicationReport::default()
        },
        rdds,
        pages,
        stages,
        jobs: (0..6)
            .map(|job| WorkOverWorkersRow {
                job_id: Some(job),
                name: Some("count at Recommend.scala:31".to_owned()),
                course: CourseRow {
                    state: Some(WorkState::Succeeded),
                    started_unix_ms: Some(1_794_999_800_000 + u64::from(job) * 20_000),
                    ended_unix_ms: Some(1_794_999_815_000 + u64::from(job) * 25_000),
                    duration_ns: Some(15_000_000_000 + u64::from(job) * 5_000_000_000),
                    failure: None,
                },
                stages: Some(2),
                tasks_succeeded: 40,
                ..WorkOverWorkersRow::default()
            })
            .collect(),
        tasks: (0..4)
            .map(|task| TaskRow {
                who: of(task % 2),
                stage_id: Some(4),
                execution_memory_peak_bytes: (100 + task) * MIB,
                ..TaskRow::default()
            })
            .collect(),
        history: Histories {
            now_ns: 240_000_000_000,
            now_unix_ms: 1_795_000_000_000,
            rows: (0..EXECUTORS).map(history).collect(),
        },
        advice,
        finding_hosts: Vec::new(),
        workers: vec![OfWorker {
            name: None,
            status: Status {
                page_walks: Some(measured()),
                ..status()
            },
            surroundings,
        }],
        asked: None,
        by: None,
        has_all_stages: true,
        tasks_total: 1,
        ended: Vec::new(),
        ended_longest: 0,
        ended_total: 0,
        ended_of: "this stage",
    }
}

#[test]
fn a_machine_that_has_everything_shows_everything() {
    let page = document::page(&whole());
    let document = parsed(&page);
    let text: String = document
        .descendants()
        .filter(roxmltree::Node::is_text)
        .filter_map(|node| node.text())
        .collect();
    for said in [
        // Figures of placement and of page walks have columns.
        "Page sizes",
        "Nodes",
        "Remote reads",
        "Page walk read cycles, fraction",
        "31.00 %",
        "Page walks were sampled on Skylake server.",
        // Findings of four rules; equal remedies are printed once.
        "of the reads of RDD 7 (links) come from another node",
        "of RDD 12 (user factors) are swapped out",
        "is cached (180.0 MiB) and was never read",
        "spends 31.0 % of its cycles in page walks",
        "What helps is the same as for finding",
        // Charts by node and page size.
        "node 0",
        "node 1",
        "2 MiB pages",
    ] {
        assert!(text.contains(said), "{said:?} is not on the page");
    }
    assert_eq!(text.matches("numactl --cpunodebind").count(), 1);
    // The figures of executors and of nodes are summed: 80 % of one executor and 40 % of the other are local.
    assert!(text.contains("3.0 GiB"), "links of both executors");
}
