//! One task attempt: what the REST API says of it, its parts, and what it is in its stage.

use serde_json::{Value, json};
use smtt_store::read::ParquetError;

use super::model::{Columns, Model, Task};
use super::parts::{ALL, divide};
use crate::open::App;
use crate::serve::tasks::read;

/// A task attempt of a model; task ids are unique within an application.
#[must_use]
pub fn find(model: &Model, id: i64) -> Option<&Task> {
    model.tasks.iter().find(|task| task.id == id)
}

/// The task as the REST API shows it, with its stage, its parts in microseconds and its stage's median.
///
/// # Errors
/// When the table cannot be read.
pub fn describe(app: &App, model: &Model, task: &Task) -> Result<Value, ParquetError> {
    let table = app.tasks()?;
    let rows = [u64::from(task.row)..u64::from(task.row) + 1];
    let times = Columns::read(&table, &rows)?;
    let launch = model.start.saturating_add(task.launch);
    let is_measured = task.parts.iter().any(|part| *part > 0);
    let parts: Vec<Value> = if is_measured {
        let exact = divide(&times.microseconds(0, launch, u64::from(task.duration)));
        let all = ALL.iter().zip(exact);
        all.map(|(part, us)| {
            json!({"key": part.key, "title": part.title, "source": part.source, "microseconds": us})
        })
        .collect()
    } else {
        Vec::new()
    };
    let stage = &model.stages[task.stage as usize];
    let lane = &model.executors[model.lanes[task.lane as usize].executor as usize];
    Ok(json!({
        "task": read(app, &table, &[u64::from(task.row)])?.pop(),
        "stageId": stage.key.0,
        "stageAttempt": stage.key.1,
        "stageName": stage.name,
        "stageMedianMilliseconds": stage.median,
        "isStraggler": task.straggler,
        "isCritical": model.is_critical(task),
        "core": task.lane - lane.lanes.start,
        "start": task.launch,
        "milliseconds": task.duration,
        "parts": parts,
    }))
}
