//! Stages in quantiles: how each figure is spread over the stage's tasks and over its executors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smtt_common::event::memory::PeakMetric;

use super::{ApplicationKey, ExecutorId, Filter, UsedRow};
use crate::attribute::StageKey;
use crate::sort::small::Gather as _;
use crate::state::{Executor, Stage, State, Task, TaskState, Until, total};

/// A figure over tasks or executors. Quantile `q` of `n` sorted values is the one at index `min(q * n, n - 1)`, as in
/// Spark's `taskSummary`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Smallest value.
    pub min: u64,
    /// A quarter of the values is smaller.
    pub p25: u64,
    /// Half of the values is smaller.
    pub median: u64,
    /// Three quarters of the values are smaller.
    pub p75: u64,
    /// Largest value.
    pub max: u64,
    /// Number of values.
    pub values: u64,
}

impl Quantiles {
    /// The quantiles of values in any order; `None` without a value.
    #[must_use]
    pub fn of(values: &mut [u64]) -> Option<Self> {
        values.sort_unstable();
        let count = values.len();
        let at = |quarters: usize| {
            let index = (count * quarters / 4).min(count.saturating_sub(1));
            values.get(index).copied()
        };
        Some(Self {
            min: at(0)?,
            p25: at(1)?,
            median: at(2)?,
            p75: at(3)?,
            max: at(4)?,
            values: count as u64,
        })
    }
}

/// One attempt of a stage on all executors of this worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSummaryRow {
    /// Application id as its executors claim it.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the executors.
    pub uid: Option<u32>,
    /// Id of the stage.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// Name of the stage; absent until it is known.
    pub name: Option<String>,
    /// Executors of this worker that ran tasks of the stage.
    pub executors: u64,
    /// Tasks that returned their result.
    pub tasks_succeeded: u64,
    /// Tasks that failed with an exception.
    pub tasks_failed: u64,
    /// Tasks that were killed.
    pub tasks_killed: u64,
    /// Tasks whose end was not recorded.
    pub tasks_lost: u64,
    /// Succeeded tasks in `over_tasks`: fewer than `tasks_succeeded` where the oldest ones have left the table of tasks,
    /// or came without accounts.
    pub tasks_in_quantiles: u64,
    /// Each figure over the succeeded tasks.
    pub over_tasks: BTreeMap<String, Quantiles>,
    /// Each figure over the executors: sums of all ended attempts on an executor.
    pub over_executors: BTreeMap<String, Quantiles>,
}

/// Values of the figures of a stage.
#[derive(Debug, Default)]
struct Values(BTreeMap<&'static str, Vec<u64>>);

impl Values {
    fn add(&mut self, figures: impl IntoIterator<Item = (&'static str, Option<u64>)>) {
        for (name, value) in figures {
            if let Some(value) = value {
                self.0.entry(name).or_default().push(value);
            }
        }
    }

    fn quantiles(self) -> BTreeMap<String, Quantiles> {
        let each = self.0.into_iter();
        each.filter_map(|(name, mut values)| Some((name.to_owned(), Quantiles::of(&mut values)?)))
            .gather()
    }
}

/// Collects stages executor by executor.
#[derive(Debug, Default)]
pub struct StageSummaries(BTreeMap<(ApplicationKey, StageKey), (StageSummaryRow, Values, Values)>);

impl StageSummaries {
    /// The rows, in the order of application and stage.
    #[must_use]
    pub fn rows(self) -> Vec<StageSummaryRow> {
        let each = self.0.into_values();
        each.map(|(row, tasks, executors)| StageSummaryRow {
            over_tasks: tasks.quantiles(),
            over_executors: executors.quantiles(),
            ..row
        })
        .collect()
    }

    fn add_executor(
        &mut self,
        executor: &Executor,
        faults_counted: bool,
        filter: &Filter,
        in_part: &dyn Fn(u64) -> bool,
    ) {
        let application = ExecutorId::new(executor).application();
        let wanted = |stage: StageKey| filter.stage(Some(stage)) && in_part(u64::from(stage.id));
        for (key, stage) in executor.tasks.stages.iter() {
            // The driver describes stages to executors without a task of theirs, too.
            if !wanted(*key) || stage.tasks.is_empty() {
                continue;
            }
            let (row, _, executors) = self.0.entry((application.clone(), *key)).or_default();
            row.application_id.clone_from(&application.id);
            row.application_attempt_id.clone_from(&application.attempt);
            row.uid = application.uid;
            (row.stage_id, row.stage_attempt) = (key.id, u32::from(key.attempt));
            let said = stage.described.as_ref();
            row.name = row
                .name
                .take()
                .or_else(|| said.map(|said| said.name.clone()));
            row.executors += 1;
            row.tasks_succeeded += stage.count(TaskState::Succeeded);
            row.tasks_failed += stage.count(TaskState::Failed);
            row.tasks_killed += stage.count(TaskState::Killed);
            row.tasks_lost += stage.count(TaskState::Lost);
            executors.add(of_executor(stage, faults_counted));
        }
        for task in executor.tasks.tasks.values() {
            let ended = task.state == TaskState::Succeeded && task.used.until == Some(Until::End);
            let Some(stage) = task.stage.filter(|stage| ended && wanted(*stage)) else {
                continue;
            };
            if let Some((row, tasks, _)) = self.0.get_mut(&(application.clone(), stage)) {
                row.tasks_in_quantiles += 1;
                tasks.add(of_task(task, faults_counted));
            }
        }
    }
}

fn of_executor(
    stage: &Stage,
    faults_counted: bool,
) -> impl Iterator<Item = (&'static str, Option<u64>)> {
    let faults = Some(total(&stage.faults)).filter(|_| faults_counted);
    let others = [
        ("task_time_ns", Some(stage.task_time_ns)),
        ("execution_memory_peak_bytes", Some(stage.peak_bytes)),
        ("page_faults", faults),
        ("python_worker_peak_bytes", stage.python_peak_bytes),
    ];
    // Under Spark's names; Spark reports zero where it does not measure processes.
    let peaks = stage.peaks.as_deref().into_iter().flat_map(|peaks| {
        let of = |metric: &PeakMetric| {
            let value = peaks.of(*metric)?.value;
            let is_measured = value > 0 || !metric.name()?.starts_with("ProcessTree");
            Some((metric.name()?, Some(value).filter(|_| is_measured)))
        };
        PeakMetric::ALL.iter().filter_map(of)
    });
    others
        .into_iter()
        .chain(peaks)
        .chain(UsedRow::new(&stage.used).figures())
}

fn of_task(task: &Task, faults_counted: bool) -> impl Iterator<Item = (&'static str, Option<u64>)> {
    let faults = Some(total(&task.faults)).filter(|_| faults_counted);
    let time = task.duration_ns(task.end_ns.unwrap_or(0));
    let others = [
        ("duration_ns", time.filter(|_| !task.start_is_late)),
        (
            "execution_memory_peak_bytes",
            Some(task.execution_peak_bytes()),
        ),
        ("page_faults", faults),
        ("python_worker_peak_bytes", task.python_peak_bytes),
    ];
    let used = UsedRow::new(&task.used.figures).figures();
    // A task whose begin was not seen has figures that are too small.
    let whole = !task.used.partial;
    others
        .into_iter()
        .chain(used.map(move |(name, value)| (name, value.filter(|_| whole))))
}

impl State {
    /// Rows of all tables of stages: what a listing over executors has at most.
    #[must_use]
    pub fn stage_rows(&self) -> usize {
        let all = self.executors().values();
        all.map(|executor| executor.tasks.stages.len()).sum()
    }

    /// Adds the stages of the executors that the filter selects, whose ids are in a part of all.
    pub fn add_to_summaries(
        &self,
        filter: &Filter,
        in_part: &dyn Fn(u64) -> bool,
        summaries: &mut StageSummaries,
    ) {
        let faults_counted = self.measured().page_faults;
        self.listing::<()>(filter, |_, executor, _| {
            summaries.add_executor(executor, faults_counted, filter, in_part);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_spark() {
        // Spark 4.0.5, AppStatusStore.taskSummary: sorted(min((q * count).toLong, count - 1)).
        let spark = |values: &[u64]| {
            let mut sorted = values.to_vec();
            sorted.sort_unstable();
            let at = |q: f64| sorted[((q * sorted.len() as f64) as usize).min(sorted.len() - 1)];
            [0.0, 0.25, 0.5, 0.75, 1.0].map(at)
        };
        for count in 1..200_u64 {
            let values: Vec<u64> = (0..count).map(|n| n * 7919 % 211).collect();
            let own = Quantiles::of(&mut values.clone()).expect("values");
            let own_values = [own.min, own.p25, own.median, own.p75, own.max];
            assert_eq!(own_values, spark(&values), "{count}");
            assert_eq!(own.values, count);
        }
        assert_eq!(Quantiles::of(&mut []), None);
    }
}
