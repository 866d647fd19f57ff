//! What the pictures of an application need of its tasks, in memory: 72 bytes for each task.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;

use serde_json::Value;
use smtt_model::advise::tasks::is_late;
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;

use super::critical::{self, Last};
use super::parts::{PARTS, Times, divide};
use crate::event::shortened;
use crate::json::milliseconds;
use crate::open::App;
use crate::out::Kind;

/// Tasks of a time line at most.
pub const MOST: usize = 2_000_000;
/// The latest time that a browser's `Date` knows, in milliseconds.
const LATEST: i64 = 8_640_000_000_000_000;
/// Rows of jobs.
pub const JOB_ROWS: usize = 6;
/// Successful tasks that a stage needs before one can be a straggler.
const STRAGGLER_TASKS: usize = 4;
/// Characters of a name.
const NAME: usize = 160;

/// Statuses of task attempts.
pub const OUTCOMES: [&str; 5] = ["SUCCESS", "FAILED", "KILLED", "RUNNING", "unknown"];
/// Localities of task attempts.
pub const LOCALITIES: [&str; 6] = [
    "PROCESS_LOCAL",
    "NODE_LOCAL",
    "RACK_LOCAL",
    "NO_PREF",
    "ANY",
    "unknown",
];

/// A task attempt.
#[derive(Clone, Debug)]
pub struct Task {
    /// Spark's id of the task attempt.
    pub id: i64,
    /// Milliseconds since the model's start.
    pub launch: i64,
    /// Milliseconds; of a running task until the log last changed.
    pub duration: u32,
    /// Row in the table of tasks.
    pub row: u32,
    /// Index in [`Model::stages`].
    pub stage: u32,
    /// Index in [`Model::lanes`].
    pub lane: u32,
    /// Index in [`OUTCOMES`].
    pub outcome: u8,
    /// Index in [`LOCALITIES`].
    pub locality: u8,
    /// Whether it is a speculative attempt.
    pub speculative: bool,
    /// Whether it is a straggler of its stage.
    pub straggler: bool,
    /// Milliseconds of each part; all zero where Spark has no metrics.
    pub parts: [u32; PARTS],
}

impl Task {
    /// End, in milliseconds since the model's start.
    #[must_use]
    pub fn end(&self) -> i64 {
        self.launch + i64::from(self.duration)
    }
}

/// A stage attempt that has tasks.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Stage and attempt.
    pub key: (i32, i32),
    /// Name of the stage, shortened.
    pub name: String,
    /// Duration of the successful tasks in the middle, in milliseconds.
    pub median: Option<u32>,
    /// Most execution memory of one of its tasks, as Spark reports it; absent where no task has metrics.
    pub peak: Option<i64>,
    /// The task that ended last; absent where none has succeeded.
    pub last: Option<Last>,
    /// Whether it is on the critical path of a job.
    pub is_critical: bool,
}

/// An executor that has tasks.
#[derive(Clone, Debug)]
pub struct Executor {
    /// Id that Spark gave the executor, such as `1`.
    pub id: String,
    /// Host of the executor, as the log has it.
    pub host: String,
    /// Its lanes: as many as it had tasks at a time.
    pub lanes: Range<u32>,
}

/// A core of an executor, as far as launch and finish times show it.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Index in [`Model::executors`].
    pub executor: u32,
    /// Its tasks in [`Model::tasks`], by launch; none begins before the one before it ends.
    pub tasks: Range<u32>,
}

/// A job with the row in which it is drawn.
#[derive(Clone, Debug)]
pub struct Job {
    /// Spark's id of the job.
    pub id: i64,
    /// Milliseconds since the model's start.
    pub start: i64,
    /// Milliseconds since the model's start.
    pub end: i64,
    /// `SUCCEEDED`, `FAILED`, `RUNNING` or what the document states.
    pub status: String,
    /// Description, else name, cut.
    pub name: String,
    /// Row among the jobs; those beyond [`JOB_ROWS`] are not drawn.
    pub row: usize,
    /// Stages that Spark named when it started the job.
    pub stages: Vec<i32>,
    /// Its critical path, the last stage last: indexes in [`Model::stages`]. Absent where it had no room.
    pub path: Option<Vec<u32>>,
}

/// The tasks and jobs of an application.
#[derive(Debug, Default)]
pub struct Model {
    /// Zero of all times, in milliseconds since 1970.
    pub start: i64,
    /// End of the last task or job, in milliseconds since the start.
    pub end: i64,
    /// Tasks by lane and launch.
    pub tasks: Vec<Task>,
    /// Lanes by executor.
    pub lanes: Vec<Lane>,
    /// Executors, numbers in their order.
    pub executors: Vec<Executor>,
    /// Stage attempts that have tasks.
    pub stages: Vec<Stage>,
    /// Jobs by start.
    pub jobs: Vec<Job>,
    /// Tasks beyond [`MOST`] that the model does not have.
    pub left_out: u64,
    /// Jobs whose critical path had no room.
    pub paths_left_out: usize,
}

impl Model {
    /// Reads an application's tasks.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn read(app: &App) -> Result<Self, ParquetError> {
        let mut reading = Reading::new(app);
        let table = app.tasks()?;
        let mut start = 0;
        for &count in table.groups() {
            let room = (MOST - reading.tasks.len()) as u64;
            let rows = start..start + count.min(room);
            if rows.start < rows.end {
                reading.group(&table, &rows)?;
            }
            reading.left_out += count - count.min(room);
            start += count;
        }
        let mut model = reading.model(jobs(app));
        critical::mark(&mut model, &critical::parents(app));
        Ok(model)
    }

    /// Bytes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let numbers = |job: &Job| job.stages.len() + job.path.as_ref().map_or(0, Vec::len);
        self.tasks.len() * size_of::<Task>()
            + self.lanes.len() * size_of::<Lane>()
            + self.jobs.iter().map(numbers).sum::<usize>() * size_of::<u32>()
            + (self.stages.len() + self.executors.len() + self.jobs.len()) * 256
            + 1024
    }

    /// Tasks of a lane.
    #[must_use]
    pub fn of_lane(&self, lane: &Lane) -> &[Task] {
        &self.tasks[lane.tasks.start as usize..lane.tasks.end as usize]
    }

    /// The executor of a task.
    #[must_use]
    pub fn executor(&self, task: &Task) -> &Executor {
        &self.executors[self.lanes[task.lane as usize].executor as usize]
    }
}

/// The first 160 characters of a name, for pages and answers.
#[must_use]
pub fn cut(name: &str) -> String {
    shortened(name, NAME, "…")
}

fn field<'a>(json: &'a Value, name: &str) -> &'a str {
    json[name].as_str().unwrap_or_default()
}

/// When the log last changed: running tasks and jobs are drawn until then.
fn last_updated(app: &App) -> i64 {
    let own = app.all(Kind::Application).first();
    let json = own.and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
    let json = json.unwrap_or_default();
    let attempt = &json["attempts"][0];
    attempt["lastUpdatedEpoch"].as_i64().unwrap_or_default()
}

/// Jobs with times since 1970, and without rows.
fn jobs(app: &App) -> Vec<Job> {
    let until = last_updated(app);
    let parse = |text: &str| -> Option<Job> {
        let json: Value = serde_json::from_str(text).ok()?;
        let start = milliseconds(field(&json, "submissionTime"))?.clamp(0, LATEST);
        let end = milliseconds(field(&json, "completionTime")).unwrap_or(until);
        let name = match field(&json, "description") {
            "" => field(&json, "name"),
            description => description,
        };
        Some(Job {
            id: json["jobId"].as_i64()?,
            start,
            end: end.clamp(start, LATEST),
            status: cut(field(&json, "status")),
            name: cut(name),
            row: 0,
            stages: serde_json::from_value(json["stageIds"].clone()).unwrap_or_default(),
            path: None,
        })
    };
    let all = app.all(Kind::Job).iter();
    all.filter_map(|(_, text)| parse(text)).collect()
}

/// Rows for intervals that are sorted by their start: each gets the first row that is free.
fn pack(intervals: impl Iterator<Item = (i64, i64)>) -> (Vec<u32>, u32) {
    let mut busy: BinaryHeap<Reverse<(i64, u32)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<u32>> = BinaryHeap::new();
    let mut rows = 0;
    let chosen = intervals.map(|(start, end)| {
        while let Some(&Reverse((until, row))) = busy.peek() {
            if until > start {
                break;
            }
            busy.pop();
            free.push(Reverse(row));
        }
        let row = free.pop().map_or_else(
            || {
                rows += 1;
                rows - 1
            },
            |Reverse(row)| row,
        );
        busy.push(Reverse((end, row)));
        row
    });
    let chosen = chosen.collect();
    (chosen, rows)
}

/// Tasks while they are read; `lane` is the executor's index until the lanes are known.
struct Reading {
    tasks: Vec<Task>,
    executors: Vec<(String, String)>,
    executor_of: HashMap<String, u32>,
    stages: Vec<Stage>,
    stage_of: HashMap<(i32, i32), u32>,
    names: BTreeMap<String, String>,
    until: i64,
    left_out: u64,
}

impl Reading {
    fn new(app: &App) -> Self {
        let named = |(id, text): &(String, String)| {
            let json: Value = serde_json::from_str(text).ok()?;
            Some((id.clone(), cut(field(&json, "name"))))
        };
        Self {
            tasks: Vec::new(),
            executors: Vec::new(),
            executor_of: HashMap::new(),
            stages: Vec::new(),
            stage_of: HashMap::new(),
            names: app.all(Kind::Stage).iter().filter_map(named).collect(),
            until: last_updated(app),
            left_out: 0,
        }
    }

    fn group(&mut self, table: &Reader, rows: &Range<u64>) -> Result<(), ParquetError> {
        let range = std::slice::from_ref(rows);
        let numbers = |name: &str| table.numbers(name, range);
        let texts = |name: &str| table.texts(name, range);
        let (stages, attempts, ids) = (
            numbers("stage_id")?,
            numbers("stage_attempt")?,
            numbers("task_id")?,
        );
        let (launches, durations) = (numbers("launch_time")?, numbers("duration_ms")?);
        let (executors, hosts) = (texts("executor_id")?, texts("host")?);
        let (statuses, localities) = (texts("status")?, texts("locality")?);
        let (speculative, measured) = (numbers("speculative")?, numbers("has_metrics")?);
        let peaks = numbers("peak_execution_memory_bytes")?;
        let times = Columns::read(table, range)?;
        for at in 0..ids.len() {
            let number =
                |value: Option<i64>| i32::try_from(value.unwrap_or_default()).unwrap_or(-1);
            let launch = launches[at].unwrap_or_default().clamp(0, LATEST);
            let duration = durations[at].unwrap_or_else(|| self.until.saturating_sub(launch));
            let duration = u32::try_from(duration.max(0)).unwrap_or(u32::MAX);
            let parts = if measured[at] == Some(1) && durations[at].is_some() {
                let of = times.milliseconds(at, launch, u64::from(duration));
                // Each part is at most the duration.
                divide(&of).map(|part| u32::try_from(part).unwrap_or(u32::MAX))
            } else {
                [0; PARTS]
            };
            let executor = executors[at].as_deref().unwrap_or_default();
            let host = hosts[at].as_deref().unwrap_or_default();
            let task = Task {
                id: ids[at].unwrap_or_default(),
                launch,
                duration,
                row: u32::try_from(rows.start + at as u64).unwrap_or(u32::MAX),
                stage: self.stage((number(stages[at]), number(attempts[at]))),
                lane: self.executor(executor, host),
                outcome: place(&OUTCOMES, statuses[at].as_deref()),
                locality: place(&LOCALITIES, localities[at].as_deref()),
                speculative: speculative[at] == Some(1),
                straggler: false,
                parts,
            };
            let peak = &mut self.stages[task.stage as usize].peak;
            *peak = (*peak).max(peaks[at]);
            self.tasks.push(task);
        }
        Ok(())
    }

    fn stage(&mut self, key: (i32, i32)) -> u32 {
        *self.stage_of.entry(key).or_insert_with(|| {
            let name = self.names.get(&format!("{}.{}", key.0, key.1));
            self.stages.push(Stage {
                key,
                name: name.cloned().unwrap_or_default(),
                ..Stage::default()
            });
            self.stages.len() as u32 - 1
        })
    }

    fn executor(&mut self, id: &str, host: &str) -> u32 {
        if let Some(&known) = self.executor_of.get(id) {
            return known;
        }
        let index = self.executors.len() as u32;
        self.executors.push((id.to_owned(), host.to_owned()));
        self.executor_of.insert(id.to_owned(), index);
        index
    }

    fn model(mut self, mut jobs: Vec<Job>) -> Model {
        self.mark_stragglers();
        let starts = self.tasks.iter().map(|task| task.launch);
        let start = starts.chain(jobs.iter().map(|job| job.start)).min();
        let start = start.unwrap_or_default();
        for task in &mut self.tasks {
            task.launch -= start;
        }
        for job in &mut jobs {
            (job.start, job.end) = (job.start - start, job.end - start);
        }
        jobs.sort_by_key(|job| (job.start, job.id));
        let (rows, _) = pack(jobs.iter().map(|job| (job.start, job.end)));
        for (job, row) in jobs.iter_mut().zip(rows) {
            job.row = row as usize;
        }
        let (executors, lanes) = self.lanes();
        let ends = self.tasks.iter().map(Task::end);
        let end = ends.chain(jobs.iter().map(|job| job.end)).max();
        Model {
            start,
            end: end.unwrap_or_default(),
            tasks: self.tasks,
            lanes,
            executors,
            stages: self.stages,
            jobs,
            left_out: self.left_out,
            paths_left_out: 0,
        }
    }

    /// A straggler took longer than one and a half times the median of its stage's successful tasks, and at least
    /// 100 ms longer than it.
    fn mark_stragglers(&mut self) {
        let mut durations: Vec<Vec<u32>> = vec![Vec::new(); self.stages.len()];
        for task in self.tasks.iter().filter(|task| task.outcome == 0) {
            durations[task.stage as usize].push(task.duration);
        }
        for (stage, mut all) in self.stages.iter_mut().zip(durations) {
            if all.len() >= STRAGGLER_TASKS {
                let middle = all.len() / 2;
                stage.median = Some(*all.select_nth_unstable(middle).1);
            }
        }
        for task in &mut self.tasks {
            let median = self.stages[task.stage as usize].median;
            task.straggler =
                median.is_some_and(|median| is_late(f64::from(task.duration), f64::from(median)));
        }
    }

    /// Sorts executors and tasks, and gives each task its lane.
    fn lanes(&mut self) -> (Vec<Executor>, Vec<Lane>) {
        let mut order: Vec<u32> = (0..self.executors.len() as u32).collect();
        order.sort_by_key(|&at| {
            let id = &self.executors[at as usize].0;
            (id.parse::<u64>().unwrap_or(u64::MAX), id.clone())
        });
        let mut position = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            position[old as usize] = new as u32;
        }
        for task in &mut self.tasks {
            task.lane = position[task.lane as usize];
        }
        self.tasks
            .sort_unstable_by_key(|task| (task.lane, task.launch, task.end(), task.id));
        let (mut executors, mut lanes) = (Vec::new(), Vec::<Lane>::new());
        let mut begin = 0;
        for (at, &old) in order.iter().enumerate() {
            let here = self.tasks[begin..].partition_point(|task| task.lane == at as u32);
            let tasks = &mut self.tasks[begin..begin + here];
            let (rows, count) = pack(tasks.iter().map(|task| (task.launch, task.end())));
            let first = lanes.len() as u32;
            for (task, row) in tasks.iter_mut().zip(rows) {
                task.lane = first + row;
            }
            tasks.sort_by_key(|task| (task.lane, task.launch, task.end()));
            let mut next = begin;
            for lane in first..first + count {
                let of = self.tasks[next..begin + here].partition_point(|task| task.lane == lane);
                lanes.push(Lane {
                    executor: at as u32,
                    tasks: next as u32..(next + of) as u32,
                });
                next += of;
            }
            let (id, host) = std::mem::take(&mut self.executors[old as usize]);
            executors.push(Executor {
                id,
                host,
                lanes: first..first + count,
            });
            begin += here;
        }
        (executors, lanes)
    }
}

/// Index of a name; the last entry stands for unknown ones.
fn place(names: &[&str], name: Option<&str>) -> u8 {
    let known = names.iter().position(|known| Some(*known) == name);
    known.unwrap_or(names.len() - 1) as u8
}

/// Columns of a task's times.
pub struct Columns {
    columns: [Vec<Option<i64>>; 8],
}

impl Columns {
    /// Reads the columns of rows.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn read(table: &Reader, rows: &[Range<u64>]) -> Result<Self, ParquetError> {
        let numbers = |name: &str| table.numbers(name, rows);
        Ok(Self {
            columns: [
                numbers("executor_deserialize_time_ms")?,
                numbers("executor_run_time_ms")?,
                numbers("executor_cpu_time_ns")?,
                numbers("shuffle_fetch_wait_time_ms")?,
                numbers("jvm_gc_time_ms")?,
                numbers("shuffle_write_time_ns")?,
                numbers("result_serialization_time_ms")?,
                numbers("getting_result_time")?,
            ],
        })
    }

    /// Times of a task in units of `1 / per_ms` milliseconds, for a launch since 1970 and a duration in milliseconds.
    fn times(&self, at: usize, launch: i64, duration: u64, per_ms: u64) -> Times {
        let value = |column: usize| {
            let value = self.columns[column][at].unwrap_or_default();
            u64::try_from(value).unwrap_or_default()
        };
        let ms = |column: usize| value(column).saturating_mul(per_ms);
        let ns = |column: usize| value(column) / (1_000_000 / per_ms);
        let begun = self.columns[7][at].filter(|time| *time > 0);
        let result = begun.map_or(0, |begun| {
            let end = launch.saturating_add_unsigned(duration);
            u64::try_from(end.saturating_sub(begun)).unwrap_or_default()
        });
        Times {
            duration: duration.saturating_mul(per_ms),
            deserialize: ms(0),
            run: ms(1),
            cpu: ns(2),
            fetch: ms(3),
            gc: ms(4),
            write: ns(5),
            serialize: ms(6),
            result: result.saturating_mul(per_ms),
        }
    }

    fn milliseconds(&self, at: usize, launch: i64, duration: u64) -> Times {
        self.times(at, launch, duration, 1)
    }

    /// Times of a task in microseconds, for a launch in milliseconds since 1970 and a duration in milliseconds.
    #[must_use]
    pub fn microseconds(&self, at: usize, launch: i64, duration: u64) -> Times {
        self.times(at, launch, duration, 1000)
    }
}
