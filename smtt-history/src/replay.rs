//! Replays a log: keeps what Spark's own listener keeps of running jobs, stages, tasks and executors, and hands finished
//! things to the tables. Work and memory are bounded whatever the log reports.

pub(crate) mod application;
mod chain;
mod errors;
mod executors;
mod jobs;
mod plan;
mod rdds;
mod scala;
mod sql;
mod stages;
pub(crate) mod tasks;
mod units;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;

use crate::event;
use crate::out::{Kind, Out};

use application::Application;
use executors::Executor;
use jobs::Job;
use rdds::Rdd;
use sql::Sql;
use stages::Stage;
use tasks::LiveTask;

/// Entries of a kind at most, while they are in use.
const LIVE: usize = 200_000;
/// Tasks that run at the same time at most.
const LIVE_TASKS: usize = 1_000_000;
/// Partitions of cached RDDs at most.
const PARTITIONS: usize = 1_000_000;
/// Entries that searches visit at most, in total: of jobs, executors, blocks and so on.
const VISITS: u64 = 1 << 31;

/// Bytes of live jobs, stages, tasks and executors at most, about.
const HELD: usize = 256 << 20;
/// Bytes of SQL executions and of the metrics of their tasks at most, about.
const SQL_HELD: usize = 512 << 20;
/// Bytes of an entry beside its texts, about.
const ENTRY: usize = 1000;

/// Bytes of a partition of a cached RDD, about.
const BLOCK: usize = 400;

/// Bytes of the entries that a replay has in memory, about, and their limit.
#[derive(Clone, Debug)]
struct LiveBytes {
    bytes: usize,
    most: usize,
}

impl Default for LiveBytes {
    fn default() -> Self {
        Self {
            bytes: 0,
            most: HELD,
        }
    }
}

impl LiveBytes {
    /// Whether there is room; then it is taken.
    fn take(&mut self, bytes: usize) -> bool {
        let all = self.bytes.saturating_add(bytes);
        let has_room = all <= self.most;
        if has_room {
            self.bytes = all;
        }
        has_room
    }

    fn give(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The state of a replay.
pub struct Replay {
    /// Tables that get the entries as they end.
    pub out: Out,
    /// Entries that had no place, by kind.
    pub dropped: BTreeMap<&'static str, u64>,
    application: Application,
    jobs: BTreeMap<i32, Job>,
    stages: BTreeMap<(i32, i32), Stage>,
    /// Stages that a job skipped at its end while another one waited for them.
    awaited: BTreeSet<i32>,
    tasks: HashMap<i64, LiveTask>,
    executors: BTreeMap<String, Executor>,
    /// Executors that were removed: when, and their ids.
    removed: BTreeSet<(i64, String)>,
    rdds: BTreeMap<i32, Rdd>,
    held: LiveBytes,
    partitions: usize,
    visits: u64,
    most_visits: u64,
    sql: Sql,
}

impl Replay {
    /// Nothing known yet.
    #[must_use]
    pub fn new(out: Out) -> Self {
        Self {
            out,
            dropped: BTreeMap::new(),
            application: Application::default(),
            jobs: BTreeMap::new(),
            stages: BTreeMap::new(),
            awaited: BTreeSet::new(),
            tasks: HashMap::new(),
            executors: BTreeMap::new(),
            removed: BTreeSet::new(),
            rdds: BTreeMap::new(),
            held: LiveBytes::default(),
            partitions: 0,
            visits: 0,
            most_visits: VISITS,
            sql: Sql::new(),
        }
    }

    /// The same state with tables of its own, which have what this one's have so far.
    ///
    /// # Errors
    /// When the tables cannot be written.
    pub(crate) fn fork(&mut self, store: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            out: self.out.fork(store)?,
            dropped: self.dropped.clone(),
            application: self.application.clone(),
            jobs: self.jobs.clone(),
            stages: self.stages.clone(),
            awaited: self.awaited.clone(),
            tasks: self.tasks.clone(),
            executors: self.executors.clone(),
            removed: self.removed.clone(),
            rdds: self.rdds.clone(),
            held: self.held.clone(),
            partitions: self.partitions,
            visits: self.visits,
            most_visits: self.most_visits,
            sql: self.sql.clone(),
        })
    }

    /// Bytes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let live = self.held.bytes + self.sql.held.bytes + BLOCK * self.partitions;
        live + self.out.bytes()
    }

    /// Whether the application's end was read.
    pub(crate) const fn has_ended(&self) -> bool {
        self.application.has_ended()
    }

    /// Id and attempt of the application, when its start was read.
    #[must_use]
    pub fn identity(&self) -> Option<(&str, Option<&str>)> {
        self.application.identity()
    }

    /// Takes one line of the log.
    ///
    /// # Errors
    /// Says what is wrong with the line, which then changes nothing; or that a table cannot be written.
    pub fn line(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let name = event::name(line).ok_or_else(|| Trouble::Line(wrong(line)))?;
        let short = name.rsplit('.').next().unwrap_or_default();
        match short.strip_prefix("SparkListener").unwrap_or_default() {
            "LogStart" => self.on_log_start(&parse(line)?),
            "ApplicationStart" => self.on_application_start(&parse(line)?),
            "ApplicationEnd" => self.on_application_end(&parse(line)?),
            "EnvironmentUpdate" => self.on_environment(parse(line)?),
            "ResourceProfileAdded" => self.on_resource_profile(&parse(line)?, line.len()),
            "BlockManagerAdded" => self.on_block_manager_added(&parse(line)?),
            "ExecutorAdded" => self.on_executor_added(parse(line)?, line.len()),
            "ExecutorRemoved" => self.on_executor_removed(&parse(line)?),
            "ExecutorExcluded" | "ExecutorBlacklisted" | "NodeExcluded" | "NodeBlacklisted" => {
                self.on_exclusion(&parse(line)?, true);
            }
            "ExecutorUnexcluded"
            | "ExecutorUnblacklisted"
            | "NodeUnexcluded"
            | "NodeUnblacklisted" => self.on_exclusion(&parse(line)?, false),
            "ExecutorExcludedForStage"
            | "ExecutorBlacklistedForStage"
            | "NodeExcludedForStage"
            | "NodeBlacklistedForStage" => self.on_stage_exclusion(&parse(line)?),
            "StageExecutorMetrics" => self.on_stage_executor_metrics(&parse(line)?),
            "ExecutorMetricsUpdate" => self.on_executor_metrics(&parse(line)?),
            "JobStart" => self.on_job_start(&parse(line)?),
            "JobEnd" => self.on_job_end(&parse(line)?),
            "StageSubmitted" => self.on_stage_submitted(&parse(line)?),
            "StageCompleted" => self.on_stage_completed(&parse(line)?),
            "TaskStart" => self.on_task_start(&parse(line)?),
            "TaskEnd" => self.on_task_end(&parse(line)?)?,
            "BlockUpdated" => self.on_block_updated(&parse(line)?),
            "UnpersistRDD" => self.on_unpersist(&parse(line)?),
            "SQLExecutionStart" => {
                let event = event::sql::parse(line).map_err(Trouble::Line)?;
                self.sql.on_start(event, line.len(), &mut self.dropped);
            }
            "SQLAdaptiveExecutionUpdate" => {
                let event = event::sql::parse(line).map_err(Trouble::Line)?;
                self.sql.on_plan(event, line.len(), &mut self.dropped);
            }
            "SQLAdaptiveSQLMetricUpdates" => {
                self.sql
                    .on_metrics(parse(line)?, line.len(), &mut self.dropped);
            }
            "DriverAccumUpdates" => {
                self.sql.on_driver_updates(parse(line)?, &mut self.dropped);
            }
            "SQLExecutionEnd" => self.sql.on_end(parse(line)?, &mut self.dropped),
            _ => {}
        }
        Ok(())
    }

    /// Hands everything that is left to the tables. `modified_ms` is when the log last changed.
    ///
    /// # Errors
    /// When a table cannot be written.
    pub fn finish(&mut self, modified_ms: i64) -> Result<(), Trouble> {
        self.finish_tasks()?;
        for (key, stage) in std::mem::take(&mut self.stages) {
            stages::put(&mut self.out, key, &stage);
        }
        for (id, job) in std::mem::take(&mut self.jobs) {
            self.out.meta(Kind::Job, &id.to_string(), &job.json(id));
        }
        for (id, executor) in std::mem::take(&mut self.executors) {
            let mut json = executor.json(&id);
            if id == "driver" {
                self.describe_driver(&mut json, modified_ms);
            }
            self.out.meta(Kind::Executor, &id, &json);
        }
        for (id, rdd) in std::mem::take(&mut self.rdds) {
            self.out.meta(Kind::Rdd, &id.to_string(), &rdd.json(id));
        }
        self.sql
            .finish(&mut self.out, modified_ms, &mut self.dropped);
        self.finish_application(modified_ms);
        Ok(())
    }

    /// Counts an entry that has no place.
    fn drop_one(&mut self, kind: &'static str) {
        *self.dropped.entry(kind).or_default() += 1;
    }

    /// Whether a search may visit so many entries.
    fn visit(&mut self, entries: usize) -> bool {
        let visits = self.visits.saturating_add(entries as u64);
        if visits > self.most_visits {
            self.drop_one("searches");
            return false;
        }
        self.visits = visits;
        true
    }

    /// Jobs of a stage that still exist.
    fn jobs_of(&mut self, jobs: &BTreeSet<i32>, mut change: impl FnMut(&mut Job)) {
        if !self.visit(jobs.len()) {
            return;
        }
        for id in jobs {
            if let Some(job) = self.jobs.get_mut(id) {
                change(job);
            }
        }
    }
}

/// Why a line was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The line is damaged, half-written or no event.
    #[error("{0}")]
    Line(String),
    /// A table cannot be written.
    #[error("a table cannot be written: {0}")]
    Table(#[from] smtt_store::read::ParquetError),
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Trouble> {
    serde_json::from_slice(line).map_err(|error| Trouble::Line(error.to_string()))
}

fn wrong(line: &[u8]) -> String {
    match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => "no event".to_owned(),
        Err(error) => error.to_string(),
    }
}
