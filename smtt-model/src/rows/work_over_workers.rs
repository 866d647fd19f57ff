//! Jobs and SQL executions over several workers: the rows of one job, added up.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::jobs::duration_ns;
use super::{ApplicationKey, CourseRow, HelperSumRow, JobRow, UsedRow, WorkState};
use crate::state::FaultFigures;

/// One job or one SQL execution of an application over all workers that answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkOverWorkersRow {
    /// Application id as its executors claim it.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the executors, as the kernels of the workers report it.
    pub uid: Option<u32>,
    /// Id of the job; absent in rows of SQL executions, and for stages whose job is unknown.
    pub job_id: Option<u32>,
    /// Id of the SQL execution; absent for work outside of SQL executions.
    pub sql_execution_id: Option<u64>,
    /// Description of the job or query, as the worker with its last stage has it.
    pub name: Option<String>,
    /// How it goes.
    #[serde(flatten)]
    pub course: CourseRow,
    /// Workers with tasks of it.
    pub workers: u64,
    /// Jobs in this row; absent where a worker does not name all of them, because the same job runs on several workers.
    pub jobs: Option<u64>,
    /// Stages in this row; absent where a worker does not name all of them, because the same stage runs on several
    /// workers.
    pub stages: Option<u64>,
    /// Executors that ran tasks.
    pub executors: u64,
    /// Running tasks.
    pub tasks_running: u64,
    /// Tasks that returned their result.
    pub tasks_succeeded: u64,
    /// Tasks that failed with an exception.
    pub tasks_failed: u64,
    /// Tasks that were killed.
    pub tasks_killed: u64,
    /// Tasks whose end was not recorded.
    pub tasks_lost: u64,
    /// Total duration of ended tasks, in nanoseconds.
    pub task_time_ns: u64,
    /// Page faults of the tasks.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Largest peak of execution memory of a single task, in bytes.
    pub execution_memory_peak_bytes: u64,
    /// The most that the JVM of one executor had resident while a stage of the row ran, in bytes: the largest
    /// `ProcessTreeJVMRSSMemory` of its stages, no sum. Absent where no reading of the process fell into a stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm_resident_max_bytes: Option<u64>,
    /// The largest virtual memory of the JVM of one executor while a stage of the row ran, in bytes: the largest
    /// `ProcessTreeJVMVMemory` of its stages, no sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm_virtual_max_bytes: Option<u64>,
    /// The most that the Python workers of one task had resident together, in bytes; absent where none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_worker_peak_bytes: Option<u64>,
    /// Sums of what the ended tasks used.
    #[serde(flatten)]
    pub used: UsedRow,
    /// Task attempts in these sums.
    pub used_tasks: u64,
    /// Task attempts that are not in these sums, or not from their begin.
    pub used_partial_tasks: u64,
    /// Sums of what threads used that helped the tasks; in none of the figures above. Absent without such a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helpers: Option<HelperSumRow>,
    /// Figures that some of the workers do not measure: their sums are lower bounds.
    pub lower_bounds: Vec<String>,
}

/// Ids over workers; `None` from the first worker on that does not name all of its own.
type Ids = Option<BTreeSet<u32>>;

struct Sum<'a> {
    row: WorkOverWorkersRow,
    workers: BTreeSet<&'a str>,
    /// The last stage of the row that the name is of.
    last: Option<u32>,
    jobs: Ids,
    stages: Ids,
    /// For each figure, whether a part has it and whether a part lacks it.
    has: BTreeMap<&'static str, (bool, bool)>,
}

/// Figures that a worker may not measure.
fn optional(row: &JobRow) -> impl Iterator<Item = (&'static str, Option<u64>)> {
    let faults = &row.faults;
    [
        ("page_faults", faults.page_faults),
        ("page_faults_read", faults.page_faults_read),
        ("page_faults_write", faults.page_faults_write),
        ("page_faults_major", faults.page_faults_major),
    ]
    .into_iter()
    .chain(row.used.figures())
}

fn unite(all: &mut Ids, more: Option<&Vec<u32>>, count: u64) {
    match (all.as_mut(), more) {
        (Some(all), Some(more)) if more.len() as u64 == count => all.extend(more),
        _ => *all = None,
    }
}

impl CourseRow {
    /// Adds what another worker knows. All hear the same of the driver, some of them later. A job that has ended does not
    /// go on; an SQL execution does, with a next job that a worker has not heard of.
    fn add(&mut self, more: &Self, of_queries: bool) {
        let runs = Some(WorkState::Running);
        let is_newer = match (self.state, more.state) {
            (None, _) => true,
            (_, None) => false,
            (old, new) if (old == runs) != (new == runs) => (new == runs) == of_queries,
            _ => more.ended_unix_ms > self.ended_unix_ms,
        };
        if is_newer {
            self.state = more.state;
            self.ended_unix_ms = more.ended_unix_ms;
            self.failure.clone_from(&more.failure);
        }
        let begins = [self.started_unix_ms, more.started_unix_ms].into_iter();
        self.started_unix_ms = begins.flatten().min();
        self.duration_ns = duration_ns(self.started_unix_ms, self.ended_unix_ms);
    }
}

impl<'a> Sum<'a> {
    fn new(row: &JobRow) -> Self {
        Self {
            row: WorkOverWorkersRow {
                application_id: row.application_id.clone(),
                application_attempt_id: row.application_attempt_id.clone(),
                uid: row.uid,
                job_id: row.job_id,
                ..WorkOverWorkersRow::default()
            },
            workers: BTreeSet::new(),
            last: None,
            jobs: Some(BTreeSet::new()),
            stages: Some(BTreeSet::new()),
            has: BTreeMap::new(),
        }
    }

    fn add(&mut self, worker: &'a str, more: &JobRow, of_queries: bool) {
        let row = &mut self.row;
        let last = more.stage_ids.as_ref().and_then(|ids| ids.last().copied());
        if row.name.is_none() || last > self.last {
            row.name.clone_from(&more.name);
            self.last = last;
        }
        row.sql_execution_id = row.sql_execution_id.or(more.sql_execution_id);
        row.course.add(&more.course, of_queries);
        self.workers.insert(worker);
        unite(&mut self.jobs, more.job_ids.as_ref(), more.jobs);
        unite(&mut self.stages, more.stage_ids.as_ref(), more.stages);
        for (sum, figure) in [
            (&mut row.executors, more.executors),
            (&mut row.tasks_running, more.tasks_running),
            (&mut row.tasks_succeeded, more.tasks_succeeded),
            (&mut row.tasks_failed, more.tasks_failed),
            (&mut row.tasks_killed, more.tasks_killed),
            (&mut row.tasks_lost, more.tasks_lost),
            (&mut row.task_time_ns, more.task_time_ns),
            (&mut row.used_tasks, more.used_tasks),
            (&mut row.used_partial_tasks, more.used_partial_tasks),
        ] {
            *sum = sum.saturating_add(figure);
        }
        let peak = &mut row.execution_memory_peak_bytes;
        *peak = (*peak).max(more.execution_memory_peak_bytes);
        for (most, figure) in [
            (&mut row.jvm_resident_max_bytes, more.jvm_resident_max_bytes),
            (&mut row.jvm_virtual_max_bytes, more.jvm_virtual_max_bytes),
            (
                &mut row.python_worker_peak_bytes,
                more.python_worker_peak_bytes,
            ),
        ] {
            *most = (*most).max(figure);
        }
        row.faults.add(&more.faults);
        row.used.add(&more.used);
        if let Some(more) = &more.helpers {
            row.helpers.get_or_insert_default().add(more);
        }
        // Without an ended task there are no figures of what tasks used, on any worker. A worker without the kernel's
        // accounts of its tasks counts none of them in `used_tasks`.
        let ended = [
            more.tasks_succeeded,
            more.tasks_failed,
            more.tasks_killed,
            more.used_tasks,
            more.used_partial_tasks,
        ];
        let ended = ended.into_iter().any(|tasks| tasks > 0);
        for (figure, value) in optional(more) {
            let (has, lacks) = self.has.entry(figure).or_default();
            *has |= value.is_some();
            *lacks |= value.is_none() && (ended || figure.starts_with("page_faults"));
        }
    }

    fn finish(self) -> WorkOverWorkersRow {
        let is_partial = |(figure, (has, lacks)): (&str, (bool, bool))| {
            (has && lacks).then(|| figure.to_owned())
        };
        WorkOverWorkersRow {
            workers: self.workers.len() as u64,
            jobs: self.jobs.map(|ids| ids.len() as u64),
            stages: self.stages.map(|ids| ids.len() as u64),
            lower_bounds: self.has.into_iter().filter_map(is_partial).collect(),
            ..self.row
        }
    }
}

/// Rows of several workers as one for each job or SQL execution, by application and id. A row without an id goes with
/// those of the same name, such as `(no SQL)`.
#[must_use]
pub fn work_over_workers(parts: &[(&str, &[JobRow])], of_queries: bool) -> Vec<WorkOverWorkersRow> {
    let mut sums: BTreeMap<(ApplicationKey, bool, u64, Option<&str>), Sum<'_>> = BTreeMap::new();
    for (worker, rows) in parts {
        for row in *rows {
            let application = row.application();
            let id = match of_queries {
                true => row.sql_execution_id,
                false => row.job_id.map(u64::from),
            };
            let name = row.name.as_deref().filter(|_| id.is_none());
            let key = (application, id.is_none(), id.unwrap_or(0), name);
            let sum = sums.entry(key).or_insert_with(|| Sum::new(row));
            sum.add(worker, row, of_queries);
        }
    }
    sums.into_values().map(Sum::finish).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn part(job: u32, seed: u64, stage_ids: &[u32]) -> JobRow {
        let mut next = seed;
        let mut number = || {
            next += 7;
            next * next
        };
        JobRow {
            application_id: Some("app-1".to_owned()),
            uid: Some(1000),
            job_id: Some(job),
            name: Some(format!("by {seed}")),
            jobs: 1,
            stages: stage_ids.len() as u64,
            job_ids: Some(vec![job]),
            stage_ids: Some(stage_ids.to_vec()),
            executors: number(),
            tasks_running: number(),
            tasks_succeeded: number(),
            tasks_failed: number(),
            tasks_killed: number(),
            tasks_lost: number(),
            task_time_ns: number(),
            faults: FaultFigures {
                page_faults: Some(number()),
                page_faults_read: Some(number()),
                page_faults_write: Some(number()),
                page_faults_major: Some(number()),
                ..FaultFigures::default()
            },
            execution_memory_peak_bytes: number(),
            jvm_resident_max_bytes: Some(number()),
            jvm_virtual_max_bytes: Some(number()),
            python_worker_peak_bytes: (seed != 1).then(&mut number),
            used: UsedRow {
                cpu_ns: Some(number()),
                heap_allocated_bytes: (seed != 2).then(&mut number),
                disk_spilled_bytes: Some(number()),
                spark_cpu_ns: Some(number()),
                ..UsedRow::default()
            },
            helpers: (seed != 1).then(|| HelperSumRow {
                threads: seed,
                used: UsedRow {
                    cpu_ns: Some(1000 * seed),
                    ..UsedRow::default()
                },
            }),
            used_tasks: number(),
            used_partial_tasks: number(),
            ..JobRow::default()
        }
    }

    #[test]
    fn sums_equal_the_parts_peaks_are_maxima_and_what_runs_everywhere_counts_once() {
        let (a, b, c) = (part(3, 1, &[4, 5]), part(3, 2, &[5, 9]), part(8, 3, &[1]));
        let parts: Vec<Value> = [&a, &b]
            .map(|row| serde_json::to_value(row).expect("JSON"))
            .into();
        let rows = work_over_workers(&[("w1", &[a]), ("w2", &[b, c])], false);
        assert_eq!(rows.len(), 2);
        let sum = serde_json::to_value(&rows[0]).expect("JSON");
        let mut checked = 0;
        for (field, value) in sum.as_object().expect("an object") {
            let own = |part: &Value| part[field].as_u64().unwrap_or(0);
            let expected = match field.as_str() {
                "uid" | "job_id" | "workers" | "jobs" | "stages" => continue,
                "execution_memory_peak_bytes"
                | "jvm_resident_max_bytes"
                | "jvm_virtual_max_bytes"
                | "python_worker_peak_bytes" => parts.iter().map(own).max(),
                _ if value.is_u64() => Some(parts.iter().map(own).sum()),
                _ => continue,
            };
            assert_eq!(value.as_u64(), expected, "{field}");
            checked += 1;
        }
        assert_eq!(checked, 21, "{sum}");
        let helpers = rows[0].helpers.expect("one worker has helpers");
        assert_eq!((helpers.threads, helpers.used.cpu_ns), (2, Some(2000)));
        assert_eq!(
            (rows[0].workers, rows[0].jobs, rows[0].stages),
            (2, Some(1), Some(3)),
            "stage 5 ran on both workers"
        );
        assert_eq!(rows[0].name.as_deref(), Some("by 2"), "it has stage 9");
        assert_eq!(rows[0].lower_bounds, ["heap_allocated_bytes"]);
        assert_eq!((rows[1].job_id, rows[1].workers), (Some(8), 1));
        assert!(rows[1].lower_bounds.is_empty());
    }

    #[test]
    fn ended_tasks_without_accounts_make_sums_lower_bounds_and_running_ones_do_not() {
        let of = |tasks_running: u64, tasks_succeeded: u64, used: UsedRow| JobRow {
            tasks_running,
            tasks_succeeded,
            used,
            used_tasks: u64::from(used.cpu_ns.is_some()),
            ..JobRow::default()
        };
        let cpu = UsedRow {
            cpu_ns: Some(5),
            ..UsedRow::default()
        };
        for (running, succeeded, bounds) in [(1, 0, 0), (0, 1, 1)] {
            let without = of(running, succeeded, UsedRow::default());
            let rows = work_over_workers(&[("w1", &[of(0, 1, cpu)]), ("w2", &[without])], false);
            assert_eq!(rows[0].used.cpu_ns, Some(5));
            assert_eq!(rows[0].lower_bounds, ["cpu_ns"][..bounds]);
        }
    }

    #[test]
    fn a_worker_that_does_not_name_its_stages_makes_their_number_unknown() {
        let whole = part(3, 1, &[4, 5]);
        for ids in [None, Some(vec![5])] {
            let old = JobRow {
                stage_ids: ids,
                ..part(3, 2, &[5, 9])
            };
            let rows = work_over_workers(
                &[("w1", std::slice::from_ref(&whole)), ("w2", &[old])],
                false,
            );
            assert_eq!((rows[0].jobs, rows[0].stages), (Some(1), None));
        }
    }

    #[test]
    fn work_without_an_id_is_a_row_by_its_name() {
        let without = |name: &str| JobRow {
            name: Some(name.to_owned()),
            jobs: 2,
            job_ids: Some(vec![1, 2]),
            job_id: None,
            ..part(0, 1, &[1])
        };
        let rows = work_over_workers(
            &[
                ("w1", &[without("(no SQL)"), without("(overflow)")]),
                ("w2", &[without("(no SQL)")]),
            ],
            true,
        );
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_deref(), row.workers, row.jobs))
            .collect();
        assert_eq!(
            shown,
            [
                (Some("(no SQL)"), 2, Some(2)),
                (Some("(overflow)"), 1, Some(2))
            ]
        );
    }

    /// A worker whose executor has died, or had no task since, has not heard how it went on.
    #[test]
    fn an_sql_execution_runs_where_any_worker_says_so_and_a_job_has_ended() {
        let row = |state, started, ended: Option<u64>| JobRow {
            job_id: Some(1),
            sql_execution_id: Some(4),
            course: CourseRow {
                state,
                started_unix_ms: started,
                ended_unix_ms: ended,
                ..CourseRow::default()
            },
            ..JobRow::default()
        };
        let (runs, ended) = (Some(WorkState::Running), Some(WorkState::Succeeded));
        let rows = [
            row(ended, Some(1000), Some(3000)),
            row(runs, Some(2000), None),
            row(None, None, None),
        ];
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1]] {
            let parts = order.map(|at: usize| ("w", std::slice::from_ref(&rows[at])));
            let course = |of_queries| {
                let sum = &work_over_workers(&parts, of_queries)[0];
                let course = &sum.course;
                (course.state, course.started_unix_ms, course.duration_ns)
            };
            assert_eq!(course(true), (runs, Some(1000), None));
            assert_eq!(course(false), (ended, Some(1000), Some(2_000_000_000)));
        }
    }
}
