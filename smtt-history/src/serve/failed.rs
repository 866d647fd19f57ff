//! What Spark's design for executor metrics asks for beyond its REST API: the executors of a stage in quantiles, and the
//! failed tasks of an application.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::Refusal;
use super::quantiles::executor_distributions;
use super::routes::{Answer, Parameters, known};
use super::stages::quantiles;
use super::tasks::read;
use crate::open::App;
use crate::out::Kind;

/// Tasks of an answer at most.
const MOST: usize = 100_000;

/// `stages/ID/ATTEMPT/executorSummary`: distributions over the stage's executors, and each executor's own sums and peaks.
pub(super) fn executors(app: &App, id: &str, attempt: &str, parameters: &Parameters) -> Answer {
    let text = parameters
        .one("quantiles")
        .unwrap_or("0.0,0.25,0.5,0.75,1.0");
    let quantiles = quantiles(text)?;
    let details = app.one(Kind::StageDetails, &format!("{id}.{attempt}"));
    let details = details.map(serde_json::from_str::<Value>).transpose();
    let details = details.map_err(Refusal::failed)?.unwrap_or_default();
    let executors = details["executorSummary"].as_object();
    let Some(executors) = executors.filter(|executors| !executors.is_empty()) else {
        return Err(Refusal::not_found(format!(
            "No executors reported metrics for {id} / {attempt} yet."
        )));
    };
    let mut summary = executor_distributions(executors, &quantiles);
    summary["executors"] = executors.clone().into();
    Ok(summary.to_string())
}

/// `stages/failedTasks`: task attempts that failed in any stage, in the order of stages, with their metrics. `status`
/// selects others, as `killed`.
pub(super) fn tasks(app: &App, parameters: &Parameters) -> Answer {
    let mut statuses = known(parameters, "status", &super::tasks::STATUSES)?;
    if statuses.is_empty() {
        statuses.push("FAILED");
    }
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let offset = size(parameters.number("offset", 0)?);
    let length = size(parameters.number("length", MOST as i64)?).min(MOST);
    let tasks = app.tasks().map_err(Refusal::failed)?;
    let (mut page, mut start, mut skipped) = (Vec::new(), 0, 0);
    // One row group at a time: an application may have a million tasks.
    for count in tasks.groups() {
        let texts = tasks.texts("status", &[start..start + count]);
        for (row, status) in (start..).zip(texts.map_err(Refusal::failed)?) {
            let status = status.as_deref().unwrap_or_default();
            if page.len() == length || !statuses.contains(&status) {
                continue;
            }
            if skipped < offset {
                skipped += 1;
            } else {
                page.push(row);
            }
        }
        start += count;
    }
    let ranges: Vec<Range<u64>> = page.iter().map(|row| *row..row + 1).collect();
    let numbers = |name| tasks.numbers(name, &ranges).map_err(Refusal::failed);
    let (stages, attempts) = (numbers("stage_id")?, numbers("stage_attempt")?);
    let all = read(app, &tasks, &page).map_err(Refusal::failed)?;
    let all = all.into_iter().zip(stages.into_iter().zip(attempts));
    let all: Vec<Value> = all
        .map(|(task, (stage, attempt))| {
            let mut whole = Map::new();
            whole.insert("stageId".to_owned(), json!(stage));
            whole.insert("attemptId".to_owned(), json!(attempt));
            if let Value::Object(fields) = task {
                whole.extend(fields);
            }
            whole.into()
        })
        .collect();
    Ok(Value::from(all).to_string())
}
