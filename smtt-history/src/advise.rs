//! Findings from what Spark measured: what costs time in an application, the setting that helps, and the seconds that it
//! would save.
//!
//! [`read`] reads the tasks of each stage attempt, [`workers`] what daemons wrote about them; [`shuffle`], [`joins`],
//! [`reasons`] and [`work`] have the rules; [`simulate`] runs a stage's tasks again with
//! other lengths, from which every saving comes; [`text`] writes the result for people. docs/HISTORY.md lists the rules.

pub mod joins;
pub mod read;
mod reasons;
mod shuffle;
#[cfg(test)]
mod tests;
pub mod text;
mod work;
pub mod workers;

use std::collections::BTreeMap;

use serde::Serialize;
pub use smtt_model::advise::simulate;
/// Seconds that a finding must be expected to save, and the same as a share of the time that the application's stages took.
pub use smtt_model::advise::tasks::{LEAST_SECONDS, LEAST_SHARE};
use smtt_model::advise::{Saving, Severity};
use smtt_store::read::ParquetError;

use self::read::{Attempt, Log};
use self::workers::{Figures, OfWorker};
use crate::open::App;

/// Stages that a finding names.
const NAMED: usize = 20;

/// A number that supports a finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Number {
    /// What the value measures, as a phrase for people.
    pub what: String,
    /// Value with its unit.
    pub value: String,
}

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Name, or what to change in the program.
    pub name: String,
    /// Value that it should have.
    pub value: String,
}

/// A cause of lost time, with what would remove it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the rule that found it, such as `spilling`.
    pub rule: &'static str,
    /// By the share of the stages' time that it is expected to save.
    pub severity: Severity,
    /// The finding in one sentence.
    pub title: String,
    /// Name of the stages.
    pub stage_name: String,
    /// Stage attempts, as `<stage>.<attempt>`.
    pub stages: Vec<String>,
    /// Stage attempts that are not named.
    pub more_stages: usize,
    /// Seconds that the remedy would save.
    pub saving: Saving,
    /// How they were computed.
    pub computed: String,
    /// What would show that the finding is wrong.
    pub disproof: String,
    /// Numbers of the stage that costs most.
    pub numbers: Vec<Number>,
    /// What to set, the most effective first.
    pub settings: Vec<Setting>,
    /// Figures that the log does not have and that could change the finding.
    pub not_measured: Vec<String>,
}

/// Advice for an application.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// Id that Spark gave the application.
    pub application_id: String,
    /// Seconds in which a stage had running tasks.
    pub stage_seconds: f64,
    /// Findings, the largest saving first.
    pub findings: Vec<Finding>,
    /// Rules that found nothing, with what they looked for.
    pub nothing: Vec<Checked>,
    /// Stage attempts that were checked.
    pub checked_stages: usize,
    /// Tasks beyond those that were read.
    pub left_out_tasks: u64,
    /// Stage attempts with too many cores for the rules that simulate them.
    pub stages_without_cores: usize,
    /// Findings of the workers' daemons, in seconds of threads, which run at the same time.
    pub workers: Vec<OfWorker>,
    /// What workers wrote and was not read, in words.
    pub left_out: Vec<String>,
}

/// A rule that found nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Name of the rule, such as `spilling`.
    pub rule: &'static str,
    /// Problem that it checks for.
    pub looks_for: &'static str,
}

/// What a rule checks in a stage attempt.
type Rule = fn(&Log, &Attempt) -> Option<Finding>;

/// Name of each rule, the problem that it checks for, and its function.
const RULES: [(&str, &str, Rule); 8] = [
    (
        "spilling",
        "tasks that spill, because they have too little execution memory",
        shuffle::spilling,
    ),
    (
        "fetch_wait",
        "tasks that wait for shuffle blocks",
        shuffle::fetch_wait,
    ),
    (
        "broadcast",
        "joins that shuffle and sort both sides although one has room in every executor",
        joins::broadcast,
    ),
    (
        "skew",
        "tasks that take much longer than the others of their stage, and why",
        reasons::skew,
    ),
    (
        "locality_wait",
        "cores that have no task while tasks wait for a core near their data",
        reasons::locality,
    ),
    (
        "slow_host",
        "hosts on which tasks take longer than on others",
        work::slow_host,
    ),
    (
        "idle_cores",
        "stages with fewer tasks than there are cores",
        work::idle_cores,
    ),
    (
        "small_tasks",
        "tasks so short that starting them is most of the work",
        work::small_tasks,
    ),
];

/// Advice for an application, with what workers saw of its tasks.
///
/// # Errors
/// When a table of the application cannot be read.
pub fn advise(app: &App, workers: Figures) -> Result<Advice, ParquetError> {
    let mut log = Log::read(app)?;
    log.workers = workers;
    let stage_seconds = log.busy_seconds();
    let mut found: BTreeMap<(usize, String), Merged> = BTreeMap::new();
    for attempt in &log.attempts {
        for (at, (_, _, rule)) in RULES.iter().enumerate() {
            if let Some(mut finding) = rule(&log, attempt) {
                // While other stages run, the end of this one may not be the end of the wait.
                finding.saving.low *= attempt.alone;
                if finding.saving.expected > 0.0 {
                    let key = (at, finding.stage_name.clone());
                    found.entry(key).or_default().add(finding);
                }
            }
        }
    }
    let mut findings: Vec<Finding> = found.into_values().filter_map(Merged::one).collect();
    for finding in &mut findings {
        // Stages of one name that ran at the same time save the same seconds.
        finding.saving.bound(stage_seconds);
    }
    findings.retain(|finding| {
        let expected = finding.saving.expected;
        expected >= LEAST_SECONDS && expected >= LEAST_SHARE * stage_seconds
    });
    for finding in &mut findings {
        finding.severity = Severity::of_share(finding.saving.expected / stage_seconds.max(0.001));
    }
    findings.sort_by(|left, right| right.saving.expected.total_cmp(&left.saving.expected));
    let silent = RULES
        .iter()
        .filter(|(rule, _, _)| findings.iter().all(|it| it.rule != *rule));
    let nothing = silent.map(|(rule, looks_for, _)| Checked { rule, looks_for });
    Ok(Advice {
        application_id: app.id().to_owned(),
        stage_seconds,
        nothing: nothing.collect(),
        findings,
        checked_stages: log.attempts.len(),
        left_out_tasks: log.left_out,
        stages_without_cores: log.without_cores,
        workers: log.workers.findings,
        left_out: log.workers.left_out,
    })
}

/// Findings of one rule for stages of one name, as one: its words are those of the stage that costs most.
#[derive(Default)]
struct Merged {
    words: Option<Finding>,
    saving: Saving,
    /// The stages that cost most, with their savings.
    stages: Vec<(f64, String)>,
    count: usize,
}

impl Merged {
    fn add(&mut self, mut finding: Finding) {
        let expected = finding.saving.expected;
        self.saving.add(&finding.saving);
        for stage in std::mem::take(&mut finding.stages) {
            let at = self.stages.partition_point(|(most, _)| *most >= expected);
            self.count += 1;
            if at < NAMED {
                self.stages.insert(at, (expected, stage));
                self.stages.truncate(NAMED);
            }
        }
        let most = self.words.as_ref().map(|it| it.saving.expected);
        if most.is_none_or(|most| expected > most) {
            self.words = Some(finding);
        }
    }

    fn one(self) -> Option<Finding> {
        let mut finding = self.words?;
        finding.saving = self.saving;
        finding.more_stages = self.count - self.stages.len();
        finding.stages = self.stages.into_iter().map(|(_, stage)| stage).collect();
        Some(finding)
    }
}
