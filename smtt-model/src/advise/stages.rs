//! Rules about the tasks of a stage, and the one of waits for shuffle blocks. They see the tasks of this worker only.
//! [`super::tasks`] has what the rules of the history share with them.

use std::collections::BTreeMap;

use super::skew::{Cut, most_parts};
use super::tasks::{
    self, ENOUGH, FETCH_DISPROOF, FETCH_SHARE, IN_FLIGHT, IN_FLIGHT_UNKNOWN, LEAST_SECONDS,
    LEAST_SHARE, NAMED, Sender,
};
use super::{
    Cost, FINDINGS_PER_RULE, Finding, Outcome, Remedy, RuleOutcome, Saving, Severity, Subject,
    View, bytes, count, remedy, share, whole,
};
use crate::rows::{EndedTask, StageTasks};
use crate::sort::small::sort_by;
use crate::units;

/// Why an executor reports no waits.
const WAITS_HOOK: &str = "the marker's hook of ShuffleBlockFetcherIterator is missing, or the executor has not described itself";
/// Rules that found nothing because no stage has enough tasks.
const TOO_FEW: &str = "no stage attempt has 8 ended tasks on this worker with these figures";

/// A finding about a stage attempt, with the seconds that it is about.
pub(super) struct About<'a> {
    pub finding: Finding,
    pub seconds: f64,
    /// Its saving where that takes a simulation: only findings that remain have one.
    pub cut: Option<Cut<'a>>,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn ns(ms: f64) -> u64 {
    (ms.max(0.0) * 1e6) as u64
}

impl EndedTask {
    pub(super) fn duration(&self) -> f64 {
        ms(self.end_ns.saturating_sub(self.start_ns))
    }

    /// Run time, as far as Spark reported it.
    pub(super) fn run(&self) -> f64 {
        let whole = self.duration();
        self.run_ms.map_or(whole, |run| (run as f64).min(whole))
    }

    pub(super) fn around(&self) -> f64 {
        self.duration() - self.run()
    }

    pub(super) fn fetch(&self) -> f64 {
        self.fetch_wait_ns.map_or(0.0, ms)
    }

    pub(super) fn collection(&self) -> f64 {
        self.collection_ms.unwrap_or(0) as f64
    }
}

impl StageTasks {
    pub(super) fn label(&self) -> String {
        let id = format!("stage {}.{}", self.id, self.attempt);
        match self.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => format!("{id} ({name})"),
            None => id,
        }
    }

    pub(super) fn subject(&self, view: &View) -> Subject {
        Subject {
            application_id: view.application_id(),
            executor_ids: self.executor_ids.iter().cloned().collect(),
            stage_id: Some(self.id),
            stage_attempt: Some(self.attempt),
            stage_name: self.name.clone(),
            ..Subject::default()
        }
    }

    /// What the figures cover.
    pub(super) fn window(&self) -> String {
        let all = self.tasks.map_or_else(String::new, |all| {
            format!(" of {} of the whole stage", units::count(all))
        });
        format!(
            "{} ended tasks on this worker{all}",
            units::count(self.ended.len() as u64)
        )
    }

    pub(super) fn elsewhere(&self, view: &View) -> String {
        let left_out = view.tasks.left_out;
        let mut what =
            "tasks on other workers, tasks that still run, and ended ones that the daemon no longer has".to_owned();
        if left_out > 0 {
            what.push_str(&format!(" or left out ({})", units::count(left_out)));
        }
        what
    }
}

/// Time of all ended tasks on this worker, in milliseconds.
fn task_time(view: &View) -> f64 {
    let times = view.stages.iter().map(|row| row.task_time_ns);
    ms(times.fold(0, u64::saturating_add))
}

pub(super) fn cost(lost: f64, view: &View) -> Cost {
    Cost {
        share: Some((lost / task_time(view).max(1.0)).min(1.0)),
        of: "the task time on this worker".to_owned(),
        estimated: false,
    }
}

/// Findings of stages of one name, with all of them together.
#[derive(Default)]
struct Group<'a> {
    all: Vec<About<'a>>,
    seconds: f64,
    share: f64,
}

impl<'a> Group<'a> {
    fn add(&mut self, about: About<'a>) {
        self.seconds += about.seconds;
        self.share = (self.share + about.finding.cost.share.unwrap_or(0.0)).min(1.0);
        self.all.push(about);
    }

    /// One finding, with the words of the stage attempt that costs most; late tasks have at most so many parts.
    fn finding(mut self, most_parts: usize) -> Option<Finding> {
        for about in &mut self.all {
            if let Some(cut) = about.cut.take() {
                (about.finding.saving, about.finding.computed) = cut.saving(most_parts);
            }
        }
        let seconds = |at: usize| self.all[at].seconds;
        let larger = |best, at| {
            if seconds(at) > seconds(best) {
                at
            } else {
                best
            }
        };
        let most = (0..self.all.len()).reduce(larger)?;
        let mut finding = self.all.swap_remove(most).finding;
        finding.cost.share = Some(self.share);
        finding.severity = Severity::of_share(self.share);
        for other in &self.all {
            if let (Some(saving), Some(more)) = (&mut finding.saving, &other.finding.saving) {
                saving.add(more);
            }
        }
        if !self.all.is_empty() {
            finding.numbers.push(count(
                "stage attempts of this name with the finding; cost and saving are of all",
                self.all.len() as u64 + 1,
            ));
        }
        Some(finding)
    }
}

/// Findings of stages of one name are one; those that are not worth it are left out, and so are those that a rule does not
/// list.
fn merged(all: Vec<About<'_>>) -> (Vec<Finding>, u64) {
    let mut groups: BTreeMap<(Option<String>, Option<u32>), Group> = BTreeMap::new();
    for about in all {
        let subject = &about.finding.subject;
        // Stages without a name stay apart.
        let id = subject.stage_id.filter(|_| subject.stage_name.is_none());
        let key = (subject.stage_name.clone(), id);
        groups.entry(key).or_default().add(about);
    }
    let groups = groups.into_values();
    let mut worth: Vec<Group<'_>> = groups
        .filter(|it| it.seconds >= LEAST_SECONDS && it.share >= LEAST_SHARE)
        .collect();
    sort_by(&mut worth, |left, right| right.share.total_cmp(&left.share));
    let left_out = worth.len().saturating_sub(FINDINGS_PER_RULE) as u64;
    worth.truncate(FINDINGS_PER_RULE);
    let abouts = worth.iter().flat_map(|group| &group.all);
    let most = most_parts(abouts.filter_map(|about| about.cut.as_ref()));
    let findings = worth.into_iter().filter_map(|group| group.finding(most));
    (findings.collect(), left_out)
}

/// The outcome of a rule that sees stage attempts with enough tasks.
pub(super) fn outcome<'a>(
    id: &str,
    looks_for: &str,
    view: &'a View,
    has_figures: impl Fn(&EndedTask) -> bool,
    rule: impl Fn(&StageTasks, &[&'a EndedTask]) -> Option<About<'a>>,
) -> Outcome {
    let (mut seen, mut tasks, mut found) = (0, 0, Vec::new());
    for stage in view.tasks.stages() {
        let ended: Vec<&EndedTask> = stage.ended.iter().filter(|it| has_figures(it)).collect();
        if ended.len() >= ENOUGH {
            seen += 1;
            tasks += ended.len() as u64;
            found.extend(rule(stage, &ended));
        }
    }
    if seen == 0 {
        return Outcome::not_checked(id, looks_for, TOO_FEW);
    }
    let looked = format!(
        "{} ended tasks of {} stage attempts with {ENOUGH} or more on this worker",
        units::count(tasks),
        units::count(seen)
    );
    let (findings, left_out) = merged(found);
    let mut outcome = Outcome::checked(id, looks_for, findings, looked);
    outcome.check.left_out = left_out;
    outcome
}

/// Finds stages whose tasks wait for shuffle blocks.
pub(super) fn fetch_wait(view: &View) -> Outcome {
    const ID: &str = "fetch_wait";
    const LOOKS_FOR: &str = "tasks that wait for shuffle blocks";
    let has_figures = |task: &EndedTask| task.fetch_wait_ns.is_some();
    let mut checked = outcome(ID, LOOKS_FOR, view, has_figures, |stage, ended| {
        let sum = |of: &dyn Fn(&EndedTask) -> f64| ended.iter().map(|it| of(it)).sum::<f64>();
        let (wait, time) = (sum(&EndedTask::fetch), sum(&EndedTask::duration));
        if wait < FETCH_SHARE * time || wait <= 0.0 {
            return None;
        }
        let read = |task: &EndedTask| task.bytes.unwrap_or(0) as f64;
        let best = tasks::best_wait(ended.iter().map(|it| (it.fetch(), read(it))));
        let low = sum(&|it| tasks::wait_beyond(best, it.fetch(), read(it)));
        let mut numbers = vec![
            whole("waiting for fetches", ns(wait), "ns"),
            whole("time of these tasks", ns(time), "ns"),
            share("waiting, of their time", wait / time.max(1.0)),
            bytes("read", sum(&read) as u64),
        ];
        let senders = stage.senders();
        let waited: f64 = senders.iter().map(|it| it.wait).sum();
        let named = senders.iter().filter(|it| it.wait > 0.0).take(NAMED);
        numbers.extend(named.map(|it| {
            let what = format!("of the wait, for blocks of {}", it.host);
            whole(&what, ns(it.wait), "ns")
        }));
        let mut not_measured = vec!["waits below 1 ms".to_owned()];
        if wait - waited >= 1.0 {
            not_measured.push(format!(
                "from which host the blocks of {} of the wait came",
                units::duration(ns(wait - waited))
            ));
        }
        if view.tasks.refused > 0 {
            not_measured.push(format!(
                "waits that had no room in the daemon: {} facts of these executors had none",
                units::count(view.tasks.refused)
            ));
        }
        not_measured.push("how much of the wait was for a late map task".to_owned());
        not_measured.push(stage.elsewhere(view));
        let finding = Finding {
            id: ID.to_owned(),
            title: format!(
                "tasks of {} wait {} of their time for shuffle blocks{}",
                stage.label(),
                units::share(wait / time.max(1.0)),
                senders.first().filter(|it| it.wait > 0.0).map_or_else(String::new, |it| {
                    format!(", most for those of {}", it.host)
                })
            ),
            subject: stage.subject(view),
            window: stage.window(),
            numbers,
            cost: cost(wait, view),
            saving: Some(Saving::new(low / 1e3, f64::midpoint(low, wait) / 1e3, wait / 1e3)),
            computed: "with the wait per byte that the best tenth of the tasks had, and without any wait; the expected value \
                       is the middle"
                .to_owned(),
            disproof: FETCH_DISPROOF.to_owned(),
            remedies: faster_fetches(&senders, waited),
            not_measured,
            ..Finding::default()
        };
        Some(About {
            finding,
            seconds: f64::midpoint(low, wait) / 1e3,
            cut: None,
        })
    });
    let check = &mut checked.check;
    if view.tasks.without_waits > 0 {
        let why = format!(
            "executors that do not report waits for shuffle blocks: {} ({WAITS_HOOK})",
            units::count(view.tasks.without_waits)
        );
        if check.went == RuleOutcome::NotChecked {
            check.why = why;
        } else {
            check.why.push_str(&format!("; without {why}"));
        }
    }
    if check.went == RuleOutcome::Nothing && view.tasks.refused > 0 {
        let refused = units::count(view.tasks.refused);
        check.why.push_str(&format!(
            "; waits may be missing: {refused} facts of these executors had no room"
        ));
    }
    checked
}

fn faster_fetches(senders: &[Sender], waited: f64) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    if let Some((slow, own, rest)) = tasks::slow_sender(senders, waited) {
        remedies.push(remedy(
            &format!(
                "See what limits disks and network of the host {}: tasks wait {} for each MiB of its blocks, {} for one of \
                 the others'",
                slow.host,
                units::duration(ns(own)),
                units::duration(ns(rest))
            ),
            &[],
        ));
    }
    let settings = IN_FLIGHT.map(|(name, usual)| format!("{name}, by default {usual}"));
    remedies.push(remedy(
        &format!(
            "More requests at a time ({}); {IN_FLIGHT_UNKNOWN}",
            settings.join("; ")
        ),
        &[],
    ));
    remedies
}
