//! Rules about shuffles: tasks that spill, and tasks that wait for blocks. Where workers wrote about the tasks, with the time
//! of spills and merges and the hosts that sent the blocks.

use smtt_model::advise::tasks::{
    self, ENOUGH, FETCH_DISPROOF, FETCH_SHARE, IN_FLIGHT, IN_FLIGHT_UNKNOWN, NAMED, Sender,
};

use super::read::{Attempt, Log, Task, median, quantile};
use super::work::{NOISE, by_host, bytes, ms, number, setting, share};
use super::workers::Seen;
use super::{Finding, Saving, Setting};

/// Time of spills and merges, as workers saw it.
struct Written {
    spill: f64,
    merge: f64,
    /// Duration of the tasks that they know.
    duration: f64,
    /// Tasks that spilled and that they know.
    known: usize,
}

impl Written {
    fn of(log: &Log, with: &[&Task]) -> Self {
        let mut all = Self {
            spill: 0.0,
            merge: 0.0,
            duration: 0.0,
            known: 0,
        };
        for task in with {
            let Some(seen) = log.workers.of(task.id) else {
                continue;
            };
            all.spill += seen.spill;
            all.merge += seen.merge;
            all.duration += task.duration;
            all.known += 1;
        }
        all
    }
}

/// Least and most milliseconds that spilling cost a task.
fn cost(task: &Task, seen: Option<&Seen>) -> (f64, f64) {
    match seen {
        // What was spilled is written and merged. Without spills a shuffle still writes it once, so the shorter of the two
        // goes for certain.
        Some(seen) => (
            seen.spill.min(seen.merge),
            (seen.spill + seen.merge).max(task.other()).min(task.run),
        ),
        None => (0.0, task.other()),
    }
}

/// What to hold the tasks that spilled against, in words: saving, how it was computed, what would disprove it.
fn saved(log: &Log, attempt: &Attempt, written: &Written) -> (Saving, String, &'static str) {
    let (with, without): (Vec<&Task>, Vec<&Task>) =
        attempt.tasks.iter().partition(|task| task.spilled > 0.0);
    // Where tasks that did not spill show what a byte costs, the others are held against it.
    let rates: Vec<f64> = without
        .iter()
        .filter(|it| it.bytes > 0.0)
        .map(|it| it.run / it.bytes)
        .collect();
    if rates.len() >= ENOUGH && with.iter().all(|task| task.bytes > 0.0) {
        let at = |part: f64| {
            let rate = quantile(rates.iter().copied(), part);
            attempt.saved(|task| {
                let needed = if task.spilled > 0.0 {
                    (task.bytes * rate).min(task.run)
                } else {
                    task.run
                };
                task.duration - task.run + needed
            })
        };
        return (
            attempt.saving(at(0.75), at(0.5), at(0.25)),
            format!(
                "the stage's tasks run again on {} cores, those that spilled with the run time per byte of the {} that did \
                 not: the median, and the quartiles for the interval{NOISE}",
                attempt.slots,
                rates.len()
            ),
            "tasks that do not spill any more and take as long",
        );
    }
    let at = |part: fn((f64, f64)) -> f64| {
        attempt.saved(|task| {
            if task.spilled > 0.0 {
                task.duration - part(cost(task, log.workers.of(task.id)))
            } else {
                task.duration
            }
        })
    };
    let (low, high) = (at(|it| it.0), at(|it| it.1));
    let measured = if written.known > 0 {
        "the shorter of the spills and merges of each task, because a shuffle writes its output once in any case; at most both \
         together, as workers saw them, or the run time beyond CPU time, collections, fetches and shuffle write where that is \
         longer (merging while a consumer reads is in no span)"
    } else {
        "at least nothing, because Spark does not measure the time of a spill and no worker wrote about these tasks; at most the \
         run time of the tasks that spilled beyond their CPU time, collections, fetches and shuffle write"
    };
    (
        attempt.saving(low, f64::midpoint(low, high), high),
        format!(
            "bounds: {measured}; the stage's tasks run again on {} cores; the expected value is the middle{NOISE}",
            attempt.slots
        ),
        "a run with more partitions, in which nothing is spilled and the tasks together take as long",
    )
}

pub(super) fn spilling(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let with: Vec<&Task> = attempt.tasks.iter().filter(|it| it.spilled > 0.0).collect();
    if with.is_empty() {
        return None;
    }
    let written = Written::of(log, &with);
    let spilled = attempt.sum(|task| task.spilled);
    let (saving, computed, disproof) = saved(log, attempt, &written);
    let factor = with
        .iter()
        .map(|task| (task.spilled + task.peak) / task.peak.max(1.0))
        .fold(1.0, f64::max)
        .min(16.0);
    let tasks = attempt.tasks.len();
    let wanted = (tasks as f64 * factor).ceil();
    let run = attempt.sum(|task| task.run).max(1.0);
    let title = format!("{} of {tasks} tasks spill {}", with.len(), bytes(spilled));
    let mut finding = attempt.finding("spilling", saving, title);
    finding.computed = computed;
    disproof.clone_into(&mut finding.disproof);
    finding.numbers = vec![
        number("spilled from memory", bytes(spilled)),
        number(
            "most execution memory of a task",
            bytes(with.iter().map(|it| it.peak).fold(0.0, f64::max)),
        ),
        number(
            "run time of tasks that spilled beyond CPU, collections, fetches and shuffle write",
            share(with.iter().map(|it| it.other()).sum::<f64>() / run) + " of the stage's run time",
        ),
    ];
    finding.settings = vec![
        setting(log.partitions(), format!("{wanted:.0}")),
        setting(
            "spark.executor.memory",
            format!("{factor:.1} times as much, with as many cores per executor"),
        ),
    ];
    if written.known == 0 {
        finding.not_measured = vec![
            "the time of spilling and merging itself: no worker wrote about these tasks".to_owned(),
        ];
        return Some(finding);
    }
    for (what, time) in [
        ("in spills, without their sorting", written.spill),
        ("in merges of what was spilled and written", written.merge),
    ] {
        let of = share(time / written.duration.max(1.0));
        finding.numbers.push(number(
            what,
            format!("{}, {of} of these tasks' time", ms(time)),
        ));
    }
    finding.not_measured = vec![format!(
        "spills and merges below 1 ms, merges while a consumer reads, and those of {} of the {} tasks that spilled, which \
         workers do not know",
        with.len() - written.known,
        with.len()
    )];
    Some(finding)
}

/// Time for which map tasks ran while these tasks waited, at most.
fn behind_maps(attempt: &Attempt) -> Option<f64> {
    let until = attempt.parents_end?;
    Some(attempt.sum(|task| (until - task.launch as f64).clamp(0.0, task.fetch)))
}

/// Hosts that sent blocks to an attempt's tasks, by the time that these waited for them.
fn senders(log: &Log, attempt: &Attempt) -> Vec<Sender> {
    let hosts = log.workers.hosts.iter();
    let mut all: Vec<Sender> = hosts
        .map(|host| Sender {
            host: host.clone(),
            ..Sender::default()
        })
        .collect();
    for seen in attempt
        .tasks
        .iter()
        .filter_map(|task| log.workers.of(task.id))
    {
        for (host, wait) in &seen.waits {
            all[*host as usize].wait += wait;
        }
        for (host, bytes) in &seen.bytes {
            all[*host as usize].bytes += bytes;
        }
    }
    all.retain(|it| it.wait > 0.0 || it.bytes > 0.0);
    all.sort_by(|left, right| right.wait.total_cmp(&left.wait));
    all
}

/// The host that most of the wait is for, if a byte of it costs more wait than one of the others: what to change there.
fn slow_sender(senders: &[Sender], waited: f64) -> Option<Setting> {
    let (first, own, rest) = tasks::slow_sender(senders, waited)?;
    Some(setting(
        &format!("the host {}", first.host),
        format!(
            "see what limits its disks and network: tasks wait {} for each MiB of its blocks, {} for one of the others'",
            ms(own),
            ms(rest)
        ),
    ))
}

pub(super) fn fetch_wait(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let (wait, run) = (attempt.sum(|task| task.fetch), attempt.sum(|task| task.run));
    if attempt.tasks.len() < ENOUGH || wait < FETCH_SHARE * run {
        return None;
    }
    let best = tasks::best_wait(attempt.tasks.iter().map(|task| (task.fetch, task.bytes)));
    let low =
        attempt.saved(|task| task.duration - tasks::wait_beyond(best, task.fetch, task.bytes));
    let high = attempt.saved(|task| task.duration - task.fetch);
    let saving = attempt.saving(low, f64::midpoint(low, high), high);
    let title = format!(
        "tasks wait {} of their run time for shuffle blocks",
        share(wait / run.max(1.0))
    );
    let mut finding = attempt.finding("fetch_wait", saving, title);
    finding.computed = format!(
        "the stage's tasks run again on {} cores: with the wait per byte that the best tenth of them had, and without any wait{NOISE}",
        attempt.slots
    );
    FETCH_DISPROOF.clone_into(&mut finding.disproof);
    finding.numbers = vec![
        number("waiting for fetches", ms(wait)),
        number("read", bytes(attempt.sum(|task| task.bytes))),
    ];
    readers(log, attempt, &mut finding);
    match behind_maps(attempt) {
        Some(time) => finding.numbers.push(number(
            "of it while tasks of the stages that it reads still ran, at most",
            format!("{} ({})", ms(time), share(time / wait.max(1.0))),
        )),
        None => finding.not_measured.push(
            "how much of the wait was for a late map task: the log does not name the stages that it reads".to_owned(),
        ),
    }
    let senders = senders(log, attempt);
    let waited: f64 = senders.iter().map(|it| it.wait).sum();
    if waited > 0.0 {
        let sent: f64 = senders.iter().map(|it| it.bytes).sum();
        for sender in senders.iter().take(NAMED) {
            finding.numbers.push(number(
                "of the wait, for blocks of a host",
                format!(
                    "{} for {} ({}), which sent {} of the bytes from other executors",
                    share(sender.wait / waited),
                    sender.host,
                    ms(sender.wait),
                    share(sender.bytes / sent.max(1.0))
                ),
            ));
        }
        finding.not_measured.push(format!(
            "from which host the blocks of {} of the wait came: workers saw {} in waits of 1 ms or more",
            ms(wait - waited),
            ms(waited)
        ));
    } else {
        finding.not_measured.insert(
            0,
            "from which host the blocks came: the event log does not say, and no worker wrote about these waits".to_owned(),
        );
    }
    finding.settings.extend(slow_sender(&senders, waited));
    finding.settings.extend(more_in_flight(log));
    Some(finding)
}

/// More requests at a time. By how much cannot be had: what a request waits for on the other side was not measured.
pub(super) fn more_in_flight(log: &Log) -> [Setting; 2] {
    IN_FLIGHT.map(|(name, usual)| {
        let now = log
            .property(name)
            .map_or_else(|| format!("{usual}, Spark's default"), str::to_owned);
        setting(name, format!("more than now ({now}); {IN_FLIGHT_UNKNOWN}"))
    })
}

/// The hosts on which tasks wait most and least.
fn readers(log: &Log, attempt: &Attempt, finding: &mut Finding) {
    let mut hosts: Vec<(f64, u32)> = by_host(attempt)
        .into_iter()
        .map(|(host, tasks)| (median(tasks.iter().map(|task| task.fetch)), host))
        .collect();
    hosts.sort_by(|left, right| right.0.total_cmp(&left.0));
    if let [most, .., least] = hosts[..] {
        let name = |host: u32| log.hosts[host as usize].as_str();
        finding.numbers.push(number(
            "median wait by the host that reads, most and least",
            format!(
                "{} on {}, {} on {}",
                ms(most.0),
                name(most.1),
                ms(least.0),
                name(least.1)
            ),
        ));
    }
}
