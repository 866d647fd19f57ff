//! Bytes and rows: what is counted is what is there, nothing exceeds its limit, and a user takes nothing from another.

use std::collections::BTreeMap;

use super::hostile::any_fact;
use super::*;
use crate::decode::ConsumerUsed;
use crate::rows::{ApplicationKey, ExecutorKind};
use crate::subordinate::SubordinateIds;
use proptest::prelude::*;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Applies a fact as another user's.
fn tell_as(state: &mut State, user: u32, n: u32, time_ns: u64, fact: Fact) -> Outcome {
    state.apply(Event {
        time_ns,
        executor: key(n),
        pid: 100 + n,
        tid: 100 + n,
        uid: user,
        fact,
    })
}

pub(super) fn gone() -> Fact {
    Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    }
}

/// The bytes of all executors, from their tables row by row.
fn recount(state: &State) -> usize {
    let all = state.executors().values();
    all.map(|executor| {
        let (tasks, memory) = (&executor.tasks, &executor.memory);
        let drift = |counted: usize, recounted: usize| {
            assert_eq!(counted, recounted);
            0_usize
        };
        executor.bytes()
            + drift(executor.rdds.bytes(), executor.rdds.recount())
            + drift(tasks.tasks.bytes(), tasks.tasks.recount())
            + drift(tasks.stages.bytes(), tasks.stages.recount())
            + drift(memory.blocks.bytes(), memory.blocks.recount())
            + drift(memory.pages.bytes(), memory.pages.recount())
            + drift(executor.history_bytes, executor.history.own_bytes())
    })
    .sum()
}

#[test]
fn a_driver_counts_as_an_executor_once_it_runs_tasks() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "driver"));
    tell(&mut state, 2, S, described("app-1", "1"));
    tell(&mut state, 2, S, started(1, 1));
    let mut counted = readings(vec![
        (context(1, 0, 0, None), faults(5, 0, 0)),
        (context(2, 1, 1, None), faults(7, 0, 0)),
    ]);
    let totals = |read| ExecutorCounters {
        attributed: faults(read, 0, 0),
        ..ExecutorCounters::default()
    };
    // The task of `context` must not make the driver an executor: this one works for no task.
    counted.contexts[0].0.task_attempt_id = u64::MAX;
    counted.executors = vec![(key(1), totals(5)), (key(2), totals(7))];
    state.add(&counted, 2 * S);
    let listing = state.list_executors(&Filter::default());
    let kinds: Vec<_> = listing.rows.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [ExecutorKind::Driver, ExecutorKind::Executor]);
    let summary = &listing.summary;
    assert_eq!((summary.executors, summary.drivers), (1, 1));
    assert_eq!(summary.page_faults, Some(7));
    // Local mode: the driver runs the tasks.
    tell(&mut state, 1, 3 * S, started(2, 1));
    let summary = state.list_executors(&Filter::default()).summary;
    assert_eq!((summary.executors, summary.drivers), (2, 0));
    assert_eq!(summary.page_faults, Some(12));
}

#[test]
fn a_node_is_counted_and_absent_where_there_is_none() {
    let mut state = state();
    let rdd = |node: &str, node_id: &str| {
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: 7,
            name: "MapPartitionsRDD".to_owned(),
            node: node.to_owned(),
            node_id: node_id.to_owned(),
            ..RddDescribed::default()
        }))
    };
    let of = |state: &State| {
        let row = the_rdd(state, 1, 7);
        (row.node, row.node_id)
    };
    tell(&mut state, 1, S, described("app-1", "0"));
    tell(&mut state, 1, S, rdd("", ""));
    assert_eq!(of(&state), (None, None));
    let before = state.bytes();
    tell(&mut state, 1, 2 * S, rdd("Exchange", "12"));
    let exchange = (Some("Exchange".to_owned()), Some("12".to_owned()));
    assert_eq!(of(&state), exchange);
    assert_eq!(state.bytes(), before + "Exchange12".len());
    assert_eq!(state.bytes(), recount(&state));
}

#[test]
fn a_claim_of_another_user_is_another_application() {
    let mut state = state();
    tell_as(&mut state, 666, 1, S, described("app-victim", "7"));
    tell_as(&mut state, 666, 1, S, rdd(3, "run curl", ""));
    tell_as(&mut state, 1000, 2, 2 * S, described("app-victim", "7"));
    tell_as(&mut state, 1000, 2, 2 * S, rdd(3, "ranks", ""));
    let named = |filter: &Filter| -> Vec<_> {
        let rows = state.list_rdds(filter).rows.into_iter();
        rows.map(|row| (row.who.uid, row.name)).collect()
    };
    let of = |user, name: &str| (Some(user), Some(name.to_owned()));
    let by_app = Filter {
        app: Some("app-victim".to_owned()),
        ..Filter::default()
    };
    assert_eq!(named(&by_app), [of(666, "run curl"), of(1000, "ranks")]);
    let by_user = Filter {
        user: Some(1000),
        ..by_app
    };
    assert_eq!(named(&by_user), [of(1000, "ranks")]);
    let exactly = Filter {
        application: Some(ApplicationKey {
            id: Some("app-victim".to_owned()),
            attempt: None,
            uid: Some(1000),
        }),
        ..Filter::default()
    };
    assert_eq!(named(&exactly), [of(1000, "ranks")]);
    for row in state.list_executors(&Filter::default()).rows {
        assert_eq!(
            (row.who.executor_id.as_deref(), row.claimed_twice),
            (Some("7"), false)
        );
    }
}

fn consumer(task: u64, name: &str) -> Fact {
    Fact::ConsumerUsed(ConsumerUsed {
        task_attempt_id: Some(task),
        instances: 1,
        peak_bytes: 1,
        counted_bytes: Some(1),
        estimated: false,
        consumer: name.to_owned(),
    })
}

proptest! {
    #[test]
    fn counted_bytes_are_the_bytes_of_the_rows(
        facts in proptest::collection::vec((any_fact(), 1..4_u32, 0..3_u8), 1..200),
        budget in 20_000..400_000_usize,
    ) {
        let mut state = state_with(Limits { state_bytes: budget, state_per_executor_bytes: budget / 2, ..Limits::default() });
        let mut now = S;
        for (fact, n, other) in facts {
            now += S;
            tell_as(&mut state, 1000 + n % 2, n, now, fact);
            match other {
                0 => state.record_history(now),
                1 if n == 3 => state.executor_gone(key(n), now),
                2 => {
                    let counted = vec![(context(n, 1, 1, Some(2)), faults(5, 0, 0))];
                    state.add(&readings(counted), now);
                }
                _ => {}
            }
            prop_assert_eq!(state.bytes(), recount(&state));
            // Every executor has its own row and the overflow rows.
            let fixed = state.executors().len() * (size_of::<Executor>() + 4096);
            prop_assert!(state.bytes() <= budget + fixed, "{} of {budget}", state.bytes());
        }
        for n in 1..4 {
            state.executor_gone(key(n), now);
        }
        state.expire(now + Limits::default().retention_ns);
        prop_assert_eq!(state.bytes(), 0);
    }
}

#[test]
fn a_high_range_index_costs_one_range() {
    let mut state = state();
    for partition in 0..1000 {
        let block = BlockFact {
            range_total: 4096,
            range_first: 4095,
            ..block(
                7,
                partition,
                100,
                &[(0x1000 * (u64::from(partition) + 1), 64)],
            )
        };
        tell(&mut state, 1, S, stored(block));
    }
    assert_eq!(state.executors()[&key(1)].memory.blocks.len(), 1000);
    assert!(state.bytes() < 2 * MIB, "{}", state.bytes());
}

#[test]
fn an_executor_stays_within_its_bytes_and_says_what_it_refused() {
    let limits = Limits {
        state_per_executor_bytes: 2 * MIB,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    let name = "x".repeat(200);
    for task in 0..2000 {
        tell(&mut state, 1, S, started(task, 1));
        for class in 0..33 {
            tell(
                &mut state,
                1,
                S,
                consumer(task, &format!("{class}{}", &name[..198])),
            );
        }
    }
    assert!(state.bytes() <= 2 * MIB, "{}", state.bytes());
    assert!(
        state.counts().over_cap["bytes"] > 10_000,
        "{:?}",
        state.counts()
    );
    assert!(state.executors()[&key(1)].over_cap()["bytes"] > 10_000);
    // Ended tasks make room.
    for task in 0..2000 {
        tell(&mut state, 1, 2 * S, ended(task, 1, TaskOutcome::Succeeded));
    }
    let mut applied = 0;
    for task in 5000..5200 {
        applied += u32::from(tell(&mut state, 1, 3 * S, started(task, 1)) == Outcome::Applied);
    }
    assert!(applied > 100, "{applied}");
}

/// Tasks of the user's executors 1 to 4, more than 4 MiB hold.
fn fill_greedily(state: &mut State, user: u32) {
    for n in 1..5 {
        for task in 0..3000 {
            tell_as(state, user, n, S, started(task, 1));
        }
    }
}

/// Bytes of a state with a limit of 4 MiB and five executors: the fixed part of an executor is always granted.
const MOST: usize = 4 * MIB + 5 * size_of::<Executor>();

/// Executor 9 of user 1000 starts 100 tasks per second, between those of the greedy user: each task finds room.
fn executor_9_finds_room(state: &mut State, greedy: u32) {
    for round in 0..20_u64 {
        for task in 0..100 {
            let id = round * 100 + task;
            let told = tell_as(state, 1000, 9, (2 + round) * S, started(id, 1));
            assert_eq!(told, Outcome::Applied, "task {id}, {} bytes", state.bytes());
        }
        fill_greedily(state, greedy);
        assert!(state.bytes() <= MOST, "{}", state.bytes());
    }
    let victim = &state.executors()[&key(9)];
    assert_eq!((victim.tasks.tasks.len(), victim.bytes_refused), (2000, 0));
}

#[test]
fn a_user_alone_may_take_everything_and_gives_it_back() {
    let limits = Limits {
        state_bytes: 4 * MIB,
        state_per_executor_bytes: 4 * MIB,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    fill_greedily(&mut state, 666);
    assert!(state.bytes() > 3 * MIB, "{}", state.bytes());
    assert!(state.bytes() <= MOST, "{}", state.bytes());
    executor_9_finds_room(&mut state, 666);
}

#[test]
fn a_full_table_takes_the_row_of_the_user_with_the_most() {
    let limits = Limits {
        executors: 8,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    // One finished and one living executor of a user, then a flood of another's.
    tell_as(&mut state, 1000, 1, S, described("app", "1"));
    tell_as(&mut state, 1000, 1, S, gone());
    tell_as(&mut state, 1000, 2, 2 * S, described("app", "2"));
    for n in 10..100 {
        let now = u64::from(n) * S;
        tell_as(&mut state, 666, n, now, described("flood", &n.to_string()));
        if n % 2 == 0 {
            tell_as(&mut state, 666, n, now, gone());
        }
        state.expire(now);
    }
    assert!(
        state.executors().contains_key(&key(1)),
        "finished, within its retention"
    );
    assert!(state.executors().contains_key(&key(2)), "alive");
    assert_eq!(state.executors().len(), 8);
    // The flood is alive and fills the table: a new executor of the other user still finds a row.
    let told = tell_as(&mut state, 1000, 3, 200 * S, described("app", "3"));
    assert_eq!(told, Outcome::Applied);
    let told = tell_as(&mut state, 666, 200, 201 * S, described("flood", "200"));
    assert_eq!(told, Outcome::OverCap("executors"));
}

#[test]
fn subordinate_ids_use_the_share_of_their_owner() {
    let limits = Limits {
        executors: 8,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    let (ids, _) = SubordinateIds::parse("666:100000:65536", |_| None);
    state.set_subordinate_ids(Arc::new(ids));
    for n in 0..8 {
        tell_as(
            &mut state,
            100_000 + n,
            10 + n,
            S,
            described("flood", &n.to_string()),
        );
    }
    assert_eq!(state.executors().len(), 8);
    for (user, n) in [(1000, 1), (1001, 2)] {
        let told = tell_as(&mut state, user, n, 2 * S, described("app", "1"));
        assert_eq!(told, Outcome::Applied, "executor {n} of user {user}");
    }
    let told = tell_as(&mut state, 100_100, 30, 3 * S, described("flood", "30"));
    assert_eq!(told, Outcome::OverCap("executors"));
    let row = &state.executors()[&key(10)];
    assert_eq!((row.uid, row.share), (Some(100_000), Some(666)));
}

/// A reading with the cgroups of executors of user 1000.
fn in_cgroups(executors: impl Iterator<Item = (u32, u64)>) -> Readings {
    let mut all = readings(Vec::new());
    for (n, cgroup) in executors {
        all.executors.push((key(n), ExecutorCounters::default()));
        let owner = smtt_common::settings::Owner {
            cgroup,
            uid: 1000,
            share: 1000,
        };
        all.owners.push((key(n), owner));
    }
    all
}

#[test]
fn a_cgroup_leaves_rows_to_another_one_of_its_user() {
    let limits = Limits {
        executors: 8,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    for n in 10..18 {
        tell_as(&mut state, 1000, n, S, described("app", &n.to_string()));
    }
    let told = tell_as(&mut state, 1000, 1, 2 * S, described("app", "1"));
    assert_eq!(told, Outcome::OverCap("executors"), "no cgroup is known");
    let all = |more| (10..18).map(|n| (n, 5)).chain((1..=more).map(|n| (n, 6)));
    for more in 1..=3 {
        state.add(&in_cgroups(all(more)), 3 * S);
    }
    let rows: Vec<u32> = state.executors().keys().map(|key| *key as u32).collect();
    // Three quarters and the rest; the youngest of the large cgroup are gone.
    let expected: Vec<u32> = [1, 2]
        .into_iter()
        .chain(10..16)
        .map(|n| key(n) as u32)
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn a_cgroup_leaves_bytes_to_another_one_of_its_user() {
    let limits = Limits {
        state_bytes: 4 * MIB,
        state_per_executor_bytes: 2 * MIB,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    state.add(&in_cgroups((1..5).map(|n| (n, 5)).chain([(9, 6)])), S);
    fill_greedily(&mut state, 1000);
    executor_9_finds_room(&mut state, 1000);
}

#[test]
fn facts_of_a_full_state_search_the_executors_when_something_changes_only() {
    let limits = Limits {
        executors: 64,
        state_bytes: 4 * MIB,
        ..Limits::default()
    };
    let mut state = state_with(limits);
    state.add(&in_cgroups((1..65).map(|n| (n, u64::from(n % 4)))), S);
    // All its cgroups have even shares, and nothing is free: neither a row nor a byte.
    for task in 0..3000 {
        for n in 1..65 {
            tell_as(&mut state, 1000, n, S, started(task, 1));
        }
    }
    assert!(state.bytes() > 3 * MIB, "{}", state.bytes());
    let refused = |state: &mut State, n| {
        let told = tell_as(state, 1000, n, S, started(9000, 1));
        assert_eq!(told, Outcome::OverCap("executors"));
    };
    refused(&mut state, 70);
    let before = state.shares.searches;
    for task in 0..10_000_u64 {
        tell_as(
            &mut state,
            1000,
            1 + task as u32 % 64,
            S,
            started(3000 + task, 1),
        );
        refused(&mut state, 70 + task as u32 % 8);
    }
    assert_eq!(state.shares.searches - before, 0);
    // After an end there is room again.
    tell_as(&mut state, 1000, 5, 2 * S, gone());
    assert_ne!(
        tell_as(&mut state, 1000, 70, 3 * S, started(1, 1)),
        Outcome::OverCap("executors")
    );
    assert_eq!(state.shares.searches - before, 1);
}

#[test]
fn sums_by_cgroup_are_those_of_the_executors() {
    let mut state = state();
    let check = |state: &State, expected: &[(u64, usize)]| {
        let mut sums = BTreeMap::new();
        for (key, executor) in state.executors() {
            let used: &mut (usize, usize) = sums.entry(state.shares.cgroup(*key)).or_default();
            used.0 += 1;
            used.1 += executor.bytes();
        }
        let counted: BTreeMap<u64, (usize, usize)> = state.shares.groups[&Some(1000)]
            .uses
            .iter()
            .map(|(group, used)| (*group, (used.executors, used.bytes)))
            .collect();
        assert_eq!(counted, sums);
        let executors: Vec<_> = sums.iter().map(|(group, used)| (*group, used.0)).collect();
        assert_eq!(executors, expected);
    };
    for n in 1..5 {
        tell_as(&mut state, 1000, n, S, described("app", &n.to_string()));
        tell_as(&mut state, 1000, n, S, started(u64::from(n), 1));
    }
    check(&state, &[(0, 4)]);
    state.add(&in_cgroups([(1, 5), (2, 5), (3, 6), (4, 6)].into_iter()), S);
    check(&state, &[(5, 2), (6, 2)]);
    state.add(&in_cgroups([(1, 5), (2, 6), (3, 6)].into_iter()), 2 * S);
    check(&state, &[(0, 1), (5, 1), (6, 2)]);
    tell_as(&mut state, 1000, 3, 3 * S, gone());
    tell_as(&mut state, 1000, 2, 3 * S, started(77, 2));
    check(&state, &[(0, 1), (5, 1), (6, 2)]);
}

#[test]
fn the_first_user_of_an_executor_stays() {
    let mut state = state();
    tell_as(&mut state, 1000, 1, S, described("app", "1"));
    tell_as(&mut state, 666, 1, 2 * S, described("app", "1"));
    let mut late = readings(Vec::new());
    late.executors = vec![
        (key(1), ExecutorCounters::default()),
        (key(2), ExecutorCounters::default()),
    ];
    let owner = |uid| smtt_common::settings::Owner {
        uid,
        ..smtt_common::settings::Owner::default()
    };
    late.owners = vec![(key(1), owner(5)), (key(2), owner(7))];
    state.add(&late, 3 * S);
    tell_as(&mut state, 666, 2, 4 * S, described("app", "2"));
    let users: Vec<_> = state.executors().values().map(|row| row.uid).collect();
    assert_eq!(users, [Some(1000), Some(7)]);
}

#[test]
fn searches_of_full_tables_stay_cheap() {
    let mut state = state();
    // Every RDD holds memory and every task runs: nothing can be folded.
    for id in 0..1024 {
        tell(&mut state, 1, S, stored(block(id, 0, 1, &[])));
    }
    let full = state.limits.tasks_per_executor as u64;
    for task in 0..full {
        tell(&mut state, 1, S, started(task, 1));
    }
    let before = state.executors()[&key(1)].rdds_search.visited;
    for id in 0..10_000 {
        tell(&mut state, 1, S, rdd(10_000 + id, "x", ""));
    }
    let executor = &state.executors()[&key(1)];
    let visited = executor.rdds_search.visited - before;
    // One search per fact would be ten million.
    assert!(visited <= 10_000 * 65, "{visited} rows");
    let before = executor.tasks.tasks_search.visited;
    for task in 0..10_000_u64 {
        // One ends and one starts, so that every search finds a single row.
        tell(
            &mut state,
            1,
            S,
            ended(task % full, 1, TaskOutcome::Succeeded),
        );
        tell(&mut state, 1, S, started(full + task, 1));
    }
    let visited = state.executors()[&key(1)].tasks.tasks_search.visited - before;
    // One search per pair would be eighty million.
    assert!(visited <= 20_000 * 65, "{visited} rows");
}

#[test]
fn ends_of_children_look_at_the_tasks_once_a_second_also_where_nothing_is_kept() {
    use crate::decode::ProcessEnd;

    let mut state = state();
    let full = state.limits.tasks_per_executor as u64;
    for task in 0..full {
        tell(&mut state, 1, S, started(task, 1));
    }
    // The user is at its share: nothing more is admitted.
    state.limits.state_per_executor_bytes = state.bytes();
    let before = LOOKS.get();
    for child in 0..10_000_u32 {
        let end = ProcessEnd {
            status: 9,
            peak_rss_bytes: 1,
            name: "python3".into(),
        };
        state.apply(Event {
            time_ns: 2 * S + u64::from(child) * (S / 10_000),
            executor: key(1),
            pid: 1000 + child,
            tid: 1000 + child,
            uid: 1000,
            fact: Fact::ProcessGone {
                exec: false,
                is_executor: false,
                end: Some(Box::new(end)),
            },
        });
    }
    let executor = &state.executors()[&key(1)];
    assert!(executor.black_box.before_child(2 * S).is_none(), "no room");
    let looks = LOOKS.get() - before;
    assert!((1..=2).contains(&looks), "{looks} times all tasks");
}
