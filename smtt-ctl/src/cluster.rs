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
mod said;
mod spec;
mod transport;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::Summary;

use self::question::Twin;
use self::said::WorkerStatus;
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
