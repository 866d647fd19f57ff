//! Executors that are reported again, die, and make room for others.

use super::bytes::gone;
use super::replay::job;
use super::*;
use crate::ledger::{LedgerInputs, ledger};
use crate::rows::ExecutorState;
use smtt_common::counter::Counter;
use smtt_common::event::used::Helper;
use smtt_common::settings::Owner;

/// Facts of [`tell_all_again`].
const TOLD: u64 = 8;

/// The marker's count of facts sent in a resync so far.
const fn told(request: u64, facts: u64) -> Fact {
    Fact::ResyncReported { request, facts }
}

/// Everything of [`job`]'s executor 1, as a resync repeats it.
fn tell_all_again(state: &mut State, time_ns: u64) {
    tell(state, 1, time_ns, described("app-1", "0"));
    tell(
        state,
        1,
        time_ns,
        rdd(7, "ranks", "Memory Serialized 1x Replicated"),
    );
    tell(state, 1, time_ns, started(1, 3));
    for (partition, size, range) in [(0, 1000, (0x1000, 0x400)), (1, 500, (0x9000, 0x200))] {
        tell(
            state,
            1,
            time_ns,
            stored(BlockFact {
                reported_again: true,
                ..block(7, partition, size, &[range])
            }),
        );
    }
    tell(
        state,
        1,
        time_ns,
        Fact::PageAllocated(PageAllocated {
            reported_again: true,
            ..page(1, Some(0), 4096)
        }),
    );
    for _ in 0..2 {
        // Two grants of one consumer.
        tell(
            state,
            1,
            time_ns,
            Fact::PageAllocated(PageAllocated {
                reported_again: true,
                ..page(1, None, 100)
            }),
        );
    }
}

#[test]
fn a_resync_told_twice_changes_nothing() {
    let mut state = job();
    for _ in 0..2 {
        tell(
            &mut state,
            1,
            S + 10,
            Fact::PageAllocated(page(1, None, 100)),
        );
    }
    let rows = |state: &State| {
        let mut rows = (
            rdds(state),
            state.list_tasks(&Filter::default()).rows,
            state.list_blocks(&Filter::default()).rows,
        );
        rows.0
            .iter_mut()
            .for_each(|row| (row.last_stored_age_ns, row.kept_ns) = (None, None));
        rows.1.iter_mut().for_each(|row| row.duration_ns = None);
        rows.2.iter_mut().for_each(|row| row.age_ns = 0);
        rows.2
            .sort_by(|left, right| left.block_id.cmp(&right.block_id));
        rows.1.sort_by_key(|row| row.task_attempt_id);
        rows
    };
    let before = rows(&state);
    for request in 1..3 {
        let time_ns = (2 + request) * S;
        state.resync_requested(key(1), request, time_ns);
        tell(&mut state, 1, time_ns, told(request, 0));
        tell_all_again(&mut state, time_ns + 1);
        tell(&mut state, 1, time_ns + 2, told(request, TOLD));
        assert_eq!(
            tell(&mut state, 1, time_ns + 2, Fact::ResyncDone { request }),
            Outcome::Applied
        );
        assert_eq!(rows(&state), before, "resync {request}");
    }
    assert_eq!(the_task(&state, 1).execution_memory_peak_bytes, 4296);
}

#[test]
fn what_a_resync_does_not_tell_is_gone() {
    let mut state = job();
    tell(&mut state, 1, 2 * S, started(9, 3));
    tell(&mut state, 1, 2 * S, stored(block(7, 5, 77, &[])));
    tell(
        &mut state,
        1,
        2 * S,
        Fact::PageAllocated(page(9, Some(4), 50)),
    );
    state.resync_requested(key(1), 77, 3 * S);
    tell(&mut state, 1, 3 * S, told(77, 0));
    tell_all_again(&mut state, 3 * S + 1);
    tell(&mut state, 1, 3 * S + 2, told(77, TOLD));
    assert_eq!(the_rdd(&state, 1, 7).partitions_cached, 3);
    assert_eq!(
        tell(&mut state, 1, 3 * S + 2, Fact::ResyncDone { request: 76 }),
        Outcome::Ignored("resync_not_requested")
    );
    assert_eq!(the_rdd(&state, 1, 7).partitions_cached, 3);
    tell(&mut state, 1, 3 * S + 2, Fact::ResyncDone { request: 77 });
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (row.partitions_cached, row.execution_memory_bytes),
        (2, 4296)
    );
    assert_eq!(
        (the_task(&state, 9).state, the_task(&state, 1).state),
        (TaskState::Lost, TaskState::Running)
    );
}

/// Tells three blocks again, and of the telling only what is named comes: the beginning, blocks, the number of facts.
/// Returns what became of its end, and how many blocks of RDD 7 there are after it.
fn lossy(beginning: bool, blocks: &[u32], end: bool) -> (State, Outcome, u64) {
    let mut state = job();
    tell(&mut state, 1, 2 * S, stored(block(7, 5, 77, &[])));
    state.resync_requested(key(1), 5, 3 * S);
    if beginning {
        tell(&mut state, 1, 3 * S, told(5, 0));
    }
    for partition in blocks {
        let again = BlockFact {
            reported_again: true,
            ..block(7, *partition, 500, &[])
        };
        tell(&mut state, 1, 3 * S + 1, stored(again));
    }
    // Facts of other threads and of the kernel side are no part of the resync.
    for (tid, fact) in [
        (7, stored(block(7, 6, 1, &[]))),
        (101, Fact::ProcessForked { child_pid: 3 }),
    ] {
        state.apply(Event {
            time_ns: 3 * S + 1,
            executor: key(1),
            pid: 101,
            tid,
            uid: 1000,
            fact,
        });
    }
    if end {
        tell(&mut state, 1, 3 * S + 2, told(5, 3));
    }
    let outcome = tell(&mut state, 1, 3 * S + 2, Fact::ResyncDone { request: 5 });
    let blocks = the_rdd(&state, 1, 7).partitions_cached;
    (state, outcome, blocks)
}

#[test]
fn what_was_lost_while_it_was_told_again_is_not_gone() {
    let lost = Outcome::Ignored("resync_incomplete");
    let (_, outcome, blocks) = lossy(true, &[0, 1, 5], true);
    assert_eq!((outcome, blocks), (Outcome::Applied, 4), "nothing was lost");
    // The third block lives, and its fact was lost.
    let (mut state, outcome, blocks) = lossy(true, &[0, 1], true);
    assert_eq!((outcome, blocks), (lost, 4));
    assert_eq!(state.resyncs_wanted(), [key(1)].into());
    assert_eq!(state.counts().ignored["resync_incomplete"], 1);
    // It is asked once more; now it is gone indeed, and everything comes.
    state.resync_requested(key(1), 6, 9 * S);
    assert!(state.resyncs_wanted().is_empty());
    tell(&mut state, 1, 9 * S, told(6, 0));
    tell_all_again(&mut state, 9 * S + 1);
    tell(&mut state, 1, 9 * S + 2, told(6, TOLD));
    let end = Fact::ResyncDone { request: 6 };
    assert_eq!(tell(&mut state, 1, 9 * S + 2, end), Outcome::Applied);
    assert_eq!(the_rdd(&state, 1, 7).partitions_cached, 2);
    assert!(state.resyncs_wanted().is_empty());

    // Who does not know where it began, or how much there was, knows nothing.
    for (beginning, end) in [(false, true), (true, false), (false, false)] {
        let (state, outcome, blocks) = lossy(beginning, &[0, 1, 5], end);
        assert_eq!((outcome, blocks), (lost, 4), "{beginning} {end}");
        assert_eq!(state.resyncs_wanted().len(), usize::from(beginning));
    }
}

#[test]
fn a_resync_that_another_one_overtakes_says_nothing() {
    let mut state = job();
    state.resync_requested(key(1), 1, 2 * S);
    tell(&mut state, 1, 2 * S, told(1, 0));
    state.resync_requested(key(1), 2, 3 * S);
    // The first telling goes on; its grants are not those of the second.
    tell_all_again(&mut state, 4 * S);
    tell(&mut state, 1, 4 * S, told(1, TOLD));
    let first = tell(&mut state, 1, 4 * S, Fact::ResyncDone { request: 1 });
    assert_eq!(first, Outcome::Ignored("resync_not_requested"));
    tell(&mut state, 1, 5 * S, told(2, 0));
    tell_all_again(&mut state, 5 * S);
    tell(&mut state, 1, 5 * S, told(2, TOLD));
    let second = tell(&mut state, 1, 5 * S, Fact::ResyncDone { request: 2 });
    assert_eq!(second, Outcome::Applied);
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (row.partitions_cached, row.execution_memory_bytes),
        (2, 4296)
    );
}

#[test]
fn the_snapshot_of_another_daemons_request_serves_ours_if_it_began_after_it() {
    for (begun, outcome, blocks) in [
        (3 * S, Outcome::Applied, 2),
        (S, Outcome::Ignored("resync_not_requested"), 3),
    ] {
        let mut state = job();
        tell(&mut state, 1, S + 5, stored(block(7, 5, 77, &[])));
        state.resync_requested(key(1), 1, 2 * S);
        // The other daemon has overwritten request 1 in the slot file.
        tell(&mut state, 1, begun, told(40, 0));
        tell_all_again(&mut state, begun + 1);
        tell(&mut state, 1, begun + 2, told(40, TOLD));
        let done = tell(&mut state, 1, begun + 2, Fact::ResyncDone { request: 40 });
        assert_eq!(done, outcome, "begun at {begun}");
        assert_eq!(the_rdd(&state, 1, 7).partitions_cached, blocks);
    }
}

#[test]
fn a_task_first_heard_of_in_a_resync_is_older_than_it_looks() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "0"));
    state.resync_requested(key(1), 1, S);
    tell(&mut state, 1, S + 1, started(1, 3));
    tell(&mut state, 1, S + 2, Fact::ResyncDone { request: 1 });
    tell(&mut state, 1, S + 3, started(2, 3));
    assert!(the_task(&state, 1).duration_is_lower_bound);
    assert!(!the_task(&state, 2).duration_is_lower_bound);
}

#[test]
fn the_death_of_an_executor_ends_what_it_held() {
    let mut state = job();
    tell(
        &mut state,
        1,
        3 * S,
        Fact::ProcessGone {
            exec: false,
            is_executor: true,
            end: None,
        },
    );
    // Told before and arrived after.
    tell(&mut state, 1, 3 * S, stored(block(7, 9, 1, &[])));
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (
            row.partitions_cached,
            row.storage_memory_bytes,
            row.storage_memory_peak_bytes
        ),
        (0, 0, 1500)
    );
    assert_eq!(
        row.faults.page_faults,
        Some(12),
        "its figures stay for the retention"
    );
    assert_eq!(
        (the_task(&state, 1).state, the_task(&state, 2).state),
        (TaskState::Lost, TaskState::Running)
    );
    assert_eq!(
        state
            .list_executors(&filter(None, Some("0"), None, None))
            .rows[0]
            .state,
        ExecutorState::Dead
    );
    let retention = Limits::default().retention_ns;
    assert_eq!(state.expire(3 * S + retention - 1), Vec::<u64>::new());
    assert_eq!(state.expire(3 * S + retention), [key(1)]);
    // A late reading does not bring it back, and its totals stay in the ledger.
    state.add(
        &readings(vec![(context(1, 1, 3, Some(7)), faults(1, 0, 0))]),
        4 * S + retention,
    );
    assert_eq!(state.list_executors(&Filter::default()).rows.len(), 1);
    assert_eq!(total(&state.executor_totals().attributed), 49);
}

#[test]
fn a_process_id_used_again_is_another_executor() {
    let mut state = job();
    let again = executor_key(101, 99);
    let fact = described("app-2", "0");
    state.apply(Event {
        time_ns: 9 * S,
        executor: again,
        pid: 101,
        tid: 101,
        uid: 1000,
        fact,
    });
    let rows = state.list_executors(&Filter::default()).rows;
    let of = |app: &str, executor: &str| {
        let found = rows.iter().find(|row| {
            row.who.application_id.as_deref() == Some(app)
                && row.who.executor_id.as_deref() == Some(executor)
        });
        found.map(|row| row.state)
    };
    assert_eq!(
        (of("app-1", "0"), of("app-2", "0")),
        (Some(ExecutorState::Dead), Some(ExecutorState::Alive))
    );
}

#[test]
fn dead_executors_make_room_before_a_new_one_needs_it() {
    let mut state = state_with(Limits {
        executors: 8,
        ..Limits::default()
    });
    let start = |state: &mut State, n: u32| {
        state.apply(Event {
            time_ns: u64::from(n) * S,
            executor: key(n),
            pid: 100 + n,
            tid: 100 + n,
            uid: 1000,
            fact: described("app-1", &n.to_string()),
        });
    };
    for n in 1..=8 {
        start(&mut state, n);
    }
    assert!(
        state.expire(10 * S).is_empty(),
        "the living are never forgotten"
    );
    for n in [3, 1, 5] {
        state.executor_gone(key(n), (20 + u64::from(n)) * S);
    }
    assert_eq!(state.expire(30 * S), [key(1), key(3)], "two of eight rows");
    assert!(state.expire(31 * S).is_empty());
    start(&mut state, 11);
    assert_eq!(state.expire(32 * S), [key(5)], "one living executor more");
}

/// Totals of an executor that sent `facts` facts, of which `full` found the ring full, and `samples` samples.
fn sent(facts: u64, full: u64, samples: u64) -> ExecutorCounters {
    ExecutorCounters {
        facts_seen: facts,
        facts_ring_full: full,
        samples_seen: samples,
        ..ExecutorCounters::default()
    }
}

/// The hop `kernel` of the ledger when nothing moves: attempted, delivered, and whether it adds up.
fn kernel_hop(state: &State) -> (u64, u64, bool) {
    let inputs = LedgerInputs {
        executors: state.executor_totals(),
        kernel: *state.kernel_counters(),
        ..LedgerInputs::default()
    };
    let hops = ledger(&inputs, &inputs);
    let hop = hops.iter().find(|hop| hop.name == "kernel").expect("a hop");
    (hop.attempted, hop.delivered, hop.consistent)
}

#[test]
fn the_last_counts_of_a_forgotten_executor_stay_in_the_ledger() {
    let mut state = state_with(Limits {
        executors: 2,
        ..Limits::default()
    });
    // Submitted so far, and the totals of executors that have a row in the kernel side.
    let reading = |submitted: u64, executors: Vec<(u64, ExecutorCounters)>| {
        let mut readings = readings(Vec::new());
        readings.counters[Counter::RECORDS_SUBMITTED.0 as usize] = submitted;
        readings.owners = (1..=2)
            .map(|n| {
                (
                    key(n),
                    Owner {
                        uid: 1000,
                        ..Owner::default()
                    },
                )
            })
            .collect();
        readings.executors = executors;
        readings
    };
    for n in 1..=2 {
        tell(&mut state, n, S, described("app-1", "1"));
    }
    let (one, two) = ((key(1), sent(10, 1, 2)), (key(2), sent(10, 0, 0)));
    state.add(&reading(21, vec![one, two]), 2 * S);
    assert_eq!(kernel_hop(&state), (22, 21, true));
    // An executor of another user takes the row of the youngest one, which lives and sends on.
    state.apply(Event {
        time_ns: 3 * S,
        executor: key(3),
        pid: 103,
        tid: 103,
        uid: 2000,
        fact: described("app-2", "0"),
    });
    assert!(!state.executors().contains_key(&key(2)), "it was evicted");
    let (two, three) = ((key(2), sent(18, 0, 0)), (key(3), sent(1, 0, 0)));
    state.add(&reading(30, vec![one, two, three]), 4 * S);
    assert_eq!(kernel_hop(&state), (31, 30, true), "after the eviction");
    assert_eq!(state.expire(4 * S), [key(2)]);
    // It sends until the kernel side has removed its rows.
    let mut last = reading(38, vec![one, three]);
    last.forgotten = vec![(key(2), sent(26, 0, 0))];
    state.add(&last, 5 * S);
    assert_eq!(kernel_hop(&state), (39, 38, true), "with its last facts");
    state.add(&reading(38, vec![one, three]), 6 * S);
    assert_eq!(kernel_hop(&state), (39, 38, true), "once");
}

#[test]
fn an_executor_that_found_no_row_counts_once() {
    let mut state = state_with(Limits {
        executors: 1,
        ..Limits::default()
    });
    tell(&mut state, 1, S, described("app-1", "1"));
    tell(&mut state, 2, S, described("app-1", "2"));
    let mut with = readings(Vec::new());
    with.executors = vec![(key(2), sent(7, 0, 0))];
    state.add(&with, 2 * S);
    let end = Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    };
    tell(&mut state, 2, 3 * S, end);
    assert_eq!(state.expire(3 * S), [key(2)]);
    let mut last = readings(Vec::new());
    last.forgotten = vec![(key(2), sent(9, 0, 0))];
    state.add(&last, 4 * S);
    state.add(&readings(Vec::new()), 5 * S);
    assert_eq!(state.executor_totals().facts_seen, 9);
}

#[test]
fn an_executor_whose_end_was_not_reported_dies() {
    let mut state = job();
    let gone = Tick {
        readings: Readings {
            gone: vec![key(1), key(9)],
            ..readings(Vec::new())
        },
        ..Tick::default()
    };
    // The other one has no row here, and the kernel side keeps its own for nothing.
    assert_eq!(state.take_in(&gone, 5 * S), [key(9)]);
    assert_eq!(state.executors()[&key(1)].died_ns, Some(5 * S));
    assert!(state.executors()[&key(2)].died_ns.is_none());
    let retention = Limits::default().retention_ns;
    assert_eq!(state.take_in(&gone, 5 * S + retention), [key(9), key(1)]);
}

#[test]
fn a_helper_that_ended_leaves_its_thread_to_other_work() {
    let mut state = job();
    let helper = Helper::PYTHON_WRITER;
    let ended = |task_attempt_id| Fact::HelperEnded {
        task_attempt_id,
        helper,
        allocated_bytes: None,
    };
    let begun = Fact::HelperBegun {
        task_attempt_id: 1,
        helper,
    };
    // The end of another task's helper says nothing of this one.
    for (time_ns, fact) in [(S, begun), (2 * S, ended(2)), (4 * S, ended(1))] {
        tell(&mut state, 1, time_ns, fact);
        tell(&mut state, 1, time_ns + 1, Fact::Exhausted(Box::default()));
    }
    let notes = &state.executors()[&key(1)].black_box.exhausted;
    let tasks: Vec<Option<u64>> = notes.iter().map(|note| note.task_attempt_id).collect();
    assert_eq!(tasks, [Some(1), Some(1), None]);
}

#[test]
fn marker_counts_are_plausible_and_never_fall() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "1"));
    tell(&mut state, 2, S, described("app-1", "2"));
    let mut first = readings(Vec::new());
    let seen = ExecutorCounters {
        facts_seen: 500,
        ..ExecutorCounters::default()
    };
    first.executors = vec![(key(1), seen), (key(2), seen)];
    state.add(&first, 2 * S);
    let said = |facts_emitted| SlotFileCounters {
        facts_emitted,
        slots_refused: 0,
    };
    state.set_slots(key(1), said(520));
    state.set_slots(key(2), said(u64::MAX));
    let (emitted, seen) = state.marker_counts().expect("slot files");
    let limit = state.limits.facts_per_second;
    assert_eq!((emitted, seen), (520 + 500 + limit, 1000));
    // Less than before is no possible count.
    state.set_slots(key(2), said(0));
    assert_eq!(state.marker_counts(), Some((emitted, 1000)));
    // Executor 1 is adopted again, and its file counts from another fact on: the count goes on.
    for (file, emitted) in [(0, 520), (30, 550), (10, 550), (25, 565)] {
        state.set_slots(key(1), said(file));
        assert_eq!(
            state.executors()[&key(1)]
                .slots
                .map(|slots| slots.facts_emitted),
            Some(emitted),
            "the file says {file}"
        );
    }
    // The file cannot be read any more, and facts are seen.
    first.executors[0].1.facts_seen = 600;
    state.add(&first, 2 * S);
    let sum = 600 + 500 + limit;
    assert_eq!(state.marker_counts(), Some((sum, 1100)));
    let before = state.marker_counts();
    tell(&mut state, 1, 3 * S, gone());
    tell(&mut state, 2, 3 * S, gone());
    state.expire(4 * S + Limits::default().retention_ns);
    assert!(state.executors().is_empty());
    assert_eq!(state.marker_counts(), before);
}
