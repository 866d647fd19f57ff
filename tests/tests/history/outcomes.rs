//! An event log by hand, as Spark's `JsonProtocol` writes it: every reason for which a task attempt ends, stages with several
//! attempts, events in the orders in which Spark's scheduler may write them, and executors that come and go. What no
//! application produces cheaply is here; Spark's own history server reads the log, too.

mod log;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_tests::lab::LIMIT;
use xtask::http::get;
use xtask::process::wait_for;

use crate::answers::{Api, compare_all, sorted_lists};
use crate::lists;
use log::{Log, exception, fetch_failed, killed, reasons, stage};

/// The application, whose first attempt is short.
const ID: &str = "application_1795800000000_0007";
/// Answers about each attempt at least.
const COMPARED: [usize; 2] = [33, 130];

/// Figures in which servers before Spark 4.0 count a resubmitted attempt again.
pub const COUNTED_AGAIN: [(&str, &str); 2] = [
    ("executorSummary.taskTime", "Spark 4.0 counts it once"),
    ("executors.totalDuration", "Spark 4.0 counts it once"),
];

/// The first attempt of the application: its only job fails.
fn first(version: &str) -> String {
    let mut log = Log::new(version, 1);
    log.executor("1", "b");
    let mut only = stage((0, 0), 2, &[]);
    log.job(0, &[only.clone()], "short");
    log.submit(&mut only);
    let task = log.launch(&only, (0, 0), "1");
    log.end(task, &exception("always"));
    log.complete(&mut only, Some("Job aborted due to stage failure: always"));
    log.job_end(0, Some("Job aborted due to stage failure: always"));
    log.ended()
}

/// A stage whose attempts end for every reason, and another one that loses an executor with a finished task.
fn every_reason(log: &mut Log) {
    let reasons = reasons();
    let mut all = stage((0, 0), reasons.len() as i32, &[]);
    let mut lossy = stage((1, 0), 4, &[0]);
    log.query_start();
    log.job(0, &[all.clone(), lossy.clone()], "reasons");
    log.submit(&mut all);
    for (index, reason) in reasons.iter().enumerate() {
        let index = index as i32;
        let own = json!({"Speculative": index % 4 == 1});
        let executor = if index % 3 == 0 { "1" } else { "2" };
        let task = log.launch_as(&all, (index, 0), executor, &own);
        log.end(task, reason);
        if reason["Reason"] != "Success" {
            let task = log.launch(&all, (index, 1), "1");
            log.succeed(task);
        }
    }
    log.complete(&mut all, None);
    log.submit(&mut lossy);
    let tasks: Vec<usize> = (0..4)
        .map(|index| log.launch(&lossy, (index, 0), if index < 3 { "2" } else { "1" }))
        .collect();
    // Spark 3.5 counts the time of a resubmitted attempt again; this one takes none there.
    if log.version.starts_with("3.") {
        let info = &mut log.tasks[tasks[0]].1;
        info["Finish Time"] = info["Launch Time"].clone();
    }
    log.succeed(tasks[0]);
    log.succeed(tasks[3]);
    // As Spark's scheduler does it: what ran, then what had finished.
    log.end(
        tasks[1],
        &json!({"Reason": "ExecutorLostFailure", "Executor ID": "2", "Exit Caused By App": true,
        "Loss Reason": "Command exited with code 52"}),
    );
    log.end(
        tasks[2],
        &json!({"Reason": "ExecutorLostFailure", "Executor ID": "2", "Exit Caused By App": true,
        "Loss Reason": "Command exited with code 52"}),
    );
    log.end(tasks[0], &json!({"Reason": "Resubmitted"}));
    log.removed("2", "Command exited with code 52");
    for index in 0..3 {
        let task = log.launch(&lossy, (index, 1), "3");
        log.succeed(task);
    }
    log.complete(&mut lossy, None);
    log.job_end(0, None);
    log.query_end();
}

/// A stage that loses blocks of the one before: both have a second attempt. Tasks of the first attempt end after it.
fn lost_blocks(log: &mut Log) {
    let (mut map, mut reduce) = (stage((2, 0), 2, &[]), stage((3, 0), 3, &[2]));
    log.job(1, &[map.clone(), reduce.clone()], "lost blocks");
    log.submit(&mut map);
    for index in 0..2 {
        let task = log.launch(&map, (index, 0), "3");
        log.succeed(task);
    }
    log.complete(&mut map, None);
    log.submit(&mut reduce);
    let tasks: Vec<usize> = (0..3)
        .map(|index| log.launch(&reduce, (index, 0), "1"))
        .collect();
    log.end(tasks[0], &fetch_failed("3", Some(1)));
    let failure = "org.apache.spark.shuffle.FetchFailedException: Connection refused <b>\n\tat io.smtt.Fixture.call(Fixture.java:7)\n";
    log.complete(&mut reduce, Some(failure));
    log.succeed(tasks[1]);
    log.end(tasks[2], &killed("Stage cancelled"));
    let (mut map, mut reduce) = (stage((2, 1), 1, &[]), stage((3, 1), 2, &[2]));
    log.submit(&mut map);
    let task = log.launch(&map, (1, 0), "1");
    log.succeed(task);
    log.complete(&mut map, None);
    log.submit(&mut reduce);
    for index in [0, 2] {
        let task = log.launch(&reduce, (index, 0), "1");
        log.succeed(task);
    }
    log.complete(&mut reduce, None);
    log.job_end(1, None);
}

/// Jobs that end before their stages and tasks: one that fails, and one of two that share a stage, which is cancelled.
fn early_ends(log: &mut Log) {
    let mut failing = stage((4, 0), 4, &[]);
    log.job(2, &[failing.clone()], "fails");
    log.submit(&mut failing);
    let tasks: Vec<usize> = (0..4)
        .map(|index| log.launch(&failing, (index, 0), "1"))
        .collect();
    log.end(tasks[0], &exception("for ever"));
    log.complete(&mut failing, Some("Job aborted due to stage failure"));
    log.job_end(2, Some("Job aborted due to stage failure"));
    log.end(tasks[1], &killed("Stage cancelled"));
    // The end of another one never comes, so Spark writes the job no more.
    log.succeed(tasks[2]);

    let mut shared = stage((5, 0), 3, &[]);
    let (mut left, mut right) = (stage((6, 0), 1, &[5]), stage((7, 0), 1, &[5]));
    log.job(3, &[shared.clone(), left.clone()], "left");
    log.submit(&mut shared);
    let first = log.launch(&shared, (0, 0), "1");
    log.job(4, &[shared.clone(), right.clone()], "right");
    log.succeed(first);
    log.job_end(3, Some("Job 3 cancelled part of cancelled job group left"));
    let tasks: Vec<usize> = (1..3)
        .map(|index| log.launch(&shared, (index, 0), "3"))
        .collect();
    log.end(tasks[0], &killed("by hand"));
    log.succeed(tasks[1]);
    let task = log.launch(&shared, (1, 1), "3");
    log.succeed(task);
    log.complete(&mut shared, None);
    // A job that names the finished stage, which Spark then shows as skipped.
    log.job(5, &[shared.clone(), left.clone()], "left again");
    log.submit(&mut right);
    let task = log.launch(&right, (0, 0), "3");
    log.succeed(task);
    log.complete(&mut right, None);
    log.job_end(4, None);
    log.submit(&mut left);
    let task = log.launch(&left, (0, 0), "3");
    log.succeed(task);
    log.complete(&mut left, None);
    log.job_end(5, None);

    // A job is cancelled before a stage that others wait for: Spark skips it, and then counts it for all of them.
    let mut awaited = stage((11, 0), 1, &[]);
    for (job, last) in [(9, 12), (10, 13), (11, 14)] {
        log.job(job, &[awaited.clone(), stage((last, 0), 1, &[11])], "waits");
        if job == 10 {
            log.job_end(10, Some("Job 10 cancelled "));
        }
    }
    log.submit(&mut awaited);
    // Its only failure is an attempt that succeeded and whose result was lost.
    let task = log.launch(&awaited, (0, 0), "3");
    log.end(task, &json!({"Reason": "TaskResultLost"}));
    let task = log.launch(&awaited, (0, 1), "3");
    log.succeed(task);
    log.complete(&mut awaited, None);
    log.job_end(9, None);
    log.job_end(11, None);

    // As the jobs of the cancelled one, but what ends last is a task.
    let mut slow = stage((8, 0), 2, &[]);
    log.job(6, &[slow.clone()], "slow");
    log.submit(&mut slow);
    let tasks: Vec<usize> = (0..2)
        .map(|index| log.launch(&slow, (index, 0), "3"))
        .collect();
    log.complete(&mut slow, Some("Job 6 cancelled "));
    log.job_end(6, Some("Job 6 cancelled "));
    for task in tasks {
        log.end(task, &killed("Stage cancelled: Job 6 cancelled "));
    }
}

/// Executors that are excluded, come and go, as with dynamic allocation; an id that comes again.
fn executors(log: &mut Log) {
    for (id, host) in [("4", "c"), ("5", "c"), ("6", "d"), ("2", "d")] {
        log.executor(id, host);
    }
    let mut stage = stage((9, 0), 6, &[]);
    log.job(7, &[stage.clone()], "executors");
    log.submit(&mut stage);
    let tasks: Vec<usize> = ["4", "5", "6", "2", "1", "9"]
        .iter()
        .zip(0..)
        .map(|(executor, index)| log.launch(&stage, (index, 0), executor))
        .collect();
    log.end(tasks[0], &exception("on 4"));
    let of_stage = json!({"executorId": "4", "taskFailures": 1, "stageId": 9, "stageAttemptId": 0});
    log.exclusion(
        "ExecutorExcludedForStage",
        "ExecutorBlacklistedForStage",
        &of_stage,
    );
    let of_stage = json!({"hostId": "c", "executorFailures": 2, "stageId": 9, "stageAttemptId": 0});
    log.exclusion("NodeExcludedForStage", "NodeBlacklistedForStage", &of_stage);
    let executor = json!({"executorId": "6", "taskFailures": 2});
    log.exclusion("ExecutorExcluded", "ExecutorBlacklisted", &executor);
    let node = json!({"hostId": "c", "executorFailures": 2});
    log.exclusion("NodeExcluded", "NodeBlacklisted", &node);
    log.removed("4", "Executor 4 is excluded: <b>killed</b>");
    log.exclusion(
        "ExecutorUnexcluded",
        "ExecutorUnblacklisted",
        &json!({"executorId": "6"}),
    );
    for &task in &tasks[1..3] {
        log.succeed(task);
    }
    log.removed("6", "Container released by driver");
    log.add(json!({"Event": "SparkListenerStageExecutorMetrics", "Executor ID": "6", "Stage ID": 9, "Stage Attempt ID": 0,
        "Executor Metrics": log.peaks(9)}));
    for &task in &tasks[3..] {
        log.succeed(task);
    }
    let task = log.launch(&stage, (0, 1), "5");
    log.succeed(task);
    log.complete(&mut stage, None);
    log.job_end(7, None);
    log.exclusion(
        "NodeUnexcluded",
        "NodeUnblacklisted",
        &json!({"hostId": "c"}),
    );
    log.exclusion(
        "NodeExcluded",
        "NodeBlacklisted",
        &json!({"hostId": "d", "executorFailures": 2}),
    );
    log.removed("5", "Executor 5 idle for 60 seconds");
    log.removed("5", "again");
    log.removed("7", "never came");
    log.executor("8", "e");
    log.removed(
        "8",
        "Executor decommission: spark.dynamicAllocation <finished>",
    );
}

/// A job that runs until the end: a task whose result is fetched, and one that just runs.
fn unfinished(log: &mut Log) {
    let mut stage = stage((10, 0), 3, &[]);
    log.job(8, &[stage.clone()], "unfinished");
    log.submit(&mut stage);
    let task = log.launch(&stage, (0, 0), "1");
    log.succeed(task);
    let fetched = json!({"Getting Result Time": log.now + 5});
    log.launch_as(&stage, (1, 0), "1", &fetched);
    log.launch(&stage, (2, 0), "1");
}

/// Writes the logs of both attempts, of a version of Spark.
pub fn write(folder: &Path, version: &str) -> Result<()> {
    let mut log = Log::new(version, 2);
    for (id, host) in [("1", "b"), ("2", "b"), ("3", "b")] {
        log.executor(id, host);
    }
    every_reason(&mut log);
    lost_blocks(&mut log);
    early_ends(&mut log);
    executors(&mut log);
    unfinished(&mut log);
    for (attempt, text) in [(1, first(version)), (2, log.ended())] {
        fs::write(folder.join(format!("{ID}_{attempt}")), text)?;
    }
    Ok(())
}

/// Asks both servers for all that both attempts have, and compares.
pub fn equal_sparks(spark: &Api, ours: &Api) -> Result<()> {
    let attempts = [1, 2].map(|attempt| format!("{ID}/{attempt}"));
    for id in &attempts {
        let path = format!("applications/{id}");
        wait_for("Spark's history server lists the attempt", LIMIT, || {
            Ok((spark.get(&path)?.0 == 200).then_some(()))
        })?;
        // Only what was opened is listed.
        ensure!(ours.get(&path)?.0 == 200, "{id}");
    }
    for (id, least) in attempts.iter().zip(COMPARED) {
        let compared = compare_all(spark, ours, id, |_| ())?;
        sorted_lists(spark, ours, id)?;
        let tasks = lists::tasks_of_all_stages(spark, ours, id, &[])?;
        let executors = lists::executors_of_stages(spark, ours, id, &[])?;
        println!(
            "{id}: {compared} answers; failed, killed and other tasks {tasks:?}; {executors} executors of stages"
        );
        ensure!(compared >= least, "{id}: only {compared} answers");
    }
    // What no attempt, or an attempt that is not there, has.
    for rest in ["", "/jobs", "/executors", "/3", "/3/stages"] {
        let path = format!("applications/{ID}{rest}");
        let (theirs, mine) = (spark.get(&path)?, ours.get(&path)?);
        ensure!(
            theirs.0 == mine.0,
            "{path}: Spark {theirs:?}, smtt-history {mine:?}"
        );
    }
    let [_, second] = attempts;
    // Nothing is named as left out: the second end of a resubmitted task is as it should be.
    let path = format!("/smtt/v1/applications/{ID}/import?attempt=2");
    let import: Value = serde_json::from_str(&get(ours.port, &path)?)?;
    ensure!(
        import["damagedLines"] == 0 && import["dropped"] == json!({}),
        "{import}"
    );
    // Of two tasks that have not ended the result of one is fetched: it does not run.
    let path = format!("applications/{second}/stages/10/0/taskList?status=running");
    let (theirs, mine) = (spark.get(&path)?.1, ours.get(&path)?.1);
    ensure!(
        theirs == mine && theirs.as_array().is_some_and(|all| all.len() == 1),
        "{path}: Spark {theirs}, smtt-history {mine}"
    );
    shows_everything(spark, &second)
}

/// Spark read the log as it is meant; otherwise equal answers would say little.
fn shows_everything(spark: &Api, id: &str) -> Result<()> {
    let list = |path: &str| -> Result<Vec<Value>> {
        let (_, list) = spark.get(&format!("applications/{id}/{path}"))?;
        Ok(list.as_array().context("no list")?.clone())
    };
    let tasks = list("stages/0/0/taskList?length=1000")?;
    let messages = || {
        tasks
            .iter()
            .filter_map(|task| task["errorMessage"].as_str())
    };
    for begin in [
        "FetchFailed(BlockManagerId(2, b, 4000, None), shuffleId=3, mapIndex=5,",
        "FetchFailed(null, shuffleId=3, mapIndex=Unknown,",
        "java.lang.RuntimeException: planned <i>\n\tat",
        "java.lang.RuntimeException: old\n        io.smtt",
        "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: Container",
        "ExecutorLostFailure (executor 2 exited unrelated to the running tasks)",
        "ExecutorLostFailure (executor Unknown ",
        "TaskCommitDenied (Driver denied task commit) for job: 8,",
        "TaskCommitDenied (Driver denied task commit) for job: -1,",
        "another attempt succeeded",
        "by hand & <script>",
        "unknown reason",
        "TaskResultLost",
        "UnknownReason",
    ] {
        ensure!(
            messages().any(|text| text.starts_with(begin)),
            "no {begin}: {:?}",
            messages().collect::<Vec<_>>()
        );
    }
    let stages = list("stages")?;
    let stage = |id: i32, attempt: i32| {
        let is = |it: &&Value| it["stageId"] == id && it["attemptId"] == attempt;
        stages.iter().find(is).unwrap_or(&Value::Null)
    };
    // Two tasks were lost, and the output of one that had finished.
    ensure!(
        stage(1, 0)["numFailedTasks"] == 3 && stage(1, 0)["numActiveTasks"] == 0,
        "{}",
        stage(1, 0)
    );
    ensure!(
        stage(3, 0)["status"] == "FAILED"
            && stage(3, 0)["failureReason"].is_string()
            && stage(3, 1)["status"] == "COMPLETE"
            && stage(5, 0)["status"] == "SKIPPED",
        "{stages:?}"
    );
    let jobs = list("jobs")?;
    let job = |id: i32| jobs.iter().find(|it| it["jobId"] == id);
    let job = |id: i32| job(id).unwrap_or(&Value::Null);
    // That of a job whose tasks never all end, and that of one whose last task ended after it.
    ensure!(
        job(2)["numActiveTasks"] == 3
            && job(6)["numKilledTasks"] == 2
            && job(9)["numCompletedTasks"] == 1
            && job(11)["numCompletedTasks"] == 1,
        "{jobs:?}"
    );
    let executors = list("allexecutors")?;
    let count = |of: &dyn Fn(&Value) -> bool| executors.iter().filter(|it| of(it)).count();
    let removed = count(&|it| it["removeReason"].is_string());
    let excluded = count(&|it| it["isExcluded"] == true);
    let of_stage = count(&|it| it["excludedInStages"] == json!([9]));
    ensure!(
        removed == 4 && excluded > 0 && of_stage > 0,
        "{executors:?}"
    );
    Ok(())
}
