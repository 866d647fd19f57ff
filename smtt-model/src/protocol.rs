//! Questions and answers of the HTTP/JSON interface.
//!
//! | path | answer |
//! |---|---|
//! | `/v1/status` | [`Status`] |
//! | `/v1/doctor` | array of [`MachineCheck`] |
//! | `/v1/executors`, `/v1/stages`, `/v1/tasks`, `/v1/rdds`, `/v1/blocks` | [`crate::rows::Listing`] |
//! | `/v1/pages`, `/v1/pages/blocks`, `/v1/pages/tasks`, `/v1/pages/executors` | the same, of [`crate::rows::PagesRow`] |
//! | `/v1/report` | [`Report`] |
//! | `/v1/advise` | [`crate::advise::Advice`] |
//! | `/v1/history` | [`Histories`] |
//!
//! Listings take `app`, `executor`, `rdd`, `stage`, `task` (tasks and where bytes are), `block` (blocks and
//! where bytes are), `sort` and `limit` in the query. An error is
//! `{"error": "..."}` with a status of 400 or above.

use serde::{Deserialize, Serialize};

use crate::ledger::Hop;
use crate::ledger::trace::TraceStatus;
use crate::rows::{
    ExecutorRow, Filter, HistoryRow, PageWalksShown, RddRow, StageRow, Summary, TaskRow,
};
use crate::verdict::{HOTNESS, PAGE_WALKS, Verdict, VerdictState};

/// One check of `smtt-ctl doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCheck {
    /// What was checked.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether SMTT can do its main work without it.
    pub required: bool,
    /// What was found.
    pub detail: String,
    /// What to do; empty when all is well.
    pub remedy: String,
}

/// What the daemon itself uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelfFigures {
    /// CPU time since its start, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
    /// Memory of its eBPF programs and maps in bytes.
    pub bpf_memory_bytes: Option<u64>,
    /// Time since its start, in seconds.
    pub uptime_seconds: f64,
}

/// How the daemon fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// How the kernel side was built.
    pub kernel_side: String,
    /// Whether the probes are in place and the listeners open.
    pub ready: bool,
    /// Why the answers are worse than they could be; empty when all is well.
    pub degraded: Vec<String>,
    /// The probes.
    pub probes: Vec<Verdict>,
    /// The loss ledger in the order of flow.
    pub ledger: Vec<Hop>,
    /// How the writing of trace records fares; absent where none are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceStatus>,
    /// What the daemon uses.
    pub daemon: SelfFigures,
    /// What is counted at all.
    pub summary: Summary,
    /// What is measured of page walks; absent where nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walks: Option<PageWalksShown>,
}

/// Why answers are worse than they could be.
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
        // A rung of a ladder that is not there matters only when no other rung holds.
        // A machine without counters, or whose DAMON has another user, is not a fault of the daemon.
        let of_the_machine = [PAGE_WALKS, HOTNESS];
        if of_the_machine.contains(&probe.name.as_str()) && probe.verdict == Unsupported {
            continue;
        }
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
    /// Application id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Executor id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// RDD id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdd: Option<String>,
    /// Stage id, or id and attempt as `3.1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Task attempt id: the task itself and the execution memory that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// Spark's name of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    /// Of where bytes are, only rows with something that is on more than one NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spanning: Option<bool>,
    /// Field to sort by, with `:asc` or `:desc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Most rows of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl ListQuery {
    /// Its conditions.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            app: self.app.clone(),
            executor: self.executor.clone(),
            rdd: self.rdd.clone(),
            stage: self.stage.clone(),
            task: self.task,
            block: self.block.clone(),
            spanning: self.spanning,
        }
    }
}

/// Question for trace records as they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowQuery {
    /// Only this application (id).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Only this executor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Only this RDD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdd: Option<u32>,
    /// Only this stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Only this attempt of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Only this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Field of the line that says how many records a client did not get.
pub const LOST: &str = "lost_records";

/// What executors held over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histories {
    /// When this was asked, on the clock of the points: nanoseconds since boot.
    pub now_ns: u64,
    /// The same moment in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// The executors.
    pub rows: Vec<HistoryRow>,
}

/// Most rows of each table of a report.
pub const REPORT_ROWS: usize = 10;

/// Summary of everything that is known, by application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The applications.
    pub applications: Vec<ApplicationReport>,
    /// The loss ledger.
    pub ledger: Vec<Hop>,
    /// Why the figures are worse than they could be.
    pub degraded: Vec<String>,
}

/// Summary of one application on this worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplicationReport {
    /// Its id; absent for executors that have not described themselves.
    pub application_id: Option<String>,
    /// Its name.
    pub application_name: Option<String>,
    /// Page faults of all its executors, and their unattributed share.
    pub summary: Summary,
    /// Its executors on this worker.
    pub executors: Vec<ExecutorRow>,
    /// RDDs with most page faults.
    pub rdds_by_faults: Vec<RddRow>,
    /// RDDs that held most memory.
    pub rdds_by_memory: Vec<RddRow>,
    /// Stages with most page faults.
    pub stages: Vec<StageRow>,
    /// Tasks with most page faults.
    pub tasks: Vec<TaskRow>,
}
