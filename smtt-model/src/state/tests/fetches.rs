//! Requests for shuffle blocks: what a task asked for and got, and the bounds of what a marker sends.

use proptest::prelude::*;

use super::*;
use crate::decode::Fetched;
use crate::rows::FunctionsRow;
use crate::state::bytes::Caps;
use crate::state::fetches::{FETCHES_PER_EXECUTOR, FETCHES_PER_TASK};

fn request(task: u64, from: u64, ms: u64, blocks: u64, bytes: u64) -> Fetched {
    Fetched {
        task_attempt_id: task,
        duration_ns: ms * MS,
        requests: 1,
        blocks,
        arrived_blocks: blocks,
        arrived_bytes: bytes,
        address: format!("node-{from}:7337"),
        executor_id: from.to_string(),
        ..Fetched::default()
    }
}

fn fact(fetched: Fetched) -> Fact {
    Fact::Fetched(Box::new(fetched))
}

/// Any request, or sum of requests, of a few tasks.
pub(super) fn any_request() -> impl Strategy<Value = Fact> {
    (0..4_u64, any::<u64>(), 0..3_u64).prop_map(|(task, any, requests)| {
        fact(Fetched {
            requests,
            duration_ns: any,
            ..request(task, any % 5, 0, any, any)
        })
    })
}

fn functions(state: &State, task: u64) -> FunctionsRow {
    let one = Filter {
        task: Some(task),
        ..Filter::default()
    };
    let row = state.list_tasks(&one).rows.remove(0);
    row.functions.expect("has functions")
}

/// Task 1 runs from 10 s on.
fn running() -> State {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    tell(&mut state, 1, 10 * S, started(1, 1));
    state
}

#[test]
fn requests_have_their_source_and_what_arrived() {
    let mut state = running();
    let failed = Fetched {
        arrived_blocks: 1,
        failed_blocks: 2,
        ..request(1, 2, 60, 3, 5)
    };
    let unfinished = Fetched {
        arrived_blocks: 0,
        ..request(1, 3, 5, 4, 0)
    };
    let sum = Fetched {
        address: String::new(),
        executor_id: String::new(),
        requests: 7,
        ..request(1, 0, 0, 70, 700)
    };
    for (at, fetched) in [
        (50, request(1, 2, 20, 2, 90)),
        (80, failed),
        (90, unfinished),
    ] {
        tell(&mut state, 1, 10 * S + at * MS, fact(fetched));
    }
    tell(&mut state, 1, 10 * S + 95 * MS, fact(sum));
    let row = functions(&state, 1);
    let all = row.fetches.iter().map(|it| {
        let what = (it.blocks, it.bytes, it.outcome.as_str());
        let when = (it.begin_ns / MS, it.duration_ns / MS);
        (it.address.as_deref(), it.executor_id.as_deref(), when, what)
    });
    let (two, three) = (Some("node-2:7337"), Some("node-3:7337"));
    assert_eq!(
        all.collect::<Vec<_>>(),
        [
            (two, Some("2"), (20, 60), (3, 5, "failed")),
            (two, Some("2"), (30, 20), (2, 90, "complete")),
            (three, Some("3"), (85, 5), (4, 0, "unfinished")),
        ]
    );
    let sum = row.fetched.expect("has requests");
    assert_eq!((sum.requests, sum.blocks, sum.arrived_blocks), (10, 79, 73));
    assert_eq!((sum.failed_blocks, sum.bytes, sum.left_out), (2, 795, 7));
    assert_eq!((row.activities.len(), row.helpers.len()), (0, 0));
}

#[test]
fn a_task_without_requests_has_none() {
    let row = functions(&running(), 1);
    assert_eq!((row.fetches.len(), row.fetched), (0, None));
}

#[test]
fn a_task_keeps_its_first_requests_and_counts_the_others() {
    let mut state = running();
    for from in 0..1_500 {
        tell(&mut state, 1, 10 * S, fact(request(1, from, 1, 1, 10)));
    }
    let row = functions(&state, 1);
    assert_eq!(row.fetches.len(), FETCHES_PER_TASK);
    let sum = row.fetched.expect("has requests");
    assert_eq!(
        (sum.requests, sum.left_out, sum.bytes),
        (1_500, 500, 15_000)
    );
}

#[test]
fn an_executor_keeps_the_requests_of_the_tasks_that_ended_last() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    let tasks = (FETCHES_PER_EXECUTOR / FETCHES_PER_TASK) as u64 + 5;
    for task in 0..tasks {
        let at = (10 + task) * S;
        tell(&mut state, 1, at, started(task, 1));
        for _ in 0..FETCHES_PER_TASK {
            tell(&mut state, 1, at, fact(request(task, 2, 0, 1, 1)));
        }
        tell(&mut state, 1, at, ended(task, 1, TaskOutcome::Succeeded));
    }
    let kept: Vec<usize> = (0..tasks)
        .map(|task| {
            let row = functions(&state, task);
            let sum = row.fetched.expect("has requests");
            assert_eq!(sum.requests, FETCHES_PER_TASK as u64);
            assert_eq!(sum.left_out, sum.requests - row.fetches.len() as u64);
            row.fetches.len()
        })
        .collect();
    assert!(kept.iter().sum::<usize>() <= FETCHES_PER_EXECUTOR);
    assert!(kept[0] == 0 && kept[tasks as usize - 1] == FETCHES_PER_TASK);
    assert!(kept.is_sorted(), "the oldest go first");
}

#[test]
fn sources_have_a_bound_and_requests_of_others_have_no_name() {
    let mut state = running();
    for from in 0..5_000 {
        let task = 1 + from / 900;
        tell(&mut state, 1, 10 * S, started(task, 1));
        tell(
            &mut state,
            1,
            10 * S,
            fact(request(task, 5_000 - from, 1, 1, 1)),
        );
    }
    let first = functions(&state, 1);
    assert_eq!(first.fetches[0].address.as_deref(), Some("node-5000:7337"));
    assert!(first.fetches.iter().all(|it| it.address.is_some()));
    let last = functions(&state, 6);
    assert!(last.fetches.iter().all(|it| it.address.is_none()));
}

#[test]
fn a_request_that_finds_no_bytes_counts_nowhere() {
    let mut tasks = Tasks::default();
    let caps = Caps::new(Limits::default(), 1 << 30);
    tasks.task(1, &caps).expect("has a place");
    let none = Caps::new(Limits::default(), 0);
    let outcome = tasks.fetched(&request(1, 2, 1, 1, 1), 10 * S, &none);
    assert_eq!(outcome, Outcome::OverCap("bytes"));
    assert!(tasks.tasks.get(&1).expect("is there").functions().is_none());
    // A task that is not known has no place, and no row is made for it.
    let outcome = tasks.fetched(&request(9, 2, 1, 1, 1), 10 * S, &caps);
    assert_eq!((outcome, tasks.tasks.len()), (Outcome::Applied, 1));
}
