//! Facts of dishonest executors, and more of them than there is room for.

use super::*;
use crate::decode::{BlockRead, BlockRemoved, JobDescribed, StageDescribed};
use crate::rows::PagesBy;
use proptest::prelude::*;

fn small() -> Limits {
    Limits {
        executors: 2,
        rdds_per_executor: 8,
        tasks_per_executor: 8,
        stages_per_executor: 8,
        blocks_per_executor: 4,
        spark_pages_per_executor: 4,
        ranges_per_executor: 6,
        retention_ns: S,
        ..Limits::default()
    }
}

#[test]
fn two_executors_that_claim_the_same_stay_two() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "0"));
    tell(&mut state, 1, S, rdd(7, "ranks", ""));
    tell(&mut state, 2, 2 * S, described("app-1", "0"));
    tell(&mut state, 2, 2 * S, rdd(7, "forged", ""));
    tell(
        &mut state,
        2,
        2 * S,
        stored(block(7, 0, u64::MAX, &[(0x1000, 1)])),
    );
    state.add(
        &readings(vec![
            (context(1, 1, 3, Some(7)), faults(1, 0, 0)),
            (context(2, 1, 3, Some(7)), faults(u64::MAX, 1, 0)),
        ]),
        3 * S,
    );
    assert_eq!(the_rdd(&state, 1, 7).name.as_deref(), Some("ranks"));
    assert_eq!(
        (
            the_rdd(&state, 1, 7).storage_memory_bytes,
            the_rdd(&state, 1, 7).faults.page_faults
        ),
        (0, Some(1))
    );
    assert_eq!(the_rdd(&state, 2, 7).faults.page_faults, Some(u64::MAX));
    let rows = state.list_executors(&Filter::default()).rows;
    assert_eq!(
        rows.iter()
            .map(|row| (row.who.pid, row.claimed_twice))
            .collect::<Vec<_>>(),
        [(101, false), (102, true)]
    );
}

#[test]
fn a_flood_of_rdds_is_folded_and_sums_stay() {
    let mut state = state_with(small());
    for id in 0..1000 {
        tell(&mut state, 1, S + u64::from(id), rdd(id, "x", ""));
        state.add(
            &readings(vec![(
                context(1, u64::MAX, u32::MAX, Some(id)),
                faults(1, 0, 0),
            )]),
            S + u64::from(id),
        );
    }
    let rows = rdds(&state);
    assert!(rows.len() <= 9, "{}", rows.len());
    assert_eq!(
        rows.iter()
            .filter_map(|row| row.faults.page_faults)
            .sum::<u64>(),
        1000
    );
    let over = rows
        .iter()
        .find(|row| row.name.as_deref() == Some("(overflow)"))
        .expect("an overflow row");
    assert!(over.faults.page_faults > Some(900));
    assert!(
        rows.iter().any(|row| row.rdd_id == Some(999)),
        "the newest has a row"
    );
    assert!(state.list_executors(&Filter::default()).rows[0].over_cap["rdds"] > 900);
}

#[test]
fn rdds_that_hold_memory_keep_their_rows() {
    let mut state = state_with(Limits {
        blocks_per_executor: 100,
        ..small()
    });
    for id in 0..8 {
        tell(&mut state, 1, S, stored(block(id, 0, 10, &[])));
    }
    for id in 100..200 {
        assert_eq!(
            tell(&mut state, 1, 2 * S, rdd(id, "x", "")),
            Outcome::OverCap("rdds")
        );
    }
    let rows = rdds(&state);
    assert_eq!(
        rows.iter()
            .filter(|row| row.storage_memory_bytes == 10)
            .count(),
        8
    );
    // A block of an RDD without a row is in the overflow row.
    tell(&mut state, 1, 2 * S, stored(block(500, 0, 10, &[])));
    let over = rdds(&state)
        .into_iter()
        .find(|row| row.name.as_deref() == Some("(overflow)"))
        .expect("an overflow row");
    assert_eq!((over.storage_memory_bytes, over.partitions_cached), (10, 1));
}

#[test]
fn a_flood_of_tasks_and_stages_keeps_the_running_ones() {
    let mut state = state_with(small());
    tell(&mut state, 1, S, started(0, 0));
    for task in 1..1000_u32 {
        let (id, now) = (u64::from(task), S + u64::from(task));
        tell(&mut state, 1, now, started(id, task));
        state.add(
            &readings(vec![(context(1, id, task, None), faults(0, 1, 0))]),
            now,
        );
        tell(&mut state, 1, now, ended(id, task, TaskOutcome::Succeeded));
    }
    assert_eq!(the_task(&state, 0).state, TaskState::Running);
    assert_eq!(the_task(&state, 999).state, TaskState::Succeeded);
    let tasks = state.list_tasks(&Filter::default()).rows;
    assert!(tasks.len() <= 9);
    assert_eq!(
        tasks
            .iter()
            .filter_map(|row| row.faults.page_faults)
            .sum::<u64>(),
        999
    );
    let stages = state.list_stages(&Filter::default()).rows;
    assert!(stages.len() <= 9);
    assert_eq!(
        stages
            .iter()
            .filter_map(|row| row.faults.page_faults)
            .sum::<u64>(),
        999
    );
    assert!(
        stages
            .iter()
            .any(|row| row.stage_id == Some(0) && row.tasks_running == 1)
    );
}

#[test]
fn only_running_tasks_leave_no_room() {
    let mut state = state_with(small());
    for task in 0..8 {
        assert_eq!(tell(&mut state, 1, S, started(task, 0)), Outcome::Applied);
    }
    assert_eq!(
        tell(&mut state, 1, S, started(8, 0)),
        Outcome::OverCap("tasks")
    );
    state.add(
        &readings(vec![(context(1, 8, 0, None), faults(3, 0, 0))]),
        S,
    );
    let over = state
        .list_tasks(&Filter::default())
        .rows
        .into_iter()
        .find(|row| row.task_attempt_id.is_none());
    assert_eq!(over.and_then(|row| row.faults.page_faults), Some(3));
}

#[test]
fn blocks_pages_and_ranges_have_caps() {
    let mut state = state_with(small());
    for partition in 0..10 {
        tell(
            &mut state,
            1,
            S,
            stored(block(
                7,
                partition,
                10,
                &[
                    (0x1000 * u64::from(partition + 1), 16),
                    (0x8_0000 + u64::from(partition) * 64, 16),
                ],
            )),
        );
        tell(
            &mut state,
            1,
            S,
            Fact::PageAllocated(page(1, Some(u64::from(partition)), 10)),
        );
    }
    let row = the_rdd(&state, 1, 7);
    assert_eq!(
        (
            row.partitions_cached,
            row.storage_memory_bytes,
            row.execution_memory_bytes
        ),
        (10, 100, 40),
        "all blocks count, four have a row"
    );
    let over = &state.list_executors(&Filter::default()).rows[0].over_cap;
    assert_eq!((over["blocks"], over["pages"]), (6, 6));
    assert!(over["ranges"] >= 2, "{over:?}");
    assert_eq!(
        state.counts().over_cap,
        BTreeMap::from([("blocks", 6), ("pages", 6)])
    );
}

#[test]
fn an_rdd_of_a_hundred_thousand_partitions_has_its_true_size() {
    let mut state = state();
    let partitions = 100_000;
    let told = |again: bool| {
        move |partition: u32| {
            let start = 0x10_0000 + 256 * u64::from(partition);
            stored(BlockFact {
                reported_again: again,
                ..block(7, partition, 200, &[(start, 100), (start + 100, 100)])
            })
        }
    };
    let sums = |state: &State| {
        let row = the_rdd(state, 1, 7);
        (row.partitions_cached, row.storage_memory_bytes)
    };
    for partition in 0..partitions {
        tell(&mut state, 1, S, told(false)(partition));
    }
    assert_eq!(sums(&state), (100_000, 20_000_000));
    let listed = state.list_blocks(&Filter::default()).rows.len();
    assert_eq!(listed, Limits::default().blocks_per_executor);
    // A resync repeats every fact, but for what has gone meanwhile.
    state.resync_requested(key(1), 1, 2 * S);
    let facts = |facts| Fact::ResyncReported { request: 1, facts };
    tell(&mut state, 1, 2 * S, facts(0));
    for partition in (0..partitions).filter(|partition| partition % 10 != 0) {
        tell(&mut state, 1, 3 * S, told(true)(partition));
    }
    tell(&mut state, 1, 4 * S, facts(90_000));
    tell(&mut state, 1, 4 * S, Fact::ResyncDone { request: 1 });
    assert_eq!(sums(&state), (90_000, 18_000_000));
    for partition in 0..partitions {
        let removed = Fact::BlockRemoved(BlockRemoved {
            block_id: format!("rdd_7_{partition}"),
            rdd_id: Some(7),
            partition: Some(partition),
            activity: None,
        });
        tell(&mut state, 1, 5 * S, removed);
    }
    assert_eq!(sums(&state), (0, 0));
    let executor = &state.executors()[&key(1)];
    assert!(executor.memory.unlisted.is_empty());
    assert_eq!(executor.memory.addresses.len(), 0);
}

#[test]
fn more_blocks_than_there_is_room_for_are_counted() {
    let mut state = state_with(small());
    let room = 17 * small().blocks_per_executor;
    for partition in 0..1000 {
        tell(&mut state, 1, S, stored(block(7, partition, 10, &[])));
    }
    assert_eq!(the_rdd(&state, 1, 7).partitions_cached, room as u64);
    let over = &state.list_executors(&Filter::default()).rows[0].over_cap;
    assert_eq!(over["blocks"], 1000 - small().blocks_per_executor as u64);
}

#[test]
fn absurd_ranges_make_no_rows() {
    let mut state = state();
    let fact = BlockFact {
        range_total: u64::MAX,
        range_first: u64::MAX,
        ranges: vec![(u64::MAX, u64::MAX), (0, 0)],
        ..block(7, 0, 1, &[])
    };
    tell(&mut state, 1, S, stored(fact.clone()));
    tell(
        &mut state,
        1,
        S,
        stored(BlockFact {
            range_first: 0,
            ..fact
        }),
    );
    assert_eq!(state.list_blocks(&Filter::default()).rows[0].ranges, []);
}

#[test]
fn executors_have_a_cap_and_the_dead_make_room() {
    let mut state = state_with(small());
    for n in 1..5 {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
    }
    assert_eq!(state.list_executors(&Filter::default()).rows.len(), 2);
    assert_eq!(
        state
            .list_executors(&Filter::default())
            .summary
            .executors_over_cap,
        2
    );
    state.add(
        &readings(vec![(context(4, 1, 1, None), faults(5, 0, 0))]),
        S,
    );
    assert_eq!(total(&state.executors_over_cap().1), 5);
    assert_eq!(
        total(&state.executor_totals().attributed),
        5,
        "what has no row is in the sums"
    );
    tell(
        &mut state,
        1,
        2 * S,
        Fact::ProcessGone {
            exec: false,
            is_executor: true,
            end: None,
        },
    );
    assert_eq!(
        tell(&mut state, 4, 2 * S, described("app-1", "4")),
        Outcome::Applied
    );
    let rows = state.list_executors(&Filter::default()).rows;
    assert_eq!(
        rows.iter().map(|row| row.who.pid).collect::<Vec<_>>(),
        [102, 104]
    );
    assert_eq!(
        tell(&mut state, 1, 2 * S, described("app-1", "1")),
        Outcome::Ignored("executor_forgotten")
    );
    assert_eq!(
        state.expire(2 * S),
        [key(1)],
        "its rows in the kernel side can go too"
    );
}

#[test]
fn facts_without_an_executor_are_ignored() {
    let mut state = state();
    let event = Event {
        time_ns: S,
        executor: 0,
        pid: 1,
        tid: 1,
        uid: 1000,
        fact: started(1, 1),
    };
    assert_eq!(state.apply(event), Outcome::Ignored("executor_not_known"));
    assert_eq!(
        tell(
            &mut state,
            3,
            S,
            Fact::ProcessGone {
                exec: false,
                is_executor: true,
                end: None,
            }
        ),
        Outcome::Ignored("executor_not_known")
    );
    assert_eq!(
        state.counts().ignored,
        BTreeMap::from([("executor_not_known", 2)])
    );
    assert_eq!(state.executors().len(), 0);
    assert_eq!(
        state.expire(S),
        [key(3)],
        "the kernel side has a row for an executor that found no room here"
    );
}

#[test]
fn garbage_in_a_hot_word_makes_few_rows() {
    let mut state = state();
    for code in 0..=255_u8 {
        let context = ContextKey {
            activity: code,
            access_region: code,
            ..context(1, 1, 1, Some(1))
        };
        state.add(&readings(vec![(context, faults(1, 0, 0))]), S);
    }
    let row = the_rdd(&state, 1, 1);
    assert_eq!(row.faults.page_faults, Some(256));
    assert!(row.contexts.len() <= 40, "{}", row.contexts.len());
    assert_eq!(
        row.contexts
            .iter()
            .filter_map(|row| row.faults.page_faults)
            .sum::<u64>(),
        256
    );
}

/// Facts about a few blocks, pages and tasks, in any order, many of them contradictory.
pub(super) fn any_fact() -> impl Strategy<Value = Fact> {
    let small = 0..4_u32;
    prop_oneof![
        (
            small.clone(),
            small.clone(),
            0..100_u64,
            0..5_u64,
            any::<bool>()
        )
            .prop_map(|(rdd, partition, size, ranges, again)| {
                let ranges: Vec<_> = (0..ranges).map(|index| (0x1000 * index, size)).collect();
                stored(BlockFact {
                    reported_again: again,
                    serialized: again,
                    ..block(rdd, partition, size, &ranges)
                })
            }),
        (small.clone(), small.clone(), 0..5_u64).prop_map(|(rdd, partition, ranges)| {
            let ranges: Vec<_> = (0..ranges).map(|index| (0x1000 * index + 64, 64)).collect();
            Fact::BlockMoved(Box::new(block(rdd, partition, 50, &ranges)))
        }),
        (small.clone(), small.clone()).prop_map(|(rdd, partition)| {
            let (block_id, rdd_id, partition) =
                (format!("rdd_{rdd}_{partition}"), Some(rdd), Some(partition));
            Fact::BlockRemoved(BlockRemoved {
                block_id,
                rdd_id,
                partition,
                activity: None,
            })
        }),
        (small.clone(), small.clone(), proptest::option::of(0..3_u32)).prop_map(
            |(rdd, partition, node)| Fact::BlockRead(BlockRead {
                block_id: format!("rdd_{rdd}_{partition}"),
                node,
                ..BlockRead::default()
            })
        ),
        (
            small.clone(),
            proptest::option::of(0..3_u64),
            0..100_u64,
            any::<bool>()
        )
            .prop_map(|(task, number, size, again)| {
                Fact::PageAllocated(PageAllocated {
                    reported_again: again,
                    ..page(u64::from(task), number, size)
                })
            }),
        (small.clone(), proptest::option::of(0..3_u64), 0..100_u64)
            .prop_map(|(task, number, size)| freed(&page(u64::from(task), number, size))),
        (small.clone(), small.clone()).prop_map(|(task, stage)| started(u64::from(task), stage)),
        (small.clone(), small.clone()).prop_map(|(task, stage)| ended(
            u64::from(task),
            stage,
            TaskOutcome::Killed
        )),
        (small.clone(), small.clone()).prop_map(|(id, rdd)| Fact::StageDescribed(StageDescribed {
            stage_id: id,
            rdd_id: Some(rdd),
            ..StageDescribed::default()
        })),
        (small.clone(), small.clone()).prop_map(|(job_id, text)| Fact::JobDescribed(
            JobDescribed {
                job_id,
                failure: "x".repeat(text as usize % 300),
                ..JobDescribed::default()
            }
        )),
        small.clone().prop_map(|id| rdd(id, "x", "")),
        functions::any_span(),
        prop_oneof![fetches::any_request(), pauses::any_pause()],
        (0..2_u64).prop_map(|request| Fact::ResyncDone { request }),
        (0..2_u64, 0..3_u64).prop_map(|(request, facts)| Fact::ResyncReported { request, facts }),
        (0..2_u64, 0..2_u64).prop_map(|(collection, moved_facts)| Fact::AddressesReported {
            collection,
            moved_facts
        }),
        Just(Fact::ProcessGone {
            exec: false,
            is_executor: false,
            end: None,
        }),
    ]
}

proptest! {
    #[test]
    fn sums_never_drift_from_the_tables(facts in proptest::collection::vec((any_fact(), 0..3_u8), 1..200)) {
        let mut state = state_with(Limits { rdds_per_executor: 3, blocks_per_executor: 6, ..small() });
        for (index, (fact, resync)) in facts.into_iter().enumerate() {
            let now = S + index as u64;
            if resync == 0 {
                state.resync_requested(key(1), 1, now);
            }
            tell(&mut state, 1, now, fact);
            let Some(executor) = state.executors().get(&key(1)) else { continue };
            let memory = &executor.memory;
            let storage: u64 = memory.blocks.values().map(|block| block.size_bytes).sum();
            let execution: u64 = memory.pages.values().map(|page| page.size_bytes).sum();
            let held = memory.total();
            prop_assert_eq!(held.blocks, (memory.blocks.len() + memory.unlisted.len()) as u64);
            prop_assert!(held.storage_bytes >= storage && (held.storage_bytes == storage || !memory.unlisted.is_empty()));
            prop_assert_eq!((held.execution_bytes, held.pages), (execution, memory.pages.len() as u64));
            let rows = rdds(&state);
            prop_assert_eq!(rows.iter().map(|row| row.storage_memory_bytes).sum::<u64>(), held.storage_bytes);
            prop_assert_eq!(rows.iter().map(|row| row.execution_memory_bytes).sum::<u64>(), execution);
            let listed: Vec<_> = state.list_stages(&Filter::default()).rows;
            let running: u64 = listed.iter().map(|row| row.tasks_running).sum();
            let tasks = state.list_tasks(&Filter::default()).rows;
            prop_assert_eq!(running, tasks.iter().filter(|row| row.state == TaskState::Running).count() as u64);
            // No address has an owner that is gone.
            prop_assert!(memory.addresses.len() <= small().ranges_per_executor + 1);
        }
    }
}

/// Sizes at the ends of what can be said.
fn any_size() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(10),
        Just(1 << 63),
        Just(u64::MAX - 1),
        Just(u64::MAX)
    ]
}

proptest! {
    /// Sums stop at the largest number, so that what is taken from them again leaves less than there is: no figure
    /// may become absurd by it, and no listing may end in a panic.
    #[test]
    fn absurd_sizes_make_no_absurd_figures(
        facts in proptest::collection::vec((0..3_u8, 0..4_u32, any_size(), any::<bool>()), 1..40)
    ) {
        let mut state = state();
        tell(&mut state, 1, S, described("app-1", "0"));
        let mut now = S;
        for (what, id, size, on_heap) in facts {
            now += super::super::history::INTERVAL_NS;
            let told = BlockFact { on_heap, ..block(id % 2, id, size, &[]) };
            tell(&mut state, 1, now, match what {
                0 => stored(told),
                1 => Fact::PageAllocated(PageAllocated { on_heap, ..page(u64::from(id), Some(0), size) }),
                _ => Fact::BlockRemoved(BlockRemoved {
                    block_id: told.block_id,
                    rdd_id: told.rdd_id,
                    partition: told.partition,
                    activity: None,
                }),
            });
            state.record_history(now);
            let all = Filter::default();
            for by in [PagesBy::Rdd, PagesBy::Block, PagesBy::Task, PagesBy::Executor] {
                let _ = state.list_pages(&all, by);
            }
            let _ = state.list_tasks(&all);
            for row in rdds(&state) {
                prop_assert!(row.storage_memory_off_heap_bytes <= row.storage_memory_bytes);
                prop_assert!(row.execution_memory_off_heap_bytes <= row.execution_memory_bytes);
            }
            let memory = &state.executors()[&key(1)].memory;
            let some = |on_heap: bool| memory.blocks.values().any(|block| block.on_heap == on_heap && block.size_bytes > 0);
            let history = state.list_history(&all).rows;
            let last = history[0].points.last().expect("a point");
            let heap = last.rdds.iter().map(|rdd| rdd.storage_heap_bytes).max().unwrap_or(0);
            let off_heap = last.rdds.iter().map(|rdd| rdd.storage_off_heap_bytes).max().unwrap_or(0);
            prop_assert!(heap == 0 || some(true), "{heap} bytes on the heap, where no block is");
            prop_assert!(off_heap == 0 || some(false), "{off_heap} bytes off the heap, where no block is");
        }
    }
}
