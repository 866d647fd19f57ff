//! Requests and responses of the HTTP/JSON interface.
//!
//! | path | answer |
//! |---|---|
//! | `/v1/status` | [`Status`] |
//! | `/v1/doctor` | array of [`MachineCheck`] |
//! | `/v1/answered` | [`Answered`] |
//! | `/v1/executors`, `/v1/stages`, `/v1/tasks`, `/v1/rdds`, `/v1/blocks` | [`crate::rows::Listing`] |
//! | `/v1/memory` | the same, of [`crate::rows::MemoryRow`] |
//! | `/v1/pages`, `/v1/pages/blocks`, `/v1/pages/tasks`, `/v1/pages/executors` | the same, of [`crate::rows::PagesRow`] |
//! | `/v1/tasks/failed` | the same as `/v1/tasks`, of attempts that failed, were killed or were lost |
//! | `/v1/tasks/ended` | the same of attempts that have ended, each with its life in parts; takes `app`, `user` and `executor` |
//! | `/v1/stages/summary` | [`crate::rows::Listing`] of [`crate::rows::StageSummaryRow`] |
//! | `/v1/jobs`, `/v1/queries` | [`crate::rows::Listing`] of [`crate::rows::JobRow`] |
//! | `/v1/report` | [`Report`] |
//! | `/v1/advise` | [`crate::advise::Advice`] |
//! | `/v1/history` | [`Histories`] |
//! | `/v1/earlier/executors`, `memory`, `stages`, `rdds`, `tasks`, `history`, `advise` | [`crate::rows::Listing`] of rows that earlier runs of the daemon wrote, each with `earlier` |
//!
//! Listings take `app`, `user` (a number), `executor`, `rdd`, `stage`, `task` (tasks and pages), `block` (blocks and pages), `sort` and
//! `limit` in the query. An error is `{"error": "..."}` with a status of 400 or above.

use serde::{Deserialize, Serialize};

use crate::ledger::Hop;
use crate::ledger::trace::TraceStatus;
use crate::rows::{
    ExecutorRow, Filter, GroupBy, HistoryRow, PageWalksShown, RddRow, StageRow, Summary, TaskRow,
};
use crate::verdict::{Verdict, VerdictState};

/// One check of `smtt-ctl doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCheck {
    /// Name of the check.
    pub name: String,
    /// Whether the check passed.
    pub ok: bool,
    /// Whether SMTT needs it for its main function.
    pub required: bool,
    /// What the check found.
    pub detail: String,
    /// What to do; empty where the check passed.
    pub remedy: String,
}

/// Resources that the daemon itself uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelfFigures {
    /// CPU time since the daemon's start, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory of the daemon, in bytes.
    pub rss_bytes: Option<u64>,
    /// Memory of the daemon's eBPF programs and maps, in bytes.
    pub bpf_memory_bytes: Option<u64>,
    /// Time since the daemon's start, in seconds.
    pub uptime_seconds: f64,
}

/// State of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Build information of the kernel side.
    pub kernel_side: String,
    /// Whether the probes are attached and the listeners open.
    pub ready: bool,
    /// Reasons why answers are incomplete or less exact; empty where they are not.
    pub degraded: Vec<String>,
    /// Verdict of each probe.
    pub probes: Vec<Verdict>,
    /// Loss ledger, one hop per row in the order of flow.
    pub ledger: Vec<Hop>,
    /// State of the trace writer; absent where trace records are not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceStatus>,
    /// What the history lost; absent where none is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryStatus>,
    /// Resources that the daemon uses.
    pub daemon: SelfFigures,
    /// Totals over all executors.
    pub summary: Summary,
    /// What is measured of page walks; absent where page walks are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walks: Option<PageWalksShown>,
}

/// State of the history's writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// Why files cannot be written now; empty where they can.
    pub failing: String,
    /// Tasks that could not be written in time, since the start.
    pub tasks_lost: u64,
    /// Tasks of applications whose id can be no folder, since the start: they have no history.
    #[serde(default)]
    pub tasks_refused: u64,
    /// Executors that went before their last documents were written, since the start.
    pub executors_lost: u64,
}

/// Reasons why answers are incomplete or less exact.
#[must_use]
pub fn degraded(ready: bool, probes: &[Verdict], ledger: &[Hop]) -> Vec<String> {
    use VerdictState::{Broken, Ok, Unsupported};
    let mut reasons = Vec::new();
    if !ready {
        reasons.push("the daemon is still starting".to_owned());
    }
    for probe in probes
        .iter()
        .filter(|probe| matches!(probe.verdict, Broken | Unsupported))
    {
        if probe.is_of_the_machine() {
            continue;
        }
        // A missing rung of a ladder matters only where no other rung is attached.
        if probe.verdict == Broken
            || !probes
                .iter()
                .any(|other| other.name == probe.name && other.verdict == Ok)
        {
            reasons.push(format!(
                "probe {} ({}) is {}: {}",
                probe.name,
                probe.hook,
                probe.verdict.name(),
                probe.reason
            ));
        }
    }
    for hop in ledger.iter().filter(|hop| !hop.consistent) {
        reasons.push(format!(
            "the ledger does not add up at {}: {} attempted, {} delivered, {} lost, {} in flight",
            hop.name,
            hop.attempted,
            hop.delivered,
            hop.lost_total(),
            hop.in_flight
        ));
    }
    reasons
}

/// Query of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Application id or name, or a pattern of them: `*` stands for any characters, `?` for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Id of the user whose executors are selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Executor id, or a pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// RDD id or name, or a pattern of names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdd: Option<String>,
    /// Stage id, or id and attempt as `3.1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Task attempt id: selects the task and the execution memory that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// Spark's name of a block, or a pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// For page placement: only rows with memory on more than one NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spanning: Option<bool>,
    /// For findings: what RDDs have in common whose findings of one rule are one: `query`, `node`, `callsite` or `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<GroupBy>,
    /// Field to sort by, optionally with `:asc` or `:desc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Maximum number of rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl ListQuery {
    /// The query's conditions on rows.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            app: self.app.clone(),
            user: self.user,
            application: None,
            executor: self.executor.clone(),
            rdd: self.rdd.clone(),
            stage: self.stage.clone(),
            task: self.task,
            block: self.block.clone(),
            spanning: self.spanning,
            key: None,
            part: None,
        }
    }
}

/// Order of a listing's rows without a requested one, and after it: the most important field first.
#[must_use]
pub fn order(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/executors" | "/v1/memory" => &["application_id:asc", "executor_id:asc"],
        "/v1/stages" => &["application_id:asc", "stage_id:asc", "executor_id:asc"],
        "/v1/stages/summary" => &["application_id:asc", "stage_id:asc", "stage_attempt:asc"],
        "/v1/jobs" => &["application_id:asc", "job_id:asc"],
        "/v1/queries" => &["application_id:asc", "sql_execution_id:asc"],
        "/v1/tasks" | "/v1/tasks/failed" | "/v1/tasks/ended" => {
            &["application_id:asc", "task_attempt_id:asc"]
        }
        "/v1/rdds" => &["page_faults:desc", "storage_memory_bytes:desc"],
        "/v1/blocks" => &[
            "application_id:asc",
            "rdd_id:asc",
            "partition:asc",
            "block_id:asc",
        ],
        "/v1/pages" | "/v1/pages/blocks" | "/v1/pages/tasks" | "/v1/pages/executors" => {
            &["held_bytes:desc", "block_id:asc"]
        }
        _ => &[],
    }
}

/// Query of the live stream of trace records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowQuery {
    /// Only records of the application with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Only records of the user with this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Only records of the executor with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Only records of the RDD with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdd: Option<u32>,
    /// Only records of the stage with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Only records of this attempt of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Only records of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Field of the line that reports how many records a client has missed.
pub const LOST: &str = "lost_records";

/// Header of a question with an id that the client has chosen.
pub const QUESTION: &str = "smtt-question";
/// Header of an answer with the identity of the daemon.
pub const INSTANCE: &str = "smtt-instance";

/// The last answers of the daemon, by which a client that knows it by two names finds that both are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Identity of this run of the daemon: random, and the same in the header `smtt-instance` of each answer.
    pub instance: String,
    /// SHA-256 of the last 256 answers to questions with a header `smtt-question`, the oldest first: of that header's value, a line feed, the path with its query, a line feed, and the answer's bytes.
    pub digests: Vec<String>,
}

/// Memory of executors over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histories {
    /// Time of the response on the clock of the points: nanoseconds since boot.
    pub now_ns: u64,
    /// Time of the response in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// Memory over time, one row per executor.
    pub rows: Vec<HistoryRow>,
}

/// Maximum number of rows in each table of a report.
pub const REPORT_ROWS: usize = 10;

/// Summary of all applications.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Summary of each application.
    pub applications: Vec<ApplicationReport>,
    /// The loss ledger.
    pub ledger: Vec<Hop>,
    /// Reasons why figures are incomplete or less exact.
    pub degraded: Vec<String>,
}

/// Summary of one application on this worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplicationReport {
    /// Id of the application; absent for executors that have not described themselves.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the application's executors, as the kernel reports it; absent until it is known.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Name of the application.
    pub application_name: Option<String>,
    /// Page faults of all executors of the application, and their unattributed share.
    pub summary: Summary,
    /// Executors of the application on this worker.
    pub executors: Vec<ExecutorRow>,
    /// RDDs with the most page faults.
    pub rdds_by_faults: Vec<RddRow>,
    /// RDDs with the largest peak of memory.
    pub rdds_by_memory: Vec<RddRow>,
    /// Stages with the most page faults.
    pub stages: Vec<StageRow>,
    /// Tasks with the most page faults.
    pub tasks: Vec<TaskRow>,
}
