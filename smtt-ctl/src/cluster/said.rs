//! What is known of the workers in one run: who answered, who did not and why, and which are the same daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use smtt_model::rows::Summary;

use super::question::Twin;
use super::transport::Trouble;
use super::{Cluster, Exit, Worker, say};

/// What is known of a worker.
#[derive(Clone, Debug)]
pub(super) enum WorkerStatus {
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
    pub(super) fn trouble(&self) -> Option<Trouble> {
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
    /// Runs of workers' daemons that have ended, with the start of the present one, in the order of the workers.
    pub(crate) fn runs(&self) -> Vec<(String, Summary)> {
        let ended = self.ended();
        let of = |worker: &Worker| Some((worker.name.clone(), ended.get(&worker.name)?.clone()));
        self.workers.iter().filter_map(of).collect()
    }

    pub(super) fn said(&self) -> MutexGuard<'_, BTreeMap<String, WorkerStatus>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claimed(&self) -> MutexGuard<'_, BTreeMap<String, Twin>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counted(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, BTreeMap<String, Summary>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what an answer says of its worker. Compiled once for all types of answers.
    #[inline(never)]
    pub(super) fn answered_with(
        &self,
        name: &str,
        lack: Option<String>,
        summary: Option<&Summary>,
    ) {
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
    pub(super) fn note(&self, name: &str, said: WorkerStatus) {
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
    pub(crate) fn begin(&self) {
        self.said().clear();
        self.claimed().clear();
        self.counted().clear();
        self.ended().clear();
    }

    /// The workers with their errors, for JSON.
    pub(crate) fn workers(&self) -> Value {
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

    /// Whether a worker failed to answer a question of this run.
    pub(crate) fn has_failed(&self, name: &str) -> bool {
        self.trouble(name).is_some()
    }

    /// Why a worker is in no figure.
    pub(super) fn trouble(&self, name: &str) -> Option<Trouble> {
        self.said().get(name).and_then(WorkerStatus::trouble)
    }

    /// The workers that are in no figure, by reason.
    pub(crate) fn failures(&self) -> Vec<(String, Vec<String>)> {
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
    pub(crate) fn missing(&self) -> (usize, usize) {
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
    pub(crate) fn is_complete(&self) -> bool {
        self.missing().0 == 0 && self.without_earlier() == 0
    }

    /// Workers that did not answer about earlier runs of their daemons.
    fn without_earlier(&self) -> usize {
        let lacks = |said: &&WorkerStatus| matches!(said, WorkerStatus::LacksEarlier(_));
        self.said().values().filter(lacks).count()
    }

    /// Lines about sums that lack workers; empty where they lack none.
    pub(crate) fn incomplete(&self) -> String {
        let text = self.without_workers();
        match self.without_earlier() {
            0 => text,
            count => format!(
                "{text}incomplete: {count} of {} workers gave no rows from before their daemons' restarts, which are in no sum\n",
                self.missing().1
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
    pub(crate) fn end(&self, exit: Exit) -> Exit {
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
