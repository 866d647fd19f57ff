//! Findings: what the figures say that somebody should do something about, with the numbers and the remedy.
//!
//! [`advise`] is pure: it sees the daemon's listings and what surrounds the executors, and nothing else. Each rule says
//! what it found, or that it found nothing, or what it could not check and why: silence would look like health.
//! Thresholds are constants beside their rules; docs/ADVICE.md lists them, and a test compares.

mod cache;
mod nodes;
mod pages;
pub mod surroundings;
mod work;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use surroundings::Surroundings;

use crate::rows::{ExecutorRow, Number, PagesRow, RddRow, StageRow};
use crate::state::Measured;

/// Most findings of one rule for one application; further ones are counted.
pub const FINDINGS_PER_RULE: usize = 5;
/// Bytes below which nobody gains from moving them.
pub const BYTES_WORTH: u64 = 64 << 20;
/// What a page fault is taken to cost, in nanoseconds, where estimates need it. Not measured here.
pub const FAULT_NS: u64 = 1_000;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    #[default]
    Low,
    /// Costs something that can be told.
    Medium,
    /// Costs much.
    High,
}

impl Severity {
    /// The severity of a cost that is a share of time or memory, 0 to 1.
    #[must_use]
    pub fn of_share(share: f64) -> Self {
        match share {
            share if share >= 0.2 => Self::High,
            share if share >= 0.05 => Self::Medium,
            _ => Self::Low,
        }
    }

    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// What a finding is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The application.
    pub application_id: Option<String>,
    /// The executors of this worker that it concerns.
    pub executor_ids: Vec<String>,
    /// The RDD, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd_id: Option<u32>,
    /// Name of the RDD, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd_name: Option<String>,
    /// Where in the application the RDD was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<String>,
}

/// One number that a finding rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What it is a number of.
    pub what: String,
    /// The number.
    pub value: Number,
    /// `bytes`, `count`, `share` (0 to 1) or `ns`.
    pub unit: String,
}

/// What it costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// As a share, 0 to 1; absent where that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// What it is a share of, or what is known instead.
    pub of: String,
    /// Whether it is an estimate from a cost that was not measured here.
    pub estimated: bool,
}

/// One thing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What it does, and where it belongs.
    pub why: String,
    /// The lines to write or run; empty where it is a change of the program.
    pub lines: Vec<String>,
}

/// A finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the rule.
    pub id: String,
    /// How much it matters.
    pub severity: Severity,
    /// One sentence.
    pub title: String,
    /// What it is about.
    pub subject: Subject,
    /// Of which stretch of time the numbers are.
    pub window: String,
    /// The numbers that it rests on.
    pub numbers: Vec<Evidence>,
    /// What it costs.
    pub cost: Cost,
    /// What to do, the first first.
    pub remedies: Vec<Remedy>,
    /// What was not measured and could change it.
    pub not_measured: Vec<String>,
}

/// How a rule went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleOutcome {
    /// It could not be checked.
    #[default]
    NotChecked,
    /// It was checked, and nothing was found.
    Nothing,
    /// It found something.
    Found,
}

/// One rule that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleResult {
    /// Name of the rule.
    pub id: String,
    /// What it looks for.
    pub looks_for: String,
    /// How it went.
    pub went: RuleOutcome,
    /// What it looked at, or why it could not.
    pub why: String,
    /// Findings beyond [`FINDINGS_PER_RULE`], which are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Advice for one application, as far as this worker sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplicationAdvice {
    /// Its id; absent for executors that have not described themselves.
    pub application_id: Option<String>,
    /// Its name.
    pub application_name: Option<String>,
    /// Findings, the costliest first.
    pub findings: Vec<Finding>,
    /// Every rule, in a fixed order.
    pub checks: Vec<RuleResult>,
}

/// Advice for all applications that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The applications.
    pub applications: Vec<ApplicationAdvice>,
    /// What the advice took into account beside the figures.
    pub surroundings: Surroundings,
}

/// What the rules see of one application.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Its executors on this worker.
    pub executors: Vec<ExecutorRow>,
    /// Its RDDs, per executor.
    pub rdds: Vec<RddRow>,
    /// Where their bytes are, per executor.
    pub pages: Vec<PagesRow>,
    /// Its stages, per executor.
    pub stages: Vec<StageRow>,
    /// What is counted on this machine.
    pub measured: Measured,
    /// Why page walks have no ratios; empty where they have.
    pub no_walks: String,
    /// Wall clock, milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// One RDD of all executors of this worker.
#[derive(Debug, Default)]
struct Rdd<'a> {
    id: Option<u32>,
    rows: Vec<&'a RddRow>,
    pages: Vec<&'a PagesRow>,
}

impl Rdd<'_> {
    fn sum(&self, of: impl Fn(&RddRow) -> u64) -> u64 {
        self.rows
            .iter()
            .map(|row| of(row))
            .fold(0, u64::saturating_add)
    }

    /// A sum over executors of what was looked at there; `None` when it was not looked at on any.
    fn seen(&self, of: impl Fn(&PagesRow) -> Option<u64>) -> Option<u64> {
        let seen = self.pages.iter().filter_map(|row| of(row));
        seen.reduce(u64::saturating_add)
    }

    fn label(&self) -> String {
        let name = self.rows.iter().find_map(|row| row.name.as_deref());
        match (self.id, name) {
            (Some(id), Some(name)) => format!("RDD {id} ({name})"),
            (Some(id), None) => format!("RDD {id}"),
            (None, _) => "memory of no RDD".to_owned(),
        }
    }

    fn subject(&self, view: &View) -> Subject {
        let row = self.rows.first();
        Subject {
            application_id: view.application_id(),
            executor_ids: executor_ids(self.rows.iter().map(|row| &row.who)),
            rdd_id: self.id,
            rdd_name: row.and_then(|row| row.name.clone()),
            call_site: self.rows.iter().find_map(|row| row.call_site.clone()),
        }
    }
}

fn executor_ids<'a>(who: impl Iterator<Item = &'a crate::rows::ExecutorId>) -> Vec<String> {
    let ids: BTreeSet<String> = who.filter_map(|who| who.executor_id.clone()).collect();
    ids.into_iter().collect()
}

impl View {
    fn application_id(&self) -> Option<String> {
        self.executors
            .first()
            .and_then(|row| row.who.application_id.clone())
    }

    /// RDDs with an id, all executors of this worker together.
    fn rdds(&self) -> Vec<Rdd<'_>> {
        let mut rdds: BTreeMap<u32, Rdd<'_>> = BTreeMap::new();
        for row in &self.rdds {
            if let Some(id) = row.rdd_id {
                let rdd = rdds.entry(id).or_default();
                rdd.id = Some(id);
                rdd.rows.push(row);
            }
        }
        for row in &self.pages {
            if let Some(rdd) = row.rdd_id.and_then(|id| rdds.get_mut(&id)) {
                rdd.pages.push(row);
            }
        }
        rdds.into_values().collect()
    }

    /// CPU time of the living executors in nanoseconds, and of it in the kernel; `None` where none could be read.
    fn cpu_ns(&self, around: &Surroundings) -> Option<(u64, u64)> {
        let times = self
            .executors
            .iter()
            .filter(|row| row.state == crate::rows::ExecutorState::Alive);
        let times = times.filter_map(|row| {
            let process = around.processes.get(&row.who.pid)?;
            Some((
                process.user_ns?.saturating_add(process.system_ns?),
                process.system_ns?,
            ))
        });
        times.reduce(|sum, more| (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1)))
    }

    /// The subject of a finding about executors.
    fn subject(&self, executors: &[&ExecutorRow]) -> Subject {
        Subject {
            application_id: self.application_id(),
            executor_ids: executor_ids(executors.iter().map(|row| &row.who)),
            ..Subject::default()
        }
    }

    /// Facts that were dropped before they reached the daemon: what they said is missing.
    fn dropped(&self) -> u64 {
        let dropped = self.executors.iter().map(|row| row.facts_dropped);
        dropped.fold(0, u64::saturating_add)
    }
}

/// What a rule comes back with.
struct Outcome {
    check: RuleResult,
    findings: Vec<Finding>,
}

impl Outcome {
    fn not_checked(id: &str, looks_for: &str, why: impl Into<String>) -> Self {
        Self {
            check: RuleResult {
                id: id.to_owned(),
                looks_for: looks_for.to_owned(),
                why: why.into(),
                ..RuleResult::default()
            },
            findings: Vec::new(),
        }
    }

    fn checked(
        id: &str,
        looks_for: &str,
        mut findings: Vec<Finding>,
        why: impl Into<String>,
    ) -> Self {
        rank(&mut findings);
        let left_out = findings.len().saturating_sub(FINDINGS_PER_RULE) as u64;
        findings.truncate(FINDINGS_PER_RULE);
        Self {
            check: RuleResult {
                went: if findings.is_empty() {
                    RuleOutcome::Nothing
                } else {
                    RuleOutcome::Found
                },
                left_out,
                ..Self::not_checked(id, looks_for, why).check
            },
            findings,
        }
    }
}

/// The costliest first.
fn rank(findings: &mut [Finding]) {
    let share = |finding: &Finding| finding.cost.share.unwrap_or(0.0);
    findings.sort_by(|left, right| {
        let by_severity = right.severity.cmp(&left.severity);
        by_severity.then(share(right).total_cmp(&share(left)))
    });
}

fn whole(what: &str, value: u64, unit: &str) -> Evidence {
    Evidence {
        what: what.to_owned(),
        value: Number::Whole(value),
        unit: unit.to_owned(),
    }
}

fn bytes(what: &str, value: u64) -> Evidence {
    whole(what, value, "bytes")
}

fn count(what: &str, value: u64) -> Evidence {
    whole(what, value, "count")
}

fn share(what: &str, value: f64) -> Evidence {
    Evidence {
        what: what.to_owned(),
        value: Number::Real(value),
        unit: "share".to_owned(),
    }
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all.max(1) as f64
}

fn remedy(why: &str, lines: &[&str]) -> Remedy {
    Remedy {
        why: why.to_owned(),
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
    }
}

/// What the figures say about one application.
#[must_use]
pub fn advise(view: &View, around: &Surroundings) -> ApplicationAdvice {
    let outcomes = [
        pages::swapped(view, around),
        pages::small_pages(view, around),
        nodes::remote_memory(view, around),
        cache::never_read(view),
        cache::evicted_and_stored_again(view),
        work::spilling(view),
        work::major_faults(view, around),
        work::first_touch(view, around),
        pages::without_memory(view),
    ];
    let mut advice = ApplicationAdvice {
        application_id: view.application_id(),
        application_name: view
            .executors
            .iter()
            .find_map(|row| row.application_name.clone()),
        ..ApplicationAdvice::default()
    };
    for mut outcome in outcomes {
        if advice.application_id.is_none() {
            // Without a word from the marker there are no blocks, tasks and pages to look at: that is not health.
            let RuleResult { id, looks_for, .. } = outcome.check;
            outcome = Outcome::not_checked(
                &id,
                &looks_for,
                "the marker of these executors has told nothing yet",
            );
        }
        advice.findings.extend(outcome.findings);
        advice.checks.push(outcome.check);
    }
    rank(&mut advice.findings);
    advice
}
