//! Tasks that take much longer than the others of their stage, with the reason that explains most of it.

use smtt_model::advise::tasks::{
    self, ENOUGH, EXPLAINS, Reader, SHARED, SIZE_DISPROOF, SKEW_JOIN, SKEW_JOIN_BYTES, Work,
};

use super::read::{Attempt, Log, Task, median, quantile};
use super::shuffle::more_in_flight;
use super::simulate::length;
use super::work::{NOISE, bytes, ms, number, pace, setting, share, slowest};
use super::workers::{Figures, Seen};
use super::{Finding, Saving, Setting};

/// Milliseconds without a task from which a core waited for data that are near it. The driver needs less to launch a task.
const HELD: f64 = 100.0;

/// Why tasks take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Size,
    Gc,
    Fetch,
    Around,
    Locality,
    Host,
    Cpu,
    Memory,
}

const ALL: [Reason; 8] = [
    Reason::Size,
    Reason::Gc,
    Reason::Fetch,
    Reason::Around,
    Reason::Locality,
    Reason::Host,
    Reason::Cpu,
    Reason::Memory,
];

impl Reason {
    const fn words(self) -> &'static str {
        match self {
            Self::Size => "they read more than the others",
            Self::Gc => "garbage collections",
            Self::Fetch => "waiting for shuffle blocks",
            Self::Around => "the time around their run (driver, deserialisation, result)",
            Self::Locality => "their data were on another node",
            Self::Host => "the host on which they ran",
            Self::Cpu => "waiting for a CPU",
            Self::Memory => "memory pressure: their memory was on a disk",
        }
    }
}

/// What stragglers are held against.
struct Usual<'a> {
    /// What workers saw.
    workers: &'a Figures,
    /// Waits for a CPU, time of page faults, and major ones; absent where no worker says.
    cpu_wait: Option<f64>,
    faults: Option<f64>,
    major: f64,
    duration: f64,
    run: f64,
    /// What a tenth of the tasks took at most.
    short: f64,
    bytes: f64,
    /// What they would read if all was even: the median, or where most tasks read nothing the mean.
    even: f64,
    /// The pace of the tasks that read something.
    reader: Reader,
    gc: f64,
    fetch: f64,
    around: f64,
    /// How many times longer tasks take whose data are elsewhere; absent where too few are there to say.
    away: Option<f64>,
    /// Median duration of tasks whose data are here.
    near: f64,
    host: Option<(u32, f64)>,
}

impl<'a> Usual<'a> {
    fn of(log: &'a Log, attempt: &Attempt) -> Self {
        let all = || attempt.tasks.iter();
        let seen = |of: fn(&Seen) -> Option<f64>| {
            let known: Vec<f64> = all()
                .filter_map(|task| of(log.workers.of(task.id)?))
                .collect();
            (known.len() >= ENOUGH).then(|| median(known.into_iter()))
        };
        let pace = pace(attempt);
        let (near, far): (Vec<&Task>, Vec<&Task>) = all().partition(|task| task.is_local);
        let away = if near.len() >= ENOUGH && far.len() >= 2 {
            let of = |tasks: &[&Task]| median(tasks.iter().map(|task| pace(task)));
            Some(of(&near))
                .filter(|near| *near > 0.0)
                .map(|near| of(&far) / near)
        } else {
            None
        };
        let near = median(near.iter().map(|task| task.duration));
        let bytes = median(all().map(|task| task.bytes));
        let mean = attempt.sum(|task| task.bytes) / attempt.tasks.len().max(1) as f64;
        let duration = median(attempt.durations());
        Self {
            workers: &log.workers,
            cpu_wait: seen(|it| it.cpu_wait),
            faults: seen(|it| it.faults),
            major: seen(|it| it.major).unwrap_or(0.0),
            duration,
            run: median(all().map(|task| task.run)),
            short: quantile(attempt.durations(), 0.1),
            bytes,
            even: if bytes > 0.0 { bytes } else { mean },
            reader: Reader::of(all().map(|task| (task.duration, task.bytes)), duration),
            gc: median(all().map(|task| task.gc)),
            fetch: median(all().map(|task| task.fetch)),
            around: median(all().map(|task| task.around)),
            away,
            near,
            host: slowest(attempt).map(|(host, ratio)| (host, ratio.1)),
        }
    }

    /// Milliseconds that a task takes longer with its data elsewhere.
    fn worth(&self) -> Option<f64> {
        self.away.map(|away| self.near * (away - 1.0).max(0.0))
    }

    /// The same rule as on the time line: one and a half times the median, and 100 ms.
    fn is_exceeded(&self, task: &Task) -> bool {
        tasks::is_late(task.duration, self.duration)
    }

    /// What [`Self::even`] is.
    const fn even_is(&self) -> &'static str {
        if self.bytes > 0.0 {
            "the median"
        } else {
            "the mean, because most tasks read nothing"
        }
    }

    /// Tasks of that size into which one can be cut: a record stays whole.
    fn parts(&self, task: &Task) -> usize {
        let records = if task.records > 0.0 {
            task.records as usize
        } else {
            usize::MAX
        };
        tasks::parts(task.bytes, self.even).min(records)
    }

    fn excess(&self, task: &Task) -> f64 {
        task.duration - self.duration
    }

    /// What a worker saw of a task beyond the median; nothing where it did not see it.
    fn beyond(&self, task: &Task, usual: Option<f64>, of: impl Fn(&Seen) -> Option<f64>) -> f64 {
        let own = self.workers.of(task.id).and_then(of);
        own.zip(usual).map_or(0.0, |(own, usual)| own - usual)
    }

    /// Milliseconds of the excess that a reason explains.
    fn explained(&self, task: &Task, reason: Reason) -> f64 {
        let part = match reason {
            Reason::Size => self.reader.explains(self.duration, task.bytes),
            Reason::Gc => task.gc - self.gc,
            Reason::Fetch => task.fetch - self.fetch,
            Reason::Around => task.around - self.around,
            Reason::Locality if !task.is_local => {
                task.run * (1.0 - 1.0 / self.away.unwrap_or(1.0).max(1.0))
            }
            Reason::Host => match self.host {
                Some((host, ratio)) if host == task.host => task.run * (1.0 - 1.0 / ratio),
                _ => 0.0,
            },
            Reason::Locality => 0.0,
            Reason::Cpu => self.beyond(task, self.cpu_wait, |it| it.cpu_wait),
            // Without more reads of a disk than usual, pages were touched for the first time.
            Reason::Memory => self.beyond(task, self.faults, |it| {
                it.faults.filter(|_| it.major > Some(self.major))
            }),
        };
        part.clamp(0.0, self.excess(task).max(0.0))
    }
}

pub(super) fn skew(log: &Log, attempt: &Attempt) -> Option<Finding> {
    if attempt.tasks.len() < ENOUGH {
        return None;
    }
    let usual = Usual::of(log, attempt);
    let late: Vec<&Task> = attempt
        .tasks
        .iter()
        .filter(|task| usual.is_exceeded(task))
        .collect();
    if !tasks::are_few(late.len(), attempt.tasks.len()) {
        return None;
    }
    let excess: f64 = late.iter().map(|task| usual.excess(task)).sum();
    let of = |reason: Reason| {
        late.iter()
            .map(|task| usual.explained(task, reason))
            .sum::<f64>()
            / excess.max(1.0)
    };
    let by_others = [
        Reason::Gc,
        Reason::Fetch,
        Reason::Around,
        Reason::Cpu,
        Reason::Memory,
    ]
    .map(of)
    .iter()
    .sum();
    let shares = ALL.map(|reason| match reason {
        Reason::Size => (usual.reader.share(of(reason), 1.0, by_others), reason),
        _ => (of(reason), reason),
    });
    let (most, reason) = shares
        .into_iter()
        .reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    let reason = Some(reason).filter(|_| most >= EXPLAINS);
    let by_host = of(Reason::Host) >= EXPLAINS;
    let is_of_host = matches!(reason, Some(Reason::Host | Reason::Cpu | Reason::Memory));
    if by_host && is_of_host {
        // The rule of slow hosts has it, with all tasks of the host.
        return None;
    }
    let first = attempt.tasks.iter().take(2 * attempt.slots);
    let first = first.filter(|task| usual.is_exceeded(task)).count();
    if reason == Some(Reason::Around) && first == late.len() {
        // Executors that start fetch the program and load its classes: no setting of the stage ends that.
        return None;
    }
    let saving = saving(attempt, &usual, reason);
    let why = reason.map_or("nothing that was measured explains it", Reason::words);
    let title = format!(
        "{} of {} tasks take much longer than the others: {why}",
        late.len(),
        attempt.tasks.len()
    );
    let mut finding = attempt.finding("skew", saving, title);
    let longest = late
        .iter()
        .copied()
        .max_by(|left, right| left.duration.total_cmp(&right.duration))?;
    finding.numbers = vec![
        number("median duration", ms(usual.duration)),
        number("longest", ms(longest.duration)),
        number(
            "read by the longest, and by the median task",
            format!("{} and {}", bytes(longest.bytes), bytes(usual.bytes)),
        ),
    ];
    for (part, reason) in shares.iter().filter(|(part, _)| *part >= 0.05) {
        finding.numbers.push(number(
            "of the excess explained by",
            format!("{}: {}", reason.words(), share(*part)),
        ));
    }
    words(log, attempt, &usual, longest, reason, &mut finding);
    Some(finding)
}

/// What it is worth to wait for a core near the data.
fn locality_wait(usual: &Usual<'_>) -> Setting {
    let value = usual.worth().map_or_else(
        || "shorter than now; how short is not known: too few tasks ran with and without their data to compare them".to_owned(),
        |worth| format!("{} (how much longer a task takes with its data elsewhere)", ms(worth)),
    );
    setting("spark.locality.wait", value)
}

/// Milliseconds for which a core had no task before one whose data are elsewhere: it waited for one with its data here.
fn held(task: &Task) -> f64 {
    let idle = task.idle.filter(|idle| *idle >= HELD && !task.is_local);
    idle.unwrap_or(0.0)
}

pub(super) fn locality(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let tasks = attempt.tasks.iter();
    let waits: Vec<f64> = tasks.map(held).filter(|held| *held > 0.0).collect();
    if waits.is_empty() {
        return None;
    }
    let usual = Usual::of(log, attempt);
    // With its pause before it, a task takes its core for the time in the log. What is left of the pause is what
    // waiting is worth.
    let worth = usual.worth();
    let left = |held: f64| worth.map_or(held / 2.0, |worth| held.min(worth));
    let most = |held: f64| worth.map_or(held, |_| left(held).max(held / 2.0));
    let with = |pause: &dyn Fn(f64) -> f64| {
        length(
            attempt
                .tasks
                .iter()
                .map(|task| task.duration + pause(held(task))),
            attempt.slots,
        )
    };
    let now = with(&|held| held);
    let saved = |pause: &dyn Fn(f64) -> f64| (now - with(pause)) / 1000.0;
    let saving = attempt.saving(saved(&most), saved(&left), saved(&|_| 0.0));
    let all: f64 = waits.iter().sum();
    let title = format!(
        "cores had no task for {} before {} of {} tasks whose data were on another node",
        ms(all),
        waits.len(),
        attempt.tasks.len()
    );
    let mut finding = attempt.finding("locality_wait", saving, title);
    finding.computed = format!(
        "the stage's tasks run again on {} cores, each with the pause of its core before it: with pauses of {}; without them \
         for the upper end{NOISE}",
        attempt.slots,
        if worth.is_some() {
            "at most what a task takes longer with its data elsewhere, and of half their length or more for the lower end"
        } else {
            "half their length, and as they were for the lower end, because what they are worth is not known"
        }
    );
    "a run with the setting in which cores have no task as long: then the driver was busy, not waiting for locality"
        .clone_into(&mut finding.disproof);
    let longest = waits.iter().copied().fold(0.0, f64::max);
    finding.numbers = vec![
        number("longest pause", ms(longest)),
        number("median pause", ms(median(waits.iter().copied()))),
    ];
    match usual.away {
        Some(away) => finding.numbers.push(number(
            "tasks with their data elsewhere take",
            format!("{away:.2} times as long as the others"),
        )),
        None => finding
            .not_measured
            .push("how much longer tasks take with their data elsewhere".to_owned()),
    }
    finding.settings = vec![locality_wait(&usual)];
    Some(finding)
}

fn saving(attempt: &Attempt, usual: &Usual<'_>, reason: Option<Reason>) -> Saving {
    let without = |part: f64, below: f64, reason: Reason| {
        attempt.saved(|task| {
            if usual.is_exceeded(task) {
                task.duration - part * usual.explained(task, reason) - below
            } else {
                task.duration
            }
        })
    };
    match reason {
        Some(Reason::Size) => {
            let work: Vec<Work> = attempt
                .tasks
                .iter()
                .map(|task| Work {
                    run: task.run,
                    around: task.around,
                    parts: if usual.is_exceeded(task) {
                        usual.parts(task)
                    } else {
                        1
                    },
                })
                .collect();
            let saved = tasks::saved_by_cutting(&work, usual.duration, usual.run, attempt.slots);
            let [two, all, even] = saved.map(|ms| ms / 1000.0);
            attempt.saving(two, all, even)
        }
        Some(reason) => attempt.saving(
            without(0.5, 0.0, reason),
            without(0.9, 0.0, reason),
            without(1.0, usual.duration - usual.short, reason),
        ),
        None => {
            // A second copy begins when the first has taken one and a half times the median.
            let copied = |length: f64| {
                attempt.saved(|task| task.duration.min((1.5 + length) * usual.duration))
            };
            attempt.saving(
                copied(2.0),
                copied(1.0),
                attempt.saved(|task| task.duration.min(usual.duration)),
            )
        }
    }
}

fn words(
    log: &Log,
    attempt: &Attempt,
    usual: &Usual<'_>,
    longest: &Task,
    reason: Option<Reason>,
    finding: &mut Finding,
) {
    let slots = attempt.slots;
    let again = format!("the stage's tasks run again on {slots} cores");
    let (computed, disproof) = match reason {
        Some(Reason::Size) => (
            format!(
                "{again}, the long ones cut into tasks of the size of {}, which take {} times as long on cores that are all \
                 in use; cut in two and {} times as long for the lower end; perfectly even work for the upper one{NOISE}",
                usual.even_is(),
                SHARED.0,
                SHARED.1
            ),
            SIZE_DISPROOF,
        ),
        Some(_) => (
            format!(
                "{again}, the long ones without 90 % of what the reason explains; 50 % for the lower end; as short as the shortest tenth of the tasks for the upper one{NOISE}"
            ),
            "a run in which the same partitions are late again for another reason",
        ),
        None => (
            format!(
                "{again}, the long ones ended by a second copy that starts at 1.5 times the median and takes the median; twice \
                 the median for the lower end; no task longer than the median for the upper one{NOISE}"
            ),
            "the same partitions are late in a second run: then a copy is late, too",
        ),
    };
    finding.computed = computed;
    disproof.clone_into(&mut finding.disproof);
    let times = usual.parts(longest);
    finding.settings = match reason {
        Some(Reason::Size) => vec![
            setting(&format!("for joins in SQL: {SKEW_JOIN}"), "true"),
            setting(
                &format!("for joins in SQL: {SKEW_JOIN_BYTES}"),
                format!("{} (twice {})", bytes(2.0 * usual.even), usual.even_is()),
            ),
            setting(
                "in the program: salt the keys that are frequent",
                format!("{times} parts"),
            ),
        ],
        Some(Reason::Gc) => vec![
            setting(
                "spark.executor.memory",
                format!(
                    "more than now ({}); how much more is not known: what lives after a collection was not measured",
                    log.property("spark.executor.memory")
                        .unwrap_or("1g, Spark's default")
                ),
            ),
            setting(
                "spark.executor.cores",
                format!(
                    "fewer than now ({}), so that fewer tasks share the heap",
                    log.property("spark.executor.cores").unwrap_or("not set")
                ),
            ),
        ],
        Some(Reason::Fetch) => more_in_flight(log).into(),
        Some(Reason::Around) => vec![setting(
            "in the program: smaller results and closures",
            "broadcast what all tasks need",
        )],
        Some(Reason::Locality) => vec![locality_wait(usual)],
        Some(Reason::Cpu) => vec![
            setting(
                "the hosts of these tasks",
                "see which other programs use their CPUs, and the CPU limits of the executors",
            ),
            setting(
                "spark.executor.cores",
                format!(
                    "fewer than now ({}); how many is not known: the CPUs that executors could have are not in the log",
                    log.property("spark.executor.cores").unwrap_or("not set")
                ),
            ),
        ],
        Some(Reason::Memory) => vec![
            setting(
                "spark.executor.memory",
                format!(
                    "less than now ({}), or fewer executors on a host, so that they fit into its memory; how much less is not \
                     known: what the host lacked is not in the log",
                    log.property("spark.executor.memory")
                        .unwrap_or("1g, Spark's default")
                ),
            ),
            setting(
                "the hosts of these tasks",
                "see what else uses their memory, and vm.swappiness",
            ),
        ],
        Some(Reason::Host) | None => vec![
            setting("spark.speculation", "true"),
            setting(
                "spark.speculation.multiplier",
                "1.5 (as in the computation)",
            ),
        ],
    };
    let unknown = [
        ("memory pressure", usual.faults),
        ("waiting for a CPU", usual.cpu_wait),
    ];
    let unknown = unknown.iter().filter(|(_, known)| known.is_none());
    let unknown: Vec<&str> = unknown.map(|(what, _)| *what).collect();
    if !unknown.is_empty() {
        finding.not_measured = vec![format!(
            "{}: the workers' daemons measure it, and no worker wrote about enough of these tasks",
            unknown.join(" and ")
        )];
    }
}
