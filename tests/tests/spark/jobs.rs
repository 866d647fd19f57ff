//! Jobs and SQL executions: the same lists as Spark's, with the tasks of their stages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::course::same_course;
use smtt_tests::job_trace::same_trace;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::task_metrics::{same_metrics, same_metrics_of_jobs};
use smtt_tests::truth::agree;
use xtask::daemon::Daemon;
use xtask::spark::Application;

/// Pod of the executors.
const POD: &str = "queries-exec-1";
/// Attempt of the application.
const ATTEMPT: &str = "2";

/// A job or SQL execution: its id, its SQL executions or jobs, and its tasks that succeeded and failed.
type Work = (u64, BTreeSet<u64>, u64, u64);

/// Ids of a query's jobs.
fn jobs_of(query: &Value) -> Result<BTreeSet<u64>> {
    let mut jobs = BTreeSet::new();
    for ids in ["runningJobIds", "successJobIds", "failedJobIds"] {
        jobs.extend(list(query, ids)?.iter().filter_map(Value::as_u64));
    }
    Ok(jobs)
}

fn objects(value: &Value) -> Result<&[Value]> {
    Ok(value
        .as_array()
        .with_context(|| format!("no list: {value}"))?)
}

/// Scope of an RDD: its name and its id, where it has one.
type Scope = (Option<String>, Option<String>);

/// The innermost scope of every RDD of the stages in Spark's event log.
fn scopes(log: &Path) -> Result<BTreeMap<u64, Scope>> {
    let lines = fs::read_to_string(log).with_context(|| format!("no log {}", log.display()))?;
    let mut found = BTreeMap::new();
    for line in lines.lines().filter(|line| line.contains("\"RDD Info\"")) {
        // Spark may still write the last line.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        // A job's start has its stages in a list; each of them that is submitted has an event of its own.
        let rdds = event["Stage Info"]["RDD Info"].as_array();
        for rdd in rdds.into_iter().flatten() {
            let scope = match rdd["Scope"].as_str() {
                Some(scope) => {
                    let scope: Value = serde_json::from_str(scope)?;
                    // Names of scans may end with a blank.
                    let name = text(&scope, "name")?.trim().to_owned();
                    (Some(name), Some(text(&scope, "id")?))
                }
                None => (None, None),
            };
            found.insert(number(rdd, "RDD ID")?, scope);
        }
    }
    Ok(found)
}

/// Each RDD has the plan node or operation that Spark's event log says, and `--by node` adds up the RDDs of each.
fn same_nodes(run: &Run, daemon: &Daemon, log: &Path) -> Result<BTreeSet<String>> {
    let found = agree("RDDs with their plan nodes", || {
        let expected: BTreeSet<(u64, Scope)> = scopes(log)?.into_iter().collect();
        let mut seen = BTreeSet::new();
        for row in run.rows(daemon, &["rdds"])? {
            let text = |field: &str| row[field].as_str().map(str::to_owned);
            if let Some(id) = row["rdd_id"].as_u64() {
                seen.insert((id, (text("node"), text("node_id"))));
            }
        }
        Ok((expected, seen))
    })?;
    let mut named = BTreeMap::<String, u64>::new();
    for (name, _) in scopes(log)?.into_values() {
        let name = name.unwrap_or_else(|| "(no node)".to_owned());
        *named.entry(name).or_default() += 1;
    }
    agree("RDDs by plan node", || {
        let sum = |rows: &[Value]| -> (u64, u64) {
            let of = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum();
            (of("page_faults"), of("storage_memory_bytes"))
        };
        let parts = sum(&run.rows(daemon, &["rdds"])?);
        let groups = run.rows(daemon, &["rdds", "--by", "node"])?;
        let mut seen = BTreeMap::new();
        for group in &groups {
            if number(group, "rdds")? > 0 {
                seen.insert(text(group, "group")?, number(group, "rdds")?);
            }
        }
        let expected = BTreeSet::from([(named.clone(), parts)]);
        Ok((expected, BTreeSet::from([(seen, sum(&groups))])))
    })?;
    println!("{found} RDDs by plan node: {named:?}");
    Ok(named.into_keys().collect())
}

#[test]
fn jobs_and_sql_executions_are_those_of_spark() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let events = lab.folder().join("events");
    fs::create_dir(&events)?;
    let mut application = Application::python(&lab.paths, LOCAL_CLUSTER, "queries.py", &[])?;
    for (key, value) in [
        ("spark.eventLog.enabled", "true"),
        (
            "spark.eventLog.dir",
            &format!("file://{}", events.display()),
        ),
        ("spark.eventLog.rolling.enabled", "false"),
        ("spark.eventLog.compress", "false"),
        // As YARN says it in cluster mode.
        ("spark.app.attempt.id", ATTEMPT),
        ("spark.yarn.queue", "root.etl"),
        // As Kubernetes has them.
        ("spark.kubernetes.namespace", "analytics"),
        ("spark.executorEnv.SPARK_EXECUTOR_POD_NAME", POD),
    ] {
        application = application.conf(key, value);
    }
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("end")?;

    for listing in ["executors", "stages", "jobs", "queries"] {
        for row in run.rows(&daemon, &[listing])? {
            ensure!(
                row["application_attempt_id"] == ATTEMPT,
                "{listing} are of attempt {ATTEMPT}: {row}"
            );
        }
    }

    let executors = run.rows(&daemon, &["executors"])?;
    let mut own = executors.iter().filter(|row| row["kind"] == "executor");
    ensure!(
        own.all(|row| {
            row["queue"] == "root.etl"
                && row["kubernetes_namespace"] == "analytics"
                && row["kubernetes_pod"] == POD
        }),
        "queue, namespace and pod are the executors': {executors:?}"
    );

    let found = agree("jobs with their tasks", || {
        let queries = run.submitted.rest("sql?details=false&length=100")?;
        let mut query_of = BTreeMap::new();
        for query in objects(&queries)? {
            let id = number(query, "id")?;
            query_of.extend(jobs_of(query)?.into_iter().map(|job| (job, id)));
        }
        let mut expected = BTreeSet::<Work>::new();
        for job in objects(&run.submitted.rest("jobs")?)? {
            let id = number(job, "jobId")?;
            expected.insert((
                id,
                query_of.get(&id).copied().into_iter().collect(),
                number(job, "numCompletedTasks")?,
                number(job, "numFailedTasks")?,
            ));
        }
        let mut seen = BTreeSet::new();
        for row in run.rows(&daemon, &["jobs"])? {
            seen.insert((
                number(&row, "job_id")?,
                row["sql_execution_id"].as_u64().into_iter().collect(),
                number(&row, "tasks_succeeded")?,
                number(&row, "tasks_failed")?,
            ));
        }
        Ok((expected, seen))
    })?;
    ensure!(found >= 6, "{found} jobs are too few");

    let jobs = run.rows(&daemon, &["jobs"])?;
    let rows = run.rows(&daemon, &["queries"])?;
    let (sql, other): (Vec<&Value>, Vec<&Value>) = rows
        .iter()
        .partition(|row| row["sql_execution_id"].is_u64());
    let queries = run.submitted.rest("sql?details=false&length=100")?;
    let mut listed = 0;
    for query in objects(&queries)? {
        let id = number(query, "id")?;
        let own = jobs_of(query)?;
        if own.is_empty() {
            continue;
        }
        listed += 1;
        let row = sql
            .iter()
            .find(|row| row["sql_execution_id"].as_u64() == Some(id));
        let row = row.with_context(|| format!("no SQL execution {id} in {rows:?}"))?;
        ensure!(row["name"] == query["description"], "{row} is not {query}");
        ensure!(
            number(row, "jobs")? == own.len() as u64,
            "{row} and {own:?}"
        );
        let mut tasks = 0;
        for job in &jobs {
            if own.contains(&number(job, "job_id")?) {
                tasks += number(job, "tasks_succeeded")?;
                ensure!(job["sql_execution_id"].as_u64() == Some(id), "{job}");
            }
        }
        ensure!(number(row, "tasks_succeeded")? == tasks, "{row}: {tasks}");
    }
    ensure!(listed == sql.len() && listed == 2, "{listed} of {rows:?}");
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    ensure!(names.contains("shops with their neighbours"), "{names:?}");
    ensure!(
        other.len() == 1 && number(other[0], "jobs")? == 4,
        "{other:?}"
    );
    let described = jobs
        .iter()
        .filter(|job| job["name"].as_str() == Some("numbers without SQL"));
    ensure!(described.count() == 1, "{jobs:?}");

    // RDDs by query have Spark's descriptions and numbers of runs, and add up to the single RDDs.
    let mut runs = BTreeMap::<String, u64>::new();
    for query in objects(&queries)? {
        if !jobs_of(query)?.is_empty() {
            *runs.entry(text(query, "description")?).or_default() += 1;
        }
    }
    let grouped = agree("RDDs by query", || {
        let sum = |rows: &[Value]| -> (u64, u64) {
            let of = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum();
            (of("page_faults"), of("storage_memory_bytes"))
        };
        let parts = sum(&run.rows(&daemon, &["rdds"])?);
        let groups = run.rows(&daemon, &["rdds", "--by", "query"])?;
        let mut seen = BTreeMap::new();
        for group in &groups {
            if number(group, "sql_executions")? > 0 {
                seen.insert(text(group, "group")?, number(group, "sql_executions")?);
            }
        }
        println!("by query: {seen:?}, {parts:?} of {} groups", groups.len());
        let expected = BTreeSet::from([(runs.clone(), parts)]);
        Ok((expected, BTreeSet::from([(seen, sum(&groups))])))
    })?;
    ensure!(grouped == 1 && runs.len() == 2, "{runs:?}");

    let log = events.join(format!("{}.inprogress", run.submitted.application_id()?));
    let nodes = same_nodes(&run, &daemon, &log)?;
    for node in ["Exchange", "WholeStageCodegen (1)", "range", "textFile"] {
        ensure!(nodes.contains(node), "not tested: no {node} in {nodes:?}");
    }

    // The CPU time of a job is that of its stages, and no less than Spark has for them.
    let stages = run.submitted.rest("stages?status=complete")?;
    for job in objects(&run.submitted.rest("jobs")?)? {
        let id = number(job, "jobId")?;
        let mut spark = 0;
        for stage in objects(&stages)? {
            if list(job, "stageIds")?.contains(&stage["stageId"]) {
                spark += number(stage, "executorCpuTime")?
                    + number(stage, "executorDeserializeCpuTime")?;
            }
        }
        let row = jobs
            .iter()
            .find(|row| row["job_id"].as_u64() == Some(id))
            .with_context(|| format!("no job {id}"))?;
        println!("job {id}: {} ns of CPU, Spark has {spark}", row["cpu_ns"]);
        // A stage that several jobs share belongs to the first; Spark lists it as skipped in the others.
        ensure!(number(row, "cpu_ns")? >= spark, "{row}: {spark}");
    }
    let sums = same_metrics(&daemon, &run.submitted)?;
    println!("input, output, shuffles read and written, spilled: {sums:?}");
    ensure!(sums[..8].iter().all(|sum| *sum > 0), "not tested: {sums:?}");
    same_metrics_of_jobs(&daemon, &run.submitted)?;
    println!("{:?}", same_course(&daemon, &run.submitted)?);

    let tasks = run.rows(&daemon, &["tasks"])?;
    let (traced, attempts) = same_trace(&daemon, &run.submitted, &tasks)?;
    println!("job trace: {traced} jobs with {attempts} attempts");
    ensure!(traced == jobs.len() && attempts == tasks.len());
    let result = run.finish(&["end"])?;
    ensure!(result.starts_with("RESULT queries "), "{result}");
    drop(daemon);
    lab.passed()
}
