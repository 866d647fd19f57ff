//! Rows of every kind that a state keeps, as large as an executor may make them.

use smtt_common::context::Activity;
use smtt_common::counter::{ContextCounters, ContextKey};
use smtt_common::event::used::{ACCOUNTS, Helper, TaskUsed, WorkerUsed};
use smtt_daemon::shared::Shared;
use smtt_model::decode::{
    BlockFact, BlockRead, ConsumerUsed, Exhausted, Fact, Fetched, Figure, JobDescribed,
    MemoryReported, Outcome, PageAllocated, Paused, PeaksReported, ProcessEnd, PythonWorker,
    RddDescribed, SignalSent, Span, StageDescribed, TaskEnded, TaskHeap, TaskMetrics, TaskStarted,
    ThreadFact,
};
use smtt_model::readings::Readings;
use smtt_model::state::{MemorySample, Outcome as Applied, Tick};

use crate::resident::apply;

/// Spans, and fetches, that a task reports: several times what is kept of one.
const OF_A_TASK: u64 = 100;
/// Figures that a report about memory has at most.
const FIGURES: u8 = 64;

/// A name of the length that an executor may give at most, different for each number.
fn name(number: u64) -> String {
    format!("{number:020}{}", "n".repeat(236))
}

fn figures(number: u64) -> Vec<Figure> {
    let figure = |code| Figure {
        code,
        age_ms: number,
        value: number << 20,
    };
    (0..FIGURES).map(figure).collect()
}

fn used(task: u64) -> TaskUsed {
    TaskUsed {
        task_attempt_id: task,
        accounts: [task; ACCOUNTS],
        duration_ns: 1_000_000,
        present: (1 << ACCOUNTS) - 1,
        ..TaskUsed::default()
    }
}

/// What describes an application.
fn described(number: u64) -> Vec<Fact> {
    let id = number as u32;
    vec![
        Fact::StageDescribed(StageDescribed {
            stage_id: id / 8,
            job_id: Some(id / 8),
            sql_execution_id: Some(number / 8),
            tasks: 8,
            name: name(number),
            sql_description: name(number),
            job_description: name(number),
            failure: name(number),
            submitted_unix_ms: Some(number),
            completed_unix_ms: Some(number),
            ..StageDescribed::default()
        }),
        Fact::JobDescribed(JobDescribed {
            job_id: id / 8,
            started_unix_ms: number,
            ended_unix_ms: Some(number),
            sql_execution_id: Some(number / 8),
            failure: name(number),
        }),
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: id / 8,
            name: name(number),
            call_site: name(number),
            storage_level_text: name(number),
            parents: (0..64).collect(),
            node: name(number),
            node_id: name(number),
            ..RddDescribed::default()
        })),
    ]
}

/// What is in memory.
fn held(number: u64) -> Vec<Fact> {
    let id = number as u32;
    let consumer = |class: u64| ConsumerUsed {
        task_attempt_id: Some(number),
        instances: 1,
        peak_bytes: 1,
        counted_bytes: None,
        estimated: false,
        consumer: name(class),
    };
    vec![
        Fact::ConsumerUsed(consumer(number % 4)),
        Fact::ConsumerUsed(consumer(number % 4 + 4)),
        Fact::BlockStored(Box::new(BlockFact {
            block_id: name(number),
            rdd_id: Some(id / 8),
            partition: Some(id),
            size_bytes: 1 << 20,
            serialized: true,
            range_total: 2,
            ranges: vec![(number << 21, 4096), ((number << 21) + 8192, 4096)],
            ..BlockFact::default()
        })),
        Fact::BlockRead(BlockRead {
            block_id: name(number),
            rdd_id: Some(id / 8),
            partition: Some(id),
            task_attempt_id: Some(number),
            node: Some(id % 8),
        }),
        Fact::PageAllocated(PageAllocated {
            task_attempt_id: Some(number),
            page_number: Some(number),
            address: 1 << 46 | number << 21,
            size_bytes: 1 << 20,
            consumer: name(number % 8),
            ..PageAllocated::default()
        }),
        Fact::MemoryReported(Box::new(MemoryReported {
            examined: number.is_multiple_of(2),
            overhead_is_default: true,
            figures: figures(number),
        })),
        Fact::PeaksReported(Box::new(PeaksReported {
            stage: Some((id / 8, 0)),
            figures: figures(number),
        })),
        Fact::Paused(Paused {
            number,
            age_ns: 0,
            duration_ns: Some(1_000_000),
        }),
    ]
}

/// What a task does until its end.
fn task(number: u64) -> Vec<Fact> {
    let id = number as u32;
    let span = |at: u64| {
        Fact::Span(Span {
            task_attempt_id: Some(number),
            activity: Activity::SPILL.0,
            start_monotonic_ns: at * 4_000_000,
            duration_ns: 2_000_000 + at,
            rdd_id: Some(id / 8),
            name: format!("{number}.{at}"),
        })
    };
    let fetched = |at: u64| {
        Fact::Fetched(Box::new(Fetched {
            task_attempt_id: number,
            start_monotonic_ns: at * 4_000_000,
            duration_ns: 2_000_000 + at,
            requests: 1,
            blocks: 1,
            arrived_blocks: 1,
            arrived_bytes: 1 << 20,
            address: format!("10.0.{}.{at}:7337", number % 250),
            executor_id: format!("{at}"),
            ..Fetched::default()
        }))
    };
    let worker = PythonWorker {
        pid: 100_000 + id,
        task_attempt_id: Some(number),
        hot: 0,
        stage_id: Some(id / 8),
        stage_attempt: 0,
    };
    let mut facts = vec![
        Fact::ThreadRegistered(ThreadFact {
            slot_address: number << 8,
            tid: id,
            generation: 1,
            name: name(number),
        }),
        Fact::TaskBegun {
            task_attempt_id: number,
            late: false,
        },
        Fact::TaskStarted(TaskStarted {
            task_attempt_id: number,
            stage_id: id / 8,
            job_id: Some(id / 8),
            ..TaskStarted::default()
        }),
        Fact::HelperBegun {
            task_attempt_id: number,
            helper: Helper::PYTHON_WRITER,
        },
        Fact::ProcessForked {
            child_pid: 100_000 + id,
        },
        Fact::PythonWorker(worker),
        Fact::TaskHeapSoFar {
            task_attempt_id: number,
            allocated_bytes: number,
        },
    ];
    facts.extend((0..OF_A_TASK).map(span));
    facts.extend((0..OF_A_TASK).map(fetched));
    facts.extend([
        Fact::HelperEnded {
            task_attempt_id: number,
            helper: Helper::PYTHON_WRITER,
            allocated_bytes: Some(number),
        },
        Fact::WorkerUsed(Box::new(WorkerUsed {
            used: used(number),
            pid: 100_000 + id,
            reserved: 0,
        })),
        Fact::TaskUsed(Box::new(used(number))),
        Fact::TaskHeap(TaskHeap {
            task_attempt_id: number,
            allocated_bytes: Some(number),
            collection_ms: Some(number),
        }),
        Fact::TaskMetrics(Box::new(TaskMetrics {
            task_attempt_id: number,
            values: [number; 10],
            times: Some([number; 4]),
        })),
    ]);
    facts
}

/// How a task and its worker end: every second one stays.
fn ends(number: u64) -> Vec<Fact> {
    let id = number as u32;
    if number.is_multiple_of(2) {
        return Vec::new();
    }
    vec![
        Fact::TaskEnded(TaskEnded {
            task_attempt_id: number,
            stage_id: id / 8,
            stage_attempt: 0,
            outcome: Outcome::Failed,
            execution_memory_peak_bytes: 1 << 27,
            reason: name(number),
        }),
        Fact::Exhausted(Box::new(Exhausted {
            uncaught: false,
            flags: 1,
            description: name(number),
        })),
        Fact::SignalSent(Box::new(SignalSent {
            target_pid: 100_000 + id,
            signal: 9,
            sender_name: "killer-of-workers".to_owned(),
            ..SignalSent::default()
        })),
        Fact::ProcessGone {
            exec: false,
            is_executor: false,
            end: Some(Box::new(ProcessEnd {
                status: 9,
                peak_rss_bytes: 1 << 30,
                name: "python-worker-x".to_owned(),
            })),
        },
    ]
}

/// One more row of each kind, at a time of its own. Returns whether the state took any of them.
pub fn one_more(shared: &Shared, executor: u64, number: u64) -> bool {
    let mut taken = false;
    let all = [described(number), task(number), held(number), ends(number)];
    for fact in all.into_iter().flatten() {
        taken |= apply(shared, executor, fact) == Applied::Applied;
    }
    taken
}

/// A reading of the kernel's counters, a point of each executor's history, and a sample of its memory.
pub fn tick(shared: &Shared, executors: u64, number: u64) {
    let now_ns = number * 2_000_000_000;
    let key = |executor: u64, activity: u8| ContextKey {
        executor: executor << 32 | 1,
        task_attempt_id: number,
        stage_id: number as u32 / 8,
        rdd_plus_one: number as u32 / 8 + 1,
        stage_attempt: 0,
        activity,
        access_region: 0,
        reserved: 0,
    };
    let faults = ContextCounters {
        read: 1,
        ..ContextCounters::default()
    };
    let keys = (1..=executors).flat_map(|executor| (0..4).map(move |at| key(executor, at)));
    let tick = Tick {
        readings: Readings {
            contexts: keys.map(|key| (key, faults)).collect(),
            ..Readings::default()
        },
        ..Tick::default()
    };
    let mut state = shared.state();
    state.take_in(&tick, now_ns);
    for executor in 1..=executors {
        let bytes = Some(number << 20);
        let sample = MemorySample {
            time_ns: now_ns,
            resident_bytes: bytes,
            heap_used_bytes: bytes,
            children_bytes: bytes,
            threads: Some(number),
            ..MemorySample::default()
        };
        state.sample_memory(executor << 32 | 1, &sample);
    }
}
