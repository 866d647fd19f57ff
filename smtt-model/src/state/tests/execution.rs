//! Execution memory: who holds it, and what Spark itself counts.

use super::replay::job;
use super::*;
use crate::decode::ConsumerUsed;

#[test]
fn execution_memory_follows_pages_and_grants() {
    let mut state = job();
    let grant = page(1, None, 100);
    tell(&mut state, 1, 3 * S, Fact::PageAllocated(grant.clone()));
    tell(&mut state, 1, 3 * S, Fact::PageAllocated(grant.clone()));
    assert_eq!(the_rdd(&state, 1, 7).execution_memory_bytes, 4296);
    tell(&mut state, 1, 3 * S, freed(&grant));
    tell(&mut state, 1, 3 * S, freed(&page(1, Some(0), 4096)));
    assert_eq!(
        tell(&mut state, 1, 3 * S, freed(&page(1, Some(0), 4096))),
        Outcome::Ignored("page_not_known")
    );
    assert_eq!(the_rdd(&state, 1, 7).execution_memory_bytes, 100);
    let task = the_task(&state, 1);
    assert_eq!(
        (
            task.execution_memory_bytes,
            task.execution_memory_peak_bytes
        ),
        (100, 4296)
    );
    // The grant's freeing is lost; some time after the end of its task it goes by itself.
    tell(&mut state, 1, 4 * S, ended(1, 3, TaskOutcome::Succeeded));
    state.expire(5 * S);
    assert_eq!(the_rdd(&state, 1, 7).execution_memory_bytes, 100);
    state.expire(10 * S);
    assert_eq!(the_rdd(&state, 1, 7).execution_memory_bytes, 0);
}

#[test]
fn a_task_has_its_consumers_and_sparks_own_peak() {
    let used = |consumer: &str, peak_bytes, counted_bytes| {
        Fact::ConsumerUsed(ConsumerUsed {
            task_attempt_id: Some(1),
            instances: 1,
            peak_bytes,
            counted_bytes,
            estimated: false,
            consumer: consumer.to_owned(),
        })
    };
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    let sorter = page(1, Some(0), 3000);
    tell(&mut state, 1, S, Fact::PageAllocated(sorter.clone()));
    let row = the_task(&state, 1);
    assert_eq!(row.consumers.len(), 1);
    assert_eq!(row.consumers[0].bytes, 3000);
    assert_eq!(row.consumers[0].peak_bytes, None, "it has not ended");
    assert_eq!(row.execution_memory_spark_peak_bytes, None);
    let executors = state.list_executors(&Filter::default()).rows;
    assert_eq!(executors[0].execution_memory_by_consumer["Sorter"], 3000);
    tell(&mut state, 1, 2 * S, freed(&sorter));
    tell(&mut state, 1, 2 * S, used("Sorter", 3000, Some(2500)));
    tell(&mut state, 1, 2 * S, used("Map", 1096, Some(1096)));
    tell(&mut state, 1, 2 * S, ended(1, 3, TaskOutcome::Succeeded));
    let row = the_task(&state, 1);
    assert_eq!(row.execution_memory_spark_peak_bytes, Some(3596));
    assert_eq!(
        row.execution_memory_peak_bytes, 4096,
        "what was held at a time"
    );
    let by_class: Vec<_> = row
        .consumers
        .iter()
        .map(|row| {
            (
                row.consumer.as_str(),
                row.bytes,
                row.peak_bytes,
                row.spark_peak_bytes,
            )
        })
        .collect();
    assert_eq!(
        by_class,
        [
            ("Map", 0, Some(1096), Some(1096)),
            ("Sorter", 0, Some(3000), Some(2500))
        ]
    );
    // One consumer was not recorded from its start: the sum is unknown.
    tell(&mut state, 1, 3 * S, used("unknown", 10, None));
    assert_eq!(the_task(&state, 1).execution_memory_spark_peak_bytes, None);
    // Who held a task's memory was lost on the way.
    tell(&mut state, 1, S, started(2, 3));
    tell(&mut state, 1, 2 * S, ended(2, 3, TaskOutcome::Succeeded));
    assert_eq!(the_task(&state, 2).execution_memory_spark_peak_bytes, None);
}

/// What the stage's tasks hold, held at most, and whether that is partial.
fn together(state: &State) -> (u64, u64, bool) {
    let stage = &state.executors()[&key(1)].tasks.stages;
    let (_, stage) = stage.iter().next().expect("one stage");
    (stage.held.bytes, stage.held.peak_bytes, stage.held.partial)
}

fn holding(state: &mut State, task: u64, pages: &[&PageAllocated]) {
    tell(state, 1, S, started(task, 3));
    for page in pages {
        let page = Fact::PageAllocated((*page).clone());
        tell(state, 1, S + task, page);
    }
}

#[test]
fn a_task_that_ended_holds_nothing_where_a_release_was_lost() {
    let mut state = state();
    let (first, second) = (page(1, Some(0), 4096), page(2, Some(0), 4096));
    holding(&mut state, 1, &[&first]);
    // The release of the first page is lost.
    tell(&mut state, 1, 2 * S, ended(1, 3, TaskOutcome::Succeeded));
    assert_eq!(together(&state), (0, 4096, false));
    // A release that was only late changes nothing.
    tell(&mut state, 1, 2 * S, freed(&first));
    holding(&mut state, 2, &[&second]);
    assert_eq!(together(&state), (4096, 4096, false));
    // The second one's release is never reported: then the sum may have been too high.
    tell(&mut state, 1, 3 * S, ended(2, 3, TaskOutcome::Succeeded));
    state.expire(9 * S);
    assert_eq!(together(&state), (0, 4096, true));
}

#[test]
fn a_peak_without_all_grants_is_partial_and_at_least_what_the_executor_says() {
    let mut state = state();
    holding(&mut state, 1, &[]);
    let lost = page(1, Some(0), 4096);
    tell(&mut state, 1, 2 * S, freed(&lost));
    assert_eq!(together(&state), (0, 0, false));
    tell(&mut state, 1, 2 * S, ended(1, 3, TaskOutcome::Succeeded));
    assert_eq!(together(&state), (0, 4096, true));
}

#[test]
fn memory_from_before_the_stage_is_known_counts_and_is_partial() {
    let mut state = state();
    // The task's heap comes before its start.
    let heap = crate::decode::TaskHeap {
        task_attempt_id: 1,
        allocated_bytes: Some(5),
        collection_ms: None,
    };
    tell(&mut state, 1, S, Fact::TaskHeap(heap));
    for page in [page(1, Some(0), 3000), page(1, Some(1), 1000)] {
        tell(&mut state, 1, S, Fact::PageAllocated(page));
    }
    tell(&mut state, 1, S, freed(&page(1, Some(0), 3000)));
    tell(&mut state, 1, S, started(1, 3));
    assert_eq!(together(&state), (1000, 4000, true));
}

#[test]
fn a_complete_snapshot_sets_what_tasks_hold() {
    let mut state = state();
    let (kept, gone) = (page(1, Some(0), 1000), page(1, Some(1), 3000));
    holding(&mut state, 1, &[&kept, &gone]);
    assert_eq!(together(&state), (4000, 4000, false));
    state.resync_requested(key(1), 1, 2 * S);
    let begin = Fact::ResyncReported {
        request: 1,
        facts: 0,
    };
    tell(&mut state, 1, 3 * S, begin);
    let again = PageAllocated {
        reported_again: true,
        ..kept
    };
    tell(&mut state, 1, 3 * S, Fact::PageAllocated(again));
    tell(&mut state, 1, 3 * S, started(1, 3));
    let facts = Fact::ResyncReported {
        request: 1,
        facts: 2,
    };
    tell(&mut state, 1, 3 * S, facts);
    tell(&mut state, 1, 3 * S, Fact::ResyncDone { request: 1 });
    assert_eq!(together(&state), (1000, 4000, true));
}
