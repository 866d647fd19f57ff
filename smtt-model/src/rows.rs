//! Listings: filtered rows of the state for `smtt-ctl`, the HTTP interface and the metrics.

mod consumers;
mod executors;
mod for_advise;
mod functions;
mod groups;
mod history;
mod jobs;
mod memory;
mod over_executors;
mod page_walks;
mod pages;
mod part;
mod plan_names;
mod quantiles;
mod rdds;
mod splits;
mod tasks_for_advise;
mod used;
mod work;
mod work_over_workers;

use serde::{Deserialize, Serialize};
use smtt_common::counter::FaultCounters;

use crate::advise::ApplicationAdvice;
use crate::attribute::{Names, RddKey, StageKey};
use crate::decode::ExecutorDescribed;
use crate::glob::matches;
use crate::protocol::ApplicationReport;
use crate::state::{Executor, FaultFigures, Measured, State, faults};

pub use executors::{ExecutorKind, ExecutorRow, ExecutorState, SpanRow};
pub use functions::{
    ActivityRow, COLLECTIONS, FetchRow, FetchedRow, FunctionRow, FunctionsRow, HELPER, OnCpuRow,
    PausedRow, SampledActivityRow, TASK, ThreadTimesRow, WORKER, lane_of, share_interval,
};
pub(crate) use groups::common;
pub use groups::{GroupBy, RddGroupRow, rdd_group, rdd_groups, rdd_groups_of};
pub use history::HistoryRow;
pub use jobs::{CourseRow, JobRow, WorkBy, WorkState, WorkSums};
pub(crate) use memory::memory_row;
pub use memory::{
    CgroupRow, ChildRow, LimitRow, MemoryPart, MemoryRow, PeakRow, memory_limits, peaks,
};
pub use over_executors::{RddOverExecutors, made_at};
pub use page_walks::{EventShown, FigureRow, Number, PageWalkRow, PageWalksShown, Spread};
pub use pages::{AddressState, HotnessMethod, PagesBy, PagesRow};
pub use part::Part;
pub use plan_names::common_name;
pub use quantiles::{Quantiles, StageSummaries, StageSummaryRow};
pub use rdds::{AttributedBy, BlockRow, DoingRow, Range, RddRow, queries_of, without_stage};
pub use splits::{Series, SplitsRow};
pub use tasks_for_advise::{EndedTask, StageTasks, TasksByStage, Turn};
pub use used::{HelperRow, HelperSumRow, UsedRow};
pub use work::{StageRddRow, StageRow, TaskRow};
pub use work_over_workers::{WorkOverWorkersRow, work_over_workers};

pub use crate::state::figures::{Figures, NodeRow, PageSizeRow, by_rdd, reads_by_rdd};
pub use crate::state::object_sample::{NodeShare, PageSizeShare, SampleRow};

/// Name of the row for work that belongs to no RDD.
pub const NO_RDD: &str = "(no RDD)";
/// Name of the row that sums everything beyond a table's limit.
pub const OVERFLOW: &str = "(overflow)";

/// Conditions on the rows of a listing. An empty filter selects every row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Application id or name, or a pattern of them (see [`matches`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// User of the executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Exactly this application; `app` also selects by a name, which another application may have as its id.
    #[serde(skip)]
    pub application: Option<ApplicationKey>,
    /// Executor id, or a pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// RDD id or name, or a pattern of names: selects the RDD, its blocks, and the executors, stages and tasks that worked on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd: Option<String>,
    /// Stage id, or id and attempt as `3.1`: selects the stage, its tasks, the blocks that its tasks stored, and the
    /// executors and RDDs that worked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Task attempt id, for listings of tasks and of page placement: selects the task and the memory that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// Spark's name of a block, or a pattern, for listings of blocks and of page placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// For listings of page placement: only rows with blocks or Spark pages on more than one NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spanning: Option<bool>,
    /// Key of one executor, for a listing that is made executor by executor.
    #[serde(skip)]
    pub key: Option<u64>,
    /// One part of the stages, tasks or RDDs, for a listing that is made part by part.
    #[serde(skip)]
    pub part: Option<Part>,
}

impl Filter {
    fn executor(
        &self,
        key: u64,
        executor: &Executor,
        names: &std::collections::BTreeMap<u64, Names>,
    ) -> bool {
        if self.key.is_some_and(|wanted| wanted != key) {
            return false;
        }
        let said = executor.described.as_ref();
        let app = self.app.as_ref().is_none_or(|wanted| {
            // An empty name selects executors that have not described themselves.
            said.map_or(wanted.is_empty(), |said| {
                matches(wanted, &said.application_id) || matches(wanted, &said.application_name)
            })
        });
        let id = self.executor.as_ref().is_none_or(|wanted| {
            said.is_some_and(|said| matches(wanted, &said.executor_id))
                || names
                    .get(&key)
                    .is_some_and(|names| matches(wanted, &names.executor_id))
        });
        let user = self.user.is_none() || self.user == executor.uid;
        let exactly = self.application.as_ref();
        let exactly = exactly.is_none_or(|wanted| wanted.has(executor));
        app && id && user && exactly
    }

    /// Whether it selects an application by these names, and this user.
    #[must_use]
    pub fn application(&self, id: &str, name: Option<&str>, uid: u32) -> bool {
        let app = self.app.as_ref();
        let app = app.is_none_or(|wanted| {
            matches(wanted, id) || name.is_some_and(|name| matches(wanted, name))
        });
        app && self.user.is_none_or(|wanted| wanted == uid)
    }

    fn rdd(&self, executor: &Executor, rdd: RddKey) -> bool {
        self.rdd.as_ref().is_none_or(|wanted| match rdd {
            RddKey::Id(id) => {
                wanted.parse() == Ok(id)
                    || executor
                        .rdds
                        .get(&rdd)
                        .and_then(|rdd| rdd.described.as_ref())
                        .is_some_and(|said| matches(wanted, &said.name))
            }
            RddKey::None => matches(wanted, NO_RDD),
            RddKey::Overflow => matches(wanted, OVERFLOW),
        })
    }

    fn stage(&self, stage: Option<StageKey>) -> bool {
        self.stage.as_ref().is_none_or(|wanted| {
            stage.is_some_and(|stage| match wanted.split_once('.') {
                Some((id, attempt)) => {
                    id.parse() == Ok(stage.id) && attempt.parse() == Ok(stage.attempt)
                }
                None => wanted.parse() == Ok(stage.id),
            })
        })
    }
}

/// Identity of an application: the same id claimed by two users is two applications, and so are two attempts of it,
/// whose jobs, stages, tasks and executors have the same ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ApplicationKey {
    /// Application id as its executors claim it; `None` for executors that have not described themselves.
    pub id: Option<String>,
    /// Attempt of the application; `None` where its cluster manager makes only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// User of the executors, as the kernel reports it; `None` until it is known.
    pub uid: Option<u32>,
}

impl ApplicationKey {
    /// Whether the executor belongs to the application.
    #[must_use]
    pub fn has(&self, executor: &Executor) -> bool {
        let said = executor.described.as_ref();
        self.uid == executor.uid
            && self.id.as_deref() == said.map(|said| said.application_id.as_str())
            && self.attempt.as_deref() == said.and_then(ExecutorDescribed::attempt)
    }

    /// The id, with the attempt where there is one, for people; `None` without an id.
    #[must_use]
    pub fn label(&self) -> Option<String> {
        let id = self.id.as_ref()?;
        Some(match &self.attempt {
            Some(attempt) => format!("{id}, attempt {attempt}"),
            None => id.clone(),
        })
    }
}

/// Identity of an executor; part of every row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorId {
    /// Application id as the executor claims it; absent until the executor has described itself.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// Executor id as the executor claims it.
    pub executor_id: Option<String>,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// User of the process, as the kernel reports it; absent until it is known.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Worker that the row is of, in answers of `smtt-ctl --cluster`; a daemon's answers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Run of the daemon that measured the row, where it is not the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierRun>,
}

/// A run of this worker's daemon that has ended. Nothing was measured between its end and the next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EarlierRun {
    /// Start of the daemon in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// When it wrote its figures last, in milliseconds since 1970.
    pub until_unix_ms: u64,
}

impl ExecutorId {
    /// Identity of an executor.
    #[must_use]
    pub fn new(executor: &Executor) -> Self {
        let said = executor.described.as_ref();
        Self {
            application_id: said.map(|said| said.application_id.clone()),
            application_attempt_id: said.and_then(ExecutorDescribed::attempt).map(str::to_owned),
            executor_id: said.map(|said| said.executor_id.clone()),
            pid: executor.pid,
            uid: executor.uid,
            worker: None,
            earlier: None,
        }
    }
}

/// Gives rows with the fields of an application's identity the identity.
macro_rules! of_an_application {
    ($($row:ty),+) => {$(
        impl $row {
            /// The application that it belongs to.
            #[must_use]
            pub fn application(&self) -> ApplicationKey {
                ApplicationKey {
                    id: self.application_id.clone(),
                    attempt: self.application_attempt_id.clone(),
                    uid: self.uid,
                }
            }
        }
    )+};
}

of_an_application!(
    ExecutorId,
    JobRow,
    RddGroupRow,
    StageSummaryRow,
    ApplicationAdvice,
    ApplicationReport
);

/// Totals of a listing: how many of the executors' page faults are attributed to a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Executors that the filter selects, without drivers.
    pub executors: u64,
    /// Drivers that the filter selects. A driver that runs tasks (local mode) is an executor.
    #[serde(default)]
    pub drivers: u64,
    /// Page faults of the selected executors; absent where page faults are not counted.
    pub page_faults: Option<u64>,
    /// Page faults of the selected executors with a context.
    pub page_faults_attributed: Option<u64>,
    /// Page faults of the selected executors without a context.
    pub page_faults_unattributed: Option<u64>,
    /// Page faults without a context as a share of all page faults, 0 to 1; absent without page faults.
    pub unattributed_share: Option<f64>,
    /// Page faults of the selected executors' processes from before they were counted, which `page_faults` does not
    /// include; absent while one of the executors lacks this figure, so that it is never a part of the sum.
    #[serde(default)]
    pub page_faults_before_tracing: Option<u64>,
    /// What is measured on this machine.
    pub measured: Measured,
    /// Executors refused since the start because the table of executors was full.
    pub executors_over_cap: u64,
    /// Living executors that lost their rows to those of others since the start. Each is found again after a pause, and its
    /// counts begin anew.
    #[serde(default)]
    pub executors_evicted: u64,
    /// Earlier runs of the daemon with rows of these applications, which are listed below `/v1/earlier`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_runs: Vec<EarlierRun>,
    /// Start of the present run in milliseconds since 1970, where there are earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_since_unix_ms: Option<u64>,
    /// Files of earlier runs that an answer below `/v1/earlier` had no room for.
    #[serde(default, skip_serializing_if = "functions::is_zero")]
    pub earlier_left_out: u64,
}

/// Rows and their totals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing<Row> {
    /// Rows that the filter selects, up to the limit of the query.
    pub rows: Vec<Row>,
    /// Rows that the filter selects, also those beyond the limit of the query.
    #[serde(default)]
    pub rows_total: u64,
    /// Totals of the executors that the filter selects.
    pub summary: Summary,
}

impl State {
    /// The rows that `rows_of` makes of each executor that the filter selects, with their summary.
    pub(super) fn listing<Row>(
        &self,
        filter: &Filter,
        mut rows_of: impl FnMut(u64, &Executor, &mut Vec<Row>),
    ) -> Listing<Row> {
        let names = self.names();
        let mut rows = Vec::new();
        let (mut attributed, mut unattributed) =
            (FaultCounters::default(), FaultCounters::default());
        let (mut executors, mut drivers) = (0, 0);
        let mut before_tracing = Some(0_u64);
        for (key, executor) in self.executors() {
            if !filter.executor(*key, executor, &names) {
                continue;
            }
            if executor.is_driver() {
                drivers += 1;
            } else {
                executors += 1;
                faults::add(&mut attributed, &executor.counters.attributed);
                faults::add(&mut unattributed, &faults::unattributed(&executor.counters));
                before_tracing = before_tracing
                    .zip(executor.before_tracing)
                    .map(|(sum, more)| sum.saturating_add(more));
            }
            rows_of(*key, executor, &mut rows);
        }
        let measured = self.measured();
        let (with, without) = (faults::total(&attributed), faults::total(&unattributed));
        let all = with.saturating_add(without);
        let counted = |faults| (measured.page_faults || all > 0).then_some(faults);
        let summary = Summary {
            executors,
            drivers,
            page_faults: counted(all),
            page_faults_attributed: counted(with),
            page_faults_unattributed: counted(without),
            unattributed_share: (all > 0).then(|| without as f64 / all as f64),
            page_faults_before_tracing: before_tracing.filter(|_| executors > 0).and_then(counted),
            measured,
            executors_over_cap: self.executors_over_cap().0,
            executors_evicted: self.executors_evicted(),
            earlier_runs: Vec::new(),
            measured_since_unix_ms: None,
            earlier_left_out: 0,
        };
        Listing {
            rows_total: rows.len() as u64,
            rows,
            summary,
        }
    }

    fn figures(&self, faults: &FaultCounters) -> FaultFigures {
        FaultFigures::new(faults, self.measured())
    }
}

/// The stages that worked on an RDD or compute it.
fn stages_of(executor: &Executor, rdd: RddKey) -> impl Iterator<Item = StageKey> {
    executor
        .tasks
        .stages
        .iter()
        .filter_map(move |(key, stage)| {
            let last = stage
                .described
                .as_ref()
                .and_then(|said| said.rdd_id)
                .map(RddKey::Id);
            (stage.rdds.contains_key(&rdd) || last == Some(rdd)).then_some(*key)
        })
}
