//! Answers that no path of Spark has as one: the failed tasks of all stages and the executors of a stage, which Spark has
//! in pieces; and the list of applications by dates, status and number.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_history::json::date;

use crate::answers::{Absent, Api, Prepare, compare};

/// Quantiles that Spark takes for a stage where none are asked for, and others.
const QUANTILES: [&str; 2] = ["0.0,0.25,0.5,0.75,1.0", "0.1,0.9"];

/// Each attempt of each stage that Spark lists.
pub fn attempts(spark: &Api, application: &str) -> Result<BTreeSet<(i64, i64)>> {
    let (_, stages) = spark.get(&format!("applications/{application}/stages"))?;
    let stages = stages.as_array().context("no list of stages")?;
    let number = |stage: &Value, name: &str| stage[name].as_i64();
    let key = |stage| number(stage, "stageId").zip(number(stage, "attemptId"));
    let all: Option<BTreeSet<_>> = stages.iter().map(key).collect();
    all.context("a stage without ids")
}

fn sames(what: &str, spark: &Value, ours: &Value, absent: Absent) -> Result<()> {
    let mut found = Vec::new();
    compare(what, spark, ours, absent, &mut found);
    found.truncate(10);
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// `stages/failedTasks` has the tasks of Spark's `taskList?status=failed` of all stages; so with the other statuses, and in
/// pages.
pub fn tasks_of_all_stages(
    spark: &Api,
    ours: &Api,
    application: &str,
    absent: Absent,
) -> Result<[usize; 3]> {
    let base = format!("applications/{application}/stages");
    let mut counts = [0; 3];
    for (at, status) in ["failed", "killed", "success"].into_iter().enumerate() {
        let mut theirs = Vec::new();
        for (stage, attempt) in attempts(spark, application)? {
            let path = format!("{base}/{stage}/{attempt}/taskList?status={status}&length=100000");
            let (_, list) = spark.get(&path)?;
            for task in list.as_array().context("no taskList")? {
                let mut task = task.clone();
                task["stageId"] = stage.into();
                task["attemptId"] = attempt.into();
                theirs.push(task);
            }
        }
        let selected = match status {
            "failed" => String::new(),
            other => format!("status={other}"),
        };
        let (code, mine) = ours.get(&format!("{base}/failedTasks?{selected}"))?;
        let mine = mine.as_array().context("no failedTasks")?;
        ensure!(code == 200, "failedTasks answers {code}");
        let stage = |task: &Value| (task["stageId"].as_i64(), task["attemptId"].as_i64());
        ensure!(mine.is_sorted_by_key(stage), "failedTasks: {status}");
        let mut sorted = mine.clone();
        for all in [&mut theirs, &mut sorted] {
            all.sort_by_key(|task| (stage(task), task["taskId"].as_i64()));
        }
        counts[at] = theirs.len();
        sames(
            &format!("failedTasks {status}"),
            &theirs.into(),
            &sorted.into(),
            absent,
        )?;
        let (_, page) = ours.get(&format!("{base}/failedTasks?{selected}&offset=1&length=2"))?;
        let expected: Vec<Value> = mine.iter().skip(1).take(2).cloned().collect();
        ensure!(page == Value::from(expected), "a page of failedTasks");
    }
    Ok(counts)
}

/// `stages/ID/ATTEMPT/executorSummary` has what Spark's answer about the stage has of its executors, each and in quantiles.
pub fn executors_of_stages(
    spark: &Api,
    ours: &Api,
    application: &str,
    absent: Absent,
) -> Result<usize> {
    let mut executors = 0;
    for (stage, attempt) in attempts(spark, application)? {
        let path = format!("applications/{application}/stages/{stage}/{attempt}");
        for quantiles in QUANTILES {
            let asked = format!("withSummaries=true&quantiles={quantiles}");
            let (_, theirs) = spark.get(&format!("{path}?{asked}"))?;
            let default = quantiles == QUANTILES[0];
            let asked = if default {
                String::new()
            } else {
                format!("?quantiles={quantiles}")
            };
            let (code, mut mine) = ours.get(&format!("{path}/executorSummary{asked}"))?;
            let each = theirs["executorSummary"].as_object();
            let Some(each) = each.filter(|each| !each.is_empty()) else {
                ensure!(code == 404, "{path}/executorSummary answers {code}: {mine}");
                continue;
            };
            executors += each.len();
            let what = format!("executorSummary {stage}.{attempt}");
            sames(
                &what,
                &theirs["executorSummary"],
                &mine["executors"],
                absent,
            )?;
            let fields = mine.as_object_mut().context("no executorSummary")?;
            fields.remove("executors");
            sames(
                &what,
                &theirs["executorMetricsDistributions"],
                &mine,
                absent,
            )?;
        }
    }
    Ok(executors)
}

/// The list of applications: just before and after each start and end, by status, with a limit, and with values that are
/// none. The applications are in the store.
pub fn applications(spark: &Api, ours: &Api, prepare: Prepare) -> Result<usize> {
    let (_, all) = spark.get("applications")?;
    let mut queries: Vec<String> = [
        "status=completed",
        "status=running",
        "status=completed&status=running",
        "status=COMPLETED&limit=1",
        "limit=0",
        "limit=1",
        "limit=2",
        "limit=1000",
        "limit=-1",
        "minDate=2010-01-01",
        "maxDate=2010-01-01",
        "minDate=2900-01-01",
        "maxEndDate=2900-01-01",
        "minEndDate=2900-01-01",
        "maxEndDate=2010-01-01&status=running",
    ]
    .map(str::to_owned)
    .to_vec();
    for application in all.as_array().context("no list of applications")? {
        let attempt = &application["attempts"][0];
        for (field, dates) in [
            ("startTimeEpoch", ["minDate", "maxDate"]),
            ("endTimeEpoch", ["minEndDate", "maxEndDate"]),
        ] {
            let time = attempt[field].as_i64().context("no time")?;
            for near in [time - 1, time, time + 1].into_iter().filter(|it| *it > 0) {
                let near = date(near);
                let near = near.as_str().context("no date")?;
                queries.extend(dates.map(|name| format!("{name}={near}")));
                queries.push(format!("{}={near}&{}={near}", dates[0], dates[1]));
            }
        }
    }
    for query in &queries {
        let path = format!("applications?{query}");
        let (mut theirs, mut mine) = (spark.get(&path)?, ours.get(&path)?);
        prepare(&mut theirs.1);
        prepare(&mut mine.1);
        ensure!(
            theirs.0 == mine.0 && mine.0 == 200,
            "{query}: {theirs:?} {mine:?}"
        );
        let listed = |list: &Value| -> Vec<Value> {
            let all = list.as_array().into_iter().flatten();
            all.map(|it| json!([it["id"], it["attempts"][0]["attemptId"]]))
                .collect()
        };
        ensure!(
            listed(&theirs.1) == listed(&mine.1),
            "{query}: Spark {:?}, smtt-history {:?}",
            listed(&theirs.1),
            listed(&mine.1)
        );
        sames("applications", &theirs.1, &mine.1, &[])?;
    }
    for bad in [
        "minDate=yesterday",
        "maxDate=x2026-01-01",
        "minEndDate=never",
        "maxEndDate=,",
        "status=ended",
        "limit=many",
    ] {
        let path = format!("applications?{bad}");
        let (theirs, mine) = (spark.get(&path)?.0, ours.get(&path)?.0);
        ensure!(
            theirs == mine && mine >= 400,
            "{bad}: Spark {theirs}, smtt-history {mine}"
        );
    }
    Ok(queries.len())
}
