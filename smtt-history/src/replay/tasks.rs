//! Task attempts: rows of the tables, and their part in stages, jobs and executors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::{FIRST_METRIC, FIRST_PEAK, METRICS, TASKS};

use super::errors::message;
use super::stages::{OnExecutor, Status};
use super::{LIVE_TASKS, LiveBytes, Replay, Trouble};
use crate::event::metrics::at;
use crate::event::{Accumulable, LONGEST_TEXT, Peaks, TaskEnd, TaskInfo, TaskStart, cut};
use crate::json::present;

/// Longest text of an accumulator's value. Spark shows collections by their first five elements.
pub(super) const LONGEST_VALUE: usize = 4096;

/// A task attempt that runs.
#[derive(Clone, Debug)]
pub(super) struct LiveTask {
    stage: i32,
    stage_attempt: i32,
    index: i32,
    attempt: i32,
    partition: Option<i32>,
    launch: i64,
    executor: Box<str>,
    host: Box<str>,
    locality: Box<str>,
    speculative: bool,
    getting_result: i64,
    end: Ended,
}

/// Whether a task attempt has ended, as its events state it. Spark fills in what it knows of a task when it writes an event, so
/// that the start of a short task may state its end, too.
#[derive(Clone, Copy, Debug)]
struct Ended {
    finish: i64,
    failed: bool,
    killed: bool,
}

impl Ended {
    fn of(info: &TaskInfo<'_>) -> Self {
        Self {
            finish: info.finish,
            failed: info.failed,
            killed: info.killed,
        }
    }

    fn status(self) -> &'static str {
        match (self.finish, self.failed, self.killed) {
            (0, ..) => "RUNNING",
            (_, true, _) => "FAILED",
            (_, false, true) => "KILLED",
            (_, false, false) => "SUCCESS",
        }
    }

    /// Milliseconds since the launch.
    fn duration(self, launch: i64) -> Option<i64> {
        (self.finish != 0).then(|| self.finish.wrapping_sub(launch))
    }
}

impl LiveTask {
    fn size(&self) -> usize {
        200 + self.executor.len() + self.host.len() + self.locality.len()
    }
}

/// The end of a task attempt: of an event, or of a row that the driver wrote.
#[derive(Debug)]
pub(crate) struct End<'a> {
    pub stage: i32,
    pub stage_attempt: i32,
    /// Without its accumulators, which are below.
    pub info: &'a TaskInfo<'a>,
    pub kind: Option<&'a str>,
    pub reason: &'a str,
    /// The message that Spark shows for the reason.
    pub error: Option<&'a str>,
    pub accumulators: Option<&'a str>,
    pub values: [i64; METRICS],
    /// Peaks of execution memory on the heap and off it.
    pub heaps: [Option<i64>; 2],
    pub peaks: Peaks,
    /// Accumulators whose update is an integer, and whether they are SQL metrics.
    pub metrics: &'a [(i64, i64, bool)],
    /// SQL metrics whose update is no integer.
    pub unreadable: u64,
    /// Values of columns of `tasks` that this version does not know.
    pub further: &'a [Cell<'a>],
    /// Values of columns of `task_sql` that this version does not know, for each of `metrics`; empty where there are none.
    pub of_metrics: &'a [Vec<Cell<'a>>],
}

/// Takes room for an index or a reason, which a set or a map has when `insert` says that it is new.
fn grow(
    held: &mut LiveBytes,
    grown: &mut usize,
    bytes: usize,
    insert: impl FnOnce() -> bool,
) -> bool {
    if !held.take(bytes) {
        return false;
    }
    if insert() {
        *grown += bytes;
    } else {
        held.give(bytes);
    }
    true
}

/// Counts a reason; `false` where there is no room for another one.
fn count_reason(
    held: &mut LiveBytes,
    grown: &mut usize,
    reasons: &mut BTreeMap<String, u64>,
    reason: &str,
) -> bool {
    if let Some(count) = reasons.get_mut(reason) {
        *count += 1;
        return true;
    }
    let bytes = 100 + reason.len();
    grow(held, grown, bytes, || {
        reasons.insert(reason.to_owned(), 1).is_none()
    })
}

/// Bytes of an index in a set, about.
const INDEX: usize = 24;

/// How a task attempt ended, in Spark's three classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Completed,
    Killed,
    Failed,
}

impl Replay {
    pub(crate) fn on_task_start(&mut self, event: &TaskStart<'_>) {
        let info = &event.info;
        if self.tasks.len() >= LIVE_TASKS {
            self.drop_one("tasks");
            return;
        }
        let task = LiveTask {
            stage: event.stage,
            stage_attempt: event.stage_attempt,
            index: info.index,
            attempt: info.attempt,
            partition: info.partition,
            launch: info.launch,
            executor: (*info.executor).into(),
            host: (*info.host).into(),
            locality: (*info.locality).into(),
            speculative: info.speculative,
            getting_result: info.getting_result,
            end: Ended::of(info),
        };
        if !self.held.take(task.size()) {
            self.drop_one("tasks");
            return;
        }
        if let Some(old) = self.tasks.insert(info.id, task) {
            self.held.give(old.size());
        }
        if let Some(stage) = self.stages.get_mut(&(event.stage, event.stage_attempt)) {
            stage.active += 1;
            let first = stage.first_launch.unwrap_or(i64::MAX);
            stage.first_launch = Some(first.min(info.launch));
            if info.speculative {
                stage.speculative.tasks += 1;
                stage.speculative.active += 1;
            }
            let key = (event.stage, event.stage_attempt);
            let jobs = std::mem::take(&mut stage.jobs);
            self.jobs_of(&jobs, |job| job.active += 1);
            self.put_back(key, jobs);
        }
        if let Some(executor) = self.live_executor(&info.executor) {
            executor.active += 1;
            executor.total += 1;
        }
    }

    pub(super) fn on_task_end(&mut self, event: &TaskEnd<'_>) -> Result<(), Trouble> {
        let Some(info) = &event.info else {
            return Ok(());
        };
        let accumulators = user_accumulators(&info.accumulables);
        let accumulators =
            (!accumulators.is_empty()).then(|| Value::from(accumulators).to_string());
        let (mut metrics, mut unreadable) = (Vec::new(), 0);
        for accumulable in &info.accumulables {
            let is_sql = accumulable.metadata.as_deref() == Some("sql");
            let Some(update) = accumulable.update else {
                continue;
            };
            match integer(update) {
                Some(value) => metrics.push((accumulable.id, value, is_sql)),
                None => unreadable += u64::from(is_sql),
            }
        }
        // A lost task has none in the log, and Spark reads zeros.
        let values = event.metrics.unwrap_or_default();
        self.end_task(&End {
            stage: event.stage,
            stage_attempt: event.stage_attempt,
            info,
            kind: event.kind.as_deref(),
            reason: &event.reason.reason,
            error: message(&event.reason).as_deref(),
            accumulators: accumulators.as_deref(),
            values: values.values(),
            heaps: [values.peak_on_heap, values.peak_off_heap],
            peaks: event.peaks,
            metrics: &metrics,
            unreadable,
            further: &[],
            of_metrics: &[],
        })
    }

    /// Whether a task attempt has begun and not ended.
    pub(crate) fn is_running(&self, task: i64) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Takes the end of a task attempt.
    pub(crate) fn end_task(&mut self, event: &End<'_>) -> Result<(), Trouble> {
        let info = event.info;
        self.sql.on_task_end(event, &mut self.dropped);
        let error = event.error;
        let values = Some(event.values);
        // Spark shows no task whose start it missed, and no end twice.
        let live = self.tasks.remove(&info.id);
        self.held.give(live.as_ref().map_or(0, LiveTask::size));
        let was_live = live.is_some();
        // The output of a task that had succeeded was lost with its executor. The attempt ended before, and its time counts
        // once.
        let is_resubmitted = event.reason == "Resubmitted";
        let ended = i64::from(!is_resubmitted);
        let mut has_room = true;
        if was_live {
            self.write_task(event)?;
            self.write_sql(event)?;
        } else if !is_resubmitted {
            self.drop_one("task ends without a start");
        }
        let class = match event.reason {
            "Success" => Class::Completed,
            "TaskKilled" | "TaskCommitDenied" => Class::Killed,
            _ => Class::Failed,
        };
        let duration = info.finish.wrapping_sub(info.launch);
        let delta = values.filter(|_| was_live);
        let key = (event.stage, event.stage_attempt);
        if let Some(stage) = self.stages.get_mut(&key) {
            let reason =
                (class == Class::Killed).then(|| cut(error.unwrap_or_default(), LONGEST_TEXT));
            if let Some(delta) = &delta {
                stage.metrics.add(delta);
            }
            stage.active -= ended;
            stage.peaks.raise(&event.peaks);
            let mut none = OnExecutor::default();
            let mut grown = 0;
            let executor = match stage.on_executor(&info.executor, &mut self.held) {
                Some(executor) => executor,
                None => {
                    has_room = false;
                    &mut none
                }
            };
            executor.time = executor.time.wrapping_add(ended * duration);
            executor.peaks.raise(&event.peaks);
            if let Some(delta) = &delta {
                executor.metrics.add(delta);
            }
            match class {
                Class::Completed => executor.succeeded += 1,
                Class::Killed => executor.killed += 1,
                Class::Failed => executor.failed += 1,
            }
            let speculative = &mut stage.speculative;
            let is_speculative = i64::from(info.speculative);
            speculative.active -= ended * is_speculative;
            match class {
                Class::Completed => {
                    stage.completed += 1;
                    has_room &= grow(&mut self.held, &mut grown, INDEX, || {
                        stage.indices.insert(info.index)
                    });
                    speculative.completed += is_speculative;
                }
                Class::Killed => {
                    stage.killed += 1;
                    speculative.killed += is_speculative;
                }
                Class::Failed => {
                    stage.failed += 1;
                    speculative.failed += is_speculative;
                }
            }
            if let Some(reason) = reason {
                has_room &= count_reason(&mut self.held, &mut grown, &mut stage.reasons, reason);
            }
            stage.grown += grown;
            let is_over =
                stage.active == 0 && matches!(stage.status, Status::Complete | Status::Failed);
            let jobs = std::mem::take(&mut stage.jobs);
            let jobs_seen = if self.visit(jobs.len()) {
                jobs.len()
            } else {
                0
            };
            for id in jobs.iter().take(jobs_seen) {
                let Some(job) = self.jobs.get_mut(id) else {
                    continue;
                };
                job.active -= ended;
                match class {
                    Class::Completed => {
                        job.completed += 1;
                        has_room &= grow(&mut self.held, &mut job.bytes, INDEX, || {
                            job.indices.insert((event.stage, info.index))
                        });
                    }
                    Class::Killed => job.killed += 1,
                    Class::Failed => job.failed += 1,
                }
                if let Some(reason) = reason {
                    let (bytes, reasons) = job.current_reasons();
                    has_room &= count_reason(&mut self.held, bytes, reasons, reason);
                }
                if is_over {
                    job.show();
                }
            }
            if !has_room {
                self.drop_one("parts of stages and jobs");
            }
            self.put_back(key, jobs);
            if is_over {
                self.remove_stage(key);
            }
        }
        if let Some(executor) = self.live_executor(&info.executor) {
            executor.active -= ended;
            executor.completed += i64::from(class == Class::Completed);
            executor.failed += i64::from(class == Class::Failed);
            executor.duration = executor.duration.wrapping_add(ended * duration);
            executor.peaks.raise(&event.peaks);
            if let Some(values) = &values
                && !is_resubmitted
            {
                let add = |sum: &mut i64, value: i64| *sum = sum.wrapping_add(value);
                add(&mut executor.gc, values[at::GC]);
                add(&mut executor.input, values[at::INPUT_BYTES]);
                add(&mut executor.shuffle_read, values[at::LOCAL_BYTES]);
                add(&mut executor.shuffle_read, values[at::REMOTE_BYTES]);
                add(&mut executor.shuffle_write, values[at::WRITE_BYTES]);
            }
        }
        Ok(())
    }

    /// Gives a stage its jobs back: a copy for each task would take time with their number.
    fn put_back(&mut self, key: (i32, i32), jobs: BTreeSet<i32>) {
        if let Some(stage) = self.stages.get_mut(&key) {
            stage.jobs = jobs;
        }
    }

    fn write_task(&mut self, event: &End<'_>) -> Result<(), Trouble> {
        let info = event.info;
        let end = Ended::of(info);
        let mut row = [Cell::None; TASKS.columns.len()];
        row[..FIRST_METRIC].copy_from_slice(&[
            Cell::Number(event.stage.into()),
            Cell::Number(event.stage_attempt.into()),
            Cell::Number(info.id),
            Cell::Number(info.index.into()),
            Cell::Number(info.attempt.into()),
            Cell::optional(info.partition.map(Into::into)),
            Cell::Text(&info.executor),
            Cell::Text(&info.host),
            Cell::Number(info.launch),
            Cell::optional(end.duration(info.launch)),
            Cell::optional((info.getting_result != 0).then_some(info.getting_result)),
            Cell::Text(end.status()),
            Cell::Text(&info.locality),
            Cell::Number(info.speculative.into()),
            text(event.kind),
            Cell::Text(event.reason),
            text(event.error),
            text(event.accumulators),
            Cell::Number(1),
        ]);
        for (cell, value) in row[FIRST_METRIC..].iter_mut().zip(&event.values) {
            *cell = Cell::Number(*value);
        }
        for (cell, value) in row[FIRST_METRIC + METRICS..].iter_mut().zip(event.heaps) {
            *cell = Cell::optional(value);
        }
        let Peaks(peaks) = &event.peaks;
        for (cell, peak) in row[FIRST_PEAK..].iter_mut().zip(peaks) {
            *cell = Cell::optional(*peak);
        }
        if event.further.is_empty() {
            return Ok(self.out.task(&row)?);
        }
        let mut all = row.to_vec();
        all.extend_from_slice(event.further);
        Ok(self.out.task(&all)?)
    }

    fn write_sql(&mut self, event: &End<'_>) -> Result<(), Trouble> {
        for (at, (id, value, is_sql)) in event.metrics.iter().enumerate() {
            if !is_sql {
                continue;
            }
            let further = event.of_metrics.get(at).map_or(&[][..], Vec::as_slice);
            let task = [
                event.stage.into(),
                event.stage_attempt.into(),
                event.info.id,
            ];
            self.out
                .task_sql(task, &event.values, (*id, *value), further)?;
        }
        for _ in 0..event.unreadable {
            self.drop_one("SQL metrics that are no integer");
        }
        Ok(())
    }

    /// Writes tasks whose end the log does not have. As in Spark they count as active, whatever their start states.
    pub(super) fn finish_tasks(&mut self) -> Result<(), Trouble> {
        let mut rest: Vec<(i64, LiveTask)> = self.tasks.drain().collect();
        rest.sort_by_key(|(id, _)| *id);
        for (id, task) in rest {
            let mut row = [Cell::None; TASKS.columns.len()];
            row[..FIRST_METRIC - 5].copy_from_slice(&[
                Cell::Number(task.stage.into()),
                Cell::Number(task.stage_attempt.into()),
                Cell::Number(id),
                Cell::Number(task.index.into()),
                Cell::Number(task.attempt.into()),
                Cell::optional(task.partition.map(Into::into)),
                Cell::Text(&task.executor),
                Cell::Text(&task.host),
                Cell::Number(task.launch),
                Cell::optional(task.end.duration(task.launch)),
                Cell::optional((task.getting_result != 0).then_some(task.getting_result)),
                Cell::Text(task.end.status()),
                Cell::Text(&task.locality),
                Cell::Number(task.speculative.into()),
            ]);
            row[FIRST_METRIC - 1] = Cell::Number(0);
            self.out.task(&row)?;
        }
        Ok(())
    }
}

fn text(text: Option<&str>) -> Cell<'_> {
    text.map_or(Cell::None, Cell::Text)
}

/// An integer that Spark wrote as a number or as text.
pub(super) fn integer(raw: &RawValue) -> Option<i64> {
    raw.get().trim_matches('"').parse().ok()
}

/// Accumulators of the application itself, as the REST API shows them.
pub(super) fn user_accumulators(all: &[Accumulable<'_>]) -> Vec<Value> {
    all.iter()
        .filter(|it| !it.internal && it.metadata.as_deref() != Some("sql"))
        .map(|it| {
            present(json!({
                "id": it.id,
                "name": it.name.as_deref(),
                "update": it.update.and_then(shown),
                "value": it.value.and_then(shown),
            }))
        })
        .collect()
}

/// A value as text: a string without its quotes, anything else as the log has it, shortened.
fn shown(raw: &RawValue) -> Option<String> {
    let text = raw.get();
    if text == "null" {
        return None;
    }
    let mut text = serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned());
    if text.len() > LONGEST_VALUE {
        text.truncate(text.floor_char_boundary(LONGEST_VALUE));
        text.push_str("...");
    }
    Some(text)
}
