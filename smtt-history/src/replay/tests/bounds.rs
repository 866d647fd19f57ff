//! Bounds of a replay in time, searches and bytes.

use super::super::Replay;
use super::*;
use crate::out::Out;

#[test]
fn an_import_ends_at_its_time() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let bounds = Bounds {
        time: Duration::from_millis(100),
        ..Bounds::default()
    };
    let text = format!("{START}\n{}", "{}\n".repeat(4 << 20));
    let begun = Instant::now();
    let error = import_bytes(folder.path(), "log", text.as_bytes(), bounds).expect_err("is long");
    assert!(error.to_string().contains("longer than"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(folders(&folder.path().join("store")).is_empty());
}

#[test]
fn searches_end_at_their_bound_and_are_counted() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = Replay::new(Out::create(folder.path()).expect("creates"));
    let mut take = |line: String| replay.line(line.as_bytes()).expect("is taken");
    for id in 0..10 {
        take(job(id, &[id, id + 1]));
    }
    replay.most_visits = 100;
    replay.visits = 0;
    for stage in 100..110 {
        replay.line(submitted(stage).as_bytes()).expect("is taken");
    }
    // Each search visits ten jobs and their twenty stages.
    assert_eq!((replay.visits, replay.dropped["searches"]), (100, 7));
    for task in 0..1000 {
        replay
            .line(task_start(1, task).as_bytes())
            .expect("is taken");
        replay
            .line(task_end(1, task, 1).as_bytes())
            .expect("is taken");
    }
    assert!(replay.visits <= 100, "{}", replay.visits);
    assert_eq!(replay.stages[&(1, 0)].completed, 1000);
    assert!(!replay.stages[&(1, 0)].jobs.is_empty());
}

#[test]
fn blocks_of_unknown_rdds_and_many_copies_are_not_kept() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = Replay::new(Out::create(folder.path()).expect("creates"));
    let added = |executor: u32| {
        format!(
            r#"{{"Event":"SparkListenerBlockManagerAdded","Block Manager ID":{{"Executor ID":"{executor}","Host":"h","Port":1}},"Maximum Memory":9,"Timestamp":1}}"#
        )
    };
    let block = |executor: u32, rdd: u32| {
        format!(
            r#"{{"Event":"SparkListenerBlockUpdated","Block Updated Info":{{"Block Manager ID":{{"Executor ID":"{executor}","Host":"h","Port":1}},"Block ID":"rdd_{rdd}_0","Storage Level":{{"Use Memory":true,"Replication":1}},"Memory Size":1}}}}"#
        )
    };
    let rdd = r#"[{"RDD ID":7,"Storage Level":{"Use Memory":true,"Replication":1}}]"#;
    let mut take = |line: String| replay.line(line.as_bytes()).expect("is taken");
    take(submitted(0).replace("[],\"Details\"", &format!("{rdd},\"Details\"")));
    for executor in 0..1100 {
        take(added(executor));
        take(block(executor, 7));
    }
    for unknown in 100..200 {
        take(block(0, unknown));
    }
    assert_eq!(replay.executors["0"].rdds.len(), 1);
    assert_eq!(replay.dropped["blocks of RDDs"], 100);
    let json = replay.rdds[&7].json(7);
    let copies = json["partitions"][0]["executors"].as_array().map(Vec::len);
    assert_eq!(copies, Some(1000));
}

fn replay_with(folder: &Path, most: usize) -> Replay {
    let mut replay = Replay::new(Out::create(folder).expect("creates"));
    replay.held.most = most;
    replay.sql.held.most = most;
    replay
}

fn completed(id: u32) -> String {
    submitted(id).replace("StageSubmitted", "StageCompleted")
}

fn job_end(id: u32) -> String {
    format!(
        r#"{{"Event":"SparkListenerJobEnd","Job ID":{id},"Completion Time":5,"Job Result":{{"Result":"JobSucceeded"}}}}"#
    )
}

#[test]
fn live_entries_give_their_memory_back() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 1 << 20);
    // More in total than there is room for at a time.
    for round in 0..500 {
        let stages = [2 * round, 2 * round + 1];
        let mut lines = vec![job(round, &stages)];
        for stage in stages {
            lines.push(submitted(stage));
            for task in 0..4 {
                let id = i64::from(stage * 4 + task);
                lines.extend([task_start(stage, id), task_end(stage, id, 1)]);
            }
            lines.push(completed(stage));
        }
        lines.push(job_end(round));
        for line in lines {
            replay.line(line.as_bytes()).expect("is taken");
        }
    }
    assert_eq!(
        (replay.held.bytes, replay.jobs.len(), replay.stages.len()),
        (0, 0, 0)
    );
    assert!(replay.dropped.is_empty(), "{:?}", replay.dropped);
}

#[test]
fn accumulators_reasons_and_executors_of_stages_have_a_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 4 << 20);
    let accumulators = vec![r#"{"ID":1,"Value":"v"}"#; 100_000].join(",");
    let many = submitted(9).replace(
        "\"Accumulables\":[",
        &format!("\"Accumulables\":[{accumulators}"),
    );
    replay.line(many.as_bytes()).expect("is taken");
    assert_eq!((replay.stages.len(), replay.dropped["stages"]), (0, 1));
    for id in 0..100 {
        replay.line(job(id, &[0]).as_bytes()).expect("is taken");
    }
    replay.line(submitted(0).as_bytes()).expect("is taken");
    for task in 0..20_u32 {
        let reason = format!("{task}{}", "r".repeat(1 << 20));
        let end = task_end(0, task.into(), 1).replace(
            r#""Reason":"Success""#,
            &format!(r#""Reason":"TaskKilled","Kill Reason":"{reason}""#),
        );
        replay
            .line(task_start(0, task.into()).as_bytes())
            .expect("is taken");
        replay.line(end.as_bytes()).expect("is taken");
        assert!(replay.held.bytes <= 4 << 20);
    }
    let reasons = replay
        .jobs
        .values()
        .map(|job| &job.reasons)
        .chain([&replay.stages[&(0, 0)].reasons]);
    let bytes: usize = reasons
        .flat_map(|reasons| reasons.keys())
        .map(String::len)
        .sum();
    assert!((1 << 20..=4 << 20).contains(&bytes), "{bytes}");
    assert_eq!(replay.stages[&(0, 0)].killed, 20);
    for executor in 0..10_000 {
        let line = format!(
            r#"{{"Event":"SparkListenerStageExecutorMetrics","Executor ID":"{executor}","Stage ID":0,"Stage Attempt ID":0,"Executor Metrics":{{"JVMHeapMemory":1}}}}"#
        );
        replay.line(line.as_bytes()).expect("is taken");
    }
    assert!(replay.held.bytes <= 4 << 20);
    assert!(replay.stages[&(0, 0)].executors.len() < 5000);
    assert!(
        replay.dropped["parts of stages and jobs"] > 5000,
        "{:?}",
        replay.dropped
    );
}

#[test]
fn sql_executions_have_a_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 1 << 20);
    let start = |id: u32| {
        format!(
            r#"{{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart","executionId":{id},"description":"{}","sparkPlanInfo":{{"nodeName":"Scan","metrics":[{{"name":"rows","accumulatorId":5,"metricType":"sum"}}]}},"time":1}}"#,
            "d".repeat(10_000)
        )
    };
    for id in 0..1000 {
        replay.line(start(id).as_bytes()).expect("is taken");
    }
    let dropped = replay.dropped["SQL executions"];
    assert!((900..1000).contains(&dropped), "{dropped}");
    let updates = vec!["[5,1]"; 100_000].join(",");
    let line = format!(
        r#"{{"Event":"org.apache.spark.sql.execution.ui.SparkListenerDriverAccumUpdates","executionId":0,"accumUpdates":[{updates}]}}"#
    );
    replay.line(line.as_bytes()).expect("is taken");
    assert_eq!(replay.dropped["SQL metrics of the driver"], 1);
    assert!(replay.sql.held.bytes <= 1 << 20);
}

#[test]
fn long_texts_are_cut() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let long = "ä".repeat(1 << 20);
    let lines = [
        START.replace(r#""n""#, &format!("\"{long}\"")),
        submitted(0).replace(r#""Details":"""#, &format!(r#""Details":"{long}""#)),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    let app = App::open(&done.folder).expect("opens");
    let name = &document(&app, Kind::Application, "app-1")["name"];
    let details = &document(&app, Kind::Stage, "0.0")["details"];
    assert_eq!(
        [name, details].map(|text| text.as_str().map(str::len)),
        [Some(64 << 10); 2]
    );
}
