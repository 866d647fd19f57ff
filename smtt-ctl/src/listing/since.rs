//! `--since`: the rows of work that went on in the last time. Tasks have times; stages, jobs and SQL executions are those
//! with such a task. Times are of each worker's own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};
use smtt_model::protocol::{Histories, ListQuery};
use smtt_model::sort::small::Gather as _;
use smtt_model::units;

use super::Rows;
use crate::Failure;
use crate::args::Filters;
use crate::client::{Client, with_query};
use crate::cluster::WORKER;
use crate::columns::{ListingKind, STAGES, TASKS};

/// An application that no executor can have: an answer without rows has the worker's clock.
const NO_ONE: &str = "\u{7f}";

/// Work of the last time.
#[derive(Debug)]
pub struct Recent {
    age: Duration,
    /// Begin of the time, by worker, in nanoseconds since its boot.
    begins: BTreeMap<Option<String>, u64>,
    /// Stages of tasks that ran since then: by executor, and by application.
    of_executors: BTreeSet<Key>,
    of_applications: BTreeSet<Key>,
}

/// Whether rows have times of their own: those of tasks, and of failed ones.
fn has_times(kind: &ListingKind) -> bool {
    kind.path.starts_with(TASKS.path)
}

/// Names of a stage: JSON values, which have no order of their own, as text.
type Key = String;

/// Fields of a stage on an executor.
const ON_EXECUTOR: [&str; 4] = [WORKER, "pid", "stage_id", "stage_attempt"];
/// Fields of an application, on all workers.
const APPLICATION: [&str; 3] = ["application_id", "application_attempt_id", "uid"];

fn key(row: &Map<String, Value>, fields: &[&str]) -> Key {
    let of = |field: &&str| format!("{}\n", row.get(*field).unwrap_or(&Value::Null));
    fields.iter().map(of).collect()
}

impl Recent {
    /// Asks for the clocks and, where rows have no times of their own, for the tasks.
    pub async fn ask(
        client: &Client,
        kind: &ListingKind,
        filter: &Filters,
        age: Duration,
    ) -> Result<Self, Failure> {
        let no_one = ListQuery {
            app: Some(NO_ONE.to_owned()),
            ..ListQuery::default()
        };
        let begin = |clock: &Histories| {
            let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
            clock.now_ns.saturating_sub(age)
        };
        let begins = match client.cluster() {
            None => {
                let clock: Histories = client.ask_one("/v1/history", &no_one).await?;
                BTreeMap::from([(None, begin(&clock))])
            }
            Some(cluster) => {
                let clocks: Vec<(String, Histories)> =
                    cluster.each(&with_query("/v1/history", &no_one)?).await?;
                let begins = clocks.iter();
                begins
                    .map(|(worker, clock)| (Some(worker.clone()), begin(clock)))
                    .gather()
            }
        };
        let mut recent = Self {
            age,
            begins,
            of_executors: BTreeSet::new(),
            of_applications: BTreeSet::new(),
        };
        if !has_times(kind) {
            let tasks: Rows = client.ask(TASKS.path, &filter.question()).await?;
            for task in &tasks.rows {
                if !recent.ran(task) {
                    continue;
                }
                recent.of_executors.insert(key(task, &ON_EXECUTOR));
                recent.of_applications.insert(with_stage(
                    task,
                    task.get("stage_id").unwrap_or(&Value::Null),
                ));
            }
        }
        Ok(recent)
    }

    /// Whether a task ran in the time: it ended in it, or has not ended.
    fn ran(&self, task: &Map<String, Value>) -> bool {
        let worker = task.get(WORKER).and_then(Value::as_str).map(str::to_owned);
        let Some(begin) = self.begins.get(&worker) else {
            return false;
        };
        let time = |field: &str| task.get(field).and_then(Value::as_u64);
        match (time("end_ns"), task.get("state").and_then(Value::as_str)) {
            (Some(end), _) => end >= *begin,
            (None, Some("running")) => true,
            // Its end was not recorded.
            (None, _) => time("start_ns").is_some_and(|start| start >= *begin),
        }
    }

    /// Whether a row is of work in the time.
    pub fn has(&self, kind: &ListingKind, row: &Map<String, Value>) -> bool {
        if has_times(kind) {
            return self.ran(row);
        }
        if kind.path == STAGES.path {
            return self.of_executors.contains(&key(row, &ON_EXECUTOR));
        }
        match row.get("stage_ids") {
            Some(Value::Array(stages)) => stages
                .iter()
                .any(|stage| self.of_applications.contains(&with_stage(row, stage))),
            // Too many to be named: a row that may be of the time is shown.
            _ => true,
        }
    }

    /// The failure where no row is of the time.
    pub fn nothing(&self, what: &str, all: usize) -> Failure {
        Failure::Nothing(format!(
            "no {what} ran in the last {}; {all} without --since",
            units::duration(u64::try_from(self.age.as_nanos()).unwrap_or(u64::MAX))
        ))
    }
}

fn with_stage(row: &Map<String, Value>, stage: &Value) -> Key {
    format!("{}{stage}", key(row, &APPLICATION))
}
