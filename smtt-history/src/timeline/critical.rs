//! What bounds the end of a job: the chain of stages that ended last before one another, and in each stage the task that
//! ended last, with what it waited for before its launch.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::model::{Model, Task};
use crate::open::App;
use crate::out::Kind;

/// Stages of all jobs' paths together at most. A damaged log can have many jobs on one long chain of stages.
const STEPS: usize = 1_000_000;
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
    mark_within(model, parents, STEPS);
}

fn mark_within(model: &mut Model, parents: &Parents, steps: usize) {
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
    let lasts = (0_u32..).zip(lasts);
    let lasts = lasts.filter_map(|(stage, task)| {
        let lane = model.tasks[task? as usize].lane;
        Some((model.lanes[lane as usize].executor, stage, task?))
    });
    let mut lasts: Vec<(u32, u32, u32)> = lasts.collect();
    lasts.sort_unstable();
    for of_executor in lasts.chunk_by(|one, other| one.0 == other.0) {
        let executor = Cores::of(model, of_executor[0].0);
        for &(_, stage, task) in of_executor {
            let begin = begins[stage as usize];
            let own = &model.tasks[task as usize];
            let last = Last {
                begin,
                end: own.end(),
                task,
                waited: executor.waited(begin, own.launch),
            };
            model.stages[stage as usize].last = Some(last);
        }
    }
    let mut chains = Chains::of(model, parents, steps);
    let jobs = model.jobs.iter();
    let paths: Vec<Option<Vec<u32>>> = jobs
        .map(|job| chains.path(job.start, &job.stages))
        .collect();
    for (job, path) in model.jobs.iter_mut().zip(paths) {
        for stage in path.iter().flatten() {
            model.stages[*stage as usize].is_critical = true;
        }
        model.paths_left_out += usize::from(path.is_none());
        job.path = path;
    }
}

/// When the cores of an executor became busy and free. Tasks of less than a millisecond take no core.
struct Cores {
    count: usize,
    /// Launches of its tasks, sorted.
    launches: Vec<i64>,
    /// Ends of its tasks with their indexes in [`Model::tasks`], sorted.
    ends: Vec<(i64, u32)>,
}

impl Cores {
    fn of(model: &Model, executor: u32) -> Self {
        let lanes = model.executors[executor as usize].lanes.clone();
        let lanes = &model.lanes[lanes.start as usize..lanes.end as usize];
        let (mut launches, mut ends) = (Vec::new(), Vec::new());
        for at in lanes.iter().flat_map(|lane| lane.tasks.clone()) {
            let task = &model.tasks[at as usize];
            if task.duration > 0 {
                launches.push(task.launch);
                ends.push((task.end(), at));
            }
        }
        launches.sort_unstable();
        ends.sort_unstable();
        Self {
            count: lanes.len(),
            launches,
            ends,
        }
    }

    /// Whether a task ran on each core until this time.
    fn are_busy(&self, time: i64) -> bool {
        let begun = self.launches.partition_point(|launch| *launch < time);
        let ended = self.ends.partition_point(|(end, _)| *end < time);
        begun - ended == self.count
    }

    /// What a task waited for that was launched then, in a stage that began at `begin`.
    fn waited(&self, begin: i64, launch: i64) -> Waited {
        // The core that became free last before the launch.
        let ended = self.ends.partition_point(|(end, _)| *end <= launch);
        let freed = ended.checked_sub(1).map(|last| self.ends[last]);
        match freed.filter(|(end, _)| *end > begin) {
            Some((end, at)) if self.are_busy(end) => Waited::Core(at),
            _ if launch - begin < AT_ONCE => Waited::Nothing,
            _ => Waited::Driver,
        }
    }
}

/// Chains of stages that ended last before one another. What is before a stage does not depend on the job.
struct Chains {
    /// Ends of the attempts of each stage with their indexes in [`Model::stages`], sorted.
    attempts: BTreeMap<i32, Vec<(i64, u32)>>,
    /// For each stage attempt, the end and the index of the one that bounded its begin.
    before: Vec<Option<(i64, u32)>>,
    /// Stages that paths may still have.
    left: usize,
}

impl Chains {
    fn of(model: &Model, parents: &Parents, left: usize) -> Self {
        let mut chains = Self {
            attempts: BTreeMap::new(),
            before: Vec::new(),
            left,
        };
        for (at, stage) in (0_u32..).zip(&model.stages) {
            let ended = stage.last.map(|last| (last.end, at));
            let known = chains.attempts.entry(stage.key.0).or_default();
            known.extend(ended);
        }
        for ends in chains.attempts.values_mut() {
            ends.sort_unstable();
        }
        let before = model.stages.iter().map(|stage| {
            let (id, attempt) = stage.key;
            let all = parents.get(&format!("{id}.{attempt}"))?.iter();
            // Parents are made before their children. A damaged log could have a cycle.
            let older = all.filter(|parent| **parent < id);
            chains.latest(older, stage.last?.end)
        });
        chains.before = before.collect();
        chains
    }

    /// Of stages, the attempt that ended last until then.
    fn latest<'a>(&self, stages: impl Iterator<Item = &'a i32>, until: i64) -> Option<(i64, u32)> {
        let of_stage = |id: &i32| {
            let ends = self.attempts.get(id)?;
            let ended = ends.partition_point(|(end, _)| *end <= until);
            Some(ends[ended.checked_sub(1)?])
        };
        stages.filter_map(of_stage).max()
    }

    /// The stages that bound the end of a job that began at `start`, the last one last; `None` where they have no room.
    fn path(&mut self, start: i64, stages: &[i32]) -> Option<Vec<u32>> {
        let mut path = Vec::new();
        let mut next = self.latest(stages.iter(), i64::MAX);
        // What ended before the job began bounds nothing of it.
        while let Some((_, at)) = next.filter(|(end, _)| *end > start) {
            // The steps of a path without room count as well: they are work.
            self.left = self.left.checked_sub(1)?;
            path.push(at);
            next = self.before[at as usize];
        }
        path.reverse();
        Some(path)
    }
}
