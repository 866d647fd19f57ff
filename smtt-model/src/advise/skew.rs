//! The rule of tasks that read far more than the others of their stage.

use super::stages::{About, cost, ns, outcome};
use super::tasks::{
    self, EXPLAINS, Reader, SIZE_DISPROOF, SKEW_JOIN, SKEW_JOIN_BYTES, Work, median,
};
use super::{Evidence, Finding, Outcome, Remedy, Saving, View, count, remedy, share, whole};
use crate::rows::EndedTask;
use crate::sort::small;
use crate::units;

/// The rule of tasks that read more than the others.
pub(super) const SKEW: &str = "skew";
/// Parts of all late tasks of an application together: executors claim sizes.
const ALL_PARTS: usize = 100_000;

/// What the tasks of a stage read, in one measure.
struct Sizes<'a> {
    unit: &'static str,
    of: fn(&EndedTask) -> f64,
    median: f64,
    /// What they would read if all was even: the median, or where most tasks read nothing the mean.
    even: f64,
    reader: Reader,
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
        let median = median(ended.iter().map(|it| of(it)));
        let all: f64 = ended.iter().map(|it| of(it)).sum();
        let mean = all / ended.len().max(1) as f64;
        let mut sizes = Self {
            unit,
            of,
            median,
            even: if median > 0.0 { median } else { mean },
            reader: Reader::of(ended.iter().map(|it| (it.duration(), of(it))), usual),
            explained: 0.0,
            late,
        };
        let explained = sizes.late.iter().map(|it| sizes.explains(it, usual));
        sizes.explained = explained.sum();
        sizes
    }

    fn explains(&self, task: &EndedTask, usual: f64) -> f64 {
        let part = self.reader.explains(usual, (self.of)(task));
        part.clamp(0.0, (task.duration() - usual).max(0.0))
    }

    fn ratio(&self, task: &EndedTask) -> f64 {
        (self.of)(task) / self.even.max(1.0)
    }

    /// What [`Self::even`] is.
    const fn even_is(&self) -> &'static str {
        if self.median > 0.0 {
            "the median"
        } else {
            "an even part"
        }
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
    small::sort_by(&mut changes, Ord::cmp);
    let (mut now, mut most) = (0, 1);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(1)
}

/// The ended tasks of a stage attempt of which the late ones can be cut.
pub(super) struct Cut<'a> {
    ended: Vec<&'a EndedTask>,
    of: fn(&EndedTask) -> f64,
    /// Size of an even part, and what that is.
    size: f64,
    size_is: &'static str,
    /// Duration of the median task, and of the late task that is about the finding.
    usual: f64,
    longest: f64,
}

impl Cut<'_> {
    fn late(&self) -> impl Iterator<Item = &EndedTask> {
        let all = self.ended.iter().copied();
        all.filter(|it| tasks::is_late(it.duration(), self.usual))
    }

    /// Tasks of that size into which one can be cut: a record stays whole.
    fn parts(&self, task: &EndedTask) -> usize {
        let records = usize::try_from(task.records.unwrap_or(0)).unwrap_or(usize::MAX);
        tasks::parts((self.of)(task), self.size).min(records.max(1))
    }

    /// Seconds by which the stage's tasks here end earlier where the late ones are cut: on the cores of this worker, and
    /// where other workers take their parts. With how it is computed.
    pub(super) fn saving(mut self, most_parts: usize) -> (Option<Saving>, String) {
        let cores = at_a_time(&self.ended);
        small::sort_by_key(&mut self.ended, |it| (it.start_ns, it.partition));
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
             into tasks of the size of {}, which take {} times as long on cores that are all in use; cut in two and {} \
             times as long for the lower end; the longest task as long as the median for the upper one, because other \
             workers may take its parts",
            self.size_is,
            tasks::SHARED.0,
            tasks::SHARED.1
        );
        (Some(saving), computed)
    }
}

/// Parts of a late task at most, so that those of all of them are few.
pub(super) fn most_parts<'a>(cuts: impl Iterator<Item = &'a Cut<'a>>) -> usize {
    let sums = cuts.map(|cut| (cut.late().count(), cut.late().map(|it| cut.parts(it)).sum()));
    let (late, parts) = sums.fold((0, 0_usize), |sum, (late, parts): (usize, usize)| {
        (sum.0 + late, sum.1 + parts)
    });
    if parts <= ALL_PARTS {
        return tasks::PARTS;
    }
    (ALL_PARTS / late.max(1)).max(2)
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
        let mut sizes = if in_records.explained > in_bytes.explained {
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
        let by_others = others.iter().sum();
        sizes.explained = sizes.reader.share(sizes.explained, excess, by_others);
        let is_largest = others.iter().all(|other| *other <= sizes.explained);
        if sizes.explained < EXPLAINS * excess || !is_largest {
            return None;
        }
        let worst = late.iter().copied().max_by(|left, right| {
            let part = |it| sizes.explains(it, usual);
            part(left).total_cmp(&part(right))
        })?;
        let longest = worst.duration();
        let cut = Cut {
            ended: ended.to_vec(),
            of: sizes.of,
            size: sizes.even,
            size_is: sizes.even_is(),
            usual,
            longest,
        };
        if cut.parts(worst) < 2 {
            return None;
        }
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
        if sizes.median <= 0.0 {
            numbers.push(sizes.number("that each task would read if all was even", sizes.even));
        }
        if let Some(all) = stage.tasks {
            numbers.push(count("tasks of the whole stage, on all workers", all));
        }
        let finding = Finding {
            id: SKEW.to_owned(),
            title: format!(
                "{} of {} tasks of {} on this worker take much longer than the others because they read more: that of \
                 partition {} {times:.1} times {}",
                late.len(),
                ended.len(),
                stage.label(),
                worst.partition,
                sizes.even_is()
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
            cut: Some(cut),
        })
    })
}

fn even_sizes(sizes: &Sizes<'_>, times: f64) -> Vec<Remedy> {
    let enabled = format!("{SKEW_JOIN}  true");
    let mut lines = vec![enabled.as_str()];
    let threshold = format!("{SKEW_JOIN_BYTES}  {:.0}b", 2.0 * sizes.even);
    let mut why = "For joins in SQL: Spark cuts large partitions".to_owned();
    if sizes.unit == "bytes" {
        why.push_str(&format!(" (from twice {})", sizes.even_is()));
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
