//! Findings: problems that the figures show, with the numbers and the remedy.
//!
//! [`advise`] is pure: its inputs are the daemon's listings and the executors' surroundings. Each rule reports what it
//! found, that it found nothing, or what it could not check and why, because silence would look like health. Thresholds
//! are constants beside their rules; docs/ADVICE.md lists them, and a test compares the two.

mod cache;
mod groups;
mod nodes;
mod pages;
mod saving;
pub mod simulate;
mod skew;
mod stages;
pub mod surroundings;
pub mod tasks;
mod work;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use saving::Saving;
use serde::{Deserialize, Serialize};
use surroundings::Surroundings;

use crate::rows::{
    EarlierRun, ExecutorRow, GroupBy, Number, PagesRow, RddOverExecutors as Rdd, RddRow, StageRow,
    TasksByStage, common,
};
use crate::sort::small::{Gather as _, sort_by};
use crate::state::{FaultFigures, Measured};

/// Maximum number of findings of one rule for one application; further ones are counted.
pub const FINDINGS_PER_RULE: usize = 5;
/// Bytes below which moving them is not worth a finding.
pub const BYTES_WORTH: u64 = 64 << 20;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    #[default]
    Low,
    /// Has a noticeable cost.
    Medium,
    /// Has a high cost.
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

    /// The word for this severity in JSON and text.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Subject of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Id of the application.
    pub application_id: Option<String>,
    /// Executors of this worker that the finding concerns.
    pub executor_ids: Vec<String>,
    /// Id of the RDD, where the finding is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd_id: Option<u32>,
    /// Name of the RDD, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd_name: Option<String>,
    /// Call site in the application that created the RDD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<String>,
    /// Plan node or operation that made the RDD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the finding's RDDs have in common, where they were asked for so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// RDDs of the group with this finding; the fields above are of the one where it costs most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdds: Option<u64>,
    /// Id of the stage, where the finding is about one; of several stages of one name that where it costs most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_attempt: Option<u32>,
    /// Name of the stage, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_name: Option<String>,
}

/// One number that supports a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Meaning of the number.
    pub what: String,
    /// The number.
    pub value: Number,
    /// Unit of the number: `bytes`, `count`, `share` (0 to 1) or `ns`.
    pub unit: String,
}

/// Cost of a finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Cost as a share, 0 to 1; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The whole that `share` refers to, or a description where the share is absent.
    pub of: String,
    /// Whether the cost is estimated from a figure that was not measured on this machine.
    pub estimated: bool,
}

/// One remedy of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What the remedy does and where it belongs.
    pub why: String,
    /// Lines to write or run; empty where the remedy is a change of the program.
    pub lines: Vec<String>,
}

/// One finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the rule.
    pub id: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// One sentence that states the finding.
    pub title: String,
    /// Subject of the finding.
    pub subject: Subject,
    /// Period that the numbers cover.
    pub window: String,
    /// Numbers that support the finding.
    pub numbers: Vec<Evidence>,
    /// Cost of the finding.
    pub cost: Cost,
    /// Seconds of the executors' threads on this worker that the remedy would save. Threads run at the same time, so the
    /// application's time becomes shorter by a part of them. Of `skew` the seconds by which the stage's tasks on this worker
    /// end earlier. Absent where the finding is about memory, or where its time was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving: Option<Saving>,
    /// How the saving was computed, or why it is not in seconds.
    #[serde(default)]
    pub computed: String,
    /// What would show that the finding is wrong.
    #[serde(default)]
    pub disproof: String,
    /// Remedies, the most effective first.
    pub remedies: Vec<Remedy>,
    /// Figures that were not measured and could change the finding.
    pub not_measured: Vec<String>,
}

impl Finding {
    /// The expected saving in words.
    #[must_use]
    pub fn saving_words(&self) -> Option<String> {
        let of = if self.id == skew::SKEW {
            "until the stage's tasks on this worker have ended"
        } else {
            "of the executors' threads"
        };
        self.saving.map(|saving| format!("{} {of}", saving.words()))
    }

    /// Whether its memory is given back already: blocks that were never read and are gone.
    #[must_use]
    pub fn is_past(&self) -> bool {
        let is_gone = |it: &Evidence| it.what == cache::STORAGE_NOW && it.value == Number::Whole(0);
        self.id == cache::NEVER_READ && self.numbers.iter().any(is_gone)
    }
}

/// Outcome of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleOutcome {
    /// The rule could not be checked.
    #[default]
    NotChecked,
    /// The rule was checked and found nothing.
    Nothing,
    /// The rule found something.
    Found,
}

/// Result of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleResult {
    /// Name of the rule.
    pub id: String,
    /// Problem that the rule checks for.
    pub looks_for: String,
    /// Outcome of the rule.
    pub went: RuleOutcome,
    /// What the rule examined, or why it could not be checked.
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

/// Advice for one application on this worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplicationAdvice {
    /// Id of the application; absent for executors that have not described themselves.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the application's executors, as the kernel reports it; absent until it is known.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Name of the application.
    pub application_name: Option<String>,
    /// Worker that the advice is of, in answers of `smtt-ctl --cluster`; a daemon's answers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Run of the daemon that found this, where it is not the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierRun>,
    /// Findings, the most expensive first.
    pub findings: Vec<Finding>,
    /// Result of every rule, in a fixed order.
    pub checks: Vec<RuleResult>,
}

/// Advice for all selected applications.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Advice by application.
    pub applications: Vec<ApplicationAdvice>,
    /// Surroundings of the executors that the advice depends on.
    pub surroundings: Surroundings,
}

/// Inputs of the rules for one application.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Executors of the application on this worker.
    pub executors: Vec<ExecutorRow>,
    /// RDDs of the application, per executor.
    pub rdds: Vec<RddRow>,
    /// Page faults with a context, per executor.
    pub faults: Vec<FaultFigures>,
    /// Page placement of the RDDs, per executor.
    pub pages: Vec<PagesRow>,
    /// Stages of the application, per executor.
    pub stages: Vec<StageRow>,
    /// Ended tasks by stage attempt, over the executors.
    pub tasks: TasksByStage,
    /// What is measured on this machine.
    pub measured: Measured,
    /// Why page walks have no ratios; empty where they have ratios.
    pub no_walks: String,
    /// Wall-clock time in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// What RDDs have in common whose findings of one rule are one.
    pub by: Option<GroupBy>,
}

impl Rdd<'_> {
    fn label(&self) -> String {
        match (self.id, self.name()) {
            (Some(id), Some(name)) => format!("RDD {id} ({name})"),
            (Some(id), None) => format!("RDD {id}"),
            (None, _) => "memory of no RDD".to_owned(),
        }
    }

    /// What it has in common with other RDDs; `None` where there is nothing, or where only its own findings are asked for.
    fn group_by(&self, by: GroupBy) -> Option<String> {
        let by = Some(by).filter(|by| *by != GroupBy::Rdd)?;
        self.rows.iter().find_map(|row| common(row, by))
    }

    fn subject(&self, view: &View) -> Subject {
        let row = self.rows.first();
        Subject {
            application_id: view.application_id(),
            executor_ids: executor_ids(self.rows.iter().map(|row| &row.who)),
            rdd_id: self.id,
            rdd_name: row.and_then(|row| row.name.clone()),
            call_site: self.call_site().map(str::to_owned),
            node: self.node().map(str::to_owned),
            group: view.by.and_then(|by| self.group_by(by)),
            ..Subject::default()
        }
    }
}

fn executor_ids<'a>(who: impl Iterator<Item = &'a crate::rows::ExecutorId>) -> Vec<String> {
    let ids: BTreeSet<String> = who.filter_map(|who| who.executor_id.clone()).gather();
    ids.into_iter().collect()
}

impl View {
    fn application_id(&self) -> Option<String> {
        self.executors
            .first()
            .and_then(|row| row.who.application_id.clone())
    }

    /// RDDs with an id, summed over the executors of this worker.
    fn rdds(&self) -> Vec<Rdd<'_>> {
        let mut rdds = Rdd::group(&self.rdds, &self.pages);
        rdds.retain(|rdd| rdd.id.is_some());
        rdds
    }

    /// CPU time of the living executors in nanoseconds: total and in the kernel; `None` where it is unavailable.
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

    /// Facts that were dropped before they reached the daemon: the figures lack them.
    fn dropped(&self) -> u64 {
        let dropped = self.executors.iter().map(|row| row.facts_dropped);
        dropped.fold(0, u64::saturating_add)
    }
}

/// Result and findings of a rule.
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
        Self {
            check: RuleResult {
                went: if findings.is_empty() {
                    RuleOutcome::Nothing
                } else {
                    RuleOutcome::Found
                },
                ..Self::not_checked(id, looks_for, why).check
            },
            findings,
        }
    }

    /// Leaves the findings that cost most, those of a group of RDDs as one.
    fn bound(&mut self, by: Option<GroupBy>) {
        if let Some(by) = by {
            self.findings = groups::merged(std::mem::take(&mut self.findings), by);
            rank(&mut self.findings);
        }
        let more = self.findings.len().saturating_sub(FINDINGS_PER_RULE) as u64;
        self.check.left_out = self.check.left_out.saturating_add(more);
        self.findings.truncate(FINDINGS_PER_RULE);
    }
}

/// Sorts findings, the most expensive first.
fn rank(findings: &mut [Finding]) {
    let share = |finding: &Finding| finding.cost.share.unwrap_or(0.0);
    sort_by(findings, |left, right| {
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

/// Computes the advice for one application.
#[must_use]
pub fn advise(view: &View, around: &Surroundings) -> ApplicationAdvice {
    let mut advice = ApplicationAdvice {
        application_id: view.application_id(),
        application_attempt_id: view
            .executors
            .first()
            .and_then(|row| row.who.application_attempt_id.clone()),
        uid: view.executors.first().and_then(|row| row.who.uid),
        application_name: view
            .executors
            .iter()
            .find_map(|row| row.application_name.clone()),
        ..ApplicationAdvice::default()
    };
    let mut add = |mut outcome: Outcome| {
        outcome.bound(view.by);
        if advice.application_id.is_none() {
            // Without facts of the marker there are no blocks, tasks and pages to check: no finding then does not mean
            // health.
            let RuleResult { id, looks_for, .. } = outcome.check;
            outcome = Outcome::not_checked(
                &id,
                &looks_for,
                "the marker of these executors has reported nothing yet",
            );
        }
        advice.findings.extend(outcome.findings);
        advice.checks.push(outcome.check);
    };
    // Findings beyond the bound of one rule are gone before the next one looks.
    add(pages::swapped(view, around));
    add(pages::small_pages(view, around));
    add(nodes::remote_memory(view, around));
    add(cache::never_read(view));
    add(cache::evicted_and_stored_again(view));
    add(work::spilling(view));
    add(stages::fetch_wait(view));
    add(skew::skew(view));
    add(work::major_faults(view, around));
    add(work::first_touch(view, around));
    add(pages::without_memory(view));
    rank(&mut advice.findings);
    advice
}
