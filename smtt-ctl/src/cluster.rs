//! `--cluster`: one question to the daemons of many workers over their metrics ports, and their answers as one.
//!
//! Workers are asked at the same time, each within a deadline. What a worker sends is untrusted: its bytes are bounded,
//! and control characters do not reach the terminal. A worker that does not answer is named; it is not asked again in
//! the same run.

mod bounds;
mod credentials;
mod merge;
mod spec;
mod transport;

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

pub use self::merge::Merge;
pub use self::spec::Worker;

/// Field of a row with the name of its worker.
pub const WORKER: &str = "worker";
/// Column with the name of the worker.
const HOST: Column = column(WORKER, "HOST", Form::Text, 0);
/// Workers that are asked at the same time: below the 1,024 files that a process may open by default.
const AT_A_TIME: usize = 512;
/// Characters of a message from a worker.
const MESSAGE: usize = 200;

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
        for (name, answer) in answers {
            let part = answer.and_then(|bytes| {
                read::<Answer>(&bytes, &name, share, limit)
                    .map_err(|reason| Trouble::Failed(format!("answered wrongly: {reason}")))
            });
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

/// Reads an answer; its rows get the name of the worker. No text of it has a control character.
fn read<Answer: DeserializeOwned + Merge>(
    bytes: &[u8],
    name: &str,
    share: u64,
    limit: Option<usize>,
) -> Result<Answer, String> {
    bounds::check(bytes, share)?;
    let mut value: Value =
        serde_json::from_slice(bytes).map_err(|error| message(&error.to_string()))?;
    make_harmless(&mut value);
    let rows = value.get_mut(Answer::ROWS).and_then(Value::as_array_mut);
    let count = rows.as_ref().map_or(0, |rows| rows.len());
    if let Some(limit) = limit.filter(|limit| count > *limit) {
        return Err(format!("it has {count} rows, {limit} were requested"));
    }
    for row in rows.into_iter().flatten() {
        let row = row.as_object_mut().ok_or("a row is no object")?;
        row.insert(WORKER.to_owned(), Value::String(name.to_owned()));
    }
    serde_json::from_value(value).map_err(|error| message(&error.to_string()))
}

/// A message of a worker or about its answer: one line without control characters, not too long.
fn message(text: &str) -> String {
    super::table::cut(&harmless(text), MESSAGE)
}

/// Text without control characters, separators of lines, and characters that change the direction of text.
fn harmless(text: &str) -> String {
    let visible = |letter: char| {
        let turns = matches!(letter, '\u{61c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if letter.is_control() || turns {
            char::REPLACEMENT_CHARACTER
        } else {
            letter
        }
    };
    text.chars().map(visible).collect()
}

/// Replaces control characters in all text of an answer.
fn make_harmless(value: &mut Value) {
    let is_harmless = |text: &str| harmless(text) == text;
    match value {
        Value::String(text) if !is_harmless(text) => *text = harmless(text),
        Value::Array(items) => items.iter_mut().for_each(make_harmless),
        Value::Object(fields) => {
            if !fields.keys().all(|name| is_harmless(name)) {
                let taken = std::mem::take(fields);
                let named = taken
                    .into_iter()
                    .map(|(name, value)| (harmless(&name), value));
                fields.extend(named);
            }
            fields.values_mut().for_each(make_harmless);
        }
        _ => {}
    }
}

/// A listing with a column for the worker. Spark's name of the executor's host stays in the JSON.
pub(super) fn with_host(kind: &ListingKind) -> ListingKind {
    thread_local! {
        static KNOWN: std::cell::RefCell<BTreeMap<&'static str, &'static [Column]>> = std::cell::RefCell::default();
    }
    let columns = KNOWN.with_borrow_mut(|known| {
        *known.entry(kind.what).or_insert_with(|| {
            let others = kind.columns.iter().filter(|column| column.field != "host");
            let columns: Vec<Column> = std::iter::once(&HOST).chain(others).copied().collect();
            columns.leak()
        })
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
        | Command::Advise { .. }
        | Command::Postmortem { executor: None, .. }
        | Command::Completions { .. } => return Ok(()),
        Command::Stages { summary: true, .. } => "stages --summary",
        Command::Stages { .. } => "stages --peaks",
        Command::Postmortem { .. } => "postmortem EXECUTOR",
        Command::Doctor { .. } => "doctor",
        Command::Task { .. } => "task",
        Command::Top { .. } => "top",
        Command::Report { .. } => "report",
        Command::Export { .. } => "export",
        Command::Trace(_) => "trace",
        Command::Calibrate { .. } => "calibrate",
        Command::Pmu { .. } => "pmu",
    };
    Err(Failure::Question(format!(
        "smtt-ctl {name} asks one worker: run it there, without --cluster"
    )))
}

/// An object with the workers and their errors beside its other fields.
pub(super) fn beside(fields: &impl Serialize, workers: Value) -> Value {
    let mut value = serde_json::to_value(fields).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("workers".to_owned(), workers);
    }
    value
}

#[cfg(test)]
mod tests {
    use smtt_model::rows::Listing;

    use super::*;

    #[test]
    fn text_of_a_worker_stays_in_its_line_and_direction() {
        for letter in [
            '\u{1b}', '\n', '\u{61c}', '\u{2028}', '\u{2029}', '\u{202e}',
        ] {
            assert_eq!(harmless(&format!("a{letter}b")), "a\u{fffd}b");
        }
        assert_eq!(harmless("a\u{2027}\u{e9}"), "a\u{2027}\u{e9}");
    }

    #[test]
    fn an_answer_with_more_rows_than_requested_is_wrong() {
        let listing = Listing {
            rows: vec![json!({"a": 1}), json!({"a": 2})],
            ..Listing::default()
        };
        let answer = serde_json::to_vec(&listing).expect("written");
        let rows = |limit| read::<Listing<Value>>(&answer, "w", 1 << 20, limit);
        assert_eq!(rows(None).expect("read").rows.len(), 2);
        assert_eq!(rows(Some(2)).expect("read").rows[1]["worker"], "w");
        let error = rows(Some(1)).expect_err("too many");
        assert_eq!(error, "it has 2 rows, 1 were requested");
    }

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
