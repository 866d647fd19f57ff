//! Event logs of Spark 3.0 to 3.4: every answer about them equals that of a history server on the same log.
//!
//! The logs in `tests/corpus/event_logs` are those that the real versions wrote (`tests/fixture/java`, `EventLogs`), in the
//! forms that Spark has; here Spark 3.5's history server reads them. `cargo xtask test versions` runs the applications
//! again on the real versions, and compares with the history server of each; with `SMTT_BLESS=1` the logs then replace those
//! of the corpus, without the names of the machine ([`crate::neutral`]).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_tests::history::serve;
use smtt_tests::lab::{LIMIT, SparkLab};
use smtt_tests::skip::skip;
use xtask::paths::{COMPILE_SPARK, Jdk, Paths};
use xtask::process::wait_for;
use xtask::setup::{java, setup};
use xtask::spark::{Application, JAVA_OPTIONS, Spark};

use crate::answers::{Absent, Api, differences, sorted_lists};
use crate::lists;
use crate::live::names;
use crate::neutral::rewrite;

/// Forms of the event logs of a version: the first is the long one.
const FORMS: [&str; 5] = ["zstd", "none", "lz4", "snappy", "rolling"];
/// The form of the short log of each version in the corpus, as a part of its name.
const SHORT: [(&str, &str); 5] = [
    ("3.0.", ".lz4"),
    ("3.1.", ".snappy"),
    ("3.2.", "eventlog_v2_"),
    ("3.3.", ".lz4"),
    ("3.4.", ".snappy"),
];
/// Figures that the servers of older versions have wrong, with the first version that has them right. Those of the driver's
/// tasks end too early, active stages are negative, quantiles begin below zero, and several statuses are not selected.
const MENDED: [(&str, &str); 6] = [
    ("executors.driver.totalDuration", "3.3"),
    ("allexecutors.driver.totalDuration", "3.3"),
    ("jobs.numActiveStages", "3.4"),
    ("stages.shuffleReadMetrics.readBytes", "3.2"),
    ("stages.shuffleReadMetrics.totalBlocksFetched", "3.2"),
    ("stages", "3.2"),
];
/// The first version whose logs have what executors' collections took.
const COLLECTIONS: &str = "3.3";
/// Figures of older logs that are zero in Spark's answers and absent in ours.
pub const NOT_MEASURED: Absent = &[("TotalGCTime", "Spark has measured it since 3.3")];
/// The driver's collections in older logs, which Spark takes from that figure. Ours are those of its tasks.
const DRIVER: [&str; 2] = [
    "executors.driver.totalGCTime: Spark 0,",
    "allexecutors.driver.totalGCTime: Spark 0,",
];
/// Answers about a long log and about a short one, at least.
const COMPARED: [usize; 2] = [200, 40];

/// The id of the application of a log, from its name.
fn id_of(name: &str) -> &str {
    let name = name.strip_prefix("eventlog_v2_").unwrap_or(name);
    name.split('.').next().unwrap_or(name)
}

fn corpus(paths: &Paths) -> PathBuf {
    paths.root.join("tests/corpus/event_logs")
}

/// Copies a log, which is a file or a folder of files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::copy(from, to)?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for name in names(from).iter().filter(|it| !it.starts_with('.')) {
        copy(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

/// Compares all answers about all logs of a folder with those of a history server. `own` is the version that wrote them, if
/// the server is of that version. Returns how many logs have an executor that was removed while a stage excluded it.
fn compare(lab: &SparkLab, spark: &Spark, logs: &Path, own: Option<&str>) -> Result<usize> {
    let options = own.map_or(String::new(), |_| JAVA_OPTIONS.join(" "));
    let server = spark.history_server_with(logs, &options)?;
    let spark = Api { port: server.port };
    let ours = Api {
        port: serve(&lab.folder().join("opened"), Some(logs.to_owned()))?,
    };
    for name in names(logs) {
        let id = id_of(&name);
        wait_for("Spark's history server lists the log", LIMIT, || {
            Ok((spark.get(&format!("applications/{id}"))?.0 == 200).then_some(()))
        })
        .with_context(|| name.clone())?;
        // Only what was opened is listed.
        ensure!(ours.get(&format!("applications/{id}"))?.0 == 200, "{name}");
    }
    let (mut errors, mut excluded) = (Vec::new(), 0);
    for name in names(logs) {
        let id = id_of(&name);
        let compared = match own {
            Some(version) => of_own(&spark, &ours, id, version),
            None => of_log(&spark, &ours, id),
        };
        match compared {
            Ok((said, is_excluded)) => {
                excluded += usize::from(is_excluded);
                println!("{name}: {said}");
            }
            Err(error) => errors.push(format!("{name}: {error:#}")),
        }
    }
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    let listed = lists::applications(&spark, &ours, |_| ())?;
    println!("{listed} lists of applications");
    Ok(excluded)
}

/// Compares with the server of the version that wrote the log, which leaves out fields that came later.
fn of_own(spark: &Api, ours: &Api, id: &str, version: &str) -> Result<(String, bool)> {
    let (compared, mut found) = differences(spark, ours, id, &[], without_texts)?;
    let is_old = |path: &str| {
        let mut mended = MENDED.iter().filter(|(field, _)| *field == path);
        mended.any(|(_, since)| version < *since)
    };
    let all = found.len();
    found.retain(|it| {
        let (path, values) = it.split_once(": Spark ").unwrap_or((it, ""));
        !values.starts_with("null,") && !is_old(path)
    });
    let left = found.len();
    found.truncate(20);
    ensure!(left == 0, "{left} differences\n{}", found.join("\n"));
    let is_excluded = is_enough(spark, id, compared)?;
    let said = format!("{compared} answers, {all} values that only newer servers have");
    Ok((said, is_excluded))
}

/// Answers of errors are texts, in other words in each version.
fn without_texts(answer: &mut Value) {
    if answer.is_string() {
        *answer = Value::Null;
    }
}

fn of_log(spark: &Api, ours: &Api, id: &str) -> Result<(String, bool)> {
    let (_, application) = spark.get(&format!("applications/{id}"))?;
    let version = application["attempts"][0]["appSparkVersion"].as_str();
    let has_collections = version.context("no version")? >= COLLECTIONS;
    let absent = if has_collections { &[] } else { NOT_MEASURED };
    let (compared, mut found) = differences(spark, ours, id, absent, |_| ())?;
    found.retain(|it| has_collections || !DRIVER.iter().any(|start| it.starts_with(start)));
    let left = found.len();
    found.truncate(20);
    ensure!(left == 0, "{left} differences\n{}", found.join("\n"));
    sorted_lists(spark, ours, id)?;
    let tasks = lists::tasks_of_all_stages(spark, ours, id, absent)?;
    let executors = lists::executors_of_stages(spark, ours, id, absent)?;
    if is_long(id) {
        ensure!(tasks.iter().all(|count| *count > 0), "{tasks:?}");
    }
    let is_excluded = is_enough(spark, id, compared)?;
    let said = format!(
        "{compared} answers; failed, killed and other tasks {tasks:?}; {executors} executors of stages"
    );
    Ok((said, is_excluded))
}

fn is_long(id: &str) -> bool {
    id.starts_with("app-")
}

/// Enough answers were compared, and a long log has what it is for. Returns whether an executor was removed while a stage
/// excluded it.
fn is_enough(spark: &Api, id: &str, compared: usize) -> Result<bool> {
    let is_long = is_long(id);
    let least = COMPARED[usize::from(!is_long)];
    ensure!(compared >= least, "only {compared} answers");
    if is_long {
        return shows_everything(spark, id);
    }
    Ok(false)
}

/// The log has what it is for; otherwise equal answers would say little. Returns whether an executor was removed while a stage
/// excluded it, which is a matter of seconds.
fn shows_everything(spark: &Api, id: &str) -> Result<bool> {
    let list = |path: &str| -> Result<Vec<Value>> {
        let (status, list) = spark.get(&format!("applications/{id}/{path}"))?;
        ensure!(status == 200, "{path}: {status}");
        Ok(list.as_array().context("no list")?.clone())
    };
    let (stages, executors) = (list("stages")?, list("allexecutors")?);
    let any = |all: &[Value], what: &dyn Fn(&Value) -> bool| all.iter().any(what);
    ensure!(
        any(&stages, &|it| it["status"] == "FAILED"),
        "no failed stage"
    );
    ensure!(
        any(&stages, &|it| it["status"] == "SKIPPED"),
        "no skipped stage"
    );
    for count in [
        "inputBytes",
        "outputBytes",
        "shuffleReadBytes",
        "shuffleWriteBytes",
    ] {
        ensure!(
            any(&stages, &|it| it[count].as_u64() > Some(0)),
            "no {count}"
        );
    }
    let excluded = |it: &Value| it["isActive"] == false && it["excludedInStages"] != json!([]);
    ensure!(
        any(&executors, &|it| it["isActive"] == false),
        "no removed executor"
    );
    ensure!(
        any(&list("jobs")?, &|it| it["jobGroup"] == "group"),
        "no group"
    );
    ensure!(!list("storage/rdd")?.is_empty(), "no RDD");
    let queries = list("sql?length=1000")?;
    ensure!(
        any(&queries, &|it| it["status"] == "FAILED"),
        "no failed query"
    );
    let plan = |it: &Value| {
        it["planDescription"]
            .as_str()
            .unwrap_or_default()
            .contains("AdaptiveSparkPlan")
    };
    ensure!(
        any(&queries, &plan) && !queries.iter().all(plan),
        "adaptive plans"
    );
    Ok(any(&executors, &excluded))
}

#[test]
fn logs_of_spark_3_0_to_3_4_are_answered_as_by_sparks_own_server() -> Result<()> {
    let lab = SparkLab::new(COMPILE_SPARK)?;
    let (corpus, logs) = (corpus(&lab.paths), lab.folder().join("logs"));
    fs::create_dir_all(&logs)?;
    for version in names(&corpus) {
        for name in names(&corpus.join(&version)) {
            copy(&corpus.join(&version).join(&name), &logs.join(&name))?;
        }
    }
    let excluded = compare(&lab, &lab.spark, &logs, None)?;
    ensure!(
        excluded > 0,
        "no executor was removed while a stage excluded it"
    );
    lab.passed()
}

/// The applications again, with `cargo xtask test versions`.
#[test]
fn older_versions_are_answered_as_by_their_own_servers() -> Result<()> {
    let Ok(versions) = std::env::var("SMTT_OLDER_SPARKS") else {
        return skip("other_versions", "`cargo xtask test versions` runs them");
    };
    let mut errors = Vec::new();
    for version in versions.split(',') {
        let paths = Paths::find()?;
        setup(&paths, &[version])?;
        // Scala 2.12.10 of the first two does not read its own closures on newer versions of Java.
        let jdk = if ["3.0.", "3.1."].iter().any(|it| version.starts_with(it)) {
            java::release_11(&paths)?
        } else {
            Jdk::main()?
        };
        let lab = SparkLab::on(version, &jdk)?;
        let logs = run(&lab)?;
        if std::env::var_os("SMTT_BLESS").is_some() {
            bless(&lab, &logs)?;
        }
        // The server of Spark 3.0 has no answers about SQL.
        let compared = if version.starts_with("3.0.") {
            let scratch = lab.folder().join("newer");
            let newer = Spark::new(&paths, COMPILE_SPARK, &Jdk::main()?, &scratch)?;
            compare(&lab, &newer, &logs, None)
        } else {
            compare(&lab, &lab.spark, &logs, Some(version))
        };
        match compared {
            Ok(_) => lab.passed()?,
            Err(error) => errors.push(format!("Spark {version}: {error:#}")),
        }
    }
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

/// A folder for logs, and paths of applications by which their logs have those of the test's folder, and no others of the
/// machine but those of its JDK: the jar is copied there.
pub fn of_the_test_alone(lab: &SparkLab) -> Result<(PathBuf, Paths)> {
    let logs = lab.folder().join("logs");
    fs::create_dir_all(&logs)?;
    let own = Paths {
        target: lab.folder().to_owned(),
        ..lab.paths.clone()
    };
    fs::create_dir_all(own.target.join("fixture"))?;
    fs::copy(lab.paths.fixture_jar(), own.fixture_jar())?;
    Ok((logs, own))
}

/// Runs the applications; returns the folder of their logs.
fn run(lab: &SparkLab) -> Result<PathBuf> {
    let (logs, own) = of_the_test_alone(lab)?;
    let files = lab.folder().join("files").display().to_string();
    let arguments: Vec<&str> = std::iter::once(files.as_str()).chain(FORMS).collect();
    let mut application =
        Application::java(&own, "local-cluster[2,2,1024]", "EventLogs", &arguments)?
            .conf("spark.executor.extraJavaOptions", &JAVA_OPTIONS.join(" "));
    for option in JAVA_OPTIONS {
        application = application.java_option(option);
    }
    // Since Spark 3.1 the settings have another name.
    let exclude = if lab.spark.version.starts_with("3.0.") {
        "blacklist"
    } else {
        "excludeOnFailure"
    };
    for (key, value) in [
        ("enabled", "true"),
        ("stage.maxFailedTasksPerExecutor", "1"),
        ("stage.maxFailedExecutorsPerNode", "9"),
    ] {
        application = application.conf(&format!("spark.{exclude}.{key}"), value);
    }
    for (key, value) in [
        ("spark.eventLog.enabled", "true"),
        ("spark.eventLog.dir", &format!("file://{}", logs.display())),
        ("spark.eventLog.logBlockUpdates.enabled", "true"),
        ("spark.eventLog.logStageExecutorMetrics", "true"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.task.maxFailures", "3"),
    ] {
        application = application.conf(key, value);
    }
    let mut running = lab.run_through(&application)?;
    running.result(LIMIT)?;
    let all = names(&logs);
    let is_whole = |name: &String| !name.ends_with(".inprogress") && !name.starts_with('.');
    ensure!(
        all.len() == FORMS.len() && all.iter().all(is_whole),
        "{all:?}"
    );
    Ok(logs)
}

/// Replaces the logs of the version in the corpus by the long one and one of the short ones, without this machine.
fn bless(lab: &SparkLab, logs: &Path) -> Result<()> {
    let folder = corpus(&lab.paths).join(&lab.spark.version);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let form = SHORT
        .iter()
        .find(|(version, _)| lab.spark.version.starts_with(version));
    let (_, form) = form.context("no form of a short log")?;
    for name in names(logs) {
        if is_long(&name) || name.contains(form) {
            rewrite(&logs.join(&name), &folder.join(&name))?;
        }
    }
    Ok(())
}
