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
fn values_of_sql_executions_are_visited_to_a_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 64 << 20);
    let sql = |event: &str, rest: &str| {
        format!(
            r#"{{"Event":"org.apache.spark.sql.execution.ui.SparkListener{event}","executionId":{rest}}}"#
        )
    };
    let updates = vec!["[5,1]"; 400].join(",");
    for id in 0..3 {
        let plan = r#"{"nodeName":"Scan","metrics":[{"name":"rows","accumulatorId":5,"metricType":"sum"}]}"#;
        let start = format!(r#"{id},"description":"d","sparkPlanInfo":{plan},"time":1"#);
        let updates = format!(r#"{id},"accumUpdates":[{updates}]"#);
        take(
            &mut replay,
            &[
                sql("SQLExecutionStart", &start),
                sql("DriverAccumUpdates", &updates),
            ],
        );
    }
    replay.sql.most_visits = 1000;
    take(&mut replay, &[sql("SQLExecutionEnd", r#"0,"time":2"#)]);
    assert_eq!((replay.sql.visits, replay.dropped.len()), (400, 0));
    replay.finish(9).expect("finishes");
    assert_eq!(replay.dropped["searches"], 1);
    // Stages of an execution, each with all live executions.
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 64 << 20);
    for id in 0..20 {
        let stages: Vec<u32> = (0..10).map(|stage| 10 * id + stage).collect();
        let own = format!(r#""Properties":{{"spark.sql.execution.id":"{id}"}}"#);
        take(
            &mut replay,
            &[job(id, &stages).replace(r#""Properties":{}"#, &own)],
        );
    }
    replay.sql.most_visits = 1000;
    for id in 0..20 {
        let end = format!(r#"{id},"time":2"#);
        take(&mut replay, &[sql("SQLExecutionEnd", &end), job_end(id)]);
    }
    assert!(replay.dropped["searches"] >= 15, "{:?}", replay.dropped);
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

fn executor_added(id: &str, host: &str) -> String {
    format!(
        r#"{{"Event":"SparkListenerExecutorAdded","Timestamp":1000,"Executor ID":"{id}","Executor Info":{{"Host":"{host}","Total Cores":1,"Log Urls":{{"stdout":"http://{host}"}}}}}}"#
    )
}

fn executor_removed(id: &str, time: i64) -> String {
    format!(
        r#"{{"Event":"SparkListenerExecutorRemoved","Timestamp":{time},"Executor ID":"{id}","Removed Reason":"idle"}}"#
    )
}

fn stage_peaks(id: &str, stage: u32, peak: i64) -> String {
    format!(
        r#"{{"Event":"SparkListenerStageExecutorMetrics","Executor ID":"{id}","Stage ID":{stage},"Stage Attempt ID":0,"Executor Metrics":{{"JVMHeapMemory":{peak}}}}}"#
    )
}

fn node_excluded(host: &str, stage: Option<u32>) -> String {
    let (event, of) = match stage {
        Some(id) => (
            "NodeExcludedForStage",
            format!(r#","stageId":{id},"stageAttemptId":0"#),
        ),
        None => ("NodeExcluded", String::new()),
    };
    format!(
        r#"{{"Event":"SparkListener{event}","time":1,"hostId":"{host}","executorFailures":1{of}}}"#
    )
}

fn take(replay: &mut Replay, lines: &[String]) {
    for line in lines {
        replay.line(line.as_bytes()).expect("is taken");
    }
}

#[test]
fn removed_executors_give_their_memory_back() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 1 << 20);
    for round in 0..2000 {
        let id = round.to_string();
        take(
            &mut replay,
            &[executor_added(&id, "h"), executor_removed(&id, 2000)],
        );
    }
    // One id again and again, while a stage lives that began before.
    take(&mut replay, &[job(1, &[0]), submitted(0)]);
    let before = replay.held.bytes;
    for _ in 0..2000 {
        take(
            &mut replay,
            &[executor_added("x", "h"), executor_removed("x", 3000)],
        );
    }
    assert!(replay.dropped.is_empty(), "{:?}", replay.dropped);
    assert_eq!(replay.executors.len(), 1);
    assert!(replay.held.bytes > before);
    take(&mut replay, &[completed(0), job_end(1)]);
    assert_eq!(
        (
            replay.held.bytes,
            replay.executors.len(),
            replay.removed.len()
        ),
        (0, 0, 0)
    );
    assert!(replay.dropped.is_empty(), "{:?}", replay.dropped);
}

#[test]
fn a_stage_that_began_before_raises_the_peaks_of_a_removed_executor() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let lines = [
        START.to_owned(),
        executor_added("1", "h"),
        executor_added("2", "h"),
        executor_removed("2", 1500),
        submitted(0),
        executor_removed("1", 2500),
        stage_peaks("1", 0, 7),
        stage_peaks("2", 0, 8),
        completed(0),
        stage_peaks("1", 0, 9),
    ];
    let done = import_lines(folder.path(), &lines).expect("imports");
    let app = App::open(&done.folder).expect("opens");
    let (first, second) = (
        document(&app, Kind::Executor, "1"),
        document(&app, Kind::Executor, "2"),
    );
    assert_eq!(first["peakMemoryMetrics"]["JVMHeapMemory"], 7, "{first}");
    assert_ne!(second["peakMemoryMetrics"]["JVMHeapMemory"], 8, "{second}");
    for json in [first, second] {
        assert_eq!(json["isActive"], false, "{json}");
        assert_eq!(json["removeReason"], "idle", "{json}");
        assert_eq!(json["executorLogs"]["stdout"], "http://h", "{json}");
    }
}

#[test]
fn exclusions_for_stages_have_a_bound_and_give_their_memory_back() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 1 << 20);
    for id in 0..100 {
        take(&mut replay, &[executor_added(&id.to_string(), "h")]);
    }
    take(&mut replay, &[submitted(0)]);
    let described = replay.stages[&(0, 0)].executors.len();
    let before = replay.held.bytes;
    take(&mut replay, &[node_excluded("h", Some(0))]);
    assert_eq!(
        (described, replay.stages[&(0, 0)].executors.len()),
        (0, 100)
    );
    assert!(replay.held.bytes >= before + 100 * 32);
    take(&mut replay, &[completed(0)]);
    assert!(replay.held.bytes < before, "{}", replay.held.bytes);
    for stage in 1..1000 {
        take(&mut replay, &[node_excluded("h", Some(stage))]);
    }
    let all = replay.executors.values().map(|it| it.excluded_in.len());
    let all: usize = all.sum();
    assert!((10_000..(1 << 20) / 32).contains(&all), "{all}");
    assert_eq!(
        replay.dropped["parts of stages and jobs"],
        999 * 100 - all as u64
    );
    assert!(replay.held.bytes <= 1 << 20);
}

#[test]
fn the_exclusion_of_a_node_leaves_its_driver_out() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut replay = replay_with(folder.path(), 1 << 20);
    let all = ["driver", "1"].map(|id| executor_added(id, "h"));
    take(&mut replay, &all);
    let lines = [
        submitted(0),
        node_excluded("h", None),
        node_excluded("h", Some(0)),
    ];
    take(&mut replay, &lines);
    for (id, is_excluded) in [("driver", false), ("1", true)] {
        let json = replay.executors[id].json(id);
        assert_eq!(json["isExcluded"], is_excluded, "{json}");
        let stages = json["excludedInStages"].as_array().map(Vec::len);
        assert_eq!(stages, Some(usize::from(is_excluded)), "{json}");
        let of_stage = &replay.stages[&(0, 0)].executors;
        assert_eq!(of_stage.contains_key(id), is_excluded);
    }
    // An exclusion of the driver itself is taken.
    let own = node_excluded("h", None)
        .replace("NodeExcluded", "ExecutorExcluded")
        .replace(r#""hostId":"h""#, r#""executorId":"driver""#);
    take(&mut replay, &[own]);
    assert_eq!(
        replay.executors["driver"].json("driver")["isExcluded"],
        true
    );
}

#[test]
fn resource_profiles_have_a_bound() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let profile = |id: u32| {
        format!(
            r#"{{"Event":"SparkListenerResourceProfileAdded","Resource Profile Id":{id},"Executor Resource Requests":{{"cores":{{"Resource Name":"cores","Amount":1,"Discovery Script":"{}"}}}},"Task Resource Requests":{{}}}}"#,
            "d".repeat(10_000)
        )
    };
    let mut replay = replay_with(folder.path(), 1 << 20);
    for id in 0..100 {
        take(&mut replay, &[profile(id)]);
    }
    let dropped = replay.dropped["resource profiles"];
    assert!((80..95).contains(&dropped), "{dropped}");
    assert!(replay.held.bytes <= 1 << 20);
    // Another one under the same id takes the place of the first.
    let mut replay = replay_with(folder.path(), 1 << 20);
    for _ in 0..100 {
        take(&mut replay, &[profile(1)]);
    }
    assert!(replay.dropped.is_empty(), "{:?}", replay.dropped);
}
