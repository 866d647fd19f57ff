//! `--cluster`: one question to the daemons of many workers over their metrics ports, and their answers as one.
//!
//! Workers are asked at the same time, each within a deadline. What a worker sends is untrusted: its bytes are bounded,
//! and control characters do not reach the terminal. A worker that does not answer is named; it is not asked again in
//! the same run.

mod answer;
mod bounds;
mod credentials;
mod kubernetes;
mod merge;
mod question;
mod reports;
mod spec;
mod transport;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::Summary;

use self::question::Twin;
use self::transport::{Access, Trouble};
use super::args::{Args, ClusterArgs, Command};
use super::client::{ClientError, with_query};
use super::columns::{ListingKind, descends};
use super::listing::Rows;
use super::table::{Column, Form, column};
use super::{Exit, Failure, earlier, say};

pub(super) use self::reports::{OfApplication, Reports, named};
pub(super) use self::work::run as work;

pub(super) use self::answer::{message, read_harmless};
pub use self::kubernetes::ACCOUNT;
pub use self::merge::Merge;
pub use self::spec::Worker;

/// Field of a row with the name of its worker.
pub const WORKER: &str = "worker";
/// Column with the name of the worker.
const HOST: Column = column(WORKER, "HOST", Form::Text, 0);

/// Workers whose daemons are asked together.
#[derive(Debug)]
pub struct Cluster {
    workers: Vec<Worker>,
    access: Arc<Access>,
    deadline: Duration,
    /// What is known of the workers in this run, by name.
    said: Mutex<BTreeMap<String, WorkerStatus>>,
    /// Workers with the identity of another one of the list, by name.
    claimed: Mutex<BTreeMap<String, Twin>>,
    /// Names that were counted in this run, each with a name of the same daemon that was left out of an answer for it.
    counted: Mutex<BTreeSet<(String, String)>>,
    /// Runs of workers' daemons that have ended, and the start of the present one, by name: totals with nothing else.
    ended: Mutex<BTreeMap<String, Summary>>,
}

/// What is known of a worker.
#[derive(Clone, Debug)]
enum WorkerStatus {
    /// It answered.
    Answered,
    /// It answered, but does not measure a figure that others do.
    Lacks(String),
    /// It answered, but not about earlier runs of its daemon, for this reason.
    LacksEarlier(String),
    /// Its answer is larger than there is room for.
    TooLarge(String),
    /// It did not answer, or wrongly.
    Failed(String),
}

impl WorkerStatus {
    /// Why the worker is in no figure; `None` where it is.
    fn trouble(&self) -> Option<Trouble> {
        match self {
            Self::TooLarge(reason) => Some(Trouble::TooLarge(reason.clone())),
            Self::Failed(reason) => Some(Trouble::Failed(reason.clone())),
            Self::Answered | Self::Lacks(_) | Self::LacksEarlier(_) => None,
        }
    }
}

impl From<&Trouble> for WorkerStatus {
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::TooLarge(reason) => Self::TooLarge(reason.clone()),
            Trouble::Refused(reason) | Trouble::Failed(reason) => Self::Failed(reason.clone()),
        }
    }
}

impl Cluster {
    /// The workers that the arguments name.
    ///
    /// # Errors
    /// When the list of workers or a file of credentials cannot be read.
    pub async fn find(args: &ClusterArgs, socket: &Path) -> Result<Self, Failure> {
        let workers = spec::workers(args).await?;
        Ok(Self {
            access: Arc::new(Access::load(args, socket, &workers)?),
            workers,
            deadline: args.deadline,
            said: Mutex::default(),
            claimed: Mutex::default(),
            counted: Mutex::default(),
            ended: Mutex::default(),
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
        let answers = self.bytes(path_and_query, None).await;
        let mut parts = Vec::new();
        let mut troubles = Vec::new();
        for (name, part) in answer::read_all::<Answer>(answers, limit) {
            match part {
                // It was counted under another name, which has failed since.
                Ok(_) if self.has_failed(&name) => troubles.extend(self.trouble(&name)),
                Ok(part) => {
                    self.answered_with(&name, part.lack(), part.summary());
                    parts.push((name, part));
                }
                Err(trouble) => {
                    self.note(&name, WorkerStatus::from(&trouble));
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
        let (question, asked) = of_each(path, question);
        let parts = self.parts(&with_query(path, &asked)?, asked.limit).await?;
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        Answer::merge(parts, path, &question)
    }

    /// What earlier runs of the daemons answer to a question whose answers about the present run took so long. A worker that
    /// gives none stays one that answered; it is named, and the answer is not complete.
    ///
    /// # Errors
    /// When the rows cannot be sorted as requested.
    pub(super) async fn earlier(
        &self,
        path: &str,
        question: &ListQuery,
        took: Duration,
    ) -> Result<Option<Rows>, ClientError> {
        let ended = self.ended().clone();
        let names: BTreeSet<String> = ended.keys().cloned().collect();
        if names.is_empty() {
            return Ok(None);
        }
        let (question, asked) = of_each(path, question);
        let path_and_query = with_query(&earlier::of(path), &asked)?;
        // Both questions together take little longer than one.
        let deadline = self.deadline.saturating_sub(took).max(self.deadline / 2);
        let answers = self.bytes(&path_and_query, Some((&names, deadline))).await;
        let mut parts = Vec::new();
        for (name, part) in answer::read_all::<Rows>(answers, asked.limit) {
            match part {
                Ok(mut part) => {
                    // A daemon that has started once more since the first answer has its rows as those of before.
                    let runs = ended.get(&name).map(|of| of.earlier_runs.as_slice());
                    let all = part.rows.len();
                    part.rows
                        .retain(|row| earlier::is_of(row, runs.unwrap_or_default()));
                    let others = (all - part.rows.len()) as u64;
                    part.rows_total = part.rows_total.saturating_sub(others);
                    parts.push(part);
                }
                Err(trouble) => self.note(&name, WorkerStatus::LacksEarlier(trouble.to_string())),
            }
        }
        Rows::merge(parts, path, &question).map(Some)
    }

    /// Runs of workers' daemons that have ended, with the start of the present one, in the order of the workers.
    pub(super) fn runs(&self) -> Vec<(String, Summary)> {
        let ended = self.ended();
        let of = |worker: &Worker| Some((worker.name.clone(), ended.get(&worker.name)?.clone()));
        self.workers.iter().filter_map(of).collect()
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
        let is_large = |trouble: &Trouble| matches!(trouble, Trouble::TooLarge(_));
        match troubles.iter().all(is_large) && !troubles.is_empty() {
            true => ClientError::TooLarge(self.workers.len()),
            false => ClientError::NoWorker(self.workers.len()),
        }
    }

    fn said(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, WorkerStatus>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claimed(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Twin>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counted(&self) -> std::sync::MutexGuard<'_, BTreeSet<(String, String)>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Summary>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what an answer says of its worker. Compiled once for all types of answers.
    #[inline(never)]
    fn answered_with(&self, name: &str, lack: Option<String>, summary: Option<&Summary>) {
        self.note(
            name,
            lack.map_or(WorkerStatus::Answered, WorkerStatus::Lacks),
        );
        if let Some(summary) = summary
            && !summary.earlier_runs.is_empty()
        {
            let ended = Summary {
                earlier_runs: summary.earlier_runs.clone(),
                measured_since_unix_ms: summary.measured_since_unix_ms,
                ..Summary::default()
            };
            self.ended().insert(name.to_owned(), ended);
        }
    }

    /// Keeps what is known of a worker; a failure stays. With a worker fail those that were counted under its name: their
    /// answers to earlier questions are absent.
    fn note(&self, name: &str, said: WorkerStatus) {
        let lacks = matches!(self.said().get(name), Some(WorkerStatus::LacksEarlier(_)));
        if self.has_failed(name) || lacks && said.trouble().is_none() {
            return;
        }
        let fails = said.trouble().is_some();
        self.said().insert(name.to_owned(), said);
        if fails {
            let counted = self.counted().clone();
            let twins = counted.iter().filter(|(counted, _)| counted == name);
            for (_, twin) in twins {
                let reason = format!("was counted as {name}, the same daemon, which failed");
                self.note(twin, WorkerStatus::Failed(reason));
            }
        }
    }

    /// Forgets what is known of the workers: the next question asks all of them.
    pub(super) fn begin(&self) {
        self.said().clear();
        self.claimed().clear();
        self.counted().clear();
        self.ended().clear();
    }

    /// The workers with their errors, for JSON.
    pub(super) fn workers(&self) -> Value {
        let (said, claimed, ended) = (self.said(), self.claimed(), self.ended());
        let row = |worker: &Worker| {
            let mut row = Map::new();
            row.insert("host".to_owned(), json!(worker.name));
            let said = said.get(&worker.name);
            let error = said.and_then(WorkerStatus::trouble);
            let error = error.map(|trouble| trouble.to_string());
            row.insert("error".to_owned(), json!(error));
            let lacks = match said {
                Some(WorkerStatus::Lacks(what)) => Some(what.as_str()),
                Some(WorkerStatus::LacksEarlier(_)) => {
                    Some("rows from before its daemon's restart")
                }
                _ => None,
            };
            if let Some(what) = lacks {
                row.insert("lacks".to_owned(), json!(what));
            }
            if let Some(of) = ended.get(&worker.name) {
                row.insert("earlier_runs".to_owned(), json!(of.earlier_runs));
                let since = json!(of.measured_since_unix_ms);
                row.insert("measured_since_unix_ms".to_owned(), since);
            }
            match claimed.get(&worker.name) {
                Some(Twin::Same(name)) => row.insert("same_as".to_owned(), json!(name)),
                Some(Twin::Claims(name)) => row.insert("claims".to_owned(), json!(name)),
                None => None,
            };
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
        let (mut parts, mut without) = (Vec::new(), Vec::new());
        let answers = self.bytes(path_and_query, None).await;
        for (name, part) in answer::read_all::<Answer>(answers, None) {
            match part {
                _ if self.has_failed(&name) => {}
                Ok(part) => parts.push((name, part)),
                Err(_) => without.push(name),
            }
        }
        (parts, without)
    }

    /// Whether a worker failed to answer a question of this run.
    pub(super) fn has_failed(&self, name: &str) -> bool {
        self.trouble(name).is_some()
    }

    /// Why a worker is in no figure.
    fn trouble(&self, name: &str) -> Option<Trouble> {
        self.said().get(name).and_then(WorkerStatus::trouble)
    }

    /// The workers that are in no figure, by reason.
    pub(super) fn failures(&self) -> Vec<(String, Vec<String>)> {
        let said = self.said();
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for worker in &self.workers {
            if let Some(trouble) = said.get(&worker.name).and_then(WorkerStatus::trouble) {
                let names = reasons.entry(trouble.to_string()).or_default();
                names.push(worker.name.clone());
            }
        }
        reasons.into_iter().collect()
    }

    /// Workers that are in no figure, and all workers; a worker with two names is one.
    pub(super) fn missing(&self) -> (usize, usize) {
        let (said, claimed) = (self.said(), self.claimed());
        let is_twin = |(name, twin): &(&String, &Twin)| {
            let fails = said.get(*name).and_then(WorkerStatus::trouble).is_some();
            matches!(twin, Twin::Same(_)) && !fails
        };
        let twins = claimed.iter().filter(is_twin).count();
        let failed = said.values().filter_map(WorkerStatus::trouble).count();
        (failed, self.workers.len() - twins)
    }

    /// Whether every worker gave all that it was asked.
    pub(super) fn is_complete(&self) -> bool {
        self.missing().0 == 0 && self.without_earlier() == 0
    }

    /// Workers that did not answer about earlier runs of their daemons.
    fn without_earlier(&self) -> usize {
        let lacks = |said: &&WorkerStatus| matches!(said, WorkerStatus::LacksEarlier(_));
        self.said().values().filter(lacks).count()
    }

    /// Lines about sums that lack workers; empty where they lack none.
    pub(super) fn incomplete(&self) -> String {
        let text = self.without_workers();
        match self.without_earlier() {
            0 => text,
            count => format!(
                "{text}incomplete: what {count} workers measured before their daemons' restarts is in no sum\n"
            ),
        }
    }

    fn without_workers(&self) -> String {
        let (missing, all) = self.missing();
        let is_large = |said: &&WorkerStatus| matches!(said, WorkerStatus::TooLarge(_));
        let large = self.said().values().filter(is_large).count();
        match (missing - large, large) {
            (0, 0) => String::new(),
            (silent, 0) => {
                format!("incomplete: {silent} of {all} workers did not answer and are in no sum\n")
            }
            (0, large) => format!(
                "incomplete: the answers of {large} of {all} workers are too large and are in no sum\n"
            ),
            (silent, large) => format!(
                "incomplete: {silent} of {all} workers did not answer, the answers of {large} are too large; they are in no sum\n"
            ),
        }
    }

    /// Names the workers that did not answer, or not fully, and returns what that makes of an exit.
    pub(super) fn end(&self, exit: Exit) -> Exit {
        let (said, claimed) = (self.said(), self.claimed());
        let mut lines: BTreeMap<(Exit, String), Vec<&str>> = BTreeMap::new();
        for worker in &self.workers {
            let name = worker.name.as_str();
            let fails = said.get(name).and_then(WorkerStatus::trouble).is_some();
            let twin = claimed.get(name).and_then(|twin| match twin {
                Twin::Same(_) if fails => None,
                Twin::Same(other) => Some((
                    Exit::Fine,
                    format!("the same daemon as {other}, counted once"),
                )),
                Twin::Claims(other) => Some((
                    Exit::Degraded,
                    format!(
                        "answers with the identity of {other} but did not give its answer: both count"
                    ),
                )),
            });
            let answer = said.get(name).and_then(|said| match said {
                WorkerStatus::Answered => None,
                WorkerStatus::Lacks(what) => {
                    Some((Exit::Degraded, format!("does not measure {what}")))
                }
                WorkerStatus::LacksEarlier(reason) => Some((
                    Exit::Partial,
                    format!("gives no rows from before its daemon's restart: {reason}"),
                )),
                WorkerStatus::TooLarge(reason) | WorkerStatus::Failed(reason) => {
                    Some((Exit::Partial, reason.clone()))
                }
            });
            for line in [twin, answer].into_iter().flatten() {
                lines.entry(line).or_default().push(name);
            }
        }
        for ((_, reason), names) in &lines {
            match names.as_slice() {
                [name] => say(&format!("worker {name}: {reason}")),
                names => say(&format!("workers {}: {reason}", names.join(", "))),
            }
        }
        let has = |kind: Exit| lines.keys().any(|(exit, _)| *exit == kind);
        match exit {
            Exit::Fine | Exit::Degraded | Exit::Failed if has(Exit::Partial) => Exit::Partial,
            Exit::Fine if has(Exit::Degraded) => Exit::Degraded,
            exit => exit,
        }
    }
}

/// A question whose answers are put in order, and that to each worker.
pub(super) fn of_each(path: &str, question: &ListQuery) -> (ListQuery, ListQuery) {
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
    (question, asked)
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
        | Command::Stages { .. }
        | Command::Tasks { .. }
        | Command::Rdds { .. }
        | Command::Blocks { .. }
        | Command::Memory { .. }
        | Command::Pages { .. }
        | Command::Report { .. }
        | Command::Advise { .. }
        | Command::Postmortem { .. }
        | Command::Top { .. }
        | Command::Completions { .. } => return Ok(()),
        Command::Doctor { .. } => "doctor",
        Command::Task { .. } => "task",
        Command::Export { .. } => "export",
        Command::Trace(_) => "trace",
        Command::Calibrate { .. } => "calibrate",
        Command::Pmu { .. } => "pmu",
    };
    Err(Failure::Question(format!(
        "smtt-ctl {name} asks one worker: run it there, or with one --host, without --cluster"
    )))
}

/// Refuses commands that read files or measure: they do so on this machine.
pub(super) fn check_one(args: &Args) -> Result<(), Failure> {
    let name = match &args.command {
        Command::Doctor { .. } => "doctor",
        Command::Calibrate { .. } => "calibrate",
        Command::Pmu { .. } => "pmu",
        Command::Trace(query) if !query.follow || query.folder.is_some() => {
            "trace without --follow"
        }
        _ => return Ok(()),
    };
    Err(Failure::Question(format!(
        "smtt-ctl {name} asks the machine on which it runs: run it there, without --host"
    )))
}

/// An object with the workers and their errors beside its other fields, and whether all workers answered.
pub(super) fn beside(fields: &impl Serialize, cluster: &Cluster) -> Value {
    let mut value = serde_json::to_value(fields).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("complete".to_owned(), json!(cluster.is_complete()));
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
