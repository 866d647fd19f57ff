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
