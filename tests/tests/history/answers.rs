//! Every answer of smtt-history equals that of Spark's own history server on the same event log, field by field, but for
//! the differences that [`ALLOWED`] names and docs/HISTORY.md explains.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_history::open::App;
use smtt_history::out::Kind;
use smtt_tests::export;
use smtt_tests::history::serve;
use smtt_tests::lab::LIMIT;
use xtask::http::request;
use xtask::paths::DEMO_SPARK;
use xtask::process::wait_for;

use crate::application::Ended;
use crate::older::NOT_MEASURED;
use crate::{lists, losses, outcomes, queries};

/// Fields that may differ, by the end of their path, with the reason that docs/HISTORY.md gives.
const ALLOWED: [(&str, &str); 6] = [
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
    (
        "attempts.exitCode",
        "Spark 4.3 has the field, older servers leave it out",
    ),
];

/// Fields that only Spark has, by the end of their path.
const LEFT_OUT: [(&str, &str); 4] = [
    (".logSourceName", "a path of the machine"),
    (".logSourceFullPath", "a path of the machine"),
    ("sql.nodes.desc", "the API is that of Spark 4.0"),
    ("sql.modifiedConfigs", "the API is that of Spark 4.0"),
];

/// Figures that may be absent in our answers where Spark's are zero, by the end of their path, with the reason.
pub type Absent = &'static [(&'static str, &'static str)];

/// Answers compared at least; fewer mean that a list was empty.
const COMPARED: usize = 150;

/// One server.
pub struct Api {
    pub port: u16,
}

impl Api {
    pub fn get(&self, path: &str) -> Result<(u16, Value)> {
        let (status, body) = request(self.port, &format!("/api/v1/{path}"), "")?;
        let body = match serde_json::from_str(&body) {
            Ok(json) => json,
            Err(_) => Value::from(body),
        };
        Ok((status, body))
    }
}

/// Differences between two answers, as paths. That of the driver in a list of executors has its name.
pub fn compare(path: &str, spark: &Value, ours: &Value, absent: Absent, found: &mut Vec<String>) {
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
                    absent,
                    found,
                );
            }
        }
        (Value::Array(spark), Value::Array(ours)) if spark.len() == ours.len() => {
            let driver = format!("{path}.driver");
            for (spark, ours) in spark.iter().zip(ours) {
                let is_driver = spark["id"] == "driver" && ours["id"] == "driver";
                let path = if is_driver { &driver } else { path };
                compare(path, spark, ours, absent, found);
            }
        }
        (Value::Number(spark), Value::Number(ours)) if spark.as_f64() == ours.as_f64() => {}
        _ if spark == ours => {}
        _ => {
            let is_allowed = ALLOWED.iter().any(|(end, _)| path.ends_with(end));
            let is_left_out = LEFT_OUT.iter().any(|(end, _)| path.ends_with(end))
                || absent.iter().any(|(end, _)| path.ends_with(end)) && is_zero(spark);
            // Only an absent field may be allowed to differ, or the version.
            if !(is_allowed && (spark.is_null() || path.contains("version"))
                || is_left_out && ours.is_null())
            {
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

/// Whether a figure, or each of its quantiles, is zero.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().all(is_zero),
        value => value.as_f64() == Some(0.0),
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
                if key == "accumulatorUpdates"
                    && let Some(list) = value.as_array_mut()
                {
                    list.sort_by_key(|it| it["id"].as_i64());
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
        "/allmiscellaneousprocess",
        "/storage/rdd",
        "/sql",
        "/sql?details=false&planDescription=false",
        "/sql?offset=1&length=2",
        "/sql?length=1000",
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
            .with_context(|| format!("{path} is no list: {list}"))?;
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
        ids("sql?length=1000", "id")?
            .iter()
            .map(|id| format!("{base}/sql/{id}")),
    );
    let attempts = lists::attempts(spark, application)?;
    for (id, attempt) in attempts {
        let stage = format!("{base}/stages/{id}");
        if attempt == 0 {
            all.push(format!("{stage}?details=false"));
            all.push(stage.clone());
        }
        for rest in [
            "",
            "?withSummaries=true&quantiles=0.1,0.5,1.0",
            "/taskSummary",
            "/taskSummary?quantiles=0,0.25,1",
            "/taskList?length=1000",
            "/taskList?offset=1&length=3",
            "/taskList?status=failed&length=100",
        ] {
            all.push(format!("{stage}/{attempt}{rest}"));
        }
    }
    all.extend(["version".to_owned(), "applications".to_owned()]);
    Ok(all)
}

/// Longest and shortest first: the run times are in order, and each task is one that the whole list has.
pub fn sorted_lists(spark: &Api, ours: &Api, application: &str) -> Result<()> {
    for (stage, attempt) in lists::attempts(spark, application)? {
        let path = format!("applications/{application}/stages/{stage}/{attempt}/taskList");
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

/// What is done to both answers before they are compared.
pub type Prepare = fn(&mut Value);

/// Asks both servers for all that an application has, and compares. Returns the number of answers.
pub fn compare_all(spark: &Api, ours: &Api, id: &str, prepare: Prepare) -> Result<usize> {
    let (compared, mut found) = differences(spark, ours, id, &[], prepare)?;
    if !found.is_empty() {
        let differences = found.len();
        found.truncate(40);
        bail!("{id}: {differences} differences\n{}", found.join("\n"));
    }
    Ok(compared)
}

/// As [`compare_all`], with what differs.
pub fn differences(
    spark: &Api,
    ours: &Api,
    id: &str,
    absent: Absent,
    prepare: Prepare,
) -> Result<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let paths = paths(spark, id)?;
    for path in &paths {
        let (mut theirs, mut mine) = (spark.get(path)?, ours.get(path)?);
        if theirs.0 != mine.0 {
            found.push(format!(
                "{path}: Spark answers {}, smtt-history {}",
                theirs.0, mine.0
            ));
        }
        // Paths name the kind of the answer, not the application.
        let name = path.replace(&format!("applications/{id}/"), "");
        let kind = name.split(['/', '?']).next().unwrap_or_default();
        for answer in [&mut theirs.1, &mut mine.1] {
            sort_unordered(answer);
            prepare(answer);
        }
        compare(kind, &theirs.1, &mine.1, absent, &mut found);
    }
    Ok((paths.len(), found))
}

/// Asks both servers for all that the application has, and compares.
pub fn equal_sparks(run: &Ended<'_>) -> Result<()> {
    let (lab, id) = (run.lab, run.id.as_str());
    outcomes::write(&run.logs, &lab.spark.version)?;
    // Its log is of Spark 4.0.
    let losses = (lab.spark.version == DEMO_SPARK).then(|| losses::copy(&lab.paths, &run.logs));
    let losses = losses.transpose()?;
    let server = lab.spark.history_server(&run.logs)?;
    let spark = Api { port: server.port };
    wait_for(
        "Spark's history server lists the application",
        LIMIT,
        || Ok((spark.get(&format!("applications/{id}"))?.0 == 200).then_some(())),
    )?;
    let store = lab.folder().join("opened");
    let ours = Api {
        port: serve(&store, Some(run.logs.clone()))?,
    };
    // The first question imports the log.
    let (status, _) = ours.get(&format!("applications/{id}"))?;
    ensure!(status == 200, "the first open answered {status}");

    if let Some(losses) = &losses {
        losses::open(&spark, &ours, losses)?;
    }
    let outcomes = outcomes::equal_sparks(&spark, &ours);
    let losses = losses.map(|losses| losses::equal_sparks(&spark, &ours, &losses));
    let compared = compare_all(&spark, &ours, id, |_| ())?;
    println!("{}: {compared} answers compared", lab.spark.version);
    outcomes.context("the log by hand")?;
    losses.transpose().context("the log of losses")?;
    ensure!(compared >= COMPARED, "only {compared} answers");
    sorted_lists(&spark, &ours, id)?;
    let tasks = lists::tasks_of_all_stages(&spark, &ours, id, &[])?;
    let executors = lists::executors_of_stages(&spark, &ours, id, &[])?;
    let listed = lists::applications(&spark, &ours, |_| ())?;
    println!(
        "failed, killed and other tasks of all stages: {tasks:?}; executors of stages: {executors}; lists of applications: {listed}"
    );
    ensure!(tasks.iter().all(|count| *count > 2), "{tasks:?}");
    ensure!(executors >= 40, "only {executors} executors of stages");
    let url = format!("http://127.0.0.1:{}/api/v1/applications/{id}", spark.port);
    let checked = export::check(&lab.paths, lab.folder(), &store, id, &url, &run.log)?;
    println!("values of the export that equal Spark's: {checked}");
    if lab.spark.version == DEMO_SPARK {
        queries::sums_of_an_application(lab, &store, spark.port, id)?;
    }
    shows_everything(&spark, id, run.speculative)?;
    chains(&spark, &App::open(&store.join(id))?, id)
}

/// The chain of each stage that ran has the RDDs that Spark's REST API names; their parents are older than they are.
fn chains(spark: &Api, app: &App, id: &str) -> Result<()> {
    let (_, stages) = spark.get(&format!("applications/{id}/stages"))?;
    let mut edges = 0;
    for stage in stages.as_array().context("no stages")? {
        if matches!(stage["status"].as_str(), Some("SKIPPED" | "PENDING")) {
            continue;
        }
        let name = format!("{}.{}", stage["stageId"], stage["attemptId"]);
        let chain = app.one(Kind::StageRdds, &name);
        let chain: Value =
            serde_json::from_str(chain.with_context(|| format!("stage {name} has no chain"))?)?;
        let rdds = chain["rdds"].as_array().context("no RDDs")?;
        let ids = |all: &[Value]| {
            all.iter()
                .filter_map(Value::as_i64)
                .collect::<BTreeSet<i64>>()
        };
        let own: Vec<Value> = rdds.iter().map(|rdd| rdd["id"].clone()).collect();
        let theirs = stage["rddIds"].as_array().context("no rddIds")?;
        ensure!(
            ids(&own) == ids(theirs),
            "stage {name}: {own:?}, Spark {theirs:?}"
        );
        for rdd in rdds {
            let parents = rdd["parentIds"].as_array().context("no parents")?;
            ensure!(
                ids(parents)
                    .iter()
                    .all(|parent| rdd["id"].as_i64() > Some(*parent)),
                "{rdd}"
            );
            ensure!(rdd["callSite"].is_string(), "{rdd}");
            edges += parents.len();
        }
    }
    println!("chains of RDDs: {edges} parents");
    ensure!(edges >= 10, "only {edges} parents");
    Ok(())
}

/// The fixture did what it is for; otherwise equal answers would say little.
fn shows_everything(spark: &Api, id: &str, speculative: bool) -> Result<()> {
    let get =
        |path: &str| Ok::<_, anyhow::Error>(spark.get(&format!("applications/{id}/{path}"))?.1);
    let stages = get("stages?details=true")?;
    let has = |of: &dyn Fn(&Value) -> bool| stages.as_array().is_some_and(|all| all.iter().any(of));
    for count in [
        "numFailedTasks",
        "numKilledTasks",
        "attemptId",
        "inputBytes",
        "outputBytes",
        "shuffleReadBytes",
        "shuffleWriteBytes",
        "diskBytesSpilled",
        "memoryBytesSpilled",
    ] {
        ensure!(has(&|it| it[count].as_u64() > Some(0)), "no {count}");
    }
    ensure!(has(&|it| it["status"] == "SKIPPED"), "no skipped stage");
    for list in ["jobs", "storage/rdd", "sql"] {
        let all = get(list)?;
        ensure!(
            all.as_array().is_some_and(|all| !all.is_empty()),
            "no {list}"
        );
    }
    let speculated = &|it: &Value| it["speculationSummary"]["numTasks"].as_u64() > Some(0);
    ensure!(has(speculated) || !speculative, "no speculative attempt");
    let executors = get("allexecutors")?;
    let executors = executors.as_array().context("no list of executors")?;
    ensure!(
        executors.iter().any(|it| it["isActive"] == false),
        "no removed executor"
    );
    let of_group = |list: &Value, field: &str, text: &str| {
        let mut all = list.as_array().into_iter().flatten();
        all.any(|it| {
            it["status"] == "FAILED" && it[field].as_str().is_some_and(|it| it.contains(text))
        })
    };
    let cancelled = of_group(&get("jobs")?, "jobGroup", "group of a job");
    ensure!(cancelled, "no cancelled job");
    let queries = get("sql?length=1000")?;
    let cancelled = of_group(&queries, "description", "group of a query");
    ensure!(cancelled, "no cancelled query");
    let streamed = queries.as_array().into_iter().flatten();
    let mut streamed = streamed.filter_map(|it| it["description"].as_str());
    ensure!(
        streamed.any(|it| it.contains("batch = 0")),
        "no streaming query"
    );
    Ok(())
}

#[test]
fn the_manual_lists_every_difference() -> Result<()> {
    let paths = xtask::paths::Paths::find()?;
    let text = fs::read_to_string(paths.root.join("docs/HISTORY.md"))?;
    let (_, text) = text
        .split_once("| difference | reason |")
        .context("no list")?;
    let (list, _) = text.split_once("\n\n").context("the list has no end")?;
    for (field, _) in ALLOWED
        .into_iter()
        .chain(LEFT_OUT)
        .chain(NOT_MEASURED.iter().copied())
        .chain(outcomes::COUNTED_AGAIN)
    {
        let name = field.rsplit('.').next().unwrap_or_default();
        ensure!(
            list.contains(&format!("`{name}`")),
            "{field} is not in the list"
        );
    }
    Ok(())
}
