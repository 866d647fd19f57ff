//! Tests of what executors held over time: what a point says, how it thins, and that it stays within its bounds.

use super::super::history::{BYTES_MAX, INTERVAL_NS, POINTS_MAX, RDDS_MAX, STAGES_MAX};
use super::*;
use smtt_common::context::HeapAddresses;

use crate::decode::BlockRemoved;
use crate::rows::HistoryRow;

fn histories(state: &State) -> Vec<HistoryRow> {
    state.list_history(&Filter::default()).rows
}

fn with_block(size: u64) -> State {
    let mut state = State::new(Limits::default());
    tell(&mut state, 1, 1, described("app-1", "0"));
    tell(&mut state, 1, 1, rdd(7, "links", "Memory"));
    tell(&mut state, 1, 1, stored(block(7, 0, size, &[])));
    state
}

#[test]
fn a_point_says_what_is_held_where_and_by_which_stage() {
    let mut state = with_block(1000);
    let mut off_heap = block(7, 1, 300, &[]);
    off_heap.on_heap = false;
    tell(&mut state, 1, 2, stored(off_heap));
    tell(&mut state, 1, 2, started(5, 3));
    tell(&mut state, 1, 2, Fact::PageAllocated(page(5, Some(0), 64)));
    state.record_history(10 * S);
    let rows = histories(&state);
    assert_eq!((rows.len(), rows[0].points.len()), (1, 1));
    let point = &rows[0].points[0];
    assert_eq!(point.page_faults, None, "page faults are not counted");
    assert_eq!(point.rdds.len(), 1);
    let held = &point.rdds[0];
    assert_eq!(held.rdd_id, Some(7));
    assert_eq!(
        (held.storage_heap_bytes, held.storage_off_heap_bytes),
        (1000, 300)
    );
    assert_eq!(
        (held.execution_heap_bytes, held.execution_off_heap_bytes),
        (0, 64)
    );
    assert_eq!(held.pages, None, "no page was examined");
    assert_eq!(point.stages.len(), 1);
    let stage = &point.stages[0];
    assert_eq!(
        (stage.stage_id, stage.execution_bytes, stage.tasks),
        (Some(3), 64, 1)
    );
    // Not due yet.
    state.record_history(10 * S + INTERVAL_NS / 2);
    assert_eq!(histories(&state)[0].points.len(), 1);
}

#[test]
fn a_point_counts_the_collections_until_then_where_the_marker_counts_them() {
    let mut state = with_block(1000);
    state.record_history(10 * S);
    state.set_collections(key(1), HeapAddresses::FOLLOWED, 4);
    state.record_history(10 * S + INTERVAL_NS);
    state.set_collections(key(1), HeapAddresses::FOLLOWED, 9);
    state.record_history(10 * S + 2 * INTERVAL_NS);
    // The slot file could not be read, and a marker that does not follow collections has no count.
    state.collections_unread(key(1));
    state.record_history(10 * S + 3 * INTERVAL_NS);
    state.set_collections(key(1), HeapAddresses::UNVERIFIED, 9);
    state.record_history(10 * S + 4 * INTERVAL_NS);
    let rows = histories(&state);
    let counts = rows[0].points.iter().map(|point| point.collections);
    let expected = [None, Some(4), Some(9), None, None];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    let text = serde_json::to_string(&rows[0].points[0]).expect("is JSON");
    assert!(!text.contains("collections"), "absent is not zero: {text}");
}

#[test]
fn a_full_history_keeps_the_moments_with_most_and_doubles_its_interval() {
    let mut state = with_block(1000);
    let mut now = S;
    for at in 0..POINTS_MAX as u64 {
        // A peak that only one point sees.
        if at == 101 {
            tell(&mut state, 1, now, stored(block(7, 9, 5000, &[])));
        }
        if at == 102 {
            let removed = BlockRemoved {
                block_id: "rdd_7_9".to_owned(),
                ..BlockRemoved::default()
            };
            tell(&mut state, 1, now, Fact::BlockRemoved(removed));
        }
        state.record_history(now);
        now += INTERVAL_NS;
    }
    assert_eq!(histories(&state)[0].points.len(), POINTS_MAX);
    state.record_history(now);
    let row = &histories(&state)[0];
    assert_eq!(row.points.len(), POINTS_MAX / 2 + 1);
    assert_eq!(row.interval_ns, 2 * INTERVAL_NS);
    assert!(row.points.is_sorted_by_key(|point| point.time_ns));
    let most = row.points.iter().map(|point| point.rdds[0].held_bytes());
    assert_eq!(most.max(), Some(6000), "the peak is still there");
}

#[test]
fn dead_executors_get_no_more_points_and_their_history_goes_with_them() {
    let mut state = with_block(1000);
    state.record_history(S);
    state.executor_gone(key(1), 2 * S);
    state.record_history(60 * S);
    assert_eq!(histories(&state)[0].points.len(), 1);
    state.expire(2 * S + Limits::default().retention_ns);
    assert_eq!((histories(&state).len(), state.history_bytes()), (0, 0));
}

#[test]
fn many_rdds_and_stages_are_added_up() {
    let mut state = with_block(1000);
    let many = RDDS_MAX as u32 + 10;
    for id in 100..100 + many {
        tell(&mut state, 1, 2, rdd(id, "more", "Memory"));
        tell(&mut state, 1, 2, stored(block(id, 0, u64::from(id), &[])));
    }
    for task in 0..STAGES_MAX as u32 + 5 {
        tell(&mut state, 1, 2, started(u64::from(task), task));
        let page = page(u64::from(task), Some(0), 10);
        tell(&mut state, 1, 2, Fact::PageAllocated(page));
    }
    state.record_history(S);
    let point = &histories(&state)[0].points[0];
    assert_eq!(
        (point.rdds.len(), point.stages.len()),
        (RDDS_MAX, STAGES_MAX)
    );
    // 7 and the others that hold most have a row of their own.
    assert_eq!(point.rdds_folded, u64::from(many) + 2 - RDDS_MAX as u64);
    let held: u64 = point.rdds.iter().map(|rdd| rdd.held_bytes()).sum();
    let storage: u64 = (100..100 + u64::from(many)).sum::<u64>() + 1000;
    assert_eq!(
        held,
        storage + 10 * (STAGES_MAX as u64 + 5),
        "nothing is lost"
    );
    let stages: u64 = point.stages.iter().map(|stage| stage.execution_bytes).sum();
    assert_eq!(stages, 10 * (STAGES_MAX as u64 + 5));
}

#[test]
fn all_histories_together_have_a_bound() {
    let mut state = State::new(Limits::default());
    for n in 0..Limits::default().executors as u32 {
        tell(&mut state, n, 1, described("app-1", &n.to_string()));
        for id in 0..RDDS_MAX as u32 {
            tell(&mut state, n, 1, stored(block(id, n, 100, &[])));
        }
    }
    let mut most = 0;
    for at in 0..2 * POINTS_MAX as u64 {
        state.record_history(S + at * INTERVAL_NS);
        most = most.max(state.history_bytes());
    }
    assert!(most <= BYTES_MAX, "{most} bytes");
    assert!(most > BYTES_MAX / 4, "the bound is used: {most} bytes");
    for row in histories(&state) {
        assert!(
            row.points.len() > 8,
            "everybody keeps some: {}",
            row.points.len()
        );
    }
}

#[test]
fn what_becomes_of_blocks_is_in_the_row_of_their_rdd() {
    let mut state = with_block(1000);
    let row = |state: &State| {
        let rows = state.list_rdds(&Filter::default()).rows;
        rows.into_iter()
            .find(|row| row.rdd_id == Some(7))
            .expect("the RDD")
    };
    let first = row(&state);
    assert_eq!(
        (
            first.blocks_stored,
            first.block_reads,
            first.tasks_since_stored
        ),
        (1, Some(0), 0)
    );
    tell(&mut state, 1, 2, started(5, 3));
    assert_eq!(row(&state).tasks_since_stored, 0, "it may still read");
    tell(&mut state, 1, 2, ended(5, 3, TaskOutcome::Succeeded));
    let read = crate::decode::BlockRead {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        partition: Some(0),
        ..crate::decode::BlockRead::default()
    };
    tell(&mut state, 1, 3, Fact::BlockRead(read));
    let removed = BlockRemoved {
        block_id: "rdd_7_0".to_owned(),
        rdd_id: Some(7),
        partition: Some(0),
        ..BlockRemoved::default()
    };
    tell(&mut state, 1, 4, Fact::BlockRemoved(removed));
    let seen = row(&state);
    assert_eq!(
        (
            seen.block_reads,
            seen.blocks_removed,
            seen.tasks_since_stored
        ),
        (Some(1), 1, 1)
    );
    tell(&mut state, 1, 5, stored(block(7, 0, 1000, &[])));
    let back = row(&state);
    assert_eq!((back.blocks_stored, back.blocks_stored_again), (2, 1));
    assert_eq!(back.tasks_since_stored, 0);
    // A marker that does not see reads says so: absent, not none.
    let blind = Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
        application_id: "app-1".to_owned(),
        missing_hook_names: "Other.hook,RDD.getOrCompute".to_owned(),
        ..ExecutorDescribed::default()
    }));
    tell(&mut state, 1, 6, blind);
    assert_eq!(row(&state).block_reads, None);
}

#[test]
fn a_task_that_stores_many_blocks_again_took_the_time_once() {
    let mut state = State::new(Limits::default());
    tell(&mut state, 1, S, described("app-1", "1"));
    for partition in 0..4 {
        tell(&mut state, 1, S, stored(block(7, partition, 1000, &[])));
        let removed = BlockRemoved {
            block_id: format!("rdd_7_{partition}"),
            rdd_id: Some(7),
            partition: Some(partition),
            ..BlockRemoved::default()
        };
        tell(&mut state, 1, S, Fact::BlockRemoved(removed));
    }
    tell(&mut state, 1, 10 * S, started(1, 3));
    for partition in 0..4 {
        let now = (11 + u64::from(partition)) * S;
        tell(&mut state, 1, now, stored(block(7, partition, 1000, &[])));
    }
    let row = the_rdd(&state, 1, 7);
    assert_eq!(row.blocks_stored_again, 4);
    assert_eq!(row.blocks_stored_again_ns, Some(4 * S));
    // What follows in the task counts once it has ended, and once.
    for now in [16, 17] {
        tell(&mut state, 1, now * S, ended(1, 3, TaskOutcome::Succeeded));
        let row = the_rdd(&state, 1, 7);
        assert_eq!(row.blocks_stored_again_ns, Some(6 * S));
    }
    // A task that stored nothing again has no part in it.
    tell(&mut state, 1, 20 * S, started(2, 3));
    tell(&mut state, 1, 25 * S, ended(2, 3, TaskOutcome::Succeeded));
    let row = the_rdd(&state, 1, 7);
    assert_eq!(row.blocks_stored_again_ns, Some(6 * S));
}
