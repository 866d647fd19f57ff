//! All of a time line, for a page without a server: its script makes the answers of [`super::detail`] from it.

use serde::Serialize;

use super::detail::{Critical, Lane, marks};
use super::model::{JOB_ROWS, LOCALITIES, Model, OUTCOMES, Task};
use super::parts::{self, PARTS};

/// Tasks at most: of more the longest ones.
pub const TASKS: usize = 100_000;
/// Jobs at most: of more the first ones.
pub const JOBS: usize = 10_000;

/// A stage attempt.
#[derive(Debug, Serialize)]
pub struct Stage<'a> {
    id: i32,
    attempt: i32,
    name: &'a str,
    median: Option<u32>,
}

/// A job with its critical path.
#[derive(Debug, Serialize)]
pub struct Job<'a> {
    id: i64,
    start: i64,
    end: i64,
    status: &'a str,
    name: &'a str,
    row: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Vec<Critical>>,
}

/// Tasks by lane and launch, as columns.
#[derive(Debug, Default, Serialize)]
pub struct Tasks {
    lane: Vec<u32>,
    id: Vec<i64>,
    start: Vec<i64>,
    ms: Vec<u32>,
    stage: Vec<u32>,
    outcome: Vec<u8>,
    locality: Vec<u8>,
    marks: Vec<u8>,
    /// Milliseconds of each part.
    parts: [Vec<u32>; PARTS],
}

/// The whole time line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Whole<'a> {
    start: i64,
    end: i64,
    /// Tasks that it does not have.
    pub left_out: u64,
    /// Jobs that it does not have.
    pub jobs_left_out: usize,
    paths_left_out: usize,
    lanes: Vec<Lane<'a>>,
    stages: Vec<Stage<'a>>,
    outcomes: [&'static str; OUTCOMES.len()],
    localities: [&'static str; LOCALITIES.len()],
    parts: [&'static str; PARTS + 1],
    tasks: Tasks,
    jobs: Vec<Job<'a>>,
}

/// The length from which on a task has a place among so many.
fn shortest(model: &Model, most: usize) -> u32 {
    let mut all: Vec<u32> = model.tasks.iter().map(|task| task.duration).collect();
    if all.len() <= most {
        return 0;
    }
    let at = all.len() - most;
    *all.select_nth_unstable(at).1
}

fn job<'a>(model: &'a Model, job: &'a super::model::Job) -> Job<'a> {
    let stage = |at: &u32| {
        let stage = &model.stages[*at as usize];
        let last = stage.last?;
        Some(Critical {
            id: stage.key.0,
            attempt: stage.key.1,
            from: last.begin,
            to: last.end,
        })
    };
    let path = job.path.as_ref();
    Job {
        id: job.id,
        start: job.start,
        end: job.end,
        status: &job.status,
        name: &job.name,
        row: job.row,
        path: path.map(|all| all.iter().filter_map(stage).collect()),
    }
}

impl<'a> Whole<'a> {
    /// Of a model, with so many tasks at most.
    #[must_use]
    pub fn of(model: &'a Model, most: usize) -> Self {
        let least = shortest(model, most);
        let mut tasks = Tasks::default();
        let mut left_out = model.left_out;
        for task in &model.tasks {
            if task.duration < least || tasks.id.len() >= most {
                left_out += 1;
                continue;
            }
            tasks.add(model, task);
        }
        let mut names = [""; PARTS + 1];
        for (name, part) in names.iter_mut().zip(&parts::ALL) {
            *name = part.title;
        }
        names[PARTS] = "not measured";
        let drawn = model.jobs.iter().filter(|job| job.row < JOB_ROWS);
        let jobs: Vec<Job<'_>> = drawn.take(JOBS).map(|it| job(model, it)).collect();
        Self {
            start: model.start,
            end: model.end,
            left_out,
            jobs_left_out: model.jobs.len() - jobs.len(),
            paths_left_out: model.paths_left_out,
            lanes: (0_u32..)
                .zip(&model.lanes)
                .map(|(at, lane)| {
                    let executor = &model.executors[lane.executor as usize];
                    Lane {
                        executor: &executor.id,
                        host: &executor.host,
                        core: at - executor.lanes.start,
                    }
                })
                .collect(),
            stages: model
                .stages
                .iter()
                .map(|stage| Stage {
                    id: stage.key.0,
                    attempt: stage.key.1,
                    name: &stage.name,
                    median: stage.median,
                })
                .collect(),
            outcomes: OUTCOMES,
            localities: LOCALITIES,
            parts: names,
            tasks,
            jobs,
        }
    }
}

impl Tasks {
    fn add(&mut self, model: &Model, task: &Task) {
        self.lane.push(task.lane);
        self.id.push(task.id);
        self.start.push(task.launch);
        self.ms.push(task.duration);
        self.stage.push(task.stage);
        self.outcome.push(task.outcome);
        self.locality.push(task.locality);
        self.marks.push(marks(model, task));
        for (column, part) in self.parts.iter_mut().zip(&task.parts) {
            column.push(*part);
        }
    }
}
