//! Tasks of stage attempts as the rules need them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use serde_json::Value;
pub use smtt_model::advise::tasks::{median, quantile};
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;

use super::joins::Joins;
use super::workers::Figures;
use crate::json::milliseconds;
use crate::open::App;
use crate::out::Kind;
use crate::timeline::model::cut;

/// Tasks at most.
const MOST: u64 = 1_000_000;

/// Cores of an attempt at most: the log claims them.
const CORES: usize = 100_000;
/// Cores of all attempts that have fewer tasks than cores, at most.
const SIMULATED: usize = 50_000_000;

/// Share of an attempt's time without other stages, from which its cores are its own.
const ALONE: f64 = 0.9;

/// A successful task. Times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Id of the task attempt.
    pub id: i64,
    /// Launch, in milliseconds since 1970.
    pub launch: i64,
    /// From launch to finish, as the driver saw it.
    pub duration: f64,
    /// "Executor Run Time".
    pub run: f64,
    /// "Executor CPU Time".
    pub cpu: f64,
    /// "JVM GC Time": collections of the whole executor while the task ran.
    pub gc: f64,
    /// "Fetch Wait Time": the task waited for shuffle blocks.
    pub fetch: f64,
    /// "Shuffle Write Time".
    pub write: f64,
    /// Duration without run time: waiting for the driver, deserialisation, sending the result.
    pub around: f64,
    /// Bytes that it read: input and shuffle blocks.
    pub bytes: f64,
    /// Records that it read; 0 where they are not known.
    pub records: f64,
    /// "Memory Bytes Spilled": their size in memory.
    pub spilled: f64,
    /// "Peak Execution Memory", in bytes.
    pub peak: f64,
    /// Index of its host in [`Log::hosts`].
    pub host: u32,
    /// Whether its data were in its own process or on its node.
    pub is_local: bool,
    /// How long its core had no task before the launch; below zero where the driver learned late of the end of the task
    /// before. Absent where another stage or an executor that was late may be why.
    pub idle: Option<f64>,
}

impl Task {
    /// End since 1970.
    fn end(&self) -> f64 {
        self.launch as f64 + self.duration
    }

    /// Run time that is neither computing nor a wait that Spark names.
    pub fn other(&self) -> f64 {
        (self.run - self.cpu - self.gc - self.fetch - self.write).max(0.0)
    }
}

/// A stage attempt with the successful tasks that the rules examine.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Spark's id of the stage, and the number of the attempt.
    pub key: (i32, i32),
    /// Name of the stage, shortened.
    pub name: String,
    /// Successful tasks by launch.
    pub tasks: Vec<Task>,
    /// Milliseconds from the first launch to the last end.
    pub window: f64,
    /// Tasks that ran at a time, at most; no more than the cores, because the driver learns of an end late.
    pub slots: usize,
    /// Cores of the executors that were there; none where they are too many to be simulated.
    pub cores: Option<usize>,
    /// Share of its time in which no other stage had a running task.
    pub alone: f64,
    /// Milliseconds from the end of a task to the launch of the next one on that core: the median. Below zero where the
    /// driver learns of an end after it has launched the next task.
    pub gap: f64,
    /// Last end of a task of the stages that it reads, since 1970; absent where the log has none.
    pub parents_end: Option<f64>,
}

/// What the rules need of an application.
#[derive(Debug, Default)]
pub struct Log {
    /// Stage attempts with successful tasks, by stage and attempt.
    pub attempts: Vec<Attempt>,
    /// Names of the hosts that tasks ran on.
    pub hosts: Vec<String>,
    /// Spark's properties, as the log has them.
    pub properties: BTreeMap<String, String>,
    /// Tasks beyond those that are read.
    pub left_out: u64,
    /// Attempts whose cores are too many.
    pub without_cores: usize,
    /// What workers saw of the tasks.
    pub workers: Figures,
    /// Sort-merge joins.
    pub joins: Joins,
    is_sql: bool,
}

impl Log {
    /// Reads the tasks, stages, executors and properties of an application.
    ///
    /// # Errors
    /// When the table of tasks cannot be read.
    pub fn read(app: &App) -> Result<Self, ParquetError> {
        let mut log = Self {
            properties: app.spark_properties(),
            is_sql: !app.all(Kind::Sql).is_empty(),
            joins: Joins::read(app),
            ..Self::default()
        };
        let mut attempts: BTreeMap<(i32, i32), Attempt> = BTreeMap::new();
        let mut hosts: HashMap<String, u32> = HashMap::new();
        let table = app.tasks()?;
        let (mut start, mut room) = (0, MOST);
        for &count in table.groups() {
            let rows = start..start + count.min(room);
            if rows.start < rows.end {
                group(&table, &rows, &mut attempts, &mut hosts)?;
            }
            log.left_out += count - count.min(room);
            room -= count.min(room);
            start += count;
        }
        log.hosts = vec![String::new(); hosts.len()];
        for (name, at) in hosts {
            log.hosts[at as usize] = name;
        }
        for (_, text) in app.all(Kind::Stage) {
            let json: Value = serde_json::from_str(text).unwrap_or_default();
            let number = |name: &str| json[name].as_i64().and_then(|id| i32::try_from(id).ok());
            let key = number("stageId").zip(number("attemptId"));
            if let Some(attempt) = key.and_then(|key| attempts.get_mut(&key)) {
                attempt.name = cut(json["name"].as_str().unwrap_or_default());
            }
        }
        let executors = Executors::of(app);
        log.attempts = attempts
            .into_values()
            .filter(|it| !it.tasks.is_empty())
            .collect();
        for attempt in &mut log.attempts {
            attempt.tasks.sort_by_key(|task| task.launch);
            let begin = attempt.tasks[0].launch;
            let ends = attempt.tasks.iter().map(Task::end);
            let end = ends.fold(f64::MIN, f64::max);
            attempt.window = (end - begin as f64).max(0.0);
            let at_begin = executors.at(begin);
            let ever = executors.within(begin, end);
            attempt.slots = at_a_time(&attempt.tasks);
            if ever > 0 {
                attempt.slots = attempt.slots.min(ever);
            }
            attempt.cores = Some(at_begin.max(attempt.slots)).filter(|cores| *cores <= CORES);
            attempt.idle(at_begin >= attempt.slots);
        }
        log.parents(app);
        log.bound_simulations(SIMULATED);
        log.alone();
        for attempt in &mut log.attempts {
            // Of all but the first: the median, because other waits (a lost executor, tasks that failed) concern few tasks.
            let idle = attempt.tasks.iter().skip(attempt.slots);
            attempt.gap = median(idle.filter_map(|task| task.idle));
            if attempt.alone < ALONE {
                // Another stage may have had the core.
                attempt.gap = attempt.gap.min(0.0);
                attempt.tasks.iter_mut().for_each(|task| task.idle = None);
            }
        }
        Ok(log)
    }

    /// Finds when the stages ended that each attempt reads.
    fn parents(&mut self, app: &App) {
        let mut ends: HashMap<i32, f64> = HashMap::new();
        for attempt in &self.attempts {
            let end = attempt.tasks[0].launch as f64 + attempt.window;
            let last = ends.entry(attempt.key.0).or_insert(end);
            *last = last.max(end);
        }
        for attempt in &mut self.attempts {
            let text = app.one(Kind::StageRdds, &attempt.id());
            let json: Value = text
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            let parents = json["parentStageIds"].as_array().into_iter().flatten();
            let parents = parents.filter_map(|id| i32::try_from(id.as_i64()?).ok());
            let ends = parents.filter_map(|id| ends.get(&id).copied());
            attempt.parents_end = ends.reduce(f64::max);
        }
    }

    /// Leaves the cores out of attempts with fewer tasks than cores, from the one on with which they are more than `most`
    /// together: each of them is simulated.
    fn bound_simulations(&mut self, most: usize) {
        let mut room = most;
        for attempt in &mut self.attempts {
            match attempt.cores {
                Some(cores) if cores > attempt.tasks.len() => match room.checked_sub(cores) {
                    Some(left) => room = left,
                    None => attempt.cores = None,
                },
                _ => {}
            }
        }
        let unknown = self.attempts.iter().filter(|it| it.cores.is_none());
        self.without_cores = unknown.count();
    }

    /// Windows in which attempts had tasks, by their begin.
    fn windows(&self) -> Vec<(f64, f64)> {
        let of = |attempt: &Attempt| {
            let begin = attempt.tasks[0].launch as f64;
            (begin, begin + attempt.window)
        };
        self.attempts.iter().map(of).collect()
    }

    fn alone(&mut self) {
        let windows = self.windows();
        let mut sorted = windows.clone();
        sorted.sort_by(|left, right| left.0.total_cmp(&right.0));
        for (attempt, window) in self.attempts.iter_mut().zip(&windows) {
            // Those that begin before it ends; of many stages only the nearest are considered.
            let last = sorted.partition_point(|other| other.0 < window.1);
            let near = &sorted[last.saturating_sub(2000)..last];
            let mut covered = 0.0;
            let mut until = window.0;
            let mut own = false;
            for other in near {
                if other == window && !own {
                    own = true;
                    continue;
                }
                let (from, to) = (other.0.max(until), other.1.min(window.1));
                if to > from {
                    covered += to - from;
                    until = to;
                }
            }
            attempt.alone = 1.0 - (covered / (window.1 - window.0).max(1.0)).min(1.0);
        }
    }

    /// Seconds in which any stage had a running task.
    pub fn busy_seconds(&self) -> f64 {
        let mut windows = self.windows();
        windows.sort_by(|left, right| left.0.total_cmp(&right.0));
        let (mut sum, mut until) = (0.0, f64::MIN);
        for (from, to) in windows {
            sum += (to - from.max(until)).max(0.0);
            until = until.max(to);
        }
        sum / 1000.0
    }

    /// The stage attempt with this id.
    pub fn attempt(&self, key: (i32, i32)) -> Option<&Attempt> {
        let at = self.attempts.binary_search_by_key(&key, |it| it.key).ok()?;
        self.attempts.get(at)
    }

    /// A property's value.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// The setting that changes how many tasks a stage that reads a shuffle has.
    pub fn partitions(&self) -> &'static str {
        if self.is_sql {
            "spark.sql.shuffle.partitions"
        } else {
            "spark.default.parallelism, or the number of partitions in the operation"
        }
    }
}

/// Cores of executors by time.
#[derive(Default)]
struct Executors {
    /// Begins in their order, each with the cores of all until then.
    begins: Vec<(i64, usize)>,
    /// Ends, as the begins.
    ends: Vec<(i64, usize)>,
}

impl Executors {
    fn of(app: &App) -> Self {
        let all = app.all(Kind::Executor).iter();
        let of = |(id, text): &(String, String)| {
            let json: Value = serde_json::from_str(text).ok()?;
            let time = |name: &str| json[name].as_str().and_then(milliseconds);
            let cores = usize::try_from(json["totalCores"].as_i64()?).ok()?;
            let runs_tasks = id != "driver" || json["totalTasks"].as_i64() > Some(0);
            let begin = time("addTime").unwrap_or(0);
            let end = time("removeTime").unwrap_or(i64::MAX).max(begin);
            runs_tasks.then_some((begin, end, cores))
        };
        let mut all: Vec<(i64, i64, usize)> = all.filter_map(of).collect();
        all.sort_unstable_by_key(|(begin, _, _)| *begin);
        let begins = summed(all.iter().map(|(begin, _, cores)| (*begin, *cores)));
        all.sort_unstable_by_key(|(_, end, _)| *end);
        let ends = summed(all.iter().map(|(_, end, cores)| (*end, *cores)));
        Self { begins, ends }
    }

    /// Cores that were there at that time.
    fn at(&self, time: i64) -> usize {
        let begun = until(&self.begins, |begin| begin <= time);
        begun.saturating_sub(until(&self.ends, |end| end <= time))
    }

    /// Cores of all executors that were there at some time of a window.
    fn within(&self, from: i64, to: f64) -> usize {
        let begun = until(&self.begins, |begin| (begin as f64) < to);
        begun.saturating_sub(until(&self.ends, |end| end <= from))
    }
}

/// Times with the sum of the cores until then.
fn summed(sorted: impl Iterator<Item = (i64, usize)>) -> Vec<(i64, usize)> {
    let mut sum = 0_usize;
    sorted
        .map(|(time, cores)| {
            sum = sum.saturating_add(cores);
            (time, sum)
        })
        .collect()
}

/// The last sum whose time is early enough.
fn until(sums: &[(i64, usize)], is_early: impl Fn(i64) -> bool) -> usize {
    let count = sums.partition_point(|(time, _)| is_early(*time));
    count.checked_sub(1).map_or(0, |last| sums[last].1)
}

impl Attempt {
    /// Finds how long the core of each task had none before its launch, with the core that is free first. `at_begin` says
    /// whether all cores were there at the first launch. Tasks are sorted by launch.
    fn idle(&mut self, at_begin: bool) {
        let begin = self.tasks[0].launch;
        let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        for (at, task) in self.tasks.iter_mut().enumerate() {
            task.idle = if at < self.slots {
                at_begin.then_some((task.launch - begin) as f64)
            } else {
                let free = ends.pop().map_or(0, |Reverse(end)| end);
                Some(task.launch as f64 - free as f64 / 1000.0)
            };
            ends.push(Reverse((task.end().max(0.0) * 1000.0) as u64));
        }
    }
}

/// Tasks that run at a time, at most.
fn at_a_time(tasks: &[Task]) -> usize {
    let begins = tasks.iter().map(|task| (task.launch as f64, 1_i64));
    let ends = tasks.iter().map(|task| (task.end(), -1));
    let mut all: Vec<(f64, i64)> = begins.chain(ends).collect();
    // A task that ends gives its core to one that begins at the same time.
    all.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    let mut now = 0;
    let most = all.into_iter().map(|(_, change)| {
        now += change;
        now
    });
    usize::try_from(most.max().unwrap_or(1)).unwrap_or(1).max(1)
}

fn group(
    table: &Reader,
    rows: &std::ops::Range<u64>,
    attempts: &mut BTreeMap<(i32, i32), Attempt>,
    hosts: &mut HashMap<String, u32>,
) -> Result<(), ParquetError> {
    let range = std::slice::from_ref(rows);
    let raw = |name: &str| table.numbers(name, range);
    let of = |name: &str, divisor: f64| -> Result<Vec<f64>, ParquetError> {
        let all = raw(name)?.into_iter();
        Ok(all
            .map(|value| value.unwrap_or_default().max(0) as f64 / divisor)
            .collect())
    };
    let (stages, numbers, launches) =
        (raw("stage_id")?, raw("stage_attempt")?, raw("launch_time")?);
    let (durations, measured) = (of("duration_ms", 1.0)?, raw("has_metrics")?);
    let (run, cpu) = (
        of("executor_run_time_ms", 1.0)?,
        of("executor_cpu_time_ns", 1e6)?,
    );
    let (gc, fetch) = (
        of("jvm_gc_time_ms", 1.0)?,
        of("shuffle_fetch_wait_time_ms", 1.0)?,
    );
    let write = of("shuffle_write_time_ns", 1e6)?;
    let ids = raw("task_id")?;
    let (input, remote) = (of("input_bytes", 1.0)?, of("shuffle_remote_bytes", 1.0)?);
    let (near, spilled) = (
        of("shuffle_local_bytes", 1.0)?,
        of("memory_spilled_bytes", 1.0)?,
    );
    let peak = of("peak_execution_memory_bytes", 1.0)?;
    let (records, shuffled) = (of("input_records", 1.0)?, of("shuffle_read_records", 1.0)?);
    let (statuses, localities) = (
        table.texts("status", range)?,
        table.texts("locality", range)?,
    );
    let names = table.texts("host", range)?;
    for at in 0..stages.len() {
        if statuses[at].as_deref() != Some("SUCCESS") || measured[at] != Some(1) {
            continue;
        }
        let number = |value: Option<i64>| i32::try_from(value.unwrap_or_default()).unwrap_or(-1);
        let key = (number(stages[at]), number(numbers[at]));
        let host = names[at].as_deref().unwrap_or_default();
        let next = hosts.len() as u32;
        let host = match hosts.get(host) {
            Some(host) => *host,
            None => *hosts.entry(host.to_owned()).or_insert(next),
        };
        let attempt = attempts.entry(key).or_default();
        attempt.key = key;
        let run = run[at].min(durations[at]);
        attempt.tasks.push(Task {
            id: ids[at].unwrap_or_default(),
            launch: launches[at].unwrap_or_default(),
            duration: durations[at],
            run,
            cpu: cpu[at],
            gc: gc[at].min(run),
            fetch: fetch[at].min(run),
            write: write[at],
            around: durations[at] - run,
            bytes: input[at] + remote[at] + near[at],
            records: records[at] + shuffled[at],
            spilled: spilled[at],
            peak: peak[at],
            host,
            is_local: !matches!(localities[at].as_deref(), Some("RACK_LOCAL" | "ANY")),
            idle: None,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_beyond_the_bound_of_all_attempts_are_left_out() {
        let attempt = |cores, tasks| Attempt {
            cores: Some(cores),
            tasks: vec![Task::default(); tasks],
            ..Attempt::default()
        };
        let mut log = Log {
            attempts: vec![attempt(6, 1), attempt(5, 2), attempt(4, 4), attempt(4, 3)],
            ..Log::default()
        };
        log.bound_simulations(10);
        let cores: Vec<_> = log.attempts.iter().map(|it| it.cores).collect();
        assert_eq!(cores, [Some(6), None, Some(4), Some(4)]);
        assert_eq!(log.without_cores, 1);
    }
}
