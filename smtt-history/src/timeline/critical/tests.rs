//! Critical paths of applications whose schedule is given.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::Numbers;
use crate::timeline::detail::{Window, detail};
use crate::timeline::filter::Filter;
use crate::timeline::model::{Executor, Job, Lane, Stage};

/// A stage: id, attempt, parents, and its tasks: id, executor, launch, finish, whether it succeeded.
type Given<'a> = (i32, i32, &'a [i32], &'a [(i64, u32, i64, i64, bool)]);

/// An application of jobs: begin, end and stages.
fn model(jobs: &[(i64, i64, &[i32])], stages: &[Given<'_>]) -> Model {
    let mut lines = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": "n", "App ID": "app-1", "Timestamp": 1000, "User": "u"}),
    ];
    for (id, (begin, _, of)) in jobs.iter().enumerate() {
        lines.push(json!({"Event": "SparkListenerJobStart", "Job ID": id, "Submission Time": begin, "Stage Infos": [],
            "Stage IDs": of, "Properties": {}}));
    }
    for (id, attempt, parents, tasks) in stages {
        lines.push(json!({"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage ID": id, "Stage Attempt ID": attempt,
            "Stage Name": "s", "Number of Tasks": tasks.len(), "Parent IDs": parents,
            "RDD Info": [{"RDD ID": id, "Name": "r", "Parent IDs": [], "Storage Level": {}}]}}));
        for (task, executor, launch, finish, has_succeeded) in *tasks {
            let info = |finish: i64| {
                json!({"Task ID": task, "Index": task, "Attempt": 0, "Launch Time": launch, "Executor ID": executor.to_string(),
                    "Host": "h", "Locality": "ANY", "Finish Time": finish, "Failed": !has_succeeded})
            };
            let reason = if *has_succeeded {
                json!({"Reason": "Success"})
            } else {
                json!({"Reason": "TaskResultLost"})
            };
            lines.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": id, "Stage Attempt ID": attempt, "Task Info": info(0)}));
            lines.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": id, "Stage Attempt ID": attempt,
                "Task Type": "ResultTask", "Task End Reason": reason, "Task Info": info(*finish), "Task Metrics": {
                    "Executor Run Time": 1}}));
        }
    }
    for (id, (_, end, _)) in jobs.iter().enumerate() {
        lines.push(
            json!({"Event": "SparkListenerJobEnd", "Job ID": id, "Completion Time": end,
            "Job Result": {"Result": "JobSucceeded"}}),
        );
    }
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("log");
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(&path, lines.join("\n")).expect("writes");
    let store = folder.path().join("store");
    let done = import(&store, &path, Bounds::default(), &Admission::default()).expect("imports");
    assert_eq!(done.damaged, 0, "{:?}", done.named);
    Model::read(&App::open(&done.folder).expect("opens")).expect("reads")
}

fn paths(model: &Model) -> Vec<Vec<(i32, i32)>> {
    let key = |at: &u32| model.stages[*at as usize].key;
    let all = model.jobs.iter();
    all.map(|job| job.path.as_ref().expect("has room"))
        .map(|path| path.iter().map(key).collect())
        .collect()
}

/// Ids of the tasks that bound jobs.
fn critical(model: &Model) -> Vec<i64> {
    let all = model.tasks.iter().filter(|task| model.is_critical(task));
    let mut all: Vec<i64> = all.map(|task| task.id).collect();
    all.sort_unstable();
    all
}

#[test]
fn of_two_parents_the_one_that_ended_last_bounds_the_job() {
    let model = model(
        &[(1000, 9000, &[0, 1, 2, 3])],
        &[
            (0, 0, &[], &[(0, 1, 1000, 3000, true)]),
            (
                1,
                0,
                &[],
                &[(1, 2, 1000, 1500, true), (2, 2, 1500, 6000, true)],
            ),
            (
                2,
                0,
                &[0, 1],
                &[(3, 1, 6000, 9000, true), (4, 2, 6000, 7000, true)],
            ),
            // Side branch of the same job that ends before it.
            (3, 0, &[0], &[(5, 3, 3000, 8000, true)]),
        ],
    );
    assert_eq!(paths(&model), [[(1, 0), (2, 0)]]);
    assert_eq!(critical(&model), [2, 3]);
    let marked: Vec<bool> = model.stages.iter().map(|it| it.is_critical).collect();
    assert_eq!(marked, [false, true, true, false]);
    let window = Window {
        from: 0,
        to: i64::MAX,
        lane: 0,
        lanes: 99,
        width: 1000,
    };
    let answer = detail(&model, &window.within(&model), &Filter::default());
    let marks: Vec<i64> = answer
        .tasks
        .id
        .iter()
        .zip(&answer.tasks.marks)
        .filter(|(_, marks)| **marks & 8 != 0)
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(marks, [3, 2]);
    let path = answer.jobs[0].path.as_ref().expect("has room");
    let path: Vec<_> = path.iter().map(|it| (it.id, it.from, it.to)).collect();
    assert_eq!(path, [(1, 0, 5000), (2, 5000, 8000)]);
}

#[test]
fn what_ended_before_the_job_and_what_failed_bounds_nothing() {
    // Stage 0 is of the first job; the second job reads it again without running it. Attempt 0 of stage 2 failed.
    let model = model(
        &[(1000, 2000, &[0]), (3000, 7000, &[0, 2])],
        &[
            (0, 0, &[], &[(0, 1, 1000, 2000, true)]),
            (2, 0, &[0], &[(1, 1, 3000, 8000, false)]),
            (2, 1, &[0, 2, 7], &[(2, 1, 4000, 7000, true)]),
        ],
    );
    assert_eq!(paths(&model), [vec![(0, 0)], vec![(2, 1)]]);
    assert_eq!(critical(&model), [0, 2]);
}

#[test]
fn the_last_task_waited_for_a_core_for_the_driver_or_for_nothing() {
    let waited = |tasks: &[(i64, u32, i64, i64, bool)]| {
        let model = model(&[(1000, 9000, &[0])], &[(0, 0, &[], tasks)]);
        let last = model.stages[0].last.expect("has one");
        let id = |at: u32| model.tasks[at as usize].id;
        let core = match last.waited {
            Waited::Core(at) => Some(id(at)),
            _ => None,
        };
        (id(last.task), last.waited, core)
    };
    // Two cores: both busy until task 1 ends.
    let (last, _, core) = waited(&[
        (0, 1, 1000, 4000, true),
        (1, 1, 1000, 3000, true),
        (2, 1, 3000, 6000, true),
    ]);
    assert_eq!((last, core), (2, Some(1)));
    // The other core was free all the time.
    let (last, why, _) = waited(&[
        (0, 1, 1000, 1500, true),
        (1, 1, 1000, 3000, true),
        (2, 1, 3000, 6000, true),
    ]);
    assert_eq!((last, why), (2, Waited::Driver));
    // A new executor.
    let (last, why, _) = waited(&[(0, 1, 1000, 4000, true), (1, 2, 3000, 6000, true)]);
    assert_eq!((last, why), (1, Waited::Driver));
    let (last, why, _) = waited(&[(0, 1, 1000, 4000, true), (1, 2, 1050, 6000, true)]);
    assert_eq!((last, why), (1, Waited::Nothing));
}

#[test]
fn damaged_parents_end_and_a_job_without_tasks_has_no_path() {
    let model = model(
        &[
            (1000, 9000, &[0, 1]),
            (1000, 2000, &[]),
            (1000, 2000, &[77]),
        ],
        &[
            (0, 0, &[1, 0], &[(0, 1, 1000, 3000, true)]),
            (1, 0, &[0, 1, 2147483647], &[(1, 1, 3000, 4000, true)]),
        ],
    );
    assert_eq!(paths(&model), [vec![(0, 0), (1, 0)], vec![], vec![]]);
}

/// A chain of stages, one after another, and jobs that all name the last one.
fn chain(stages: u32, jobs: usize) -> (Model, Parents) {
    let mut model = Model::default();
    let mut parents = Parents::new();
    for at in 0..stages {
        let id = at as i32;
        parents.insert(format!("{id}.0"), vec![id - 1]);
        let (launch, end) = (1000 * i64::from(at), 1000 * i64::from(at) + 1000);
        add(&mut model, 0, (launch, end));
    }
    let last = stages as i32 - 1;
    model.jobs.extend((0..jobs).map(|id| Job {
        id: id as i64,
        start: 0,
        end: 1000 * i64::from(stages),
        status: String::new(),
        name: String::new(),
        row: 0,
        stages: vec![last],
        path: None,
    }));
    (model, parents)
}

/// Adds a stage of one task, on a lane of an executor. Lanes and their tasks come one after another.
fn add(model: &mut Model, lane: u32, (launch, end): (i64, i64)) {
    let at = model.tasks.len() as u32;
    model.tasks.push(Task {
        id: i64::from(at),
        launch,
        duration: (end - launch) as u32,
        row: at,
        stage: model.stages.len() as u32,
        lane,
        outcome: 0,
        locality: 0,
        speculative: false,
        straggler: false,
        parts: Default::default(),
    });
    model.stages.push(Stage {
        key: (at as i32, 0),
        ..Stage::default()
    });
    if model.lanes.len() == lane as usize {
        model.lanes.push(Lane {
            executor: 0,
            tasks: at..at,
        });
    }
    model.lanes[lane as usize].tasks.end = at + 1;
    let (id, host) = ("1".to_owned(), "h".to_owned());
    let lanes = 0..lane + 1;
    model.executors = vec![Executor { id, host, lanes }];
}

#[test]
fn the_paths_of_all_jobs_together_have_a_bound_and_count_as_memory() {
    let (mut model, parents) = chain(10, 100);
    let before = model.bytes();
    mark_within(&mut model, &parents, 35);
    let has_path = |job: &Job| job.path.as_ref().is_some_and(|path| path.len() == 10);
    assert_eq!(model.jobs.iter().filter(|job| has_path(job)).count(), 3);
    assert!(model.jobs[3..].iter().all(|job| job.path.is_none()));
    assert_eq!(model.paths_left_out, 97);
    assert_eq!(model.bytes() - before, 3 * 10 * size_of::<u32>());
    let window = Window {
        from: 0,
        to: i64::MAX,
        lane: 0,
        lanes: 99,
        width: 1000,
    };
    let answer = detail(&model, &window.within(&model), &Filter::default());
    assert_eq!(answer.paths_left_out, 97);
    let json = serde_json::to_value(&answer.jobs).expect("is JSON");
    assert_eq!(json[0]["path"].as_array().map(Vec::len), Some(10));
    let (mut model, parents) = chain(STEPS as u32 / 40, 41);
    mark(&mut model, &parents);
    assert_eq!(model.paths_left_out, 1);
}

/// What a task waited for, by a search of all lanes.
fn waited_by_search(model: &Model, begin: i64, task: u32) -> Waited {
    let own = &model.tasks[task as usize];
    let before = model.lanes.iter().filter_map(|lane| {
        let all = model.of_lane(lane).iter();
        let all = all.zip(lane.tasks.start..);
        all.filter(|(it, _)| it.end() <= own.launch)
            .map(|(it, at)| (it.end(), at))
            .max()
    });
    let is_busy = |time: i64| {
        let is_busy = |lane| {
            let all: &[Task] = model.of_lane(lane);
            all.iter().any(|it| it.launch < time && it.end() >= time)
        };
        model.lanes.iter().all(is_busy)
    };
    match before.max().filter(|(end, _)| *end > begin) {
        Some((end, at)) if is_busy(end) => Waited::Core(at),
        _ if own.launch - begin < AT_ONCE => Waited::Nothing,
        _ => Waited::Driver,
    }
}

#[test]
fn what_a_task_waited_for_is_found_as_a_search_of_all_lanes_finds_it() {
    let mut seen = [0; 3];
    for seed in 1..21 {
        let mut numbers = Numbers::of(seed);
        let mut model = Model::default();
        for lane in 0..3 {
            let mut time = 0;
            for _ in 0..40 {
                // Often a task follows at once, so that all cores are busy.
                let launch = time + [0, 0, 0, 20, 150][numbers.below(5) as usize];
                time = launch + 1 + numbers.below(200);
                add(&mut model, lane, (launch, time));
            }
        }
        // Stages of three to twelve tasks: a stage begins before its last task, or with it.
        for (at, task) in model.tasks.iter_mut().enumerate() {
            task.stage = (at % 40) as u32 / (1 + seed as u32 % 4);
        }
        mark(&mut model, &Parents::new());
        for last in model.stages.iter().filter_map(|stage| stage.last) {
            let expected = waited_by_search(&model, last.begin, last.task);
            assert_eq!(last.waited, expected, "seed {seed}: {last:?}");
            seen[match last.waited {
                Waited::Nothing => 0,
                Waited::Core(_) => 1,
                Waited::Driver => 2,
            }] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn many_stages_on_an_executor_of_many_lanes_take_no_time_of_their_product() {
    // Each stage has a task on a lane of its own. A search of all lanes for each stage would visit 3,600,000,000 lanes.
    let mut model = Model::default();
    for lane in 0..60_000 {
        add(
            &mut model,
            lane,
            (i64::from(lane), i64::from(lane) + 100_000),
        );
    }
    let begun = std::time::Instant::now();
    mark(&mut model, &Parents::new());
    assert!(model.stages.iter().all(|stage| stage.last.is_some()));
    let took = begun.elapsed();
    assert!(took.as_secs() < 20, "{took:?}");
}
