//! SQL executions: plans, jobs, and metrics summed over tasks as Spark's listener sums them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::plan::Graph;
use super::scala;
use super::tasks::End;
use super::units::Values;
use super::{ENTRY, LIVE, LiveBytes, SQL_HELD, VISITS};
use crate::event::sql::{
    AdaptiveMetrics, AdaptiveUpdate, DriverUpdates, ExecutionEnd, ExecutionStart,
};
use crate::event::{JobStart, LONGEST_TEXT, StageInfo, cut};
use crate::json::{date, present};
use crate::out::{Kind, Out};

/// Longest text of a plan, in bytes.
const LONGEST_PLAN: usize = 4 << 20;
/// Bytes of a task's value of a metric, about; the first value of a metric takes more.
const VALUE: usize = 32;

type Dropped = BTreeMap<&'static str, u64>;

#[derive(Clone, Debug, Default)]
pub(super) struct Sql {
    executions: BTreeMap<i64, Execution>,
    /// Executions that have not ended.
    live: BTreeSet<i64>,
    /// Executions by job.
    jobs: HashMap<i32, i64>,
    stages: HashMap<i32, StageMetrics>,
    pub held: LiveBytes,
    /// Values and stages that were visited, and how many may be.
    pub visits: u64,
    pub most_visits: u64,
}

#[derive(Clone, Debug, Default)]
struct Execution {
    root: Option<i64>,
    query: Option<String>,
    description: String,
    details: String,
    plan_text: String,
    graph: Graph,
    kinds: Arc<BTreeMap<i64, String>>,
    submission: i64,
    completion: Option<i64>,
    error: Option<String>,
    /// `None` while a job runs.
    jobs: BTreeMap<i32, Option<bool>>,
    /// Jobs and stages in the order in which they came.
    job_order: Vec<i32>,
    stages: BTreeSet<i32>,
    stage_order: Vec<i32>,
    driver: Vec<(i64, i64)>,
    values: Option<HashMap<i64, String>>,
    /// What its last plan takes of the memory, where it is not the first.
    plan_bytes: usize,
    ends: usize,
}

/// Metrics of the tasks of one stage.
#[derive(Clone, Debug)]
struct StageMetrics {
    attempt: i32,
    tasks: i32,
    kinds: Arc<BTreeMap<i64, String>>,
    completed: HashSet<i32>,
    values: HashMap<i64, HashMap<i32, i64>>,
    largest: HashMap<i64, (i64, i64)>,
    /// What the values take of the memory of SQL executions.
    bytes: usize,
}

impl StageMetrics {
    fn new(attempt: i32, tasks: i32, kinds: Arc<BTreeMap<i64, String>>) -> Self {
        Self {
            attempt,
            tasks,
            kinds,
            completed: HashSet::new(),
            values: HashMap::new(),
            largest: HashMap::new(),
            bytes: 0,
        }
    }
}

impl Sql {
    /// No executions yet.
    pub(super) fn new() -> Self {
        let mut sql = Self::default();
        sql.held.most = SQL_HELD;
        sql.most_visits = VISITS;
        sql
    }

    pub(super) fn on_start(&mut self, event: ExecutionStart, bytes: usize, dropped: &mut Dropped) {
        // A plan is kept as a graph and as text.
        if self.executions.len() >= LIVE || !self.held.take(ENTRY + 2 * bytes) {
            *dropped.entry("SQL executions").or_default() += 1;
            return;
        }
        let graph = Graph::of(event.plan);
        self.live.insert(event.id);
        let execution = self.executions.entry(event.id).or_default();
        execution.kinds = Arc::new(kinds(&graph));
        execution.graph = graph;
        execution.root = event.root;
        execution.query = event.query;
        execution.description = cut(&event.description, LONGEST_TEXT).to_owned();
        execution.details = cut(&event.details, LONGEST_TEXT).to_owned();
        execution.plan_text = cut(&event.plan_text, LONGEST_PLAN).to_owned();
        execution.submission = event.time;
    }

    pub(super) fn on_plan(&mut self, event: AdaptiveUpdate, bytes: usize, dropped: &mut Dropped) {
        if let Some(execution) = self.executions.get_mut(&event.id) {
            // The last plan replaces the one before it, but for the kinds of metrics.
            if !self.held.take(2 * bytes) {
                *dropped.entry("plans").or_default() += 1;
                return;
            }
            self.held.give(std::mem::replace(
                &mut execution.plan_bytes,
                2 * bytes - bytes / 4,
            ));
            let graph = Graph::of(event.plan);
            Arc::make_mut(&mut execution.kinds).extend(kinds(&graph));
            execution.graph = graph;
            execution.plan_text = cut(&event.plan_text, LONGEST_PLAN).to_owned();
        }
    }

    pub(super) fn on_metrics(
        &mut self,
        event: AdaptiveMetrics,
        bytes: usize,
        dropped: &mut Dropped,
    ) {
        if let Some(execution) = self.executions.get_mut(&event.id) {
            if !self.held.take(2 * bytes) {
                *dropped.entry("plans").or_default() += 1;
                return;
            }
            let kinds = event
                .metrics
                .into_iter()
                .map(|metric| (metric.id, metric.kind));
            Arc::make_mut(&mut execution.kinds).extend(kinds);
        }
    }

    pub(super) fn on_driver_updates(&mut self, event: DriverUpdates, dropped: &mut Dropped) {
        if self.live.contains(&event.id)
            && let Some(execution) = self.executions.get_mut(&event.id)
        {
            if self.held.take(32 * event.updates.len()) {
                execution.driver.extend(event.updates);
            } else {
                *dropped.entry("SQL metrics of the driver").or_default() += 1;
            }
        }
    }

    pub(super) fn on_job_start(&mut self, event: &JobStart<'_>, dropped: &mut Dropped) {
        let id = event
            .properties
            .as_ref()
            .and_then(|properties| properties.execution.as_ref())
            .and_then(|id| id.parse::<i64>().ok());
        let Some(id) = id else { return };
        let entries = 2 + event.stages.len() + event.stage_ids.len();
        let is_full = !self.executions.contains_key(&id) && self.executions.len() >= LIVE;
        if is_full || !self.held.take(200 * entries) {
            *dropped.entry("SQL executions").or_default() += 1;
            return;
        }
        self.live.insert(id);
        let execution = self.executions.entry(id).or_default();
        if !execution.kinds.is_empty() {
            let kinds = Arc::clone(&execution.kinds);
            for stage in &event.stages {
                let metrics = StageMetrics::new(0, stage.tasks, Arc::clone(&kinds));
                if let Some(old) = self.stages.insert(stage.id, metrics) {
                    self.held.give(old.bytes);
                }
            }
        }
        if execution.jobs.insert(event.id, None).is_none() {
            execution.job_order.push(event.id);
        }
        for &stage in &event.stage_ids {
            if execution.stages.insert(stage) {
                execution.stage_order.push(stage);
            }
        }
        self.jobs.insert(event.id, id);
    }

    pub(super) fn on_stage_submitted(&mut self, info: &StageInfo<'_>) {
        if let Some(stage) = self.stages.get_mut(&info.id)
            && stage.attempt != info.attempt
        {
            self.held.give(stage.bytes);
            *stage = StageMetrics::new(info.attempt, stage.tasks, Arc::clone(&stage.kinds));
        }
    }

    pub(super) fn on_task_end(&mut self, event: &End<'_>, dropped: &mut Dropped) {
        let info = event.info;
        let Some(stage) = self.stages.get_mut(&event.stage) else {
            return;
        };
        if stage.attempt != event.stage_attempt || stage.completed.contains(&info.index) {
            return;
        }
        for &(id, value, _) in event.metrics {
            let Some(kind) = stage.kinds.get(&id) else {
                continue;
            };
            // Room for a value, and for a metric where it is the first one.
            if !self.held.take(VALUE) {
                *dropped.entry("SQL metrics of tasks").or_default() += 1;
                continue;
            }
            stage.bytes += VALUE;
            let values = stage.values.entry(id).or_default();
            if values.insert(info.index, value).is_some() {
                self.held.give(VALUE);
                stage.bytes -= VALUE;
            }
            if kind != "sum" {
                let largest = stage.largest.entry(id).or_insert((value, info.id));
                if value > largest.0 {
                    *largest = (value, info.id);
                }
            }
        }
        if info.finish != 0 && !info.failed && !info.killed {
            stage.completed.insert(info.index);
        }
    }

    pub(super) fn on_job_end(&mut self, job: i32, has_succeeded: bool, dropped: &mut Dropped) {
        if let Some(id) = self.jobs.remove(&job)
            && let Some(execution) = self.executions.get_mut(&id)
        {
            execution.jobs.insert(job, Some(has_succeeded));
            execution.ends += 1;
            self.settle(id, dropped);
        }
    }

    pub(super) fn on_end(&mut self, event: ExecutionEnd, dropped: &mut Dropped) {
        if !self.live.contains(&event.id) {
            return;
        }
        if let Some(mut execution) = self.executions.remove(&event.id) {
            execution.values = Some(self.values(&execution, dropped));
            execution.completion = Some(event.time);
            execution.error = event
                .error
                .map(|error| cut(&error, LONGEST_TEXT).to_owned());
            execution.ends += 1;
            self.executions.insert(event.id, execution);
        }
        self.settle(event.id, dropped);
    }

    /// Whether a search may visit so many entries. Where one may not, no later one may.
    fn visit(&mut self, entries: usize, dropped: &mut Dropped) -> bool {
        self.visits = self.visits.saturating_add(entries as u64);
        let may = self.visits <= self.most_visits;
        if !may {
            *dropped.entry("searches").or_default() += 1;
        }
        may
    }

    /// Values of an execution's metrics; none where too many were visited already.
    fn values(&mut self, execution: &Execution, dropped: &mut Dropped) -> HashMap<i64, String> {
        let entries = if self.visits > self.most_visits {
            0
        } else {
            let stages = execution.stage_order.iter();
            let of_stages = stages.filter_map(|id| self.stages.get(id)).map(|stage| {
                let values: usize = stage.values.values().map(HashMap::len).sum();
                values + stage.values.len() + stage.largest.len()
            });
            let values: usize = of_stages.sum();
            values + execution.stage_order.len() + execution.driver.len()
        };
        if self.visit(entries, dropped) {
            self.sum(execution)
        } else {
            HashMap::new()
        }
    }

    /// Forgets what only a live execution needs.
    fn settle(&mut self, id: i64, dropped: &mut Dropped) {
        let Some(execution) = self.executions.get_mut(&id) else {
            return;
        };
        if execution.ends > execution.jobs.len() {
            self.live.remove(&id);
        }
        if execution.completion.is_none() {
            return;
        }
        // Stages that another live execution has too keep their metrics.
        let pairs = execution.stages.len().saturating_mul(self.live.len());
        let stages = execution.stages.clone();
        if !self.visit(pairs, dropped) {
            return;
        }
        for stage in stages {
            let is_shared = self.live.iter().any(|other| {
                *other != id
                    && self
                        .executions
                        .get(other)
                        .is_some_and(|it| it.stages.contains(&stage))
            });
            if !is_shared && let Some(gone) = self.stages.remove(&stage) {
                self.held.give(gone.bytes);
            }
        }
    }

    fn sum(&self, execution: &Execution) -> HashMap<i64, String> {
        let mut all: BTreeMap<i64, Values> = BTreeMap::new();
        let mut largest: HashMap<i64, (i64, (i32, i32, i64))> = HashMap::new();
        for id in &scala::order(&execution.stage_order) {
            let Some(stage) = self.stages.get(id) else {
                continue;
            };
            for (metric, reported) in &stage.values {
                if execution.kinds.contains_key(metric) {
                    let values = all.entry(*metric).or_default();
                    values.reported.extend(reported.values());
                    let tasks = u64::try_from(stage.tasks).unwrap_or(0);
                    values.zeros += tasks.saturating_sub(reported.len() as u64);
                }
            }
            for (metric, &(value, task)) in &stage.largest {
                let place = (value, (*id, stage.attempt, task));
                let known = largest.entry(*metric).or_insert(place);
                if value > known.0 {
                    *known = place;
                }
            }
        }
        for (metric, value) in &execution.driver {
            if execution.kinds.contains_key(metric) {
                if largest.get(metric).is_some_and(|known| *value > known.0) {
                    largest.remove(metric);
                }
                all.entry(*metric).or_default().reported.push(*value);
            }
        }
        let text = |(metric, values): (i64, Values)| {
            let kind = execution.kinds.get(&metric).map_or("", String::as_str);
            let place = largest.get(&metric).map(|(_, place)| *place);
            (metric, values.text(kind, place))
        };
        all.into_iter().map(text).collect()
    }

    /// Hands all executions to the tables.
    pub(super) fn finish(&mut self, out: &mut Out, modified_ms: i64, dropped: &mut Dropped) {
        for (id, execution) in &std::mem::take(&mut self.executions) {
            let values = match &execution.values {
                Some(values) => values,
                None => &self.values(execution, dropped),
            };
            let json = execution.json(*id, values, modified_ms);
            out.meta(Kind::Sql, &id.to_string(), &json);
        }
        *self = Self::default();
    }
}

impl Execution {
    fn json(&self, id: i64, values: &HashMap<i64, String>, modified_ms: i64) -> Value {
        let order = scala::order(&self.job_order);
        let jobs = |state: Option<bool>| {
            let jobs = order
                .iter()
                .filter(|job| self.jobs.get(job) == Some(&state));
            jobs.copied().collect::<Vec<_>>()
        };
        let has_failed = self.jobs.values().any(|state| *state == Some(false));
        let status = match (&self.error, self.completion) {
            (Some(error), _) if error.is_empty() => "COMPLETED",
            (Some(_), _) => "FAILED",
            (None, None) => "RUNNING",
            (None, Some(_)) if has_failed => "FAILED",
            (None, Some(_)) => "COMPLETED",
        };
        let end = self.completion.unwrap_or(modified_ms);
        present(json!({
            "id": id,
            "status": status,
            "description": self.description,
            "planDescription": self.plan_text,
            "submissionTime": date(self.submission),
            "duration": end.wrapping_sub(self.submission),
            "runningJobIds": jobs(None),
            "successJobIds": jobs(Some(true)),
            "failedJobIds": jobs(Some(false)),
            "nodes": self.graph.nodes(values),
            "edges": self.graph.edges(),
            "queryId": self.query,
            "errorMessage": self.error,
            "rootExecutionId": self.root,
            "details": self.details,
        }))
    }
}

fn kinds(graph: &Graph) -> BTreeMap<i64, String> {
    graph
        .metrics()
        .map(|metric| (metric.id, metric.kind.clone()))
        .collect()
}
