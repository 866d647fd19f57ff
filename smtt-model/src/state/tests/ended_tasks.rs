//! Ended tasks as the rules about stages see them.

use super::*;
use crate::decode::{Fetched, Span, TaskMetrics};
use crate::rows::{EndedTask, TasksByStage};

/// Tasks of executor `n` in stage 3: each waits 40 ms for one host and 7 ms for another, reads, and ends after 2 s.
fn ran(state: &mut State, n: u32, task: u64, outcome: TaskOutcome) {
    tell(state, n, S, started(task, 3));
    for (at, from, ms) in [(100, "slow:7337", 40), (200, "fast:7337", 7)] {
        let wait = Span {
            task_attempt_id: Some(task),
            activity: Activity::SHUFFLE_FETCH.0,
            duration_ns: ms * MS,
            name: format!("next from {from}"),
            ..Span::default()
        };
        tell(state, n, S + at * MS, Fact::Span(wait));
        let request = Fetched {
            task_attempt_id: task,
            duration_ns: ms * MS,
            requests: 1,
            blocks: 1,
            arrived_blocks: 1,
            arrived_bytes: 500,
            address: from.to_owned(),
            ..Fetched::default()
        };
        tell(state, n, S + at * MS, Fact::Fetched(Box::new(request)));
    }
    let metrics = TaskMetrics {
        task_attempt_id: task,
        values: [10, 1, 0, 0, 1000, 100, 0, 0, 0, 0],
        times: Some([0, 0, 1900, 30]),
    };
    tell(state, n, 3 * S, Fact::TaskMetrics(Box::new(metrics)));
    tell(state, n, 3 * S, ended(task, 3, outcome));
}

fn collected(state: &State) -> TasksByStage {
    collected_in(state, TasksByStage::default(), &Filter::default())
}

fn collected_in(state: &State, mut tasks: TasksByStage, filter: &Filter) -> TasksByStage {
    let first = state.executors().values().next().expect("an executor");
    for turn in state.turns(&crate::rows::ExecutorId::new(first).application(), filter) {
        state.add_ended_tasks(filter, turn, &mut tasks);
    }
    tasks
}

#[test]
fn succeeded_tasks_have_what_they_read_and_for_whom_they_waited() {
    let mut state = state();
    for n in [1, 2] {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
        ran(&mut state, n, n.into(), TaskOutcome::Succeeded);
    }
    ran(&mut state, 1, 8, TaskOutcome::Failed);
    tell(&mut state, 1, 4 * S, started(9, 3));
    let tasks = collected(&state);
    let stages: Vec<_> = tasks.stages().collect();
    assert_eq!((stages.len(), tasks.left_out), (1, 0));
    let stage = stages[0];
    assert_eq!((stage.id, stage.attempt), (3, 0));
    assert_eq!(stage.executor_ids, ["1", "2"].map(str::to_owned).into());
    let mut ended = stage.ended.clone();
    ended.sort_by_key(|it| it.partition);
    let one = EndedTask {
        partition: 1,
        start_ns: S,
        end_ns: 3 * S,
        run_ms: Some(1900),
        collection_ms: Some(30),
        bytes: Some(1010),
        records: Some(101),
        fetch_wait_ns: Some(47 * MS),
    };
    assert_eq!(
        ended,
        [
            one,
            EndedTask {
                partition: 2,
                ..one
            }
        ]
    );
    let senders = stage.senders();
    let said: Vec<_> = senders
        .iter()
        .map(|it| (it.host.as_str(), it.wait, it.bytes))
        .collect();
    assert_eq!(said, [("slow", 80.0, 1000.0), ("fast", 14.0, 1000.0)]);
}

#[test]
fn what_did_not_come_is_absent() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "1"));
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, 2 * S, ended(1, 3, TaskOutcome::Succeeded));
    let tasks = collected(&state);
    let task = tasks.stages().next().expect("a stage").ended[0];
    assert_eq!((task.bytes, task.records, task.run_ms), (None, None, None));
    assert_eq!(task.fetch_wait_ns, Some(0), "its thread waited for nothing");
}

#[test]
fn waits_are_absent_where_the_executor_does_not_report_them() {
    for (missing_hooks, names, wait) in [
        (1, "RDD.iterator", Some(0)),
        (2, "RDD.iterator,ShuffleBlockFetcherIterator.*/take", None),
        (1, "ShuffleBlockFetcherIterator", None),
        (1, "ShuffleBlockFetcherIterator.*/fetchBlocks", Some(0)),
        // One name had no room.
        (2, "RDD.iterator", None),
    ] {
        let mut state = state();
        let said = ExecutorDescribed {
            application_id: "app-1".to_owned(),
            missing_hooks,
            missing_hook_names: names.to_owned(),
            ..ExecutorDescribed::default()
        };
        tell(&mut state, 1, S, Fact::ExecutorDescribed(Box::new(said)));
        tell(&mut state, 1, S, started(1, 3));
        tell(&mut state, 1, 2 * S, ended(1, 3, TaskOutcome::Succeeded));
        let tasks = collected(&state);
        let task = tasks.stages().next().expect("a stage").ended[0];
        assert_eq!(task.fetch_wait_ns, wait, "{names}");
        assert_eq!(tasks.without_waits, u64::from(wait.is_none()), "{names}");
    }
    // The names are those of the marker's table: class, method, and the call in it.
    let table = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../smtt-marker/java/io/smtt/marker/HookTable.java"
    );
    let table = std::fs::read_to_string(table).expect("the table of hooks");
    let row = r#"on(CALL, "storage/ShuffleBlockFetcherIterator", "*", "*").to("Calls", "take").call(queue, "take","#;
    assert!(table.contains(row));
}

#[test]
fn each_executor_has_its_part_of_the_room_and_living_ones_first() {
    let mut state = state();
    // The first two are dead; the last is of another application.
    for (n, count) in [(1, 50), (2, 3), (3, 40), (4, 4), (5, 30), (6, 9)] {
        let application = if n == 6 { "app-2" } else { "app-1" };
        tell(&mut state, n, S, described(application, &n.to_string()));
        for task in 0..count {
            tell(&mut state, n, S, started(task, n));
            tell(&mut state, n, 2 * S, ended(task, n, TaskOutcome::Succeeded));
        }
    }
    for n in [1, 2] {
        let gone = Fact::ProcessGone {
            exec: false,
            is_executor: true,
            end: None,
        };
        tell(&mut state, n, 3 * S, gone);
    }
    let of = |room: usize, filter: &Filter| {
        let tasks = collected_in(&state, TasksByStage::with_room(room), filter);
        let stages: Vec<_> = tasks.stages().map(|it| (it.id, it.ended.len())).collect();
        (stages, tasks.left_out)
    };
    let all = Filter::default();
    // Executor 4 leaves what it does not need to the other two.
    assert_eq!(of(24, &all), (vec![(3, 10), (4, 4), (5, 10)], 103));
    assert_eq!(
        of(80, &all),
        (vec![(1, 3), (2, 3), (3, 40), (4, 4), (5, 30)], 47)
    );
    assert_eq!(of(500, &all).1, 0);
    let one = Filter {
        executor: Some("3".to_owned()),
        ..Filter::default()
    };
    assert_eq!(of(24, &one), (vec![(3, 24)], 16));
}
