//! `--cluster`: one question to the daemons of many workers over their metrics ports, and their answers as one.
//!
//! Workers are asked at the same time, each within a deadline. What a worker sends is untrusted: its bytes are bounded,
//! and control characters do not reach the terminal. A worker that does not answer is named; it is not asked again in
//! the same run.

mod answer;
mod bounds;
mod credentials;
mod merge;
mod reports;
mod spec;
mod transport;
mod work;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use smtt_model::protocol::ListQuery;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::transport::{Access, Trouble};
use super::args::{Args, ClusterArgs, Command};
use super::client::{ClientError, with_query};
use super::columns::{ListingKind, descends};
use super::table::{Column, Form, column};
use super::{Exit, Failure, say};

pub(super) use self::reports::{OfApplication, Reports, named};
pub(super) use self::work::run as work;

pub use self::merge::Merge;
pub use self::spec::Worker;

/// Field of a row with the name of its worker.
pub const WORKER: &str = "worker";
/// Column with the name of the worker.
const HOST: Column = column(WORKER, "HOST", Form::Text, 0);
/// Workers that are asked at the same time: below the 1,024 files that a process may open by default.
const AT_A_TIME: usize = 512;

/// Workers whose daemons are asked together.
#[derive(Debug)]
pub struct Cluster {
    workers: Vec<Worker>,
    access: Arc<Access>,
    deadline: Duration,
    /// What is known of the workers in this run, by name.
    said: Mutex<BTreeMap<String, Said>>,
}

/// What is known of a worker.
#[derive(Clone, Debug)]
enum Said {
    /// It answered.
    Answered,
    /// It answered, but does not measure a figure that others do.
    Lacks(String),
    /// It did not answer, or wrongly.
    Failed(String),
}

impl Cluster {
    /// The workers that the arguments name.
    ///
    /// # Errors
    /// When the list of workers or a file of credentials cannot be read.
    pub async fn find(args: &ClusterArgs, spec: &str) -> Result<Self, Failure> {
        Ok(Self {
            access: Arc::new(Access::load(args)?),
            workers: spec::workers(spec, args.is_tls(), args.deadline).await?,
            deadline: args.deadline,
            said: Mutex::default(),
        })
    }

    /// Answers of a type from the workers that give one, each with the worker's name.
    ///
    /// # Errors
    /// When no worker answers, or all refuse the question with the same words.
    pub async fn each<Answer: DeserializeOwned + Merge>(
        &self,
        path_and_query: &str,
    ) -> Result<Vec<(String, Answer)>, ClientError> {
        self.parts(path_and_query, None).await
    }

    /// As [`Cluster::each`]; an answer with more rows than the limit is wrong.
    async fn parts<Answer: DeserializeOwned + Merge>(
        &self,
        path_and_query: &str,
        limit: Option<usize>,
    ) -> Result<Vec<(String, Answer)>, ClientError> {
        let share = bounds::share(self.workers.len());
        let answers = self.bytes(path_and_query).await;
        let mut parts = Vec::new();
        let mut troubles = Vec::new();
        for (name, part) in answer::read_all::<Answer>(answers, share, limit) {
            match part {
                Ok(part) => {
                    let lack = part.lack();
                    self.note(&name, lack.map_or(Said::Answered, Said::Lacks));
                    parts.push((name, part));
                }
                Err(trouble) => {
                    self.note(&name, Said::Failed(trouble.to_string()));
                    troubles.push(trouble);
                }
            }
        }
        if parts.is_empty() {
            return Err(self.none(&troubles));
        }
        Ok(parts)
    }

    /// The answers of all workers as one.
    ///
    /// # Errors
    /// See [`Cluster::each`].
    pub async fn ask<Answer: DeserializeOwned + Merge>(
        &self,
        path: &str,
        question: &ListQuery,
    ) -> Result<Answer, ClientError> {
        let mut question = question.clone();
        if let Some(by) = &mut question.sort {
            // The direction does not depend on what a worker sends.
            *by = directed(path, by);
        }
        let mut asked = question.clone();
        let by = asked.sort.as_deref().unwrap_or_default();
        if by.split(':').next() == Some(WORKER) {
            // A worker does not know its name here.
            asked.sort = None;
        }
        let parts = self.parts(&with_query(path, &asked)?, asked.limit).await?;
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        Answer::merge(parts, path, &question)
    }

    /// The bodies of the answers, in the order of the workers.
    async fn bytes(&self, path_and_query: &str) -> Vec<(String, Result<Vec<u8>, Trouble>)> {
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let share = bounds::share(self.workers.len());
        let path: Arc<str> = path_and_query.into();
        let mut asked = JoinSet::new();
        let mut answers = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            if let Some(Said::Failed(reason)) = self.said().get(&worker.name) {
                let answer = Err(Trouble::Failed(reason.clone()));
                answers.push((index, worker.name.clone(), answer));
                continue;
            }
            let (worker, access) = (worker.clone(), Arc::clone(&self.access));
            let (places, path) = (Arc::clone(&places), Arc::clone(&path));
            let deadline = self.deadline;
            asked.spawn(async move {
                let _place = places.acquire_owned().await;
                let answer = access.get(&worker, &path, share);
                let answer = match tokio::time::timeout(deadline, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Trouble::Failed(format!("no answer within {deadline:?}"))),
                };
                (index, worker.name, answer)
            });
        }
        // Every body is here before the first one is parsed: parsing would use up the time of the others.
        answers.extend(asked.join_all().await);
        answers.sort_by_key(|(index, ..)| *index);
        answers
            .into_iter()
            .map(|(_, name, answer)| (name, answer))
            .collect()
    }

    /// The failure of a question that no worker answered.
    fn none(&self, troubles: &[Trouble]) -> ClientError {
        if let Some(Trouble::Refused(first)) = troubles.first()
            && troubles
                .iter()
                .all(|trouble| matches!(trouble, Trouble::Refused(said) if said == first))
        {
            // The question is wrong, no worker is.
            self.said().clear();
            return ClientError::Refused(first.clone());
        }
        ClientError::NoWorker(self.workers.len())
    }

    fn said(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is known of a worker; a failure stays.
    fn note(&self, name: &str, said: Said) {
        let mut all = self.said();
        if !matches!(all.get(name), Some(Said::Failed(_))) {
            all.insert(name.to_owned(), said);
        }
    }

    /// Forgets what is known of the workers: the next question asks all of them.
    pub(super) fn begin(&self) {
        self.said().clear();
    }

    /// The workers with their errors, for JSON.
    pub(super) fn workers(&self) -> Value {
        let said = self.said();
        let row = |worker: &Worker| {
            let mut row = Map::new();
            row.insert("host".to_owned(), json!(worker.name));
            let (error, lacks) = match said.get(&worker.name) {
                Some(Said::Failed(reason)) => (Some(reason), None),
                Some(Said::Lacks(what)) => (None, Some(what)),
                _ => (None, None),
            };
            row.insert("error".to_owned(), json!(error));
            if let Some(lacks) = lacks {
                row.insert("lacks".to_owned(), json!(lacks));
            }
            Value::Object(row)
        };
        self.workers.iter().map(row).collect()
    }

    /// Answers from the workers that give one to a question that a page can do without, and the names of the others.
    /// These stay workers that answered.
    pub(super) async fn optional<Answer: DeserializeOwned + Merge>(
        &self,
        path_and_query: &str,
    ) -> (Vec<(String, Answer)>, Vec<String>) {
        let share = bounds::share(self.workers.len());
        let (mut parts, mut without) = (Vec::new(), Vec::new());
        let answers = self.bytes(path_and_query).await;
        for (name, part) in answer::read_all::<Answer>(answers, share, None) {
            match part {
                Ok(part) => parts.push((name, part)),
                Err(_) if self.has_failed(&name) => {}
                Err(_) => without.push(name),
            }
        }
        (parts, without)
    }

    /// Whether a worker failed to answer a question of this run.
    pub(super) fn has_failed(&self, name: &str) -> bool {
        matches!(self.said().get(name), Some(Said::Failed(_)))
    }

    /// The workers that did not answer, by reason.
    pub(super) fn failures(&self) -> Vec<(String, Vec<String>)> {
        let said = self.said();
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for worker in &self.workers {
            if let Some(Said::Failed(reason)) = said.get(&worker.name) {
                let names = reasons.entry(reason.clone()).or_default();
                names.push(worker.name.clone());
            }
        }
        reasons.into_iter().collect()
    }

    /// Workers that did not answer, and all workers.
    pub(super) fn missing(&self) -> (usize, usize) {
        let said = self.said();
        let failed = |said: &&Said| matches!(said, Said::Failed(_));
        (said.values().filter(failed).count(), self.workers.len())
    }

    /// A line about sums that lack workers; empty where they lack none.
    pub(super) fn incomplete(&self) -> String {
        match self.missing() {
            (0, _) => String::new(),
            (missing, all) => {
                format!("incomplete: {missing} of {all} workers did not answer and are in no sum\n")
            }
        }
    }

    /// Names the workers that did not answer, or not fully, and returns what that makes of an exit.
    pub(super) fn end(&self, exit: Exit) -> Exit {
        let said = self.said();
        let mut lines: BTreeMap<(bool, String), Vec<&str>> = BTreeMap::new();
        for worker in &self.workers {
            let line = match said.get(&worker.name) {
                Some(Said::Failed(reason)) => (true, reason.clone()),
                Some(Said::Lacks(what)) => (false, format!("does not measure {what}")),
                _ => continue,
            };
            lines.entry(line).or_default().push(&worker.name);
        }
        for ((_, reason), names) in &lines {
            match names.as_slice() {
                [name] => say(&format!("worker {name}: {reason}")),
                names => say(&format!("workers {}: {reason}", names.join(", "))),
            }
        }
        let failed = lines.keys().any(|(failed, _)| *failed);
        match exit {
            Exit::Fine | Exit::Degraded | Exit::Failed if failed => Exit::Partial,
            Exit::Fine if !lines.is_empty() => Exit::Degraded,
            exit => exit,
        }
    }
}

/// A sort with its direction, where the column has one.
fn directed(path: &str, by: &str) -> String {
    let of_worker = (by == WORKER).then_some(false);
    match of_worker.or_else(|| descends(path, by)) {
        Some(true) => format!("{by}:desc"),
        Some(false) => format!("{by}:asc"),
        None => by.to_owned(),
    }
}

/// A listing with a column for the worker. Spark's name of the executor's host stays in the JSON.
pub(super) fn with_host(kind: &ListingKind) -> ListingKind {
    let others = kind.columns.iter().filter(|column| column.field != "host");
    let columns = std::iter::once(&HOST).chain(others).copied();
    with_columns(kind, HOST.field, columns)
}

/// A listing with other columns, which are made once for each name.
fn with_columns(
    kind: &ListingKind,
    name: &'static str,
    columns: impl Iterator<Item = Column>,
) -> ListingKind {
    thread_local! {
        static KNOWN: std::cell::RefCell<BTreeMap<(&'static str, &'static str), &'static [Column]>> = std::cell::RefCell::default();
    }
    let columns = KNOWN.with_borrow_mut(|known| {
        let made = known.entry((kind.what, name));
        *made.or_insert_with(|| columns.collect::<Vec<Column>>().leak())
    });
    ListingKind { columns, ..*kind }
}

/// Refuses commands that ask one worker only.
pub(super) fn check(args: &Args) -> Result<(), Failure> {
    let name = match &args.command {
        Command::Status { .. }
        | Command::Executors(_)
        | Command::Jobs(_)
        | Command::Queries(_)
        | Command::Stages {
            summary: false,
            peaks: false,
            ..
        }
        | Command::Tasks { .. }
        | Command::Rdds { .. }
        | Command::Blocks(_)
        | Command::Memory { .. }
        | Command::Pages { .. }
        | Command::Report { .. }
        | Command::Advise { .. }
        | Command::Postmortem { executor: None, .. }
        | Command::Completions { .. } => return Ok(()),
        Command::Stages { summary: true, .. } => "stages --summary",
        Command::Stages { .. } => "stages --peaks",
        Command::Postmortem { .. } => "postmortem EXECUTOR",
        Command::Doctor { .. } => "doctor",
        Command::Task { .. } => "task",
        Command::Top { .. } => "top",
        Command::Export { .. } => "export",
        Command::Trace(_) => "trace",
        Command::Calibrate { .. } => "calibrate",
        Command::Pmu { .. } => "pmu",
    };
    Err(Failure::Question(format!(
        "smtt-ctl {name} asks one worker: run it there, without --cluster"
    )))
}

/// An object with the workers and their errors beside its other fields, and whether all workers answered.
pub(super) fn beside(fields: &impl Serialize, cluster: &Cluster) -> Value {
    let mut value = serde_json::to_value(fields).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("complete".to_owned(), json!(cluster.missing().0 == 0));
        fields.insert("workers".to_owned(), cluster.workers());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_has_the_direction() {
        for (by, directed_by) in [
            ("page_faults", "page_faults:desc"),
            ("page_faults:asc", "page_faults:asc"),
            ("name", "name:asc"),
            ("worker", "worker:asc"),
        ] {
            assert_eq!(directed("/v1/rdds", by), directed_by);
        }
    }
}
