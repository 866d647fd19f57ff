//! A window of the time line at the level of detail that a screen can show: long tasks one by one, short ones in cells.
//!
//! A task that is at least as long as a cell is an entry of its own; tasks of a lane do not overlap, so a lane has at most
//! one more of them than it has cells. All others are counted in the cell where they begin. So an answer has at most two
//! entries for each cell and one for each lane, however many tasks there are.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::filter::Filter;
use super::model::{JOB_ROWS, LOCALITIES, Model, OUTCOMES, Task};
use super::parts::{self, PARTS, largest};

/// Cells of an answer at most, in all lanes.
pub const CELLS: usize = 30_000;
/// Pixels of a cell at least.
const CELL_PIXELS: i64 = 2;
/// Lanes of an answer.
pub const LANES: usize = 64;
/// Lanes of an answer at most.
pub const MOST_LANES: usize = 256;
/// Pixels of a picture.
pub const WIDTHS: std::ops::RangeInclusive<i64> = 50..=8000;
/// Shortest window, in milliseconds.
const SHORTEST: i64 = 20;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Milliseconds since the model's start.
    pub from: i64,
    /// Milliseconds since the model's start.
    pub to: i64,
    /// Number of the first lane, from 0.
    pub lane: usize,
    /// Number of lanes.
    pub lanes: usize,
    /// Pixels of the picture.
    pub width: i64,
}

/// Tasks that are shown one by one, as columns.
#[derive(Debug, Default, Serialize)]
pub struct Tasks {
    /// Lanes, counted from the answer's first.
    pub lane: Vec<u32>,
    /// Spark's ids of the task attempts.
    pub id: Vec<i64>,
    /// Milliseconds since the model's start.
    pub start: Vec<i64>,
    /// Durations in milliseconds.
    pub ms: Vec<u32>,
    /// Indexes in the answer's stages.
    pub stage: Vec<u32>,
    /// Indexes in the answer's outcomes.
    pub outcome: Vec<u8>,
    /// Indexes in the answer's localities.
    pub locality: Vec<u8>,
    /// Indexes in the answer's parts; the number of parts where Spark has no metrics.
    pub part: Vec<u8>,
    /// 1: straggler, 2: speculative, 4: not successful, 8: the last task of a stage on the critical path of a job.
    pub marks: Vec<u8>,
}

/// Cells with tasks that are too short to be shown, as columns. Stage, outcome, locality and part are those with most
/// of the tasks' time.
#[derive(Debug, Default, Serialize)]
pub struct Cells {
    /// Lanes, counted from the answer's first.
    pub lane: Vec<u32>,
    /// Number of the cell, counted from the window's start.
    pub at: Vec<u32>,
    /// Tasks that begin in it; those before the window are in the first cell.
    pub tasks: Vec<u32>,
    /// Time of the tasks, in thousandths of the cell.
    pub busy: Vec<u16>,
    /// As of [`Tasks`].
    pub stage: Vec<u32>,
    /// As of [`Tasks`].
    pub outcome: Vec<u8>,
    /// As of [`Tasks`].
    pub locality: Vec<u8>,
    /// As of [`Tasks`].
    pub part: Vec<u8>,
    /// As of [`Tasks`], of any task.
    pub marks: Vec<u8>,
}

/// A core of an executor, as far as the times of its tasks show it.
#[derive(Debug, Serialize)]
pub struct Lane<'a> {
    /// Spark's id of the executor.
    pub executor: &'a str,
    /// Host of the executor, as the log has it.
    pub host: &'a str,
    /// Number of the core within the executor.
    pub core: u32,
}

/// A stage of the answer.
#[derive(Debug, Serialize)]
pub struct Stage<'a> {
    /// Spark's id of the stage.
    pub id: i32,
    /// Number of the stage's attempt, from 0.
    pub attempt: i32,
    /// Name of the stage, shortened.
    pub name: &'a str,
    /// Position among all stages: the colour.
    pub colour: u32,
}

/// A job that lies in the window.
#[derive(Debug, Serialize)]
pub struct Job<'a> {
    /// Spark's id of the job.
    pub id: i64,
    /// Milliseconds since the model's start.
    pub start: i64,
    /// Milliseconds since the model's start.
    pub end: i64,
    /// `SUCCEEDED`, `FAILED`, `RUNNING` or what the document states.
    pub status: &'a str,
    /// Description or name.
    pub name: &'a str,
    /// Row of the picture in which it is drawn, from 0.
    pub row: usize,
    /// Stages on its critical path that are as long as a cell. Absent where the path had no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<Critical>>,
}

/// A stage on the critical path of a job.
#[derive(Debug, Serialize)]
pub struct Critical {
    /// Spark's id of the stage.
    pub id: i32,
    /// Number of the stage's attempt, from 0.
    pub attempt: i32,
    /// First launch in the stage, in milliseconds since the model's start.
    pub from: i64,
    /// End of its last task, in milliseconds since the model's start.
    pub to: i64,
}

/// What a script draws for one window of the time line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail<'a> {
    /// Zero of all times, in milliseconds since 1970.
    pub start: i64,
    /// End of the application's last task or job, in milliseconds since the start.
    pub end: i64,
    /// Begin of the window, in milliseconds since the start.
    pub from: i64,
    /// End of the window, in milliseconds since the start.
    pub to: i64,
    /// Milliseconds of a cell.
    pub cell_ms: f64,
    /// Lanes of the application.
    pub lanes_total: usize,
    /// First lane of the answer.
    pub lane: usize,
    /// Lanes of the answer.
    pub lanes: Vec<Lane<'a>>,
    /// Tasks in the window that the filter has.
    pub tasks_total: usize,
    /// Tasks of the application that the time line does not have.
    pub left_out: u64,
    /// Stages of what follows.
    pub stages: Vec<Stage<'a>>,
    /// Names of outcomes.
    pub outcomes: [&'static str; OUTCOMES.len()],
    /// Names of localities.
    pub localities: [&'static str; LOCALITIES.len()],
    /// Names of parts.
    pub parts: [&'static str; PARTS + 1],
    /// Tasks that are long enough to be drawn one by one.
    pub tasks: Tasks,
    /// Sums of the tasks that are too short for that.
    pub cells: Cells,
    /// Jobs that lie in the window and are drawn.
    pub jobs: Vec<Job<'a>>,
    /// Jobs in the window that are not shown: too short, or more at a time than there are rows.
    pub jobs_left_out: usize,
    /// Jobs of the application whose critical path had no room.
    pub paths_left_out: usize,
}

/// Marks of a task, as [`Tasks::marks`].
pub(super) fn marks(model: &Model, task: &Task) -> u8 {
    u8::from(task.straggler)
        | u8::from(task.speculative) << 1
        | u8::from(matches!(task.outcome, 1 | 2 | 4)) << 2
        | u8::from(model.is_critical(task)) << 3
}

fn part(task: &Task) -> u8 {
    largest(&task.parts).map_or(PARTS as u8, |part| part as u8)
}

/// The cell that is being filled.
#[derive(Default)]
struct Cell {
    at: u32,
    tasks: u32,
    time: u64,
    stages: HashMap<u32, u64>,
    outcomes: [u64; OUTCOMES.len()],
    localities: [u64; LOCALITIES.len()],
    parts: [u64; PARTS + 1],
    marks: u8,
}

fn most<const N: usize>(times: &[u64; N]) -> u8 {
    let all = times.iter().enumerate();
    all.max_by_key(|(at, time)| (**time, std::cmp::Reverse(*at)))
        .map_or(0, |(at, _)| at as u8)
}

impl Cell {
    fn add(&mut self, task: &Task, marks: u8) {
        // A task of less than a millisecond counts too.
        let weight = u64::from(task.duration).max(1);
        self.tasks += 1;
        self.time += u64::from(task.duration);
        *self.stages.entry(task.stage).or_default() += weight;
        self.outcomes[usize::from(task.outcome)] += weight;
        self.localities[usize::from(task.locality)] += weight;
        if task.parts.iter().all(|part| *part == 0) {
            self.parts[PARTS] += weight;
        } else {
            for (sum, part) in self.parts.iter_mut().zip(&task.parts) {
                *sum += u64::from(*part);
            }
        }
        self.marks |= marks;
    }
}

/// Indexes of stages in an answer.
#[derive(Default)]
struct Stages(BTreeMap<u32, u32>);

impl Stages {
    fn index(&mut self, stage: u32) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(stage).or_insert(next)
    }
}

impl Window {
    /// The window within what there is and within the bounds of an answer.
    #[must_use]
    pub fn within(self, model: &Model) -> Self {
        let last = (model.end + 1).max(SHORTEST);
        let from = self.from.clamp(0, last - SHORTEST);
        let to = self.to.clamp(from.saturating_add(SHORTEST), last);
        Self {
            from,
            to,
            lane: self.lane.min(model.lanes.len().saturating_sub(1)),
            lanes: self.lanes.clamp(1, MOST_LANES),
            width: self.width.clamp(*WIDTHS.start(), *WIDTHS.end()),
        }
    }
}

/// The answer for a window that lies [within](Window::within) the model, with the tasks that the filter has.
#[must_use]
pub fn detail<'a>(model: &'a Model, window: &Window, filter: &Filter) -> Detail<'a> {
    let Window { from, to, lane, .. } = *window;
    let shown = &model.lanes[lane..(lane + window.lanes).min(model.lanes.len())];
    let room = (CELLS / shown.len().max(1)) as i64;
    let cells_of_lane = (window.width / CELL_PIXELS).min(room).max(1);
    let cell_ms = ((to - from) as f64 / cells_of_lane as f64).max(1.0);
    let (mut tasks, mut cells) = (Tasks::default(), Cells::default());
    let (mut stages, mut total) = (Stages::default(), 0);
    for (number, lane) in (0_u32..).zip(shown) {
        let all = model.of_lane(lane);
        let first = all.partition_point(|task| task.end() < from);
        let last = first + all[first..].partition_point(|task| task.launch <= to);
        let mut cell = Cell::default();
        for task in all[first..last].iter().filter(|it| filter.has(model, it)) {
            total += 1;
            if f64::from(task.duration) >= cell_ms {
                tasks.lane.push(number);
                tasks.id.push(task.id);
                tasks.start.push(task.launch);
                tasks.ms.push(task.duration);
                tasks.stage.push(stages.index(task.stage));
                tasks.outcome.push(task.outcome);
                tasks.locality.push(task.locality);
                tasks.part.push(part(task));
                tasks.marks.push(marks(model, task));
                continue;
            }
            let at = ((task.launch - from).max(0) as f64 / cell_ms) as u32;
            if at != cell.at {
                close(&cell, number, cell_ms, &mut stages, &mut cells);
                cell = Cell {
                    at,
                    ..Cell::default()
                };
            }
            cell.add(task, marks(model, task));
        }
        close(&cell, number, cell_ms, &mut stages, &mut cells);
    }
    let (jobs, jobs_left_out) = jobs(model, window, cell_ms);
    let mut names = [""; PARTS + 1];
    for (name, part) in names.iter_mut().zip(&parts::ALL) {
        *name = part.title;
    }
    names[PARTS] = "not measured";
    let mut by_index: Vec<(u32, u32)> = stages.0.into_iter().map(|(at, to)| (to, at)).collect();
    by_index.sort_unstable();
    Detail {
        start: model.start,
        end: model.end,
        from,
        to,
        cell_ms,
        lanes_total: model.lanes.len(),
        lane,
        lanes: shown
            .iter()
            .zip(lane as u32..)
            .map(|(lane, at)| {
                let executor = &model.executors[lane.executor as usize];
                Lane {
                    executor: &executor.id,
                    host: &executor.host,
                    core: at - executor.lanes.start,
                }
            })
            .collect(),
        tasks_total: total,
        left_out: model.left_out,
        stages: by_index
            .into_iter()
            .map(|(_, at)| {
                let stage = &model.stages[at as usize];
                Stage {
                    id: stage.key.0,
                    attempt: stage.key.1,
                    name: &stage.name,
                    colour: at,
                }
            })
            .collect(),
        outcomes: OUTCOMES,
        localities: LOCALITIES,
        parts: names,
        tasks,
        cells,
        jobs,
        jobs_left_out,
        paths_left_out: model.paths_left_out,
    }
}

fn close(cell: &Cell, lane: u32, cell_ms: f64, stages: &mut Stages, cells: &mut Cells) {
    if cell.tasks == 0 {
        return;
    }
    let longest = cell.stages.iter().max_by_key(|(at, time)| (**time, **at));
    let stage = longest.map_or(0, |(at, _)| *at);
    cells.lane.push(lane);
    cells.at.push(cell.at);
    cells.tasks.push(cell.tasks);
    let busy = (cell.time as f64 / cell_ms * 1000.0).min(1000.0);
    cells.busy.push(busy as u16);
    cells.stage.push(stages.index(stage));
    cells.outcome.push(most(&cell.outcomes));
    cells.locality.push(most(&cell.localities));
    cells.part.push(most(&cell.parts));
    cells.marks.push(cell.marks);
}

/// Stages of a job's critical path; those that are shorter than a cell cannot be seen.
fn critical(model: &Model, job: &super::model::Job, cell_ms: f64) -> Option<Vec<Critical>> {
    let all = job.path.as_ref()?.iter().filter_map(|at| {
        let stage = &model.stages[*at as usize];
        let last = stage.last?;
        let (id, attempt) = stage.key;
        let (from, to) = (last.begin, last.end);
        ((to - from) as f64 >= cell_ms).then_some(Critical {
            id,
            attempt,
            from,
            to,
        })
    });
    Some(all.collect())
}

fn jobs<'a>(model: &'a Model, window: &Window, cell_ms: f64) -> (Vec<Job<'a>>, usize) {
    let (mut shown, mut left_out) = (Vec::new(), 0);
    let mut last = [None; JOB_ROWS];
    for job in &model.jobs {
        if job.end < window.from || job.start > window.to {
            continue;
        }
        let cell = Some(((job.start - window.from).max(0) as f64 / cell_ms) as u64);
        let is_long = (job.end - job.start) as f64 >= cell_ms;
        // Short jobs that begin in one cell are one bar.
        if job.row >= JOB_ROWS || (!is_long && last[job.row] == cell) {
            left_out += 1;
            continue;
        }
        last[job.row] = cell;
        shown.push(Job {
            id: job.id,
            start: job.start,
            end: job.end,
            status: &job.status,
            name: &job.name,
            row: job.row,
            path: critical(model, job, cell_ms),
        });
    }
    (shown, left_out)
}
