//! Every answer of smtt-history equals that of Spark's own history server on the same event log, field by field, but for
//! the differences that [`ALLOWED`] names and docs/HISTORY.md explains.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_history::log::Bounds;
use smtt_history::serve::{Settings, run};
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::http::request;
use xtask::process::{free_port, wait_for};
use xtask::spark::Application;

/// Fields that may differ, by the end of their path, with the reason that docs/HISTORY.md gives.
const ALLOWED: [(&str, &str); 5] = [
    ("version.spark", "the version of the server"),
    ("version.smtt", "the version of the server"),
    (
        "sql.rootExecutionId",
        "Spark 4.3 has the field, older servers leave it out",
    ),
    (
        "sql.errorMessage",
        "Spark 4.3 has the field, older servers leave it out",
    ),
    (
        "sql.queryId",
        "Spark 4.3 has the field, older servers leave it out",
    ),
];

/// Answers compared at least; fewer mean that a list was empty.
const COMPARED: usize = 150;

/// One server.
struct Api {
    port: u16,
}

impl Api {
    fn get(&self, path: &str) -> Result<(u16, Value)> {
        let (status, body) = request(self.port, &format!("/api/v1/{path}"), "")?;
        let body = match serde_json::from_str(&body) {
            Ok(json) => json,
            Err(_) => Value::from(body),
        };
        Ok((status, body))
    }
}

/// Differences between two answers, as paths.
fn compare(path: &str, spark: &Value, ours: &Value, found: &mut Vec<String>) {
    match (spark, ours) {
        (Value::Object(spark), Value::Object(ours)) => {
            let keys: BTreeSet<&String> = spark.keys().chain(ours.keys()).collect();
            for key in keys {
                let none = &Value::Null;
                let path = format!("{path}.{key}");
                compare(
                    &path,
                    spark.get(key).unwrap_or(none),
                    ours.get(key).unwrap_or(none),
                    found,
                );
            }
        }
        (Value::Array(spark), Value::Array(ours)) if spark.len() == ours.len() => {
            for (spark, ours) in spark.iter().zip(ours) {
                compare(path, spark, ours, found);
            }
        }
        (Value::Number(spark), Value::Number(ours)) if spark.as_f64() == ours.as_f64() => {}
        _ if spark == ours => {}
        _ => {
            let is_allowed = ALLOWED.iter().any(|(end, _)| path.ends_with(end));
            // Only an absent field may be allowed to differ, or the version.
            if !(is_allowed && (spark.is_null() || path.contains("version"))) {
                let short = |value: &Value| value.to_string().chars().take(200).collect::<String>();
                found.push(format!(
                    "{path}: Spark {}, smtt-history {}",
                    short(spark),
                    short(ours)
                ));
            }
        }
    }
}

/// Lists whose order Spark leaves to a hash table: sorted before they are compared.
fn sort_unordered(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                sort_unordered(value);
                if key == "dataDistribution"
                    && let Some(list) = value.as_array_mut()
                {
                    list.sort_by_key(|it| it["address"].as_str().map(str::to_owned));
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(sort_unordered),
        _ => {}
    }
}

/// All paths of an application that both servers are asked for.
fn paths(spark: &Api, application: &str) -> Result<Vec<String>> {
    let base = format!("applications/{application}");
    let mut all: Vec<String> = [
        "",
        "/environment",
        "/executors",
        "/allexecutors",
        "/storage/rdd",
        "/sql",
        "/sql?details=false&planDescription=false",
        "/sql?offset=1&length=2",
        "/jobs",
        "/jobs?status=failed",
        "/stages",
        "/stages?status=failed&status=skipped",
        "/stages?withSummaries=true",
        "/stages?details=true&taskStatus=failed",
        "/jobs/9999",
        "/storage/rdd/9999",
        "/stages/9999",
        "/stages/0/7",
        "/sql/9999",
    ]
    .map(|path| format!("{base}{path}"))
    .to_vec();
    let ids = |path: &str, field: &str| -> Result<Vec<i64>> {
        let (_, list) = spark.get(&format!("{base}/{path}"))?;
        let list = list
            .as_array()
            .with_context(|| format!("{path} is no list"))?;
        ensure!(
            !list.is_empty(),
            "Spark lists no {path}: the fixture shows too little"
        );
        Ok(list.iter().filter_map(|it| it[field].as_i64()).collect())
    };
    all.extend(
        ids("jobs", "jobId")?
            .iter()
            .map(|id| format!("{base}/jobs/{id}")),
    );
    all.extend(
        ids("storage/rdd", "id")?
            .iter()
            .map(|id| format!("{base}/storage/rdd/{id}")),
    );
    all.extend(
        ids("sql", "id")?
            .iter()
            .map(|id| format!("{base}/sql/{id}")),
    );
    for id in ids("stages", "stageId")? {
        let stage = format!("{base}/stages/{id}");
        all.push(format!("{stage}?details=false"));
        all.push(stage.clone());
        for rest in [
            "",
            "?withSummaries=true&quantiles=0.1,0.5,1.0",
            "/taskSummary",
            "/taskSummary?quantiles=0,0.25,1",
            "/taskList?length=1000",
            "/taskList?offset=1&length=3",
            "/taskList?status=failed&length=100",
        ] {
            all.push(format!("{stage}/0{rest}"));
        }
    }
    all.extend(["version".to_owned(), "applications".to_owned()]);
    Ok(all)
}

/// Longest and shortest first: the run times are in order, and each task is one that the whole list has.
fn sorted_lists(spark: &Api, ours: &Api, application: &str) -> Result<()> {
    let (_, stages) = spark.get(&format!("applications/{application}/stages"))?;
    for stage in stages.as_array().into_iter().flatten() {
        let path = format!(
            "applications/{application}/stages/{}/0/taskList",
            stage["stageId"]
        );
        for order in ["INCREASING_RUNTIME", "DECREASING_RUNTIME", "-runtime"] {
            let times = |api: &Api| -> Result<Vec<Value>> {
                let (_, list) = api.get(&format!("{path}?sortBy={order}&length=5"))?;
                let list = list.as_array().context("no list")?.clone();
                // Tasks with the same time have no order of their own.
                Ok(list
                    .iter()
                    .map(|it| it["taskMetrics"]["executorRunTime"].clone())
                    .collect())
            };
            ensure!(times(spark)? == times(ours)?, "{path} by {order}");
        }
    }
    Ok(())
}

fn same_answers(version: &str) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let logs = lab.folder().join("logs");
    fs::create_dir_all(&logs)?;
    let logs_url = format!("file://{}", logs.display());
    let mut application =
        Application::python(&lab.paths, "local-cluster[2,2,1024]", "history.py", &[])?;
    for (key, value) in [
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", logs_url.as_str()),
        ("spark.eventLog.rolling.enabled", "false"),
        ("spark.eventLog.logBlockUpdates.enabled", "true"),
        ("spark.eventLog.logStageExecutorMetrics", "true"),
        ("spark.sql.shuffle.partitions", "4"),
        ("spark.task.maxFailures", "3"),
    ] {
        application = application.conf(key, value);
    }
    let mut run_through = lab.run_through(&application.quick_executors())?;
    run_through.result(LIMIT)?;
    let log = wait_for("the event log is finished", LIMIT, || {
        let mut entries = fs::read_dir(&logs)?.flatten().map(|entry| entry.path());
        Ok(entries.find(|path| path.extension().is_none_or(|end| end != "inprogress")))
    })?;
    let id = application_of(&log)?;

    let server = lab.spark.history_server(&logs)?;
    let spark = Api { port: server.port };
    wait_for(
        "Spark's history server lists the application",
        LIMIT,
        || Ok((spark.get(&format!("applications/{id}"))?.0 == 200).then_some(())),
    )?;
    let ours = serve(lab.folder(), &logs)?;
    // The first question imports the log.
    let (status, _) = ours.get(&format!("applications/{id}"))?;
    ensure!(status == 200, "the first open answered {status}");

    let mut found = Vec::new();
    let paths = paths(&spark, &id)?;
    for path in &paths {
        let (mut theirs, mut mine) = (spark.get(path)?, ours.get(path)?);
        sort_unordered(&mut theirs.1);
        sort_unordered(&mut mine.1);
        if theirs.0 != mine.0 {
            found.push(format!(
                "{path}: Spark answers {}, smtt-history {}",
                theirs.0, mine.0
            ));
        }
        // Paths name the kind of the answer, not the application.
        let name = path.replace(&format!("applications/{id}/"), "");
        let kind = name.split(['/', '?']).next().unwrap_or_default();
        compare(kind, &theirs.1, &mine.1, &mut found);
    }
    println!(
        "{version}: {} answers compared, {} differences",
        paths.len(),
        found.len()
    );
    ensure!(paths.len() >= COMPARED, "only {} answers", paths.len());
    if !found.is_empty() {
        found.truncate(40);
        bail!("Spark {version}:\n{}", found.join("\n"));
    }
    sorted_lists(&spark, &ours, &id)?;
    shows_everything(&spark, &id)?;
    lab.passed()
}

/// The fixture did what it is for; otherwise equal answers would say little.
fn shows_everything(spark: &Api, id: &str) -> Result<()> {
    let (_, stages) = spark.get(&format!("applications/{id}/stages?details=true"))?;
    let has = |of: &dyn Fn(&Value) -> bool| stages.as_array().is_some_and(|all| all.iter().any(of));
    ensure!(
        has(&|it| it["numFailedTasks"].as_u64() > Some(0)),
        "no failed task"
    );
    ensure!(
        has(&|it| it["numKilledTasks"].as_u64() > Some(0)),
        "no killed task"
    );
    ensure!(has(&|it| it["status"] == "SKIPPED"), "no skipped stage");
    let (_, executors) = spark.get(&format!("applications/{id}/allexecutors"))?;
    let executors = executors.as_array().context("no list of executors")?;
    ensure!(
        executors.iter().any(|it| it["isActive"] == false),
        "no removed executor"
    );
    Ok(())
}

/// Serves a new store; the process of the test ends the thread.
fn serve(folder: &Path, logs: &Path) -> Result<Api> {
    let port = free_port()?;
    let settings = Settings {
        store: folder.join("store"),
        event_logs: Some(logs.to_owned()),
        cache_bytes: 64 << 20,
        bounds: Bounds::default(),
    };
    std::thread::spawn(move || run(settings, ([127, 0, 0, 1], port).into()));
    let api = Api { port };
    wait_for("smtt-history answers", Duration::from_secs(30), || {
        Ok(api.get("version").ok())
    })?;
    Ok(api)
}

fn application_of(log: &Path) -> Result<String> {
    let name = log
        .file_name()
        .and_then(|name| name.to_str())
        .context("a log without a name")?;
    let id = name.split('.').next().unwrap_or_default();
    Ok(id.strip_prefix("eventlog_v2_").unwrap_or(id).to_owned())
}

#[test]
fn answers_equal_those_of_spark_4_0() -> Result<()> {
    same_answers("4.0.5")
}
