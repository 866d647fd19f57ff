//! Functions of tasks: times that add up, and the bounds of what a marker sends.

use proptest::prelude::*;
use smtt_common::event::used::{ACCOUNTS, CPU_NS, CPU_WAIT_NS, DISK_WAIT_NS, TaskUsed, WorkerUsed};

use super::*;
use crate::decode::Span;
use crate::rows::{FunctionsRow, HELPER, TASK, WORKER};
use crate::state::bytes::Caps;
use crate::state::functions::{SPANS_PER_EXECUTOR, SPANS_PER_TASK};

const OWN: u32 = 101;

fn span(task: u64, activity: Activity, ms: u64) -> Fact {
    Fact::Span(Span {
        task_attempt_id: Some(task),
        activity: activity.0,
        duration_ns: ms * MS,
        name: format!("{} function", activity.name().unwrap_or("?")),
        ..Span::default()
    })
}

/// A span of a thread that ends at a time.
fn tell_of(state: &mut State, tid: u32, end_ns: u64, fact: Fact) {
    state.apply(Event {
        time_ns: end_ns,
        executor: key(1),
        pid: 101,
        tid,
        uid: 1000,
        fact,
    });
}

/// Any span of a few tasks.
pub(super) fn any_span() -> impl Strategy<Value = Fact> {
    (0..4_u64, any::<u8>(), any::<u64>()).prop_map(|(task, activity, ns)| {
        Fact::Span(Span {
            task_attempt_id: Some(task),
            activity,
            duration_ns: ns,
            name: ns.to_string(),
            ..Span::default()
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

fn times(row: &FunctionsRow) -> Vec<(&str, u64, u64)> {
    let all = row.activities.iter();
    all.map(|it| (it.activity.as_str(), it.spans, it.own_ns / MS))
        .collect()
}

/// Own times of a thread in a task, as they were added up.
fn own_ns(tasks: &Tasks, task: u64, tid: u32) -> u64 {
    let functions = tasks.tasks.get(&task).and_then(Task::functions);
    let sums = functions.map_or(&[][..], |it| it.sums());
    let own = sums.iter().filter(|sum| sum.tid == tid);
    own.fold(0, |all, sum| all.saturating_add(sum.own_ns))
}

/// The times that were added up are those of the row, and with the rest they are its duration.
fn is_whole(state: &State, task: u64, row: &FunctionsRow) {
    let executor = state.executors.get(&key(1)).expect("is known");
    let sum: u64 = row.activities.iter().map(|it| it.own_ns).sum();
    assert_eq!(own_ns(&executor.tasks, task, OWN), sum, "{row:?}");
    assert_eq!(Some(row.duration_ns - sum), row.rest_ns, "{row:?}");
}

/// Task 1 runs from 10 s to 12 s: it is deserialised for 100 ms before, sorts for 1 s and spills twice within the sort.
fn sorted() -> State {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    tell_of(&mut state, OWN, 10 * S, started(1, 1));
    let deserialize = span(1, Activity::TASK_DESERIALIZE, 100);
    tell_of(&mut state, OWN, 10 * S, deserialize);
    for end in [300, 600] {
        let spill = span(1, Activity::SPILL, 50);
        tell_of(&mut state, OWN, 10 * S + end * MS, spill);
    }
    // A helper fetches meanwhile.
    let fetch = span(1, Activity::SHUFFLE_FETCH, 900);
    tell_of(&mut state, 7, 10 * S + 950 * MS, fetch);
    let sort = span(1, Activity::SORT, 1000);
    tell_of(&mut state, OWN, 11 * S + 200 * MS, sort);
    state
}

#[test]
fn a_span_counts_without_those_inside_it_and_the_rest_is_named() {
    let mut state = sorted();
    tell_of(&mut state, OWN, 12 * S, ended(1, 1, TaskOutcome::Succeeded));
    let row = functions(&state, 1);
    assert_eq!(row.duration_ns, 2100 * MS);
    assert_eq!(
        times(&row),
        [
            ("sort", 1, 900),
            ("spill", 2, 100),
            ("task_deserialize", 1, 100)
        ]
    );
    assert_eq!(row.rest_ns, Some(1000 * MS));
    is_whole(&state, 1, &row);
    let spans: Vec<_> = row
        .spans
        .iter()
        .map(|it| {
            let own = (it.begin_ns / MS, it.duration_ns / MS, it.own_ns / MS);
            (it.thread.as_str(), it.activity.as_str(), own)
        })
        .collect();
    assert_eq!(
        spans,
        [
            (TASK, "task_deserialize", (0, 100, 100)),
            (TASK, "sort", (300, 1000, 900)),
            (TASK, "spill", (350, 50, 50)),
            (TASK, "spill", (650, 50, 50)),
            (HELPER, "shuffle_fetch", (150, 900, 900)),
        ]
    );
    assert_eq!(row.spans[1].function.as_deref(), Some("sort function"));
    assert_eq!(row.helpers.len(), 1);
    assert_eq!((row.spans_left_out, row.thread), (0, None));
}

#[test]
fn the_accounts_give_the_begin_and_what_the_thread_did() {
    let mut state = sorted();
    let mut accounts = [0; ACCOUNTS];
    (accounts[CPU_NS], accounts[CPU_WAIT_NS]) = (1500 * MS, 200 * MS);
    let used = TaskUsed {
        task_attempt_id: 1,
        accounts,
        duration_ns: 2300 * MS,
        present: 1 << CPU_NS | 1 << CPU_WAIT_NS,
        flags: 0,
    };
    tell(&mut state, 1, 12 * S, Fact::TaskUsed(Box::new(used)));
    tell_of(&mut state, OWN, 12 * S, ended(1, 1, TaskOutcome::Succeeded));
    let row = functions(&state, 1);
    assert_eq!((row.duration_ns, row.begin_ns), (2300 * MS, 9700 * MS));
    assert_eq!(row.rest_ns, Some(1200 * MS));
    is_whole(&state, 1, &row);
    let thread = row.thread.expect("has accounts");
    assert_eq!(
        (thread.cpu_ns, thread.cpu_wait_ns, thread.other_ns),
        (1500 * MS, Some(200 * MS), 600 * MS)
    );
    assert_eq!(thread.disk_wait_ns, None);
    assert_eq!(DISK_WAIT_NS.min(ACCOUNTS), DISK_WAIT_NS);
}

#[test]
fn a_task_whose_thread_is_not_known_has_no_rest() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    // Known from page faults only.
    let growth = vec![(context(1, 1, 1, None), faults(1, 0, 0))];
    state.add(&readings(growth), 10 * S);
    tell_of(&mut state, OWN, 10 * S, span(1, Activity::SORT, 10));
    let one = Filter {
        task: Some(1),
        ..Filter::default()
    };
    let row = state.list_tasks(&one).rows.remove(0);
    assert_eq!(row.functions, None, "neither start nor accounts are known");
    tell_of(&mut state, OWN, 11 * S, ended(1, 1, TaskOutcome::Killed));
    let row = functions(&state, 1);
    assert_eq!(times(&row), [("sort", 1, 10)]);
    is_whole(&state, 1, &row);
}

#[test]
fn a_task_keeps_its_longest_spans_and_counts_the_others() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    tell_of(&mut state, OWN, 10 * S, started(1, 1));
    let mut at = 10 * S;
    for n in 1..=200 {
        at += n * MS;
        tell_of(&mut state, OWN, at, span(1, Activity::SPILL, n));
    }
    tell_of(&mut state, OWN, at, ended(1, 1, TaskOutcome::Succeeded));
    let row = functions(&state, 1);
    assert_eq!(row.spans.len(), SPANS_PER_TASK);
    assert!(row.spans.iter().all(|span| span.duration_ns > 136 * MS));
    assert_eq!(row.spans_left_out, 136);
    assert_eq!(row.spans_left_out_ns, 136 * 137 / 2 * MS);
    assert_eq!(times(&row), [("spill", 200, 200 * 201 / 2)]);
    assert_eq!(row.rest_ns, Some(0));
    is_whole(&state, 1, &row);
}

#[test]
fn an_executor_keeps_the_spans_of_the_tasks_that_ended_last() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    let tasks = (SPANS_PER_EXECUTOR / SPANS_PER_TASK) as u64 + 10;
    for task in 0..tasks {
        let at = (10 + task) * S;
        tell_of(&mut state, OWN, at, started(task, 1));
        for n in 0..SPANS_PER_TASK as u64 {
            let spill = span(task, Activity::SPILL, 2);
            tell_of(&mut state, OWN, at + 2 * (n + 1) * MS, spill);
        }
        let end = ended(task, 1, TaskOutcome::Succeeded);
        tell_of(&mut state, OWN, at + S, end);
    }
    let kept: Vec<usize> = (0..tasks)
        .map(|task| {
            let row = functions(&state, task);
            is_whole(&state, task, &row);
            assert_eq!(times(&row), [("spill", 64, 128)]);
            assert_eq!(
                row.spans.len() as u64 + row.spans_left_out,
                SPANS_PER_TASK as u64
            );
            row.spans.len()
        })
        .collect();
    assert!(kept.iter().sum::<usize>() <= SPANS_PER_EXECUTOR);
    assert!(kept[0] == 0 && kept[tasks as usize - 1] == SPANS_PER_TASK);
    assert!(kept.is_sorted(), "the oldest go first");
}

#[test]
fn tasks_that_all_run_keep_what_fits() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    let tasks = (SPANS_PER_EXECUTOR / SPANS_PER_TASK) as u64 + 10;
    for task in 0..tasks {
        tell_of(&mut state, OWN, 10 * S, started(task, 1));
        for _ in 0..SPANS_PER_TASK {
            let at = 11 * S + task * S;
            tell_of(&mut state, OWN, at, span(task, Activity::SPILL, 2));
        }
    }
    let rows = (0..tasks).map(|task| functions(&state, task));
    let kept: usize = rows.map(|row| row.spans.len()).sum();
    assert_eq!(kept, SPANS_PER_EXECUTOR);
    assert_eq!(functions(&state, tasks - 1).spans_left_out, 64);
}

#[test]
fn functions_of_a_running_task_have_no_rest() {
    let state = sorted();
    let row = functions(&state, 1);
    // A function that is still open would be user code.
    assert_eq!((row.duration_ns, row.rest_ns), (1300 * MS, None));
    assert_eq!(row.activities.len(), 3);
}

#[test]
fn activities_that_are_not_known_are_one() {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    tell_of(&mut state, OWN, 10 * S, started(1, 1));
    for code in 0..=u8::MAX {
        let of = span(1, Activity(code), 1);
        tell_of(&mut state, OWN, 10 * S + u64::from(code) * MS, of);
    }
    let executor = state.executors.get(&key(1)).expect("is known");
    let functions = executor.tasks.tasks.get(&1).and_then(Task::functions);
    let sums = functions.expect("has functions").sums();
    let known = (0..=u8::MAX).filter(|code| Activity(*code).name().is_some());
    assert_eq!(sums.len(), known.count() + 1);
}

/// Gives spans of task 1 to tasks: thread, activity, begin and end in milliseconds.
fn of_threads(spans: impl IntoIterator<Item = (u32, Activity, u64, u64)>) -> Tasks {
    let caps = Caps::new(Limits::default(), 1 << 30);
    let mut tasks = Tasks::default();
    tasks.task(1, &caps).expect("has a place");
    tasks.runs_on(1, OWN);
    for (tid, activity, begin, end) in spans {
        let Fact::Span(span) = span(1, activity, end - begin) else {
            unreachable!();
        };
        tasks.span(&span, tid, end * MS, &caps);
    }
    tasks
}

fn own_of(tasks: &Tasks, activity: Activity) -> u64 {
    let functions = tasks.tasks.get(&1).and_then(Task::functions);
    let sums = functions.expect("has functions").sums().iter();
    let of = sums.filter(|sum| (sum.tid, sum.activity) == (OWN, activity.0));
    of.map(|sum| sum.own_ns / MS).sum()
}

#[test]
fn a_span_after_many_counts_without_those_inside_it() {
    let fetches = (0..20).map(|n| (OWN, Activity::SHUFFLE_FETCH, n * 10, n * 10 + 5));
    let spills = [(350, 750), (800, 1200)].map(|it| (OWN, Activity::SPILL, it.0, it.1));
    let sort = (OWN, Activity::SORT, 300, 1300);
    let tasks = of_threads(fetches.chain(spills).chain([sort]));
    assert_eq!(own_of(&tasks, Activity::SORT), 200);
    assert_eq!(own_ns(&tasks, 1, OWN), 1100 * MS);
}

#[test]
fn spans_of_other_threads_take_no_place_of_the_tasks_own() {
    let spills = [(350, 750), (800, 1200)].map(|it| (OWN, Activity::SPILL, it.0, it.1));
    let sort = (OWN, Activity::SORT, 300, 1300);
    // One thread with many spans, and many threads with one.
    for threads in [1, 40] {
        let helpers = (0..40).map(|n| {
            let thread = 500 + u32::try_from(n).expect("small") % threads;
            (thread, Activity::SHUFFLE_FETCH, 1201 + n, 1202 + n)
        });
        let tasks = of_threads(spills.into_iter().chain(helpers).chain([sort]));
        assert_eq!(own_of(&tasks, Activity::SORT), 200, "{threads}");
    }
}

#[test]
fn a_span_that_finds_no_bytes_counts_nowhere() {
    let fetches = (0..4).map(|n| (OWN, Activity::SHUFFLE_FETCH, n * 10, n * 10 + 5));
    let mut tasks = of_threads(fetches);
    let Fact::Span(span) = span(1, Activity::SHUFFLE_FETCH, 5) else {
        unreachable!();
    };
    let none = Caps::new(Limits::default(), 0);
    let outcome = tasks.span(&span, OWN, 100 * MS, &none);
    assert_eq!(outcome, Outcome::OverCap("bytes"));
    let functions = tasks.tasks.get(&1).and_then(Task::functions);
    let functions = functions.expect("has functions");
    assert_eq!((functions.left_out, functions.left_out_ns), (0, 0));
    assert_eq!(own_ns(&tasks, 1, OWN), 20 * MS);
}

/// Calls and returns of a thread: the spans in the order of their ends, the time in any of them, and whether more than
/// `most` are beside one another at once.
fn nested(steps: &[(u8, u64)], most: usize) -> (Vec<(u64, u64)>, u64, bool) {
    let (mut now, mut open, mut spans) = (0, Vec::new(), Vec::new());
    // Ended spans inside each open one, and inside none.
    let (mut beside, mut all, mut many) = (vec![0], 0, false);
    let closing = steps.iter().copied().chain([(1, 1); 300]);
    for (what, ms) in closing {
        now += ms;
        all += if open.is_empty() { 0 } else { ms };
        if what % 3 == 0 && open.len() < 8 {
            open.push(now);
            beside.push(0);
        } else if let Some(begin) = open.pop().filter(|begin| *begin < now) {
            spans.push((begin, now));
            beside.pop();
            *beside.last_mut().expect("outside") += 1;
            many |= beside.iter().sum::<usize>() > most;
        } else {
            beside.truncate(open.len() + 1);
        }
    }
    (spans, all, many)
}

proptest! {
    #[test]
    fn no_time_of_nested_spans_counts_twice(
        steps in proptest::collection::vec((0..6_u8, 1..50_u64), 0..300),
        helpers in 0..40_u32,
    ) {
        let (spans, all, many) = nested(&steps, 16);
        let own = spans.iter().flat_map(|&(begin, end)| {
            let of_helpers = (0..helpers).map(move |n| (500 + n, Activity::SHUFFLE_FETCH, begin, end));
            [(OWN, Activity::SORT, begin, end)].into_iter().chain(of_helpers)
        });
        let sum = own_ns(&of_threads(own), 1, OWN) / MS;
        prop_assert!(sum <= all, "{} of {}", sum, all);
        prop_assert!(many || helpers > 0 || sum == all, "{} of {}", sum, all);
    }

    #[test]
    fn whatever_a_marker_sends_the_times_add_up_to_the_duration(
        spans in proptest::collection::vec((0..20_u8, 0..5_u32, any::<u64>(), 0..3000_u64), 0..300),
        long in any::<bool>(),
    ) {
        let mut state = state();
        tell(&mut state, 1, 9 * S, described("app-1", "0"));
        tell_of(&mut state, OWN, 10 * S, started(1, 1));
        for (activity, thread, length, end) in spans {
            let span = Span {
                task_attempt_id: Some(1),
                activity,
                duration_ns: if long { length } else { length % (3 * S) },
                name: format!("{}", length % 1000),
                ..Span::default()
            };
            tell_of(&mut state, OWN + thread, 10 * S + end * MS, Fact::Span(span));
        }
        tell_of(&mut state, OWN, 13 * S, ended(1, 1, TaskOutcome::Failed));
        let row = functions(&state, 1);
        // The times may be more than the task's life here: the row has no more.
        let executor = state.executors.get(&key(1)).expect("is known");
        let known = own_ns(&executor.tasks, 1, OWN).min(row.duration_ns);
        prop_assert_eq!(row.activities.iter().map(|it| it.own_ns).sum::<u64>(), known);
        prop_assert_eq!(row.rest_ns, Some(row.duration_ns - known));
        prop_assert!(row.spans.len() <= SPANS_PER_TASK);
        let own: u64 = row.helpers.iter().map(|it| it.spans).sum();
        let all: u64 = row.activities.iter().map(|it| it.spans).sum::<u64>() + own;
        prop_assert!(row.spans.len() as u64 + row.spans_left_out == all);
    }
}

#[test]
fn the_service_of_a_python_worker_is_a_lane_and_in_no_sum() {
    let mut state = sorted();
    let before = functions(&state, 1);
    for (end_ms, pid) in [(1500, OWN), (1600, 7), (1700, OWN)] {
        let service = WorkerUsed {
            used: TaskUsed {
                task_attempt_id: 1,
                duration_ns: 100 * MS,
                ..TaskUsed::default()
            },
            pid,
            reserved: 0,
        };
        let fact = Fact::WorkerUsed(Box::new(service));
        tell_of(&mut state, OWN, 10 * S + end_ms * MS, fact);
    }
    tell_of(&mut state, OWN, 12 * S, ended(1, 1, TaskOutcome::Succeeded));
    let row = functions(&state, 1);
    is_whole(&state, 1, &row);
    assert_eq!(row.activities, before.activities);
    assert_eq!(row.helpers, before.helpers);
    let lanes = row.spans.iter().filter(|it| it.thread == WORKER);
    let lanes: Vec<_> = lanes
        .map(|it| {
            assert_eq!(
                (it.activity.as_str(), it.own_ns),
                ("python_worker", it.duration_ns)
            );
            (it.tid, it.begin_ns / MS, it.duration_ns / MS)
        })
        .collect();
    // The task was deserialised for 100 ms before its start was reported.
    assert_eq!(lanes, [(7, 1600, 100), (OWN, 1500, 100), (OWN, 1700, 100)]);
    assert_eq!(row.spans.len(), before.spans.len() + 3);
}
