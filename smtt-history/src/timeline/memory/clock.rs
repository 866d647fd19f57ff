//! Joins the clock of a worker to that of Spark's driver.
//!
//! Documents of a daemon have times since the worker's boot. Two things say where these are on Spark's time. The daemon
//! writes both of its clocks at one moment, which places them on the worker's time of day. And a task that succeeded began
//! on the worker after the driver launched it, and ended before the driver counted it as finished: each task bounds the
//! difference from both sides, and the bounds of all sampled tasks are its error.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use smtt_store::history::workers::{TASKS, WorkerFile};

use crate::timeline::model::Model;
use crate::workers::{Files, opened};

/// Files of one run of a daemon whose tasks are read.
const FILES: usize = 3;
/// Tasks of one file.
const ROWS: u64 = 64;
/// Bytes of the rows of all files.
const BYTES: usize = 32 << 20;
/// Difference in milliseconds beyond which a task is taken for that of another attempt of the application.
const FARTHEST_MS: i64 = 600_000;
/// Milliseconds by which the bounds of tasks may contradict: a clock that was set, or that runs faster than the other.
const DRIFT_MS: i64 = 1000;

/// One run of a worker's daemon.
pub type Run = (String, u64);

/// How the clock of one run of a daemon was joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// Host of the daemon.
    pub worker: String,
    /// Start of the daemon in milliseconds since 1970.
    pub run: u64,
    /// Time of the worker's boot on the driver's clock, in milliseconds since 1970; absent where it is not known.
    #[serde(skip)]
    pub boot_ms: Option<i64>,
    /// Milliseconds by which the driver's clock is ahead of the worker's; absent where one of the two is not known.
    pub shift_ms: Option<i64>,
    /// Most milliseconds by which times may be wrong; absent where no task bounds it.
    pub error_ms: Option<i64>,
    /// Tasks that bound it.
    pub tasks: usize,
}

/// A task's begin and end on the worker's clock, in nanoseconds since boot: they bound the difference between the clocks of
/// worker and driver.
#[derive(Debug, Deserialize)]
struct TaskTimes {
    executor_id: Option<String>,
    task_attempt_id: Option<i64>,
    #[serde(default)]
    state: String,
    start_ns: Option<u64>,
    end_ns: Option<u64>,
    #[serde(default)]
    duration_is_lower_bound: bool,
}

fn ms(ns: u64) -> i64 {
    i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
}

/// Tasks of some files of each run.
fn sample(files: &Files) -> BTreeMap<Run, Vec<TaskTimes>> {
    let mut by_run: BTreeMap<Run, Vec<&WorkerFile>> = BTreeMap::new();
    for file in files.of_table(TASKS.name) {
        let run = (file.name.host.clone(), file.name.run);
        by_run.entry(run).or_default().push(file);
    }
    let mut left = BYTES;
    let mut all: BTreeMap<Run, Vec<TaskTimes>> = BTreeMap::new();
    for (run, files) in by_run {
        let last = files.len() - 1;
        let mut chosen: Vec<usize> = (0..FILES).map(|at| at * last / (FILES - 1)).collect();
        chosen.dedup();
        for file in chosen {
            // Without its tasks the clock is less exact, and nothing else.
            let Ok(Some(reader)) = opened(files[file]) else {
                continue;
            };
            let step = reader.rows().div_ceil(ROWS).max(1);
            let rows: Vec<_> = (0..reader.rows())
                .step_by(usize::try_from(step).unwrap_or(usize::MAX))
                .map(|row| row..row + 1)
                .collect();
            let Ok(texts) = reader.texts_up_to("json", &rows, left) else {
                continue;
            };
            for text in texts.into_iter().flatten() {
                left = left.saturating_sub(text.len());
                if let Ok(seen) = serde_json::from_str(&text) {
                    all.entry(run.clone()).or_default().push(seen);
                }
            }
        }
    }
    all
}

/// Bounds of the time of the worker's boot on the driver's clock, of one task: the least and the most.
type Bound = (i64, i64);

fn bounds(seen: &[TaskTimes], model: &Model, of_id: &HashMap<i64, usize>) -> Vec<Bound> {
    let bound = |seen: &TaskTimes| {
        let task = &model.tasks[*of_id.get(&seen.task_attempt_id?)?];
        let is_same = seen.executor_id.as_deref() == Some(&model.executor(task).id);
        let is_whole =
            seen.state == "succeeded" && task.outcome == 0 && !seen.duration_is_lower_bound;
        let (start, end) = (ms(seen.start_ns?), ms(seen.end_ns?));
        (is_same && is_whole && end >= start).then(|| {
            let launch = model.start + task.launch;
            let finish = model.start + task.end();
            (launch.saturating_sub(start), finish.saturating_sub(end))
        })
    };
    seen.iter().filter_map(bound).collect()
}

/// The clock from the bounds of tasks and the worker's own.
fn join((worker, run): Run, wall: Option<i64>, mut all: Vec<Bound>) -> Clock {
    if let Some(wall) = wall {
        all.retain(|(least, _)| least.abs_diff(wall) <= FARTHEST_MS.unsigned_abs());
    }
    let least = all.iter().map(|(least, _)| *least).max();
    let most = all.iter().map(|(_, most)| *most).min();
    let bounds = least
        .zip(most)
        .filter(|(least, most)| *least <= most.saturating_add(DRIFT_MS));
    let mut clock = Clock {
        worker,
        run,
        boot_ms: wall,
        shift_ms: wall.map(|_| 0),
        ..Clock::default()
    };
    if let Some((one, other)) = bounds {
        let (least, most) = (one.min(other), one.max(other));
        let middle = least + (most - least) / 2;
        // The time of day of the worker, unless the tasks contradict it.
        let boot = wall
            .filter(|wall| (least..=most).contains(wall))
            .unwrap_or(middle);
        clock.boot_ms = Some(boot);
        clock.shift_ms = wall.map(|wall| boot - wall);
        // Both sides are rounded to milliseconds.
        clock.error_ms = Some((boot - least).max(most - boot) + 1);
        clock.tasks = all.len();
    }
    clock
}

/// Clocks of the runs. `written` has the time of the worker's boot by the worker's own clock, where its daemon wrote it.
#[must_use]
pub fn clocks(files: &Files, model: &Model, written: &BTreeMap<Run, Option<i64>>) -> Vec<Clock> {
    let mut sampled = sample(files);
    let wanted = sampled
        .values()
        .flatten()
        .filter_map(|seen| seen.task_attempt_id);
    let wanted: std::collections::HashSet<i64> = wanted.collect();
    let of_id: HashMap<i64, usize> = model
        .tasks
        .iter()
        .enumerate()
        .filter(|(_, task)| wanted.contains(&task.id))
        .map(|(at, task)| (task.id, at))
        .collect();
    let join = |(run, wall): (&Run, &Option<i64>)| {
        let seen = sampled.remove(run).unwrap_or_default();
        join(run.clone(), *wall, bounds(&seen, model, &of_id))
    };
    written.iter().map(join).collect()
}

/// What a reader has to know of the clocks.
#[must_use]
pub fn note(clocks: &[Clock]) -> Option<String> {
    let placed: Vec<&Clock> = clocks
        .iter()
        .filter(|clock| clock.boot_ms.is_some())
        .collect();
    if placed.is_empty() {
        return None;
    }
    let worst = placed.iter().filter_map(|clock| clock.error_ms).max();
    let unbounded = placed
        .iter()
        .filter(|clock| clock.error_ms.is_none())
        .count();
    let moved = placed
        .iter()
        .filter(|clock| clock.shift_ms.is_none_or(|shift| shift != 0))
        .count();
    let mut text = match worst {
        Some(worst) => format!(
            "Times of the workers are joined to Spark's by tasks that both know: they are at most {worst} ms wrong."
        ),
        None => String::new(),
    };
    if moved > 0 {
        text += &format!(
            " The clocks of {moved} runs of daemons differ from the driver's and were moved."
        );
    }
    if unbounded > 0 {
        text += &format!(
            " Of {unbounded} runs of daemons no task is known to both: their times are those of the worker's clock."
        );
    }
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(wall: Option<i64>, bounds: &[Bound]) -> (Option<i64>, Option<i64>, Option<i64>) {
        let clock = join(("w".to_owned(), 1), wall, bounds.to_vec());
        (clock.boot_ms, clock.shift_ms, clock.error_ms)
    }

    #[test]
    fn tasks_bound_the_difference_of_the_clocks() {
        // Clocks agree as far as tasks show: the worker's is taken.
        let agree = joined(Some(1000), &[(990, 1030), (998, 1012)]);
        assert_eq!(agree, (Some(1000), Some(0), Some(13)));
        // The driver is ahead.
        let ahead = joined(Some(1000), &[(5990, 6030), (5998, 6012)]);
        assert_eq!(ahead, (Some(6005), Some(5005), Some(8)));
        // Ends that are reported late contradict the begins a little.
        assert_eq!(
            joined(Some(1000), &[(1004, 998)]),
            (Some(1000), Some(0), Some(5))
        );
        // Bounds that contradict by more say nothing, as do tasks of another attempt.
        assert_eq!(
            joined(Some(1000), &[(9000, 2000)]),
            (Some(1000), Some(0), None)
        );
        let hour = 3_600_000;
        assert_eq!(
            joined(Some(1000), &[(hour, hour + 5)]),
            (Some(1000), Some(0), None)
        );
        // A daemon that wrote no clock has its tasks only.
        assert_eq!(
            joined(None, &[(hour, hour + 4)]),
            (Some(hour + 2), None, Some(3))
        );
        assert_eq!(joined(None, &[]), (None, None, None));
    }

    #[test]
    fn the_note_has_the_largest_error_and_what_has_none() {
        let clocks = [
            (Some(1000), vec![(998, 1012)]),
            (Some(1000), vec![]),
            (Some(1000), vec![(2000, 2002)]),
        ];
        let all: Vec<Clock> = clocks
            .into_iter()
            .map(|(wall, bounds)| join(("w".to_owned(), 1), wall, bounds))
            .collect();
        let text = note(&all).expect("has a sentence");
        assert!(text.contains("at most 13 ms wrong"), "{text}");
        assert!(
            text.contains("clocks of 1 runs") && text.contains("Of 1 runs"),
            "{text}"
        );
        assert_eq!(note(&[]), None);
    }
}
