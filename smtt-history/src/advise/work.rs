//! Rules about all tasks of a stage: slow hosts and the number of tasks; and what rules have in common.

use smtt_model::units;

use super::read::{Attempt, Log, Task, median, quantile};
use super::simulate::length;
use super::{Finding, Number, Saving, Setting};
use smtt_model::advise::Severity;
use smtt_model::advise::tasks::{ENOUGH, SHARED, SLOW};

/// Share of the cores that have no task, from which they are idle.
const IDLE_SHARE: f64 = 0.3;
/// Share of a task's time that is spent around its run, and its length in milliseconds, for it to be small.
const SMALL: (f64, f64) = (0.3, 200.0);
/// Share of the run time from which CPU time says how much of it is work.
const CPU_COUNTED: f64 = 0.2;
/// By how much of a stage's time two runs differ for no reason that a log shows.
const RUNS_DIFFER: f64 = 0.05;
/// The words for it.
pub(super) const NOISE: &str =
    "; each end 5 % of the stage's time further, because two runs differ";
/// Hosts that are held against the others, the slowest ones.
const HOSTS: usize = 8;

pub(super) fn share(value: f64) -> String {
    units::share(value)
}

pub(super) fn ms(value: f64) -> String {
    if value < 1.0 {
        return "0 ms".to_owned();
    }
    units::duration((value.max(0.0) * 1e6) as u64)
}

pub(super) fn bytes(value: f64) -> String {
    units::bytes(value.max(0.0) as u64)
}

pub(super) fn number(what: &str, value: impl Into<String>) -> Number {
    Number {
        what: what.to_owned(),
        value: value.into(),
    }
}

pub(super) fn setting(name: &str, value: impl Into<String>) -> Setting {
    Setting {
        name: name.to_owned(),
        value: value.into(),
    }
}

impl Attempt {
    pub(super) fn id(&self) -> String {
        format!("{}.{}", self.key.0, self.key.1)
    }

    pub(super) fn durations(&self) -> impl Iterator<Item = f64> {
        self.tasks.iter().map(|task| task.duration)
    }

    /// Seconds that are saved where each task takes so long.
    pub(super) fn saved(&self, after: impl Fn(&Task) -> f64) -> f64 {
        self.saved_by(self.tasks.iter().map(after), self.slots)
    }

    /// Seconds that are saved with tasks of these durations on so many cores.
    pub(super) fn saved_by(&self, after: impl Iterator<Item = f64>, cores: usize) -> f64 {
        (length(self.durations(), self.slots) - length(after, cores)) / 1000.0
    }

    /// From three simulations, wider by what two runs differ.
    pub(super) fn saving(&self, low: f64, expected: f64, high: f64) -> Saving {
        let seconds = self.window / 1000.0;
        let mut saving = Saving::new(low, expected, high);
        saving.low = (saving.low - RUNS_DIFFER * seconds).max(0.0);
        saving.high = (saving.high + RUNS_DIFFER * seconds).min(seconds);
        saving.expected = saving.expected.min(saving.high);
        saving.low = saving.low.min(saving.expected);
        saving
    }

    pub(super) fn sum(&self, of: impl Fn(&Task) -> f64) -> f64 {
        self.tasks.iter().map(of).sum()
    }

    /// A finding about this attempt, without words.
    pub(super) fn finding(&self, rule: &'static str, saving: Saving, title: String) -> Finding {
        Finding {
            rule,
            severity: Severity::Low,
            title,
            stage_name: self.name.clone(),
            stages: vec![self.id()],
            more_stages: 0,
            saving,
            computed: String::new(),
            disproof: String::new(),
            numbers: Vec::new(),
            settings: Vec::new(),
            not_measured: Vec::new(),
        }
    }
}

/// Tasks by host, where a host has enough.
pub(super) fn by_host(attempt: &Attempt) -> Vec<(u32, Vec<&Task>)> {
    let mut hosts: std::collections::BTreeMap<u32, Vec<&Task>> = std::collections::BTreeMap::new();
    for task in &attempt.tasks {
        hosts.entry(task.host).or_default().push(task);
    }
    hosts
        .into_iter()
        .filter(|(_, tasks)| tasks.len() >= ENOUGH)
        .collect()
}

/// Run time per byte where tasks read, else run time.
pub(super) fn pace(attempt: &Attempt) -> impl Fn(&Task) -> f64 {
    let reads = attempt.tasks.iter().all(|task| task.bytes > 0.0);
    move |task| {
        if reads {
            task.run / task.bytes
        } else {
            task.run
        }
    }
}

/// Median and its interval of 95 %, by the ranks of the binomial distribution.
fn interval(mut all: Vec<f64>) -> (f64, f64, f64) {
    all.sort_by(f64::total_cmp);
    let count = all.len() as f64;
    let half = 1.96 * count.sqrt() / 2.0;
    let at = |rank: f64| all[(rank.round().max(0.0) as usize).min(all.len() - 1)];
    (
        at(count / 2.0 - half - 1.0),
        at((count - 1.0) / 2.0),
        at(count / 2.0 + half),
    )
}

/// The slowest host, how many times longer its tasks take (with its interval).
pub(super) fn slowest(attempt: &Attempt) -> Option<(u32, (f64, f64, f64))> {
    let hosts = by_host(attempt);
    if hosts.len() < 2 {
        return None;
    }
    let pace = pace(attempt);
    let ratio = |host: u32| {
        let (own, others): (Vec<&Task>, Vec<&Task>) =
            attempt.tasks.iter().partition(|task| task.host == host);
        if others.len() < ENOUGH {
            return None;
        }
        let own = interval(own.into_iter().map(&pace).collect());
        let others = interval(others.into_iter().map(&pace).collect());
        // Tasks without work are no measure.
        (others.0 > 0.0).then(|| (own.0 / others.2, own.1 / others.1, own.2 / others.0))
    };
    let mut medians: Vec<(f64, u32)> = hosts
        .into_iter()
        .map(|(host, tasks)| (median(tasks.into_iter().map(&pace)), host))
        .collect();
    medians.sort_by(|left, right| right.0.total_cmp(&left.0));
    let all = medians
        .into_iter()
        .take(HOSTS)
        .filter_map(|(_, host)| Some((host, ratio(host)?)));
    let slowest = all.max_by(|left, right| left.1.0.total_cmp(&right.1.0));
    slowest.filter(|(_, ratio)| ratio.0 >= SLOW)
}

pub(super) fn slow_host(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let (host, ratio) = slowest(attempt)?;
    // An executor also takes longer to fetch a task and to send its result. The driver's part is in that time, too.
    let around = |here: bool| {
        let tasks = attempt
            .tasks
            .iter()
            .filter(|task| (task.host == host) == here);
        median(tasks.map(|task| task.around))
    };
    let around = around(true) / around(false).max(1.0);
    let as_others = |ratio: f64, around: f64| {
        attempt.saved(|task| {
            if task.host == host {
                task.run / ratio.max(1.0) + task.around / around.max(1.0)
            } else {
                task.duration
            }
        })
    };
    let saving = attempt.saving(
        as_others(ratio.0, 1.0),
        as_others(ratio.1, around),
        as_others(ratio.2, around),
    );
    let name = &log.hosts[host as usize];
    let title = format!(
        "tasks on {name} take {:.2} times as long as on the other hosts",
        ratio.1
    );
    let mut finding = attempt.finding("slow_host", saving, title);
    finding.computed = format!(
        "the stage's tasks run again on {} cores, those on the host as fast as the others; medians of the run time per byte \
         (of the run time, where nothing is read) with their intervals of 95 %, and but for the lower end of the time around \
         the run{NOISE}",
        attempt.slots
    );
    "other programs ran on the host at that time, or its tasks did other work: a second run in which another host is slow"
        .clone_into(&mut finding.disproof);
    let here = attempt
        .tasks
        .iter()
        .filter(|task| task.host == host)
        .count();
    finding.numbers = vec![
        number(
            "tasks on this host, and in all",
            format!("{here} of {}", attempt.tasks.len()),
        ),
        number(
            "interval of the ratio",
            format!("{:.2} to {:.2}", ratio.0, ratio.2),
        ),
    ];
    finding.settings = vec![
        setting(
            "the host",
            "see what limits it (CPU quota, frequency, disk, other programs)",
        ),
        setting("spark.speculation", "true"),
        setting(
            "spark.speculation.multiplier",
            // Spark compares with the median of all tasks, so the copies begin before a task of the host ends.
            format!(
                "{:.2} (halfway to the ratio's lower end)",
                f64::midpoint(1.0, ratio.0)
            ),
        ),
    ];
    Some(finding)
}

/// Durations where each task is cut into so many parts, each with the time around it, and the work takes so many times
/// longer.
fn cut(attempt: &Attempt, parts: usize, around: f64, longer: f64) -> impl Iterator<Item = f64> {
    let one = move |task: &Task| (longer * task.run / parts as f64 + around).min(task.duration);
    attempt
        .tasks
        .iter()
        .flat_map(move |task| std::iter::repeat_n(one(task), parts))
}

pub(super) fn idle_cores(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let (tasks, cores) = (attempt.tasks.len(), attempt.cores?);
    let used = attempt.sum(|task| task.duration)
        / (length(attempt.durations(), attempt.slots) * cores as f64).max(1.0);
    if tasks >= cores || 1.0 - used < IDLE_SHARE {
        return None;
    }
    let around = median(attempt.tasks.iter().map(|task| task.around));
    let least = quantile(attempt.tasks.iter().map(|task| task.around), 0.1);
    let parts = (2 * cores).div_ceil(tasks);
    let with = |parts: usize, around: f64, longer: f64| {
        attempt.saved_by(cut(attempt, parts, around, longer), cores)
    };
    let saving = attempt.saving(
        with(cores.div_ceil(tasks), 2.0 * around, SHARED.1),
        with(parts, around, SHARED.0),
        with(parts, least, 1.0),
    );
    let title = format!(
        "{tasks} tasks for {cores} cores: {} of the cores' time is idle",
        share(1.0 - used)
    );
    let mut finding = attempt.finding("idle_cores", saving, title);
    finding.computed = format!(
        "the same work run again on {cores} cores in {} tasks of equal parts, each with the median time around its run ({}); \
         cores that are all in use share caches and memory, so it takes {} times as long; for the lower end {} times, in as few tasks \
         as there are cores and with twice the time around, for the upper one as long and with the least time around{NOISE}",
        parts * tasks,
        ms(around),
        SHARED.0,
        SHARED.1
    );
    "the work of a task cannot be divided (one file that cannot be split, one key), or the cores were used by other stages"
        .clone_into(&mut finding.disproof);
    finding.numbers = vec![
        number("tasks", tasks.to_string()),
        number("cores of the executors", cores.to_string()),
        number("median duration of a task", ms(median(attempt.durations()))),
    ];
    finding.settings = vec![
        setting(log.partitions(), (parts * tasks).to_string()),
        setting(
            "for a stage that reads files: spark.sql.files.maxPartitionBytes",
            format!(
                "{} or less",
                bytes(attempt.sum(|task| task.bytes) / (parts * tasks) as f64,)
            ),
        ),
    ];
    Some(finding)
}

pub(super) fn small_tasks(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let (tasks, cores) = (attempt.tasks.len(), attempt.cores?);
    let around = |task: &Task| (task.around + attempt.gap).max(0.0);
    let arounds = attempt.sum(around);
    let work = attempt.sum(|task| task.run);
    let usual = median(attempt.durations());
    if tasks < 4 * cores || arounds < SMALL.0 * (work + arounds).max(1.0) || usual > SMALL.1 {
        return None;
    }
    // What a task costs in any case is in its run time, too, but takes little CPU time. Where next to no CPU time is
    // counted, the work is somewhere else, such as in a Python worker.
    let cpu = attempt.sum(|task| task.cpu).min(work);
    let counted = cpu >= CPU_COUNTED * work;
    let least = if counted { cpu } else { work };
    // Two rounds on all cores, and tasks of at least a second where there is so much work.
    let wanted = (2 * cores).max((work / 1000.0) as usize).clamp(1, tasks);
    let part = |share: f64| quantile(attempt.tasks.iter().map(around), share);
    let (few, one, many) = (part(0.25), part(0.5), part(0.75));
    let now = length(
        attempt.tasks.iter().map(|task| task.run + around(task)),
        attempt.slots,
    );
    let with = |count: usize, work: f64, around: f64| {
        let each = work / count as f64 + around;
        (now - length(std::iter::repeat_n(each, count), attempt.slots)) / 1000.0
    };
    let saving = attempt.saving(
        with((tasks / 2).max(wanted), work, many),
        with(wanted, (work + least) / 2.0, one),
        with(wanted, least, few),
    );
    let title = format!(
        "{tasks} tasks of {} spend {} of their time around their work",
        ms(usual),
        share(arounds / (work + arounds))
    );
    let mut finding = attempt.finding("small_tasks", saving, title);
    finding.computed = format!(
        "the same work, by the middle of its run time and its CPU time, on {} cores in {wanted} equal tasks with the median \
         time around a run ({}), in which a core that waits for the driver counts; for the lower end half as many tasks, all \
         of the run time and the upper quartile around it, for the upper one the CPU time and the lower quartile{NOISE}",
        attempt.slots,
        ms(one)
    );
    "the time around a task grows with its size (large results), or larger tasks spill"
        .clone_into(&mut finding.disproof);
    finding.numbers = vec![
        number(
            "around the run time: driver, deserialisation, result",
            ms(arounds),
        ),
        number("run time", ms(work)),
    ];
    finding.settings = vec![
        setting(log.partitions(), wanted.to_string()),
        setting("after a filter: coalesce", wanted.to_string()),
    ];
    Some(finding)
}
