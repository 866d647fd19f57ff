//! The size of a fixed application's tables. A change that makes them larger has to say so here.

use std::fs;

use serde_json::{Value, json};

use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::{Made, Numbers, Stage, Task};

/// Bytes of the tables at most: of tasks, of their SQL metrics, and of documents. Each is what it was, and 3 % more for
/// other versions of the codec.
const MOST: [u64; 3] = [47_910, 13_950, 2_950];

/// An application of 3,000 tasks: times and bytes are random, as far as they go.
fn made() -> Made {
    let mut numbers = Numbers::of(7);
    let stages = (0..6).map(|stage| {
        let tasks = (0..500).map(|_| {
            let run = 20 + numbers.below(60);
            let mut task = Task::new(run, 4096 * numbers.below(300));
            task.gc = numbers.below(3);
            task.write = numbers.below(run / 4);
            task.shuffle_read = 100 * numbers.below(90);
            task.delay = 3 + numbers.below(4);
            task
        });
        Stage::new(&format!("stage {stage}"), tasks.collect())
    });
    Made::new("app-1", stages.collect())
}

/// The log with eight SQL metrics for each task, as those of a shuffle: one is the same for all, three are figures of the
/// task, four its own.
fn log() -> String {
    let (log, _) = made().log();
    let mut numbers = Numbers::of(8);
    let lines = log.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).expect("is JSON");
        if event["Event"] == "SparkListenerTaskEnd" {
            let stage = event["Stage ID"].as_i64().expect("has a stage");
            let (write, read) = ["Shuffle Write Metrics", "Shuffle Read Metrics"]
                .map(|name| event["Task Metrics"][name].clone())
                .into();
            let mut updates = [
                &write["Shuffle Bytes Written"],
                &write["Shuffle Write Time"],
                &read["Remote Bytes Read"],
            ]
            .map(|value| value.as_i64().expect("is a number"))
            .to_vec();
            updates.push(stage);
            updates.extend((0..4).map(|_| numbers.below(200)));
            let all = updates.iter().zip(20 * stage..).map(|(update, id)| {
                json!({"ID": id, "Name": "m", "Update": update.to_string(), "Metadata": "sql"})
            });
            event["Task Info"]["Accumulables"] = all.collect();
        }
        event.to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_tables_of_a_fixed_application_do_not_grow() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("app-1");
    fs::write(&path, log()).expect("writes");
    let store = folder.path().join("store");
    let done = import(&store, &path, Bounds::default(), &Admission::default()).expect("imports");
    let sizes = done.sizes;
    assert_eq!((sizes.tasks.rows, sizes.task_sql.rows), (3000, 24_000));
    let bytes = [sizes.tasks, sizes.task_sql, sizes.meta].map(|it| it.bytes);
    let fits = bytes.iter().zip(MOST).all(|(bytes, most)| *bytes <= most);
    assert!(fits, "tables of {bytes:?} bytes, and not at most {MOST:?}");
}
