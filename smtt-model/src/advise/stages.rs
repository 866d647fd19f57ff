//! Rules about the tasks of a stage: waits for shuffle blocks, and tasks that read far more than the others. They see the
//! tasks of this worker only. [`tasks`] has what the rules of the history share with them.

use std::collections::BTreeMap;

use super::tasks::{
    self, ENOUGH, EXPLAINS, FETCH_DISPROOF, FETCH_SHARE, IN_FLIGHT, IN_FLIGHT_UNKNOWN,
    LEAST_SECONDS, LEAST_SHARE, NAMED, SIZE_DISPROOF, SKEW_JOIN, SKEW_JOIN_BYTES, Sender, Work,
    median,
};
use super::{
    Cost, Evidence, FINDINGS_PER_RULE, Finding, Outcome, Remedy, RuleOutcome, Saving, Severity,
    Subject, View, bytes, count, remedy, share, whole,
};
use crate::rows::{EndedTask, StageTasks};
use crate::sort::small::sort_by;
use crate::units;

/// The rule of tasks that read more than the others.
pub(super) const SKEW: &str = "skew";
/// Parts of all late tasks of an application together: executors claim sizes.
const ALL_PARTS: usize = 100_000;
/// Why an executor reports no waits.
const WAITS_HOOK: &str = "the marker's hook of ShuffleBlockFetcherIterator is missing, or the executor has not described itself";
/// Rules that found nothing because no stage has enough tasks.
const TOO_FEW: &str = "no stage attempt has 8 ended tasks on this worker with these figures";

/// A finding about a stage attempt, with the seconds that it is about.
struct About<'a> {
    finding: Finding,
    seconds: f64,
    /// Its saving where that takes a simulation: only findings that remain have one.
    cut: Option<Cut<'a>>,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn ns(ms: f64) -> u64 {
    (ms.max(0.0) * 1e6) as u64
}

impl EndedTask {
    fn duration(&self) -> f64 {
        ms(self.end_ns.saturating_sub(self.start_ns))
    }

    /// Run time, as far as Spark reported it.
    fn run(&self) -> f64 {
        let whole = self.duration();
        self.run_ms.map_or(whole, |run| (run as f64).min(whole))
    }

    fn around(&self) -> f64 {
        self.duration() - self.run()
    }

    fn fetch(&self) -> f64 {
        self.fetch_wait_ns.map_or(0.0, ms)
    }

    fn collection(&self) -> f64 {
        self.collection_ms.unwrap_or(0) as f64
    }
}

impl StageTasks {
    fn label(&self) -> String {
        let id = format!("stage {}.{}", self.id, self.attempt);
        match self.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => format!("{id} ({name})"),
            None => id,
        }
    }

    fn subject(&self, view: &View) -> Subject {
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
    fn window(&self) -> String {
        let all = self.tasks.map_or_else(String::new, |all| {
            format!(" of {} of the whole stage", units::count(all))
        });
        format!(
            "{} ended tasks on this worker{all}",
            units::count(self.ended.len() as u64)
        )
    }

    fn elsewhere(&self, view: &View) -> String {
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

fn cost(lost: f64, view: &View) -> Cost {
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

/// Parts of a late task at most, so that those of all of them are few.
fn most_parts<'a>(cuts: impl Iterator<Item = &'a Cut<'a>>) -> usize {
    let sums = cuts.map(|cut| (cut.late().count(), cut.late().map(|it| cut.parts(it)).sum()));
    let (late, parts) = sums.fold((0, 0_usize), |sum, (late, parts): (usize, usize)| {
        (sum.0 + late, sum.1 + parts)
    });
    if parts <= ALL_PARTS {
        return tasks::PARTS;
    }
    (ALL_PARTS / late.max(1)).max(2)
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
fn outcome<'a>(
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

/// What the tasks of a stage read, in one measure.
struct Sizes<'a> {
    unit: &'static str,
    of: fn(&EndedTask) -> f64,
    median: f64,
    /// Milliseconds beyond the median that it explains of the late tasks.
    explained: f64,
    late: &'a [&'a EndedTask],
}

impl<'a> Sizes<'a> {
    fn new(
        unit: &'static str,
        of: fn(&EndedTask) -> f64,
        ended: &[&EndedTask],
        late: &'a [&'a EndedTask],
        usual: f64,
    ) -> Self {
        let mut sizes = Self {
            unit,
            of,
            median: median(ended.iter().map(|it| of(it))),
            explained: 0.0,
            late,
        };
        let explained = sizes.late.iter().map(|it| sizes.explains(it, usual));
        sizes.explained = explained.sum();
        sizes
    }

    fn explains(&self, task: &EndedTask, usual: f64) -> f64 {
        let part = tasks::by_size(usual, self.median, (self.of)(task));
        part.clamp(0.0, (task.duration() - usual).max(0.0))
    }

    fn ratio(&self, task: &EndedTask) -> f64 {
        (self.of)(task) / self.median.max(1.0)
    }

    fn number(&self, what: &str, value: f64) -> Evidence {
        let unit = if self.unit == "bytes" {
            "bytes"
        } else {
            "count"
        };
        whole(&format!("{} {what}", self.unit), value as u64, unit)
    }
}

/// Tasks that ran at a time, at most.
fn at_a_time(ended: &[&EndedTask]) -> usize {
    let starts = ended.iter().map(|it| (it.start_ns, 1_i64));
    let ends = ended.iter().map(|it| (it.end_ns, -1_i64));
    let mut changes: Vec<(u64, i64)> = starts.chain(ends).collect();
    // Of one time the ends come first.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 1);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(1)
}

/// The ended tasks of a stage attempt of which the late ones can be cut.
struct Cut<'a> {
    ended: Vec<&'a EndedTask>,
    of: fn(&EndedTask) -> f64,
    /// Size of the median task.
    size: f64,
    /// Duration of the median task, and of the late task that is about the finding.
    usual: f64,
    longest: f64,
}

impl Cut<'_> {
    fn late(&self) -> impl Iterator<Item = &EndedTask> {
        let all = self.ended.iter().copied();
        all.filter(|it| tasks::is_late(it.duration(), self.usual))
    }

    /// Tasks of the median size into which one can be cut.
    fn parts(&self, task: &EndedTask) -> usize {
        tasks::parts((self.of)(task), self.size)
    }

    /// Seconds by which the stage's tasks here end earlier where the late ones are cut: on the cores of this worker, and
    /// where other workers take their parts. With how it is computed.
    fn saving(mut self, most_parts: usize) -> (Option<Saving>, String) {
        let cores = at_a_time(&self.ended);
        self.ended
            .sort_unstable_by_key(|it| (it.start_ns, it.partition));
        let work: Vec<Work> = self
            .ended
            .iter()
            .map(|it| Work {
                run: it.run(),
                around: it.around(),
                parts: if tasks::is_late(it.duration(), self.usual) {
                    self.parts(it).min(most_parts)
                } else {
                    1
                },
            })
            .collect();
        let usual_run = median(self.ended.iter().map(|it| it.run()));
        let [two, all, even] = tasks::saved_by_cutting(&work, self.usual, usual_run, cores);
        let elsewhere = even.max(self.longest - self.usual);
        let saving = Saving::new(two.min(all) / 1e3, two.max(all) / 1e3, elsewhere / 1e3);
        let computed = format!(
            "by how much the stage's tasks on this worker end earlier: they run again on {cores} cores, the late ones cut \
             into tasks of the median size, which take {} times as long on cores that are all in use; cut in two and {} \
             times as long for the lower end; the longest task as long as the median for the upper one, because other \
             workers may take its parts",
            tasks::SHARED.0,
            tasks::SHARED.1
        );
        (Some(saving), computed)
    }
}

/// Finds stages in which few tasks read far more than the others, and take longer for it.
pub(super) fn skew(view: &View) -> Outcome {
    const LOOKS_FOR: &str =
        "tasks that read far more than the others of their stage, and take longer";
    let has_figures = |task: &EndedTask| task.bytes.is_some() && task.records.is_some();
    outcome(SKEW, LOOKS_FOR, view, has_figures, |stage, ended| {
        let usual = median(ended.iter().map(|it| it.duration()));
        let late: Vec<&EndedTask> = ended
            .iter()
            .copied()
            .filter(|it| tasks::is_late(it.duration(), usual))
            .collect();
        if !tasks::are_few(late.len(), ended.len()) {
            return None;
        }
        let by_bytes = |it: &EndedTask| it.bytes.unwrap_or(0) as f64;
        let by_records = |it: &EndedTask| it.records.unwrap_or(0) as f64;
        let in_bytes = Sizes::new("bytes", by_bytes, ended, &late, usual);
        let in_records = Sizes::new("records", by_records, ended, &late, usual);
        let sizes = if in_records.explained > in_bytes.explained {
            in_records
        } else {
            in_bytes
        };
        let excess: f64 = late.iter().map(|it| it.duration() - usual).sum();
        let other = |of: fn(&EndedTask) -> f64| {
            let middle = median(ended.iter().map(|it| of(it)));
            let part =
                |it: &&EndedTask| (of(it) - middle).clamp(0.0, (it.duration() - usual).max(0.0));
            late.iter().map(part).sum::<f64>()
        };
        let others = [EndedTask::collection, EndedTask::fetch, EndedTask::around].map(other);
        let is_largest = others.iter().all(|other| *other <= sizes.explained);
        if sizes.explained < EXPLAINS * excess || !is_largest {
            return None;
        }
        let worst = late.iter().copied().max_by(|left, right| {
            let part = |it| sizes.explains(it, usual);
            part(left).total_cmp(&part(right))
        })?;
        let longest = worst.duration();
        let times = sizes.ratio(worst);
        let mut numbers = vec![
            count(
                "partition of the longest of these tasks",
                worst.partition.into(),
            ),
            whole("its duration", ns(longest), "ns"),
            whole("median duration", ns(usual), "ns"),
            sizes.number("that it read", (sizes.of)(worst)),
            sizes.number("that the median task read", sizes.median),
            whole("beyond the median, of all late tasks", ns(excess), "ns"),
            share(
                "of that explained by what they read",
                sizes.explained / excess.max(1.0),
            ),
            count("late tasks", late.len() as u64),
        ];
        if let Some(all) = stage.tasks {
            numbers.push(count("tasks of the whole stage, on all workers", all));
        }
        let finding = Finding {
            id: SKEW.to_owned(),
            title: format!(
                "{} of {} tasks of {} on this worker take much longer than the others because they read more: that of \
                 partition {} {times:.1} times the median",
                late.len(),
                ended.len(),
                stage.label(),
                worst.partition
            ),
            subject: stage.subject(view),
            window: stage.window(),
            numbers,
            cost: cost(sizes.explained, view),
            disproof: SIZE_DISPROOF.to_owned(),
            remedies: even_sizes(&sizes, times),
            not_measured: vec!["which keys are frequent".to_owned(), stage.elsewhere(view)],
            ..Finding::default()
        };
        Some(About {
            finding,
            seconds: sizes.explained / 1e3,
            cut: Some(Cut {
                ended: ended.to_vec(),
                of: sizes.of,
                size: sizes.median,
                usual,
                longest,
            }),
        })
    })
}

fn even_sizes(sizes: &Sizes<'_>, times: f64) -> Vec<Remedy> {
    let enabled = format!("{SKEW_JOIN}  true");
    let mut lines = vec![enabled.as_str()];
    let threshold = format!("{SKEW_JOIN_BYTES}  {:.0}b", 2.0 * sizes.median);
    let mut why = "For joins in SQL: Spark cuts large partitions".to_owned();
    if sizes.unit == "bytes" {
        why.push_str(" (from twice the median)");
        lines.push(&threshold);
    }
    why.push(':');
    vec![
        remedy(&why, &lines),
        remedy(
            &format!(
                "In the program: salt the keys that are frequent, in {} parts, or repartition by columns that are even",
                units::count(times.ceil().clamp(2.0, tasks::PARTS as f64) as u64)
            ),
            &[],
        ),
    ]
}
