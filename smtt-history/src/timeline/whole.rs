//! All of a time line, for a page without a server: its script makes the answers of [`super::detail`] from it.

use serde::Serialize;

use super::detail::{Critical, marks};
use super::model::{JOB_ROWS, LOCALITIES, Model, OUTCOMES, Task};
use super::parts::{self, PARTS};
use crate::event::shortened;

/// Tasks at most: of more the longest ones.
pub const TASKS: usize = 100_000;
/// Jobs at most: of more the first ones.
pub const JOBS: usize = 10_000;
/// Stages on the critical paths of all jobs together at most: the path of a later job is absent.
const STEPS: usize = 100_000;
/// Characters of a text.
const TEXT: usize = 300;
/// Bytes of all texts as JSON has them: later ones are empty.
const TEXT_BYTES: usize = 16 << 20;

/// An executor that has tasks here.
#[derive(Debug, Serialize)]
pub struct Executor {
    id: String,
    host: String,
}

/// Cores of executors that have tasks here, as columns.
#[derive(Debug, Default, Serialize)]
pub struct Lanes {
    /// Places among the executors.
    executor: Vec<u32>,
    /// Number of the core within the executor.
    core: Vec<u32>,
}

/// A stage attempt that has tasks here.
#[derive(Debug, Serialize)]
pub struct Stage {
    id: i32,
    attempt: i32,
    name: String,
    median: Option<u32>,
    /// Position among all stages of the application.
    colour: u32,
}

/// A job with its critical path.
#[derive(Debug, Serialize)]
pub struct Job {
    id: i64,
    start: i64,
    end: i64,
    status: String,
    name: String,
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

/// The whole time line: of executors, lanes and stages those that its tasks use.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Whole {
    start: i64,
    end: i64,
    /// Tasks that it does not have.
    pub left_out: u64,
    /// Jobs that it does not have.
    pub jobs_left_out: usize,
    /// Jobs whose critical path it does not have.
    pub paths_left_out: usize,
    /// Names, ids and hosts that had no room.
    #[serde(skip)]
    pub texts_left_out: usize,
    executors: Vec<Executor>,
    lanes: Lanes,
    stages: Vec<Stage>,
    outcomes: [&'static str; OUTCOMES.len()],
    localities: [&'static str; LOCALITIES.len()],
    parts: [&'static str; PARTS + 1],
    tasks: Tasks,
    jobs: Vec<Job>,
}

/// Texts within a number of bytes.
struct Texts {
    left: usize,
    left_out: usize,
}

impl Texts {
    fn cut(&mut self, text: &str) -> String {
        let text = shortened(text, TEXT, "…");
        // As JSON in a document of HTML: `<` and control characters have six bytes.
        let written = |of: char| match of {
            '"' | '\\' => 2,
            '<' | '\0'..=' ' if of != ' ' => 6,
            other => other.len_utf8(),
        };
        let bytes: usize = text.chars().map(written).sum();
        match self.left.checked_sub(bytes) {
            Some(rest) => self.left = rest,
            None => {
                self.left_out += 1;
                return String::new();
            }
        }
        text
    }
}

/// What is kept of a list, by its old places in ascending order.
struct Kept(Vec<u32>);

impl Kept {
    fn of(places: impl Iterator<Item = u32>) -> Self {
        let mut all: Vec<u32> = places.collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The new place.
    fn place(&self, old: u32) -> u32 {
        self.0.partition_point(|it| *it < old) as u32
    }
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

/// A job. Its path takes its stages from `steps`.
fn job(model: &Model, job: &super::model::Job, steps: &mut usize, texts: &mut Texts) -> Job {
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
    let path = job.path.as_ref().and_then(|all| {
        *steps = steps.checked_sub(all.len())?;
        Some(all.iter().filter_map(stage).collect())
    });
    Job {
        id: job.id,
        start: job.start,
        end: job.end,
        status: texts.cut(&job.status),
        name: texts.cut(&job.name),
        row: job.row,
        path,
    }
}

impl Whole {
    /// Of a model, with so many tasks at most.
    #[must_use]
    pub fn of(model: &Model, most: usize) -> Self {
        Self::within(model, most, STEPS, TEXT_BYTES)
    }

    fn within(model: &Model, most: usize, mut steps: usize, text_bytes: usize) -> Self {
        let least = shortest(model, most);
        let long = model.tasks.iter().filter(|task| task.duration >= least);
        let chosen: Vec<&Task> = long.take(most).collect();
        let lanes = Kept::of(chosen.iter().map(|task| task.lane));
        let stages = Kept::of(chosen.iter().map(|task| task.stage));
        let executor = |lane: &u32| model.lanes[*lane as usize].executor;
        let executors = Kept::of(lanes.0.iter().map(executor));
        let mut tasks = Tasks::default();
        for task in &chosen {
            tasks.add(model, task, (&lanes, &stages));
        }
        let mut names = [""; PARTS + 1];
        for (name, part) in names.iter_mut().zip(&parts::ALL) {
            *name = part.title;
        }
        names[PARTS] = "not measured";
        let mut texts = Texts {
            left: text_bytes,
            left_out: 0,
        };
        let of_lanes = Lanes {
            executor: lanes
                .0
                .iter()
                .map(|it| executors.place(executor(it)))
                .collect(),
            core: lanes
                .0
                .iter()
                .map(|it| it - model.executors[executor(it) as usize].lanes.start)
                .collect(),
        };
        let executors = executors.0.iter().map(|at| {
            let executor = &model.executors[*at as usize];
            Executor {
                id: texts.cut(&executor.id),
                host: texts.cut(&executor.host),
            }
        });
        let executors = executors.collect();
        let stages = stages.0.iter().map(|at| {
            let stage = &model.stages[*at as usize];
            Stage {
                id: stage.key.0,
                attempt: stage.key.1,
                name: texts.cut(&stage.name),
                median: stage.median,
                colour: *at,
            }
        });
        let stages = stages.collect();
        let drawn = model
            .jobs
            .iter()
            .filter(|job| job.row < JOB_ROWS)
            .take(JOBS);
        let mut paths_left_out = model.paths_left_out;
        let jobs = drawn.map(|it| {
            let job = job(model, it, &mut steps, &mut texts);
            paths_left_out += usize::from(it.path.is_some() && job.path.is_none());
            job
        });
        let jobs: Vec<Job> = jobs.collect();
        Self {
            start: model.start,
            end: model.end,
            left_out: model.left_out + (model.tasks.len() - chosen.len()) as u64,
            jobs_left_out: model.jobs.len() - jobs.len(),
            paths_left_out,
            texts_left_out: texts.left_out,
            executors,
            lanes: of_lanes,
            stages,
            outcomes: OUTCOMES,
            localities: LOCALITIES,
            parts: names,
            tasks,
            jobs,
        }
    }
}

impl Tasks {
    fn add(&mut self, model: &Model, task: &Task, (lanes, stages): (&Kept, &Kept)) {
        self.lane.push(lanes.place(task.lane));
        self.id.push(task.id);
        self.start.push(task.launch);
        self.ms.push(task.duration);
        self.stage.push(stages.place(task.stage));
        self.outcome.push(task.outcome);
        self.locality.push(task.locality);
        self.marks.push(marks(model, task));
        for (column, part) in self.parts.iter_mut().zip(&task.parts) {
            column.push(*part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::critical::{Last, Waited};
    use super::super::model;
    use super::*;

    /// Bytes of the report's data about a model, as they are in the document.
    fn bytes(whole: &Whole) -> usize {
        let json = serde_json::to_string(whole).expect("is JSON");
        json.replace('<', "\\u003c").len()
    }

    /// A model of tasks that all run at a time: of each its stage, its executor and its length.
    fn overlapping(tasks: &[(u32, u32, u32)], host: &str) -> Model {
        let mut model = Model::default();
        for (at, &(stage, executor, duration)) in (0_u32..).zip(tasks) {
            while model.stages.len() <= stage as usize {
                model.stages.push(model::Stage {
                    key: (model.stages.len() as i32, 0),
                    name: "<".repeat(160),
                    ..model::Stage::default()
                });
            }
            while model.executors.len() <= executor as usize {
                model.executors.push(model::Executor {
                    id: model.executors.len().to_string(),
                    host: host.to_owned(),
                    lanes: at..at,
                });
            }
            model.executors[executor as usize].lanes.end = at + 1;
            model.lanes.push(model::Lane {
                executor,
                tasks: at..at + 1,
            });
            model.tasks.push(Task {
                id: i64::MAX - i64::from(at),
                launch: 0,
                duration,
                row: at,
                stage,
                lane: at,
                outcome: 0,
                locality: 0,
                speculative: false,
                straggler: false,
                parts: [0; PARTS],
            });
            model.stages[stage as usize].last = Some(Last {
                begin: 0,
                end: i64::from(duration),
                task: at,
                waited: Waited::Nothing,
            });
        }
        model
    }

    #[test]
    fn stages_of_one_task_are_those_of_the_tasks() {
        let tasks: Vec<_> = (0..300_000).map(|at| (at, 0, 1 + at % 7)).collect();
        let model = overlapping(&tasks, "host");
        let whole = Whole::of(&model, TASKS);
        assert_eq!((whole.tasks.id.len(), whole.left_out), (TASKS, 200_000));
        assert!(whole.stages.len() <= TASKS && whole.lanes.core.len() <= TASKS);
        assert!(whole.texts_left_out > 0);
        let bytes = bytes(&whole);
        assert!(bytes < 40 << 20, "{bytes}");
        // Of ten tasks each still has its stage and its core.
        let whole = Whole::of(&model, 10);
        assert_eq!(
            (
                whole.stages.len(),
                whole.lanes.core.len(),
                whole.executors.len()
            ),
            (10, 10, 1)
        );
        for (at, id) in whole.tasks.id.iter().enumerate() {
            let row = (i64::MAX - id) as u32;
            let stage = &whole.stages[whole.tasks.stage[at] as usize];
            assert_eq!((stage.id as u32, stage.colour), (row, row));
            assert_eq!(whole.lanes.core[whole.tasks.lane[at] as usize], row);
        }
    }

    #[test]
    fn an_executor_has_its_host_once_and_cut() {
        let tasks: Vec<_> = (0..200_000).map(|at| (0, 0, at)).collect();
        let whole = Whole::of(&overlapping(&tasks, &"h".repeat(8 << 10)), TASKS);
        assert_eq!((whole.executors.len(), whole.stages.len()), (1, 1));
        assert_eq!(whole.executors[0].host.chars().count(), TEXT + 1);
        let data = bytes(&whole);
        assert!(data < 16 << 20, "{data}");
        // An executor for each task: their hosts have no room beyond a bound.
        let tasks: Vec<_> = (0..TASKS as u32).map(|at| (0, at, 1)).collect();
        let whole = Whole::of(&overlapping(&tasks, &"\u{1}".repeat(400)), TASKS);
        assert!(whole.texts_left_out > 0);
        let data = bytes(&whole);
        assert!(data < 40 << 20, "{data}");
    }

    #[test]
    fn paths_have_a_bound_together_and_the_rest_is_counted() {
        let tasks: Vec<_> = (0..100).map(|at| (at, 0, 1)).collect();
        let mut model = overlapping(&tasks, "host");
        let job = |id: i64, stages: u32| model::Job {
            id,
            start: 0,
            end: 1,
            status: "SUCCEEDED".to_owned(),
            name: String::new(),
            row: 0,
            stages: Vec::new(),
            path: Some((0..stages).collect()),
        };
        model.jobs = vec![job(0, 60), job(1, 60), job(2, 40)];
        model.paths_left_out = 1;
        let whole = Whole::within(&model, TASKS, 100, TEXT_BYTES);
        let lengths = whole.jobs.iter().map(|it| it.path.as_ref().map(Vec::len));
        let lengths: Vec<_> = lengths.collect();
        assert_eq!(
            (lengths, whole.paths_left_out),
            (vec![Some(60), None, Some(40)], 2)
        );
        // As much as all jobs of a report may have.
        model.jobs = (0..JOBS as i64).map(|id| job(id, 100)).collect();
        let whole = Whole::of(&model, TASKS);
        assert_eq!(whole.paths_left_out, 1 + JOBS - STEPS / 100);
        let data = bytes(&whole);
        assert!(data < 16 << 20, "{data}");
    }

    #[test]
    fn texts_are_counted_as_they_are_written() {
        let text = "<\u{0}\u{1f}\"\\ é\u{1F600}~\u{7f}";
        let json = serde_json::to_string(text)
            .expect("is JSON")
            .replace('<', "\\u003c");
        let mut texts = Texts {
            left: json.len() - 2,
            left_out: 0,
        };
        assert_eq!(
            (texts.cut(text).as_str(), texts.cut("x").as_str()),
            (text, "")
        );
        assert_eq!((texts.left, texts.left_out), (0, 1));
    }
}
