//! What bounds the end of a job: the chain of stages that ended last before one another, and in each stage the task that
//! ended last, with what it waited for before its launch.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::model::{Model, Task};
use crate::open::App;
use crate::out::Kind;

/// Milliseconds in which a driver launches the first tasks of a stage: no wait.
const AT_ONCE: i64 = 100;

/// Parents of stage attempts.
pub type Parents = HashMap<String, Vec<i32>>;

/// What a task waited for before its launch, from the first launch of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It was launched with the first tasks of its stage.
    Nothing,
    /// All cores of its executor were busy until this task ended: an index in [`Model::tasks`].
    Core(u32),
    /// A core of its executor was free, or the executor was new: the driver waited, such as for locality.
    Driver,
}

/// The task that ended last in a stage attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// First launch in the stage, in milliseconds since the model's start.
    pub begin: i64,
    /// End of the task, in milliseconds since the model's start.
    pub end: i64,
    /// Index in [`Model::tasks`].
    pub task: u32,
    /// What it waited for.
    pub waited: Waited,
}

impl Model {
    /// Whether the task is the last one of a stage on the critical path of a job.
    #[must_use]
    pub fn is_critical(&self, task: &Task) -> bool {
        let stage = &self.stages[task.stage as usize];
        let is_last = |last: &Last| self.tasks[last.task as usize].id == task.id;
        stage.is_critical && stage.last.as_ref().is_some_and(is_last)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    parent_stage_ids: Vec<i32>,
}

/// Parents of the stage attempts of an application, as far as its log has them.
#[must_use]
pub fn parents(app: &App) -> Parents {
    let all = app.all(Kind::StageRdds).iter();
    all.filter_map(|(id, text)| {
        let document: Document = serde_json::from_str(text).ok()?;
        Some((id.clone(), document.parent_stage_ids))
    })
    .collect()
}

/// Finds the last task of each stage and the critical path of each job.
pub fn mark(model: &mut Model, parents: &Parents) {
    let mut begins: Vec<i64> = vec![i64::MAX; model.stages.len()];
    let mut lasts: Vec<Option<u32>> = vec![None; model.stages.len()];
    for (at, task) in (0_u32..).zip(&model.tasks) {
        let stage = task.stage as usize;
        begins[stage] = begins[stage].min(task.launch);
        let key = |at: u32| {
            let task = &model.tasks[at as usize];
            (task.end(), std::cmp::Reverse(task.id))
        };
        if task.outcome == 0 && lasts[stage].is_none_or(|known| key(at) > key(known)) {
            lasts[stage] = Some(at);
        }
    }
    for (stage, (begin, task)) in begins.into_iter().zip(lasts).enumerate() {
        model.stages[stage].last = task.map(|task| Last {
            begin,
            end: model.tasks[task as usize].end(),
            task,
            waited: waited(model, begin, task),
        });
    }
    let mut attempts: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    for (at, stage) in (0_u32..).zip(&model.stages) {
        attempts.entry(stage.key.0).or_default().push(at);
    }
    let paths: Vec<Vec<u32>> = model
        .jobs
        .iter()
        .map(|job| path(model, parents, &attempts, (job.start, &job.stages)))
        .collect();
    for (job, path) in model.jobs.iter_mut().zip(paths) {
        for stage in &path {
            model.stages[*stage as usize].is_critical = true;
        }
        job.path = path;
    }
}

/// What a task of a stage waited for.
fn waited(model: &Model, begin: i64, task: u32) -> Waited {
    let own = &model.tasks[task as usize];
    let lanes = model.executor(own).lanes.clone();
    let lanes = || &model.lanes[lanes.start as usize..lanes.end as usize];
    // The core that became free last before the launch.
    let before = lanes().iter().filter_map(|lane| {
        let all = model.of_lane(lane);
        let ended = all.partition_point(|it| it.end() <= own.launch && it.id != own.id);
        let at = lane.tasks.start + u32::try_from(ended.checked_sub(1)?).ok()?;
        Some((model.tasks[at as usize].end(), at))
    });
    let freed = before.max().filter(|(end, _)| *end > begin);
    let is_busy = |time: i64| {
        lanes().iter().all(|lane| {
            let all = model.of_lane(lane);
            let next = all.partition_point(|it| it.end() < time);
            all.get(next).is_some_and(|it| it.launch < time)
        })
    };
    match freed {
        Some((end, at)) if is_busy(end) => Waited::Core(at),
        _ if own.launch - begin < AT_ONCE => Waited::Nothing,
        _ => Waited::Driver,
    }
}

/// The stages that bound the end of a job that began at `start`, the last one last.
fn path(
    model: &Model,
    parents: &Parents,
    attempts: &BTreeMap<i32, Vec<u32>>,
    (start, stages): (i64, &[i32]),
) -> Vec<u32> {
    // Of stages, the attempt that ended last until then. What ended before the job began bounds nothing of it.
    let latest = |stages: &[i32], until: i64| {
        let all = stages.iter().filter_map(|id| attempts.get(id)).flatten();
        let ended = all.filter_map(|at| {
            let end = model.stages[*at as usize].last?.end;
            (end > start && end <= until).then_some((end, *at))
        });
        ended.max()
    };
    let mut path = Vec::new();
    let mut next = latest(stages, i64::MAX);
    while let Some((end, at)) = next {
        path.push(at);
        let (id, attempt) = model.stages[at as usize].key;
        let all = parents.get(&format!("{id}.{attempt}"));
        // Parents are made before their children. A damaged log could have a cycle.
        let older = all.into_iter().flatten().copied();
        let older: Vec<i32> = older.filter(|parent| *parent < id).collect();
        next = latest(&older, end);
    }
    path.reverse();
    path
}
