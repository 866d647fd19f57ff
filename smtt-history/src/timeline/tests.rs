//! Parts add up, lanes do not overlap, and answers are bounded and count every task.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::detail::{MOST_LANES, Window, detail};
use super::filter::Filter;
use super::model::{JOB_ROWS, Model};
use super::parts::{ALL, PARTS, Times, divide, largest};
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::open::App;
use crate::serve::routes::Parameters;

const START: &str = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1000,"User":"u"}"#;

/// A task of a log: id, executor, launch and finish. Each seventh is speculative; the host of executor 1 is `h`, that of
/// another one has its number.
pub(super) type Given = (i64, u32, i64, i64);

pub(super) fn log(tasks: &[Given], jobs: &[(i64, i64)]) -> String {
    let mut text = START.to_owned();
    let mut add = |event: serde_json::Value| {
        text.push('\n');
        text.push_str(&event.to_string());
    };
    for (id, (start, end)) in jobs.iter().enumerate() {
        add(
            json!({"Event": "SparkListenerJobStart", "Job ID": id, "Submission Time": start, "Stage Infos": [],
            "Stage IDs": [], "Properties": {}}),
        );
        add(
            json!({"Event": "SparkListenerJobEnd", "Job ID": id, "Completion Time": end, "Job Result": {"Result": "JobSucceeded"}}),
        );
    }
    add(
        json!({"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage ID": 0, "Stage Name": "s",
        "Number of Tasks": tasks.len()}}),
    );
    for (id, executor, launch, finish) in tasks {
        let host = match executor {
            1 => "h".to_owned(),
            other => format!("h{other}"),
        };
        let info = |finish: i64| {
            json!({"Task ID": id, "Index": id, "Attempt": 0, "Launch Time": launch, "Executor ID": executor.to_string(),
                "Host": host, "Locality": "ANY", "Speculative": id % 7 == 6, "Getting Result Time": 0, "Finish Time": finish,
                "Failed": false, "Killed": false, "Accumulables": []})
        };
        add(
            json!({"Event": "SparkListenerTaskStart", "Stage ID": 0, "Stage Attempt ID": 0, "Task Info": info(0)}),
        );
        add(
            json!({"Event": "SparkListenerTaskEnd", "Stage ID": 0, "Stage Attempt ID": 0, "Task Type": "ResultTask",
            "Task End Reason": {"Reason": "Success"}, "Task Info": info(*finish),
            "Task Metrics": {"Executor Run Time": finish.saturating_sub(*launch) / 2, "Executor CPU Time": (finish.saturating_sub(*launch) / 4).saturating_mul(1_000_000)}}),
        );
    }
    text
}

fn model(folder: &Path, tasks: &[Given], jobs: &[(i64, i64)]) -> Model {
    let path = folder.join("log");
    fs::write(&path, log(tasks, jobs)).expect("writes");
    let replaces = Admission {
        name: None,
        replaces: true,
    };
    let done = import(&folder.join("store"), &path, Bounds::default(), &replaces);
    let done = done.expect("imports");
    assert_eq!(done.damaged, 0, "{:?}", done.named);
    Model::read(&App::open(&done.folder).expect("opens")).expect("reads")
}

fn everything(model: &Model, width: i64) -> Window {
    let window = Window {
        from: 0,
        to: i64::MAX,
        lane: 0,
        lanes: usize::MAX,
        width,
    };
    window.within(model)
}

#[test]
fn a_task_is_divided_as_the_manual_says() {
    let times = Times {
        duration: 1000,
        deserialize: 50,
        run: 800,
        cpu: 400,
        fetch: 100,
        gc: 30,
        write: 70,
        serialize: 10,
        result: 40,
    };
    assert_eq!(divide(&times), [100, 50, 100, 30, 70, 400, 200, 10, 40]);
    // A collection that stopped other threads longer than this task ran leaves nothing for the parts after it.
    let stopped = Times { gc: 5000, ..times };
    assert_eq!(divide(&stopped), [100, 50, 100, 700, 0, 0, 0, 10, 40]);
    assert_eq!(largest(&[0; PARTS]), None);
    assert_eq!(
        ALL[largest(&[1, 2, 3, 9, 4, 5, 6, 7, 8]).expect("has one")].key,
        "gc"
    );
}

#[test]
fn cores_are_lanes_and_executors_are_sorted_as_numbers() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let tasks = [
        (1, 10, 5000, 6000),
        (2, 10, 5000, 5500),
        (3, 10, 5500, 7000),
        (4, 2, 5200, 5300),
    ];
    let model = model(folder.path(), &tasks, &[(4000, 8000), (4500, 4600)]);
    let executors: Vec<&str> = model.executors.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(executors, ["2", "10"]);
    let lanes: Vec<Vec<i64>> = model
        .lanes
        .iter()
        .map(|lane| model.of_lane(lane).iter().map(|task| task.id).collect())
        .collect();
    assert_eq!(lanes, [vec![4], vec![2, 3], vec![1]]);
    assert_eq!((model.start, model.end), (4000, 4000));
    let rows: Vec<usize> = model.jobs.iter().map(|job| job.row).collect();
    assert_eq!(rows, [0, 1]);
    let detail = detail(&model, &everything(&model, 1000), &Filter::default());
    assert_eq!((detail.tasks_total, detail.jobs.len()), (4, 2));
    assert_eq!((detail.lanes[2].executor, detail.lanes[2].core), ("10", 1));
}

#[test]
fn a_straggler_needs_a_stage_of_four_and_takes_half_longer_than_its_median() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let tasks = |durations: &[i64]| -> Vec<Given> {
        let all = durations.iter().zip(0..);
        all.map(|(duration, id)| (id, 1, 1000, 1000 + duration))
            .collect()
    };
    let marked = |durations: &[i64]| {
        let model = model(folder.path(), &tasks(durations), &[]);
        let mut marked: Vec<i64> = model
            .tasks
            .iter()
            .filter(|it| it.straggler)
            .map(|it| it.id)
            .collect();
        marked.sort_unstable();
        marked
    };
    assert_eq!(marked(&[400, 400, 400, 400, 600, 601]), [5]);
    assert_eq!(marked(&[400, 400, 9000]), Vec::<i64>::new());
    // Short tasks differ by less than 100 ms.
    assert_eq!(marked(&[50, 50, 50, 50, 149, 150]), [5]);
}

#[test]
fn entries_have_the_marks_of_their_tasks() {
    let folder = tempfile::tempdir().expect("makes a folder");
    // One after the other: 5 is a straggler, 6 is speculative.
    let (mut tasks, mut now): (Vec<Given>, i64) = (Vec::new(), 1000);
    for (id, duration) in (0..).zip([100, 100, 100, 100, 199, 201, 100, 100, 100, 100]) {
        tasks.push((id, 1, now, now + duration));
        now += duration;
    }
    let model = model(folder.path(), &tasks, &[(1000, 60_000)]);
    let near = Window {
        to: 1200,
        ..everything(&model, 2000)
    };
    let answer = detail(&model, &near, &Filter::default());
    assert_eq!(answer.tasks.id, (0..10).collect::<Vec<i64>>());
    assert_eq!(answer.tasks.marks, [0, 0, 0, 0, 0, 1, 2, 0, 0, 0]);
    // In one cell: the marks of any of them.
    let answer = detail(&model, &everything(&model, 50), &Filter::default());
    assert_eq!(
        (answer.cells.tasks, answer.cells.marks),
        (vec![10], vec![3])
    );
    assert!(answer.tasks.id.is_empty());
}

#[test]
fn an_application_without_tasks_and_one_with_extreme_times_have_answers() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let empty = model(folder.path(), &[], &[]);
    let answer = detail(&empty, &everything(&empty, 1000), &Filter::default());
    assert_eq!((answer.lanes_total, answer.tasks_total), (0, 0));
    let extreme = [
        (1, 1, i64::MIN, i64::MAX),
        (2, 1, 0, i64::MAX),
        (3, 1, i64::MAX, 0),
        (4, 1, 5, -5),
    ];
    let extreme = model(
        folder.path(),
        &extreme,
        &[(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)],
    );
    let answer = detail(&extreme, &everything(&extreme, 1000), &Filter::default());
    assert_eq!(answer.tasks_total, 4);
    assert!(serde_json::to_string(&answer).is_ok());
}

#[test]
fn jobs_that_run_at_a_time_have_so_many_rows_and_the_others_are_counted() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let jobs: Vec<(i64, i64)> = (0..10).map(|at| (1000 + at, 9000)).collect();
    let crowd = model(folder.path(), &[(1, 1, 1000, 2000)], &jobs);
    let answer = detail(&crowd, &everything(&crowd, 1000), &Filter::default());
    assert_eq!(
        (answer.jobs.len(), answer.jobs_left_out),
        (JOB_ROWS, 10 - JOB_ROWS)
    );
}

#[test]
fn the_picture_has_the_tasks_of_the_filter_and_refuses_what_is_no_number() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let tasks: Vec<Given> = (0..10)
        .map(|id| {
            let (executor, launch) = (if id < 7 { 1 } else { 2 }, 1000 + id * 1000);
            (id, executor, launch, launch + 100 * (id + 1))
        })
        .collect();
    let model = model(folder.path(), &tasks, &[(1000, 20_000)]);
    let filter = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        let all = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Filter::new(&Parameters(all.collect()))
    };
    let shown = |pairs: &[(&str, &str)]| {
        let filter = filter(pairs).expect("is a filter");
        // Cells as long as the longest tasks, so that some tasks are in cells.
        let answer = detail(&model, &everything(&model, 30), &filter);
        let cells: u32 = answer.cells.tasks.iter().sum();
        assert_eq!(answer.tasks_total, answer.tasks.id.len() + cells as usize);
        answer.tasks_total
    };
    assert_eq!(shown(&[]), 10);
    assert_eq!(shown(&[("longer", "701")]), 3);
    assert_eq!(
        (
            shown(&[("stage", "0")]),
            shown(&[("stage", "0.1")]),
            shown(&[("stage", "9")])
        ),
        (10, 0, 0)
    );
    let of_host = ["h", "h2", "h3"].map(|host| shown(&[("host", host)]));
    assert_eq!(of_host, [7, 3, 0]);
    // Only the task with the id 6.
    assert_eq!(
        (
            shown(&[("speculative", "yes")]),
            shown(&[("speculative", "no")]),
            shown(&[("speculative", "yes"), ("host", "h2")])
        ),
        (1, 9, 0)
    );
    assert_eq!(
        (
            shown(&[("status", "SUCCESS")]),
            shown(&[("status", "FAILED")])
        ),
        (10, 0)
    );
    // The median is 600 ms; 900 ms and less is no straggler.
    assert_eq!(
        (
            shown(&[("straggler", "yes")]),
            shown(&[("straggler", "no"), ("longer", "900")])
        ),
        (1, 1)
    );
    for bad in [("stage", "x"), ("stage", "1.x"), ("longer", "x")] {
        assert!(filter(&[bad]).is_err(), "{bad:?}");
    }
}

/// Entries of a lane at most: two for each cell, and three for the window's ends.
fn entries_of_lane(answer: &super::detail::Detail<'_>) -> usize {
    2 * ((answer.to - answer.from) as f64 / answer.cell_ms).ceil() as usize + 3
}

#[test]
fn an_answer_is_as_large_as_its_picture_and_not_as_its_tasks() {
    let folder = tempfile::tempdir().expect("makes a folder");
    // Two cores that are always busy: most tasks take 5 ms, each fiftieth 500 ms.
    let mut given: Vec<Given> = Vec::new();
    for executor in [1, 2] {
        let mut now = 1000;
        for at in 0..2000 {
            let duration = if at % 50 == 49 { 500 } else { 5 };
            given.push((given.len() as i64, executor, now, now + duration));
            now += duration;
        }
    }
    let model = model(folder.path(), &given, &[]);
    assert_eq!(model.lanes.len(), 2);
    let mut bytes = Vec::new();
    for (width, most) in [(50, 2 * 53), (200, 2 * 203), (1000, 2 * 1003)] {
        let answer = detail(&model, &everything(&model, width), &Filter::default());
        let entries = answer.tasks.id.len() + answer.cells.at.len();
        assert_eq!(entries_of_lane(&answer) * 2, most);
        assert!(entries <= most, "{width}: {entries}");
        assert_eq!(answer.tasks_total, 4000);
        bytes.push(serde_json::to_string(&answer).expect("is JSON").len());
    }
    // The frame of an answer has some 1,000 bytes, an entry some 30.
    assert!(bytes[0] < 6_000 && bytes[1] < 20_000, "{bytes:?}");
    assert!(bytes[2] < 70_000, "{bytes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_add_up(
        duration in 0_u64..100_000, deserialize in 0_u64..100_000, run in 0_u64..200_000, cpu: u64, fetch in 0_u64..90_000,
        gc in 0_u64..90_000, write in 0_u64..90_000, serialize in 0_u64..90_000, result: u64,
    ) {
        let times = Times { duration, deserialize, run, cpu, fetch, gc, write, serialize, result };
        prop_assert_eq!(divide(&times).iter().sum::<u64>(), duration);
    }

    #[test]
    fn answers_count_every_task_of_the_window_and_are_bounded(
        tasks in prop::collection::vec((1_u32..4, 0_i64..20_000, prop_oneof![3 => 0_i64..40, 1 => 0_i64..800]), 1..400),
        from in 0_i64..20_000, length in 0_i64..20_000, width in prop_oneof![50_i64..120, 120_i64..3000],
    ) {
        let folder = tempfile::tempdir().expect("makes a folder");
        let given: Vec<Given> = tasks
            .iter()
            .zip(0..)
            .map(|((executor, launch, duration), id)| (id, *executor, 1000 + launch, 1000 + launch + duration))
            .collect();
        let model = model(folder.path(), &given, &[]);
        for lane in &model.lanes {
            for pair in model.of_lane(lane).windows(2) {
                prop_assert!(pair[0].end() <= pair[1].launch);
            }
        }
        let window = Window { from, to: from + length, lane: 0, lanes: MOST_LANES, width }.within(&model);
        let answer = detail(&model, &window, &Filter::default());
        // Counted from what was given, not from the model.
        let first = given.iter().map(|task| task.2).min().unwrap_or_default();
        let expected = given
            .iter()
            .filter(|(_, _, launch, finish)| finish - first >= window.from && launch - first <= window.to)
            .count();
        let cells: u32 = answer.cells.tasks.iter().sum();
        prop_assert_eq!(answer.tasks.id.len() + cells as usize, expected);
        prop_assert_eq!(answer.tasks_total, expected);
        let narrow = detail(&model, &everything(&model, 50), &Filter::default());
        for answer in [&answer, &narrow] {
            for lane in 0..model.lanes.len() {
                let own = |lanes: &[u32]| lanes.iter().filter(|it| **it as usize == lane).count();
                prop_assert!(own(&answer.tasks.lane) + own(&answer.cells.lane) <= entries_of_lane(answer));
            }
        }
        let cells: HashSet<(u32, u32)> = answer.cells.lane.iter().copied().zip(answer.cells.at.iter().copied()).collect();
        prop_assert_eq!(cells.len(), answer.cells.at.len());
        prop_assert!(answer.cells.busy.iter().all(|busy| *busy <= 1000));
    }
}
