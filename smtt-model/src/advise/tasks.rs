//! What the rules about the tasks of a stage have in common: those of the daemon, which sees the tasks of its worker, and
//! those of the history, which sees all. Times are in milliseconds.

use super::simulate::length;

/// Tasks that a figure of one kind of tasks needs.
pub const ENOUGH: usize = 8;
/// Seconds that a finding must be about.
pub const LEAST_SECONDS: f64 = 1.0;
/// The same as a share of the whole time.
pub const LEAST_SHARE: f64 = 0.03;
/// Share of the tasks' time from which waiting for fetches is a finding.
pub const FETCH_SHARE: f64 = 0.1;
/// Share of the time beyond the median that a reason must explain.
pub const EXPLAINS: f64 = 0.5;
/// How many times longer than the median a late task takes, and by how many milliseconds.
pub const LATE: (f64, f64) = (1.5, 100.0);
/// Late tasks are at most one of so many.
pub const FEW: usize = 4;
/// How many times longer tasks of a slow host take, at least.
pub const SLOW: f64 = 1.25;
/// How many times longer work takes on cores that are all in use, which share caches, memory and often their units:
/// expected, and at the lower end of the interval.
pub const SHARED: (f64, f64) = (1.1, 1.3);
/// Hosts that a finding names.
pub const NAMED: usize = 5;
/// Parts into which a task is cut at most.
pub const PARTS: usize = 1000;
/// Settings for more requests at a time, with Spark's defaults.
pub const IN_FLIGHT: [(&str, &str); 2] = [
    ("spark.reducer.maxSizeInFlight", "48m"),
    ("spark.shuffle.io.numConnectionsPerPeer", "1"),
];
/// Why a value for them is not known.
pub const IN_FLIGHT_UNKNOWN: &str =
    "how much more is not known: neither the network's delay nor its rate was measured";
/// What would show that waits for fetches have another cause.
pub const FETCH_DISPROOF: &str = "a run with the setting in which the wait per byte is the same: then disks or the network \
                                  are at their limit";
/// Whether Spark cuts large partitions of joins.
pub const SKEW_JOIN: &str = "spark.sql.adaptive.skewJoin.enabled";
/// Size from which it does so.
pub const SKEW_JOIN_BYTES: &str = "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes";
/// What would show that long tasks are not long because they read more.
pub const SIZE_DISPROOF: &str = "the long tasks have the same number of records and keys as the others: then what they do \
                                 with them is slow";

/// Share of the wait from which one host is the cause, if others send as well.
const MOST: f64 = 0.5;
/// What the marker writes before the address of the sender, in the name of a wait.
const FROM: &str = " from ";

/// Median; 0 of none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value below which a share of the values lie; 0 of none.
pub fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut all: Vec<f64> = values.collect();
    if all.is_empty() {
        return 0.0;
    }
    let at = ((all.len() - 1) as f64 * share).round() as usize;
    *all.select_nth_unstable_by(at, f64::total_cmp).1
}

/// Whether a task takes much longer than the median of its stage.
#[must_use]
pub fn is_late(duration: f64, median: f64) -> bool {
    duration > LATE.0 * median && duration >= median + LATE.1
}

/// Whether so many late tasks are few: where half of the tasks are late, the median is not what is usual.
#[must_use]
pub const fn are_few(late: usize, tasks: usize) -> bool {
    late > 0 && late.saturating_mul(FEW) <= tasks
}

/// The median duration and the median size of the tasks that read something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reader {
    duration: f64,
    size: f64,
    is_usual: bool,
}

impl Reader {
    /// Of the durations and sizes of all tasks, whose median duration is `usual`.
    pub fn of(tasks: impl Iterator<Item = (f64, f64)> + Clone, usual: f64) -> Self {
        let all = tasks.filter(|(_, size)| *size > 0.0);
        let in_time = all
            .clone()
            .filter(|(duration, _)| !is_late(*duration, usual));
        Self {
            is_usual: in_time.count() >= ENOUGH,
            duration: median(all.clone().map(|(duration, _)| duration)),
            size: median(all.map(|(_, size)| size)),
        }
    }

    /// Time beyond `usual` that the size of what a task read explains: at the pace of these tasks.
    #[must_use]
    pub fn explains(&self, usual: f64, size: f64) -> f64 {
        if self.size > 0.0 {
            self.duration * size / self.size - usual
        } else {
            0.0
        }
    }

    /// How much of the late tasks' `excess` their sizes explain, where it is `explained` at the pace and `others` explain
    /// so much. Where few tasks in time read something, the pace is that of the late ones themselves: then sizes explain
    /// what nothing else does.
    #[must_use]
    pub fn share(&self, explained: f64, excess: f64, others: f64) -> f64 {
        if self.is_usual {
            explained
        } else {
            explained.min((excess - others).max(0.0))
        }
    }
}

/// Tasks of the median size into which one of that size can be cut.
#[must_use]
pub fn parts(size: f64, median_size: f64) -> usize {
    (size / median_size.max(1.0))
        .ceil()
        .clamp(1.0, PARTS as f64) as usize
}

/// A task that can be cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Run time.
    pub run: f64,
    /// Time around it, which each part has.
    pub around: f64,
    /// Tasks into which it is cut; 1 where it stays as it is.
    pub parts: usize,
}

/// Milliseconds that a stage on so many cores becomes shorter where its long tasks are cut: in two, into all parts, and
/// with perfectly even work. `usual` is the duration of the median task, `usual_run` its run time.
#[must_use]
pub fn saved_by_cutting(tasks: &[Work], usual: f64, usual_run: f64, cores: usize) -> [f64; 3] {
    let durations = || tasks.iter().map(|task| task.run + task.around);
    let now = length(durations(), cores);
    let with = |most: usize, longer: f64| {
        let after = tasks.iter().flat_map(move |task| {
            let count = task.parts.min(most);
            // A part takes as long as a task of its size: the long task may have been fast because it was alone in the
            // end. Its parts are not.
            let least = usual_run.min(task.run);
            let longer = if count > 1 { longer } else { 1.0 };
            let one = (longer * task.run / count.max(1) as f64).max(least) + task.around;
            std::iter::repeat_n(one, count)
        });
        now - length(after, cores)
    };
    let even = durations().sum::<f64>() / cores.max(1) as f64;
    [
        with(2, SHARED.1),
        with(usize::MAX, SHARED.0),
        now - even.max(usual),
    ]
}

/// A host that sent shuffle blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sender {
    /// Name of the host.
    pub host: String,
    /// Time for which tasks waited for its blocks.
    pub wait: f64,
    /// Bytes of its blocks.
    pub bytes: f64,
}

/// The host of an address with a port.
#[must_use]
pub fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// The host for whose blocks a function waited, by the function's name.
#[must_use]
pub fn sender_of(function: &str) -> Option<&str> {
    let (_, address) = function.rsplit_once(FROM)?;
    Some(host_of(address))
}

/// Whether the first of these hosts, which are in the order of their waits, is the cause: most of the wait is for its
/// blocks, and a byte of them costs more wait than one of the others. Milliseconds for each MiB of its blocks and of those
/// of the others.
#[must_use]
pub fn slow_sender(senders: &[Sender], waited: f64) -> Option<(&Sender, f64, f64)> {
    let (first, others) = senders.split_first()?;
    let sum = |of: fn(&Sender) -> f64| others.iter().map(of).sum::<f64>();
    let per_mib = |wait: f64, bytes: f64| wait / (bytes / f64::from(1 << 20)).max(1.0);
    let own = per_mib(first.wait, first.bytes);
    let rest = per_mib(sum(|it| it.wait), sum(|it| it.bytes));
    let is_cause = first.wait >= MOST * waited && !others.is_empty() && own >= SLOW * rest;
    is_cause.then_some((first, own, rest))
}

/// The wait per byte that a tenth of the tasks reached, which all can reach; of waits and bytes of each task.
pub fn best_wait(tasks: impl Iterator<Item = (f64, f64)>) -> f64 {
    quantile(tasks.map(|(wait, bytes)| wait / bytes.max(1.0)), 0.1)
}

/// The wait of a task beyond that.
#[must_use]
pub fn wait_beyond(best: f64, wait: f64, bytes: f64) -> f64 {
    (wait - best * bytes).clamp(0.0, wait.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_task_is_one_and_a_half_times_the_median_and_a_tenth_of_a_second() {
        assert!(!is_late(900.0, 600.0) && is_late(901.0, 600.0));
        assert!(!is_late(109.0, 10.0) && is_late(110.0, 10.0));
        assert!(are_few(2, 8) && !are_few(3, 8) && !are_few(0, 8));
    }

    #[test]
    fn cutting_is_bounded_by_even_work() {
        // Seven tasks of a second and one of nine, on two cores: 4 and 4, then 8 more alone.
        let work = |seconds: f64, parts| Work {
            run: seconds * 1e3,
            around: 0.0,
            parts,
        };
        let mut tasks = vec![work(1.0, 1); 7];
        tasks.push(work(9.0, 9));
        let [two, all, even] = saved_by_cutting(&tasks, 1e3, 1e3, 2);
        // In two of 5.85 s the stage takes 9.85 s, in nine of 1.1 s 8.5 s; evenly 8.
        assert!((two - 2.15e3).abs() < 1.0, "{two}");
        assert!((all - 3.5e3).abs() < 200.0, "{all}");
        assert!((even - 4.0e3).abs() < 1.0, "{even}");
        // On one core nothing is saved.
        assert!(saved_by_cutting(&tasks, 1e3, 1e3, 1)[2].abs() < 1.0);
        assert_eq!(
            (parts(9.5, 1.0), parts(1e9, 1.0), parts(5.0, 0.0)),
            (10, 1000, 5)
        );
    }

    #[test]
    fn a_sender_is_slow_by_the_wait_for_each_byte() {
        let sender = |host: &str, wait, mib: f64| Sender {
            host: host.to_owned(),
            wait,
            bytes: mib * f64::from(1 << 20),
        };
        let all = [sender("slow", 900.0, 10.0), sender("fast", 100.0, 10.0)];
        let found = slow_sender(&all, 1000.0).map(|(it, own, rest)| (it.host.as_str(), own, rest));
        assert_eq!(found, Some(("slow", 90.0, 10.0)));
        // It sent as much more.
        let all = [sender("large", 900.0, 90.0), sender("fast", 100.0, 10.0)];
        assert_eq!(slow_sender(&all, 1000.0), None);
        assert_eq!(slow_sender(&all[..1], 900.0), None);
        assert_eq!(sender_of("next from host-1:7337"), Some("host-1"));
        assert_eq!(sender_of("next"), None);
    }
}
