//! The table of tasks in the order of each of its columns.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::tests::Site;
use crate::timeline::model::LOCALITIES;

/// Numbers of tasks are below this prime, so that the multiples of each are all numbers in another order.
const PRIME: i64 = 43;
/// Rows of a page.
const PAGE: usize = 20;
const START: i64 = 1_790_000_000_000;

/// A task of the log: figures by the keys of columns. Each column has an order of its own.
struct Made {
    id: i64,
    executor: i64,
    /// A task that has not ended has no metrics.
    has_ended: bool,
    figures: BTreeMap<&'static str, i64>,
}

impl Made {
    fn of(number: i64) -> Self {
        let nth = |times: i64| number * times % PRIME;
        let (executor, has_ended) = (1 + nth(14) % 5, number % 11 != 0);
        let mut figures = BTreeMap::from([
            ("id", 100 + number),
            ("stage", nth(16) % 3),
            ("executor", executor),
            // Their hosts have another order than the executors.
            ("host", executor * 3 % 5),
            // The rank of the word among FAILED, KILLED, RUNNING and SUCCESS.
            (
                "status",
                if has_ended {
                    [0, 1, 3][(nth(18) % 3) as usize]
                } else {
                    2
                },
            ),
            ("locality", nth(20) % 5),
            ("speculative", i64::from(nth(21) < 10)),
            ("launch", nth(5) * 7),
            ("after", nth(5) * 7),
            ("input", nth(3)),
            ("output", nth(4)),
            ("remote", nth(6)),
            ("local", nth(33)),
            ("shuffle_write", nth(8)),
            ("spilled_memory", nth(9)),
            ("spilled_disk", nth(10)),
            ("peak", nth(12)),
        ]);
        let parts = [
            ("delay", 37),
            ("deserialize", 7),
            ("fetch", 11),
            ("gc", 13),
            ("write", 17),
            ("cpu", 19),
            ("other", 23),
            ("serialize", 29),
            ("result", 31),
        ];
        figures.extend(parts.map(|(key, times)| (key, 10 * nth(times))));
        let duration = parts.iter().map(|(key, _)| figures[key]).sum();
        figures.insert("duration", duration);
        figures.insert("shuffle_read", figures["remote"] + figures["local"]);
        Self {
            id: 100 + number,
            executor,
            has_ended,
            figures,
        }
    }

    /// What its row has in a column.
    fn value(&self, column: &str) -> Option<i64> {
        const OF_ALL: [&str; 9] = [
            "id", "stage", "executor", "host", "status", "locality", "launch", "after", "duration",
        ];
        let value = self.figures.get(column).copied();
        value.filter(|_| self.has_ended || OF_ALL.contains(&column))
    }

    fn events(&self) -> Vec<Value> {
        let of = |key: &str| self.figures[key];
        let (launch, failed, killed) = (START + of("launch"), of("status") == 0, of("status") == 1);
        let finish = launch + of("duration");
        let reason = match of("status") {
            0 => {
                json!({"Reason": "ExceptionFailure", "Class Name": "c", "Description": "d", "Full Stack Trace": "s"})
            }
            1 => json!({"Reason": "TaskKilled", "Kill Reason": "k"}),
            _ => json!({"Reason": "Success"}),
        };
        let info = |finish: i64| {
            json!({"Task ID": self.id, "Index": self.id, "Attempt": 0, "Launch Time": launch,
                "Executor ID": self.executor.to_string(), "Host": format!("host{}", of("host")),
                "Locality": LOCALITIES[of("locality") as usize], "Speculative": of("speculative") == 1,
                "Getting Result Time": if finish > 0 { finish - of("result") } else { 0 }, "Finish Time": finish,
                "Failed": failed && finish > 0, "Killed": killed && finish > 0, "Accumulables": []})
        };
        let (stage, run) = (
            of("stage"),
            ["fetch", "gc", "write", "cpu", "other"]
                .map(of)
                .iter()
                .sum::<i64>(),
        );
        let end = json!({"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0,
            "Task Type": "ResultTask", "Task End Reason": reason, "Task Info": info(finish), "Task Metrics": {
                "Executor Deserialize Time": of("deserialize"), "Executor Run Time": run, "Executor CPU Time": of("cpu") * 1_000_000, "JVM GC Time": of("gc"),
                "Result Serialization Time": of("serialize"), "Peak Execution Memory": of("peak"),
                "Memory Bytes Spilled": of("spilled_memory"), "Disk Bytes Spilled": of("spilled_disk"),
                "Shuffle Read Metrics": {"Fetch Wait Time": of("fetch"), "Remote Bytes Read": of("remote"),
                    "Local Bytes Read": of("local")},
                "Shuffle Write Metrics": {"Shuffle Bytes Written": of("shuffle_write"),
                    "Shuffle Write Time": of("write") * 1_000_000},
                "Input Metrics": {"Bytes Read": of("input")}, "Output Metrics": {"Bytes Written": of("output")}}});
        let start = json!({"Event": "SparkListenerTaskStart", "Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info(0)});
        [Some(start), Some(end).filter(|_| self.has_ended)]
            .into_iter()
            .flatten()
            .collect()
    }
}

fn log(tasks: &[Made]) -> String {
    let mut lines = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": "n", "App ID": "app-1", "Timestamp": START - 1000, "User": "u"}),
    ];
    for stage in 0..3 {
        let info = json!({"Stage ID": stage, "Stage Attempt ID": 0, "Stage Name": "s", "Details": "d", "Number of Tasks": 20,
            "RDD Info": [], "Submission Time": START - 10, "Accumulables": []});
        lines.push(json!({"Event": "SparkListenerJobStart", "Job ID": stage, "Submission Time": START, "Stage Infos": [info],
            "Stage IDs": [stage], "Properties": {}}));
        lines.push(json!({"Event": "SparkListenerStageSubmitted", "Stage Info": info}));
    }
    lines.extend(tasks.iter().flat_map(Made::events));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    lines.join("\n")
}

/// Ids of the tasks of a page, in its order.
fn ids(page: &str) -> Vec<i64> {
    let cells = page
        .split("<a href=\"../../applications/app-1/tasks/")
        .skip(1);
    let id = |cell: &str| cell.split('"').next().and_then(|id| id.parse().ok());
    cells.filter_map(id).collect()
}

/// Columns by which the heads of a page sort it.
fn columns(page: &str) -> BTreeSet<String> {
    let head = page.split("</thead>").next().unwrap_or_default();
    let head = head.split_once("<thead>").expect("has a head").1;
    let keys = head.split("sort=").skip(1);
    let keys = keys.filter_map(|it| it.split(['"', '&']).next());
    keys.map(|key| {
        key.trim_start_matches("%2D")
            .trim_start_matches('-')
            .to_owned()
    })
    .collect()
}

#[tokio::test]
async fn each_column_sorts_by_what_it_shows_and_absent_cells_are_last() {
    let tasks: Vec<Made> = (1..PRIME).map(Made::of).collect();
    let site = Site::new(&[log(&tasks)]);
    let base = "/applications/app-1/tasks";
    let (_, _, page) = site.get(base).await;
    let columns = columns(&page);
    // What a task is beside its figures, as its own answer says.
    let (mut kinds, mut durations) = (BTreeMap::new(), BTreeMap::new());
    for task in &tasks {
        let path = format!("/smtt/v1/applications/app-1/tasks/{}", task.id);
        let (_, _, text) = site.get(&path).await;
        let json: Value = serde_json::from_str(&text).expect("is JSON");
        let is = |name: &str| i64::from(json[name].as_bool().expect("is a flag"));
        kinds.insert(
            task.id,
            4 * is("isCritical") + 2 * is("isStraggler") + task.figures["speculative"],
        );
        let duration = json["milliseconds"].as_i64().expect("is a number");
        // A task that runs takes until the log last changed.
        assert!(!task.has_ended || duration == task.figures["duration"]);
        durations.insert(task.id, duration);
    }
    let value = |id: i64, column: &str| match column {
        "kind" => Some(kinds[&id]),
        "duration" => Some(durations[&id]),
        _ => tasks[(id - 101) as usize].value(column),
    };
    for column in &columns {
        let mut distinct: Vec<_> = tasks.iter().map(|task| value(task.id, column)).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(
            distinct.len() > 2 || column == "kind",
            "{column}: {distinct:?}"
        );
        for (is_down, sort) in [(false, column.clone()), (true, format!("-{column}"))] {
            let mut shown = Vec::new();
            for offset in (0..tasks.len()).step_by(PAGE) {
                let path = format!("{base}?sort={sort}&length={PAGE}&offset={offset}");
                let own = ids(&site.get(&path).await.2);
                assert_eq!(own.len(), PAGE.min(tasks.len() - offset), "{path}");
                shown.extend(own);
            }
            let all: BTreeSet<i64> = shown.iter().copied().collect();
            assert_eq!(all.len(), tasks.len(), "{sort}: a task is missing");
            let values: Vec<Option<i64>> = shown.iter().map(|id| value(*id, column)).collect();
            let known: Vec<i64> = values.iter().copied().flatten().collect();
            assert!(
                values[..known.len()].iter().all(Option::is_some),
                "{sort}: absent cells are not last: {values:?}"
            );
            let is_sorted = if is_down {
                known.is_sorted_by(|left, right| left >= right)
            } else {
                known.is_sorted()
            };
            assert!(is_sorted, "{sort}: {known:?}");
        }
    }
    // Of nine columns each task has a value, of the parts and of the other figures those that have ended.
    let absent = |column: &str| {
        tasks
            .iter()
            .filter(|task| task.value(column).is_none())
            .count()
    };
    let of = |wanted: usize| {
        columns
            .iter()
            .filter(|it| *it != "kind" && absent(it) == wanted)
            .count()
    };
    assert_eq!((columns.len(), of(0), of(3)), (26, 9, 16), "{columns:?}");
}
