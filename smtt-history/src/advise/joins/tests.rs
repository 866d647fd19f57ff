//! A join whose small side is shuffled, one whose sides are both large, and plans as Spark writes them.

use std::fs;

use serde_json::json;

use super::*;
use crate::advise::workers::Figures;
use crate::advise::{Advice, advise};
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::{Made, Stage, Task};

const MIB: i64 = 1 << 20;
/// Milliseconds that a task of the join sorts.
const SORT: i64 = 900;

/// What the sides have, and what the executors used of their memory.
#[derive(Clone, Copy)]
struct Case {
    small: i64,
    large: i64,
    used: i64,
    kind: &'static str,
    /// Milliseconds that the application took for another broadcast of 10 MiB.
    other: Option<i64>,
}

const SICK: Case = Case {
    small: 40 * MIB,
    large: 4000 * MIB,
    used: 100 * MIB,
    kind: "Inner",
    other: None,
};

fn tasks(count: usize, run: i64, write: i64, fetch: i64) -> Vec<Task> {
    let mut task = Task::new(run + write + fetch, 1_000_000);
    (task.write, task.fetch) = (write, fetch);
    vec![task; count]
}

/// The larger side is written, the smaller one, and both are joined: with a shuffle and sorts, or without.
fn made(shuffles: bool) -> Made {
    let one = |ms: i64| if shuffles { ms } else { 0 };
    let join = tasks(64, 1500 + one(SORT), 20, one(300));
    Made::new(
        "app-1",
        vec![
            Stage::new("large", tasks(64, 1000, one(700), 0)),
            Stage::new("small", tasks(16, 200, 20, 0)),
            Stage::new("join", join),
        ],
    )
}

fn metric(name: &str, kind: &str, id: i64) -> Value {
    json!({"name": name, "accumulatorId": id, "metricType": kind})
}

/// A node with children, as an event has it.
fn node(name: &str, metrics: &[Value], children: &[Value]) -> Value {
    json!({"nodeName": name, "simpleString": format!("{name} {metrics:?}"), "metadata": {}, "metrics": metrics, "children": children})
}

/// A sorted side whose metrics have ids from a number on.
fn side(first: i64) -> Value {
    let exchange = [
        metric("data size", "size", first),
        metric("shuffle records written", "sum", first + 1),
        metric("local bytes read", "size", first + 2),
    ];
    let exchange = node("Exchange", &exchange, &[node("Scan parquet ", &[], &[])]);
    let stage = node("ShuffleQueryStage", &[], &[exchange]);
    let read = node("AQEShuffleRead", &[], &[stage]);
    let sort = [metric("sort time", "timing", first + 3)];
    let sort = node("Sort", &sort, &[read]);
    node(
        "WholeStageCodegen (1)",
        &[],
        &[node("InputAdapter", &[], &[sort])],
    )
}

fn plan(case: Case) -> (Value, String) {
    let join = node("SortMergeJoin", &[], &[side(100), side(200)]);
    let mut children = vec![join];
    if case.other.is_some() {
        let metrics = [
            metric("data size", "size", 300),
            metric("time to collect", "timing", 301),
            metric("time to broadcast", "timing", 302),
        ];
        children.push(node("BroadcastExchange", &metrics, &[]));
    }
    let text = format!(
        "== Physical Plan ==\nAdaptiveSparkPlan (9)\n+- == Final Plan ==\n   * SortMergeJoin {} (5)\n   :- * Sort (2)\n+- == Initial Plan ==\n   SortMergeJoin {} (8)\n\n\n(5) SortMergeJoin [codegen id : 5]\nJoin type: {}\n",
        case.kind, case.kind, case.kind
    );
    (node("Union", &[], &children), text)
}

/// The lines of a log of the application as a query.
fn lines(made: &Made, case: Case) -> Vec<String> {
    const SQL: &str = "org.apache.spark.sql.execution.ui";
    let (plan, text) = plan(case);
    let start = json!({"Event": format!("{SQL}.SparkListenerSQLExecutionStart"), "executionId": 7, "rootExecutionId": 7,
        "description": "q", "details": "", "physicalPlanDescription": text, "sparkPlanInfo": plan, "time": 1});
    let driver = |id: i64, value: i64| json!([id, value]);
    let updates = json!({"Event": format!("{SQL}.SparkListenerDriverAccumUpdates"), "executionId": 7,
        "accumUpdates": [driver(300, 10 * MIB), driver(301, case.other.unwrap_or(0)), driver(302, 1)]});
    let end = json!({"Event": format!("{SQL}.SparkListenerSQLExecutionEnd"), "executionId": 7, "time": 9, "errorMessage": ""});
    let memory = |executor: &str| {
        json!({"Event": "SparkListenerBlockManagerAdded", "Block Manager ID": {"Executor ID": executor, "Host": "h", "Port": 1},
            "Maximum Memory": 600 * MIB, "Timestamp": 1, "Maximum Onheap Memory": 600 * MIB, "Maximum Offheap Memory": 0})
    };
    let values = |stage: i64| match stage {
        0 => vec![(100, case.large / 64), (101, 1_000_000)],
        1 => vec![(200, case.small / 16), (201, 10_000)],
        _ => vec![(102, 1000), (202, 1000), (103, SORT - 50), (203, 50)],
    };
    let mut all = Vec::new();
    for line in made.log().0.lines() {
        let mut event: Value = serde_json::from_str(line).expect("parses");
        let kind = event["Event"].as_str().expect("an event").to_owned();
        match kind.as_str() {
            "SparkListenerJobStart" => {
                event["Properties"] = json!({"spark.sql.execution.id": "7"});
                if event["Job ID"] == 0 {
                    all.push(memory("driver"));
                    all.extend((0..4).map(|id| memory(&id.to_string())));
                    all.push(start.clone());
                }
            }
            "SparkListenerTaskEnd" => {
                let stage = event["Stage ID"].as_i64().expect("an id");
                let values = values(stage).into_iter();
                let values = values.map(|(id, value): (i64, i64)| {
                    json!({"ID": id, "Name": "m", "Update": value.to_string(), "Value": value.to_string(), "Internal": false,
                        "Count Failed Values": true, "Metadata": "sql"})
                });
                event["Task Info"]["Accumulables"] = values.collect();
                event["Task Executor Metrics"] =
                    json!({"OnHeapUnifiedMemory": case.used, "JVMHeapMemory": case.used});
            }
            "SparkListenerApplicationEnd" => {
                if case.other.is_some() {
                    all.push(updates.clone());
                }
                all.push(end.clone());
            }
            _ => {}
        }
        all.push(event);
    }
    all.iter().map(Value::to_string).collect()
}

fn advised(case: Case) -> Advice {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("log");
    fs::write(&path, lines(&made(true), case).join("\n")).expect("writes");
    let (store, admission) = (folder.path().join("store"), Admission::default());
    let done = import(&store, &path, Bounds::default(), &admission).expect("imports");
    assert_eq!(done.damaged, 0, "{:?}", done.named);
    let app = App::open(&done.folder).expect("opens");
    advise(&app, Figures::default()).expect("advises")
}

fn found(case: Case) -> Option<Finding> {
    let mut findings = advised(case).findings.into_iter();
    findings.find(|it| it.rule == "broadcast")
}

#[test]
fn a_small_side_that_is_shuffled_is_found_with_what_a_broadcast_saves() {
    let advice = advised(SICK);
    let rules: Vec<&str> = advice.findings.iter().map(|it| it.rule).collect();
    assert_eq!(rules, ["broadcast"], "{advice:#?}");
    let finding = &advice.findings[0];
    let seconds = |made: &Made| made.log().1 as f64 / 1000.0;
    let saved = seconds(&made(true)) - seconds(&made(false));
    let saving = finding.saving;
    assert!(
        saving.low <= saved && saved <= saving.high && saving.low <= saving.expected,
        "{saved} s were saved, {saving:?}"
    );
    assert!(finding.title.contains("3.9 GiB") && finding.title.contains("40.0 MiB"));
    assert_eq!(finding.stages, ["2.0"]);
    let first = &finding.settings[0];
    assert_eq!(first.name, THRESHOLD);
    assert!(first.value.starts_with("50m"), "{first:?}");
    let shown = crate::advise::text::text(&advice);
    for words in ["SQL query: 7", "160,000 in 40.0 MiB", "disproved by"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
    assert!(finding.not_measured[1].contains("what a broadcast costs"));
}

#[test]
fn what_broadcasts_cost_in_the_application_is_taken_off() {
    let with = |ms| {
        let case = Case {
            other: Some(ms),
            ..SICK
        };
        found(case).map(|it| (it.saving, it.not_measured.len()))
    };
    let (cheap, missing) = with(0).expect("a finding");
    assert_eq!(missing, 1);
    // Four times the bytes of one that took a second.
    let (dear, _) = with(1000).expect("a finding");
    let less = cheap.expected - dear.expected;
    assert!((less - 4.0).abs() < 0.1, "{cheap:?} and {dear:?}");
    // One that takes longer than the sorts and the shuffle is none to advise.
    assert!(with(5000).is_none());
}

#[test]
fn joins_without_room_or_gain_or_a_side_that_can_be_broadcast_are_none() {
    let case = |change: &dyn Fn(&mut Case)| {
        let mut case = SICK;
        change(&mut case);
        found(case)
    };
    assert!(case(&|_| ()).is_some());
    // Twice 40 MiB and 32 bytes for each of 160,000 rows are 85 MiB.
    assert!(case(&|it| it.used = 514 * MIB).is_some());
    assert!(case(&|it| it.used = 516 * MIB).is_none());
    // To four executors it is as many bytes as the other side.
    assert!(case(&|it| it.large = 4 * it.small).is_none());
    // The rows of the left side are all in the result.
    assert!(case(&|it| it.kind = "FullOuter").is_none());
    assert!(case(&|it| it.kind = "LeftOuter").is_some());
    assert!(case(&|it| it.kind = "RightOuter").is_none());
}

#[test]
fn a_join_that_spark_declined_below_the_threshold_has_the_hint_alone() {
    let case = Case {
        small: 4 * MIB,
        ..SICK
    };
    let finding = found(case).expect("a finding");
    let names: Vec<&str> = finding.settings.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["in the program: broadcast(the smaller side)"]);
}

#[test]
fn figures_of_plans_are_read_as_spark_writes_them() {
    let total = "total (min, med, max (stageId: taskId))\n1,549.3 MiB (68.6 MiB, 68.7 MiB, 68.7 MiB (stage 4.1: task 12))";
    assert_eq!(bytes_of(total), Some(1549.3 * 1024.0 * 1024.0));
    assert_eq!(stage_of(total), Some((4, 1)));
    assert_eq!(
        (bytes_of("2.0 KiB"), stage_of("2.0 KiB")),
        (Some(2048.0), None)
    );
    assert_eq!(
        (ms_of("1.5 m"), ms_of("0 ms"), ms_of("x")),
        (Some(90e3), Some(0.0), None)
    );
    assert_eq!(sum("400,000"), Some((400_000.0, "")));
    let formatted = "== Physical Plan ==\n* SortMergeJoin(skew=true) LeftOuter (7)\n:- * Sort (3)\n:  +- SortMergeJoin Inner (2)\n\n\n(7) SortMergeJoin\n";
    assert_eq!(types(formatted), ["LeftOuter", "Inner"]);
    let simple = "*(5) SortMergeJoin [k#7L, l#8], [k#10L, l#11], RightOuter\n:- *(2) Sort [k#7L ASC NULLS FIRST], false, 0";
    assert_eq!(types(simple), ["RightOuter"]);
    for (text, value) in [
        ("10m", 10.0 * 1_048_576.0),
        ("10485760b", 10_485_760.0),
        ("-1", -1.0),
        ("64 KB", 65_536.0),
    ] {
        assert_eq!(property_bytes(text), Some(value), "{text}");
    }
}

/// What Spark 4.0.5 writes of a join of two files, in its REST API.
#[test]
fn a_join_of_spark_is_read() {
    let text = include_str!("spark-4.0.5.json");
    let query: Query = serde_json::from_str(text).expect("parses");
    let joins = query.joins("7");
    let [(stage, join)] = &joins[..] else {
        panic!("{joins:?}");
    };
    let mib = |bytes: f64| (bytes / f64::from(1 << 20) * 10.0).round() / 10.0;
    assert_eq!(*stage, (6, 0));
    let side = |side: &Side| (mib(side.bytes), side.records, side.sort, side.writer);
    assert_eq!(side(&join.small), (33.6, 400_000.0, 65.0, Some((3, 0))));
    assert_eq!(
        side(&join.large),
        (549.3, 6_000_000.0, 1800.0, Some((2, 0)))
    );
}

#[test]
fn a_scan_counts_where_its_rows_only_pass() {
    let scan = |between: &[&str], leaves: usize| {
        let mut nodes = vec![json!({"nodeId": 0, "nodeName": "Exchange"})];
        let mut edges = Vec::new();
        for (at, name) in between.iter().enumerate() {
            nodes.push(json!({"nodeId": at + 1, "nodeName": name}));
            edges.push(json!({"fromId": at + 1, "toId": at}));
        }
        let time = "total (min, med, max (stageId: taskId))\n4.5 s (1.0 s, 1.1 s, 1.3 s (stage 2.0: task 5))";
        for leaf in 0..leaves {
            let id = between.len() + 1 + leaf;
            let metrics = json!([{"name": "scan time", "value": time}]);
            nodes.push(json!({"nodeId": id, "nodeName": "Scan parquet ", "metrics": metrics}));
            edges.push(json!({"fromId": id, "toId": between.len()}));
        }
        let query: Query =
            serde_json::from_value(json!({"nodes": nodes, "edges": edges})).expect("a plan");
        Plan::of(&query).scan(0)
    };
    assert_eq!(
        scan(&["Project", "Filter", "ColumnarToRow"], 1),
        Some(4500.0)
    );
    assert_eq!(scan(&[], 1), Some(4500.0));
    // A broadcast leaves this work where it is.
    for work in ["ArrowEvalPython", "HashAggregate", "Generate", "Exchange"] {
        assert_eq!(scan(&["Project", work, "ColumnarToRow"], 1), None, "{work}");
    }
    assert_eq!(scan(&["Union"], 2), None);
    assert_eq!(scan(&["Project"], 0), None);
}
