//! Facts of honest executors, in order and out of order.

use super::*;
use crate::decode::{BlockRead, BlockRemoved, PythonWorker, Span, StageDescribed};
use crate::rows::AttributedBy;

/// Two executors of one job: RDD 7 is cached and read, RDD 8 is written by a shuffle.
pub(super) fn job() -> State {
    let mut state = state();
    for (n, id) in [(1, "0"), (2, "1")] {
        tell(&mut state, n, S, described("app-1", id));
        tell(
            &mut state,
            n,
            S + 1,
            rdd(7, "ranks", "Memory Serialized 1x Replicated"),
        );
        tell(&mut state, n, S + 2, started(u64::from(n), 3));
    }
    tell(
        &mut state,
        1,
        S + 3,
        Fact::StageDescribed(StageDescribed {
            stage_id: 3,
            stage_attempt: 0,
            tasks: 2,
            job_id: Some(0),
            rdd_id: Some(8),
            name: "map at PageRank.py:20".to_owned(),
            ..StageDescribed::default()
        }),
    );
    tell(
        &mut state,
        1,
        S + 4,
        stored(block(7, 0, 1000, &[(0x1000, 0x400)])),
    );
    tell(
        &mut state,
        1,
        S + 5,
        stored(block(7, 1, 500, &[(0x9000, 0x200)])),
    );
    let one = page(1, Some(0), 4096);
    tell(&mut state, 1, S + 6, Fact::PageAllocated(one));
    state.add(
        &readings(vec![
            (context(1, 1, 3, Some(7)), faults(10, 2, 1)),
            (context(1, 1, 3, Some(8)), faults(0, 30, 0)),
            (context(1, 1, 3, None), faults(1, 1, 0)),
            (context(2, 2, 3, Some(7)), faults(5, 0, 0)),
        ]),
        2 * S,
    );
    state
}

#[test]
fn rdds_show_faults_and_memory_per_executor() {
    let state = job();
    let row = the_rdd(&state, 1, 7);
    assert_eq!(row.who.application_id.as_deref(), Some("app-1"));
    assert_eq!(row.who.executor_id.as_deref(), Some("0"));
    assert_eq!(row.name.as_deref(), Some("ranks"));
    assert_eq!(
        row.storage_level.as_deref(),
        Some("Memory Serialized 1x Replicated")
    );
    assert_eq!(
        (
            row.partitions_cached,
            row.storage_memory_bytes,
            row.execution_memory_bytes
        ),
        (2, 1500, 4096)
    );
    let figures = row.faults;
    assert_eq!(
        (
            figures.page_faults_read,
            figures.page_faults_write,
            figures.page_faults_major
        ),
        (Some(10), Some(2), Some(1))
    );
    assert_eq!(row.attributed_by, AttributedBy::Context);
    assert_eq!(
        (row.contexts.len(), row.contexts[0].activity.as_str()),
        (1, "cache_read")
    );
    assert_eq!(the_rdd(&state, 2, 7).faults.page_faults, Some(5));
    assert_eq!(the_rdd(&state, 1, 8).name, None, "not described yet");
}

#[test]
fn the_rows_of_a_listing_add_up_to_what_was_attributed() {
    let state = job();
    let sum = |rows: Vec<Option<u64>>| rows.into_iter().flatten().sum::<u64>();
    let rdds = state.list_rdds(&Filter::default());
    assert_eq!(
        sum(rdds.rows.iter().map(|row| row.faults.page_faults).collect()),
        49
    );
    assert_eq!(rdds.summary.page_faults_attributed, Some(49));
    let tasks = state.list_tasks(&Filter::default());
    assert_eq!(
        sum(tasks
            .rows
            .iter()
            .map(|row| row.faults.page_faults)
            .collect()),
        49
    );
    let stages = state.list_stages(&Filter::default());
    assert_eq!(
        sum(stages
            .rows
            .iter()
            .map(|row| row.faults.page_faults)
            .collect()),
        49
    );
    let of_no_rdd = rdds
        .rows
        .iter()
        .find(|row| row.name.as_deref() == Some("(no RDD)"))
        .expect("a row");
    assert_eq!(
        (of_no_rdd.rdd_id, of_no_rdd.faults.page_faults),
        (None, Some(2))
    );
}

#[test]
fn unattributed_faults_stand_below_every_listing() {
    let mut state = job();
    let mut readings = readings(vec![]);
    let mut counters = ExecutorCounters {
        attributed: faults(75, 0, 0),
        ..ExecutorCounters::default()
    };
    counters.unattributed[1] = faults(20, 5, 0);
    readings.executors = vec![(key(1), counters)];
    state.add(&readings, 3 * S);
    let listing = state.list_executors(&filter(None, Some("0"), None, None));
    assert_eq!(
        listing.rows[0].unattributed,
        BTreeMap::from([("gc_thread".to_owned(), 25)])
    );
    assert_eq!(listing.summary.unattributed_share, Some(0.25));
    assert_eq!(
        (
            listing.summary.page_faults,
            listing.summary.page_faults_unattributed
        ),
        (Some(100), Some(25))
    );
}

#[test]
fn faults_before_tracing_have_a_sum_once_all_executors_have_them() {
    let mut state = job();
    let mut readings = readings(vec![]);
    readings.before = vec![(key(1), 300)];
    state.add(&readings, 3 * S);
    let listing = state.list_executors(&Filter::default());
    assert_eq!(listing.rows[0].page_faults_before_tracing, Some(300));
    assert_eq!(listing.rows[1].page_faults_before_tracing, None);
    assert_eq!(listing.summary.page_faults_before_tracing, None);
    let one = state.list_executors(&filter(None, Some("0"), None, None));
    assert_eq!(one.summary.page_faults_before_tracing, Some(300));

    readings.before.push((key(2), 50));
    state.add(&readings, 4 * S);
    let all = state.list_executors(&Filter::default()).summary;
    assert_eq!(all.page_faults_before_tracing, Some(350));
    let none = state.list_executors(&filter(None, Some("no such"), None, None));
    assert_eq!(none.summary.page_faults_before_tracing, None);
}

#[test]
fn tasks_go_from_start_to_end() {
    let mut state = job();
    let running = the_task(&state, 1);
    assert_eq!(
        (running.state, running.duration_ns),
        (TaskState::Running, Some(S - 2))
    );
    assert_eq!(
        (
            running.execution_memory_bytes,
            running.execution_memory_peak_bytes
        ),
        (4096, 4096)
    );
    assert_eq!(running.rdd_ids, [7, 8]);
    tell(
        &mut state,
        1,
        S + 2 + 500 * MS,
        ended(1, 3, TaskOutcome::Failed),
    );
    let row = the_task(&state, 1);
    assert_eq!(
        (row.state, row.duration_ns, row.partition),
        (TaskState::Failed, Some(500 * MS), Some(1))
    );
    let stage = &state.list_stages(&filter(None, Some("0"), None, None)).rows[0];
    assert_eq!(
        (
            stage.tasks_running,
            stage.tasks_failed,
            stage.tasks_succeeded
        ),
        (0, 1, 0)
    );
    assert_eq!(
        (stage.tasks, stage.name.as_deref()),
        (Some(2), Some("map at PageRank.py:20"))
    );
    assert_eq!(
        (stage.task_time_ns, stage.execution_memory_peak_bytes),
        (500 * MS, 4096)
    );
    assert_eq!(stage.rdds.len(), 3);
}

#[test]
fn blocks_show_where_their_bytes_are_until_they_leave() {
    let mut state = job();
    let blocks = state
        .list_blocks(&filter(None, None, Some("ranks"), None))
        .rows;
    assert_eq!(blocks.len(), 2);
    let mut first = blocks
        .into_iter()
        .find(|row| row.block_id == "rdd_7_0")
        .expect("the block");
    assert_eq!(
        first
            .ranges
            .pop()
            .map(|range| (range.address, range.length)),
        Some((0x1000, 0x400))
    );
    assert_eq!(
        (
            first.stage_id,
            first.on_heap,
            first.serialized,
            first.size_estimated
        ),
        (Some(3), true, true, false)
    );

    // The collector moves it, then it is read, then it is dropped.
    let moved = BlockFact {
        ranges: vec![(0x5000, 0x400)],
        ..block(7, 0, 1000, &[(0, 0)])
    };
    tell(&mut state, 1, 3 * S, Fact::BlockMoved(Box::new(moved)));
    let read = BlockRead {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        partition: Some(0),
        task_attempt_id: Some(1),
        node: None,
    };
    tell(&mut state, 1, 3 * S, Fact::BlockRead(read));
    let row = state
        .list_blocks(&Filter::default())
        .rows
        .into_iter()
        .find(|row| row.block_id == "rdd_7_0")
        .expect("the block");
    assert_eq!((row.ranges[0].address, row.reads), (0x5000, 1));
    let removed = || {
        Fact::BlockRemoved(BlockRemoved {
            block_id: "rdd_7_0".to_owned(),
            rdd_id: Some(7),
            partition: Some(0),
            activity: None,
        })
    };
    assert_eq!(tell(&mut state, 1, 3 * S, removed()), Outcome::Applied);
    assert_eq!(
        tell(&mut state, 1, 3 * S, removed()),
        Outcome::Ignored("block_not_known")
    );
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (
            row.partitions_cached,
            row.storage_memory_bytes,
            row.storage_memory_peak_bytes
        ),
        (1, 500, 1500)
    );
}

#[test]
fn a_read_from_a_disk_counts_for_its_rdd_and_is_no_loss() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "0"));
    tell(&mut state, 1, S, rdd(7, "links", "Disk"));
    let read = |rdd: u32| {
        Fact::BlockRead(BlockRead {
            block_id: format!("rdd_{rdd}_0"),
            rdd_id: Some(rdd),
            partition: Some(0),
            ..BlockRead::default()
        })
    };
    assert_eq!(tell(&mut state, 1, 2 * S, read(7)), Outcome::Applied);
    assert_eq!(the_rdd(&state, 1, 7).block_reads, Some(1));
    assert_eq!(
        tell(&mut state, 1, 2 * S, read(8)),
        Outcome::Ignored("block_not_known")
    );
}

#[test]
fn a_block_of_many_ranges_comes_in_several_facts() {
    let mut state = state();
    let all: Vec<(u64, u64)> = (0..250)
        .map(|index| (0x10_0000 + index * 0x1000, 0x800))
        .collect();
    let part = |first: usize, end: usize| {
        let whole = block(7, 0, 4096, &all);
        stored(BlockFact {
            range_first: first as u64,
            ranges: all[first..end].to_vec(),
            ..whole
        })
    };
    // Also out of order and twice.
    for (first, end) in [(100, 200), (0, 100), (200, 250), (100, 200)] {
        assert_eq!(tell(&mut state, 1, S, part(first, end)), Outcome::Applied);
    }
    let row = &state.list_blocks(&Filter::default()).rows[0];
    assert_eq!(row.ranges.len(), 250);
    assert!(
        row.ranges
            .iter()
            .zip(&all)
            .all(|(range, (address, length))| (range.address, range.length) == (*address, *length))
    );
    assert_eq!(
        (row.range_total, the_rdd(&state, 1, 7).storage_memory_bytes),
        (250, 4096)
    );
}

#[test]
fn facts_may_come_in_any_order() {
    let mut state = state();
    state.add(
        &readings(vec![(context(1, 5, 3, Some(7)), faults(4, 0, 0))]),
        S,
    );
    let row = the_task(&state, 5);
    assert_eq!(
        (row.state, row.stage_id, row.duration_ns),
        (TaskState::Unknown, Some(3), None)
    );
    tell(&mut state, 1, S, ended(5, 3, TaskOutcome::Succeeded));
    tell(&mut state, 1, S, started(5, 3));
    let row = the_task(&state, 5);
    assert_eq!(
        (row.state, row.partition, row.faults.page_faults),
        (TaskState::Succeeded, Some(5), Some(4))
    );
    assert_eq!(row.duration_ns, None, "its start was not seen");
    tell(&mut state, 1, S, stored(block(7, 0, 10, &[])));
    assert_eq!(the_rdd(&state, 1, 7).who.application_id, None);
    tell(&mut state, 1, S, rdd(7, "ranks", ""));
    tell(&mut state, 1, S, described("app-1", "0"));
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (row.who.application_id.as_deref(), row.name.as_deref()),
        (Some("app-1"), Some("ranks"))
    );
    assert_eq!(
        row.storage_level.as_deref(),
        Some("Memory Serialized (from blocks)")
    );
    let stage = &state.list_stages(&Filter::default()).rows[0];
    assert_eq!((stage.tasks_succeeded, stage.tasks_running), (1, 0));
}

#[test]
fn samples_tell_whether_address_and_context_agree() {
    let mut state = job();
    let sample = |address, rdd: Option<u32>| Fact::FaultSample {
        address,
        write: Some(true),
        context: rdd.map(|rdd| context(1, 1, 3, Some(rdd))),
    };
    for (address, rdd) in [
        (0x1000, Some(7)),
        (0x13ff, Some(7)),
        (0x1400, Some(7)),
        (0x9000, Some(8)),
        (0x10_0000, None),
    ] {
        tell(&mut state, 1, 3 * S, sample(address, rdd));
    }
    let row = &state
        .list_executors(&filter(None, Some("0"), None, None))
        .rows[0];
    let samples = row.address_samples;
    assert_eq!(
        (samples.samples, samples.in_blocks, samples.in_pages),
        (5, 3, 1)
    );
    assert_eq!(
        (samples.agree, samples.disagree, row.address_agreement),
        (2, 2, Some(0.5))
    );
    assert_eq!(the_rdd(&state, 1, 7).samples_by_address, 4);
}

#[test]
fn filters_choose_rows_by_who_worked_on_what() {
    let state = job();
    let rows = |filter: &Filter| {
        (
            state.list_executors(filter).rows.len(),
            state.list_stages(filter).rows.len(),
            state.list_tasks(filter).rows.len(),
            state.list_rdds(filter).rows.len(),
            state.list_blocks(filter).rows.len(),
        )
    };
    assert_eq!(rows(&Filter::default()), (2, 2, 2, 4, 2));
    assert_eq!(
        rows(&filter(Some("app-1"), None, None, None)),
        (2, 2, 2, 4, 2)
    );
    assert_eq!(
        rows(&filter(Some("PageRank"), Some("1"), None, None)),
        (1, 1, 1, 1, 0)
    );
    assert_eq!(
        rows(&filter(Some("app-2"), None, None, None)),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(rows(&filter(None, None, Some("8"), None)), (1, 1, 1, 1, 0));
    assert_eq!(
        rows(&filter(None, None, Some("ranks"), Some("3.0"))),
        (2, 2, 2, 2, 2)
    );
    assert_eq!(
        rows(&filter(None, None, None, Some("3.1"))),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(rows(&filter(None, None, None, Some("x"))), (0, 0, 0, 0, 0));
}

#[test]
fn python_workers_children_threads_and_spans_are_counted() {
    let mut state = job();
    let worker = |task| {
        Fact::PythonWorker(PythonWorker {
            pid: 5,
            task_attempt_id: task,
            ..PythonWorker::default()
        })
    };
    tell(&mut state, 1, 3 * S, Fact::ProcessForked { child_pid: 500 });
    tell(&mut state, 1, 3 * S, worker(Some(1)));
    let span = Span {
        activity: Activity::SPILL.0,
        duration_ns: 5 * MS,
        ..Span::default()
    };
    tell(&mut state, 1, 3 * S, Fact::Span(span.clone()));
    tell(&mut state, 1, 3 * S, Fact::Span(span));
    let row = |state: &State| {
        state
            .list_executors(&filter(None, Some("0"), None, None))
            .rows
            .remove(0)
    };
    let seen = row(&state);
    assert_eq!((seen.python_workers, seen.child_processes), (1, 1));
    assert_eq!(
        seen.spans
            .get("spill")
            .map(|spans| (spans.count, spans.duration_ns)),
        Some((2, 10 * MS))
    );
    tell(&mut state, 1, 3 * S, worker(None));
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: false,
        end: None,
    };
    state.apply(Event {
        time_ns: 3 * S,
        executor: key(1),
        pid: 500,
        tid: 500,
        uid: 1000,
        fact: gone,
    });
    assert_eq!(
        (row(&state).python_workers, row(&state).child_processes),
        (0, 0)
    );
}

#[test]
fn what_was_not_measured_is_absent() {
    let mut state = State::new(Limits::default());
    tell(&mut state, 1, S, stored(block(7, 0, 10, &[])));
    assert_eq!(the_rdd(&state, 1, 7).faults, FaultFigures::default());
    assert_eq!(
        state.list_rdds(&Filter::default()).summary.page_faults,
        None
    );
    // The rung that cannot distinguish reads from writes:
    state.set_page_faults_measured(true);
    let unknown = FaultCounters {
        unknown: 6,
        ..FaultCounters::default()
    };
    let readings = Readings {
        contexts: vec![(context(1, 1, 3, Some(7)), unknown)],
        ..Readings::default()
    };
    state.add(&readings, S);
    let figures = the_rdd(&state, 1, 7).faults;
    assert_eq!(
        (
            figures.page_faults,
            figures.page_faults_read,
            figures.page_faults_write
        ),
        (Some(6), None, None)
    );
    assert_eq!(figures.page_faults_major, None);
}

#[test]
fn facts_emitted_are_compared_with_those_of_the_same_executors() {
    let mut state = job();
    assert_eq!(state.marker_counts(), None);
    let counters = ExecutorCounters {
        facts_seen: 90,
        ..ExecutorCounters::default()
    };
    state.add(
        &Readings {
            executors: vec![(key(1), counters), (key(2), counters)],
            ..Readings::default()
        },
        3 * S,
    );
    state.set_slots(
        key(1),
        SlotFileCounters {
            facts_emitted: 100,
            slots_refused: 3,
        },
    );
    assert_eq!(state.marker_counts(), Some((100, 90)));
    let rows = state.list_executors(&Filter::default()).rows;
    let refused: Vec<_> = rows
        .iter()
        .map(|row| (row.who.pid, row.slots_refused))
        .collect();
    assert_eq!(refused[0], (101, Some(3)));
    assert!(refused[1..].iter().all(|(_, refused)| refused.is_none()));
}
