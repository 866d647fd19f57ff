//! Runs whose changes are known, and runs without one.

use std::path::Path;

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, TASKS, Whose, Workers};

use super::interval::difference;
use super::stages::{METRICS, Matched};
use super::{Diff, Verdict, diff, text::text};
use crate::made::{Made, Numbers, Stage, Task};

/// Tasks of partitions of different sizes: run times follow the size, with noise of a tenth.
fn tasks(count: usize, seed: u64, change: impl Fn(&mut Task)) -> Vec<Task> {
    // The data are the same in all runs, the noise is not.
    let (mut data, mut noise) = (Numbers::of(7), Numbers::of(seed));
    let make = |_| {
        let input = 5_000_000 + data.below(20_000_000);
        let run = input / 10_000;
        let mut task = Task::new(run * 9 / 10 + noise.below(run / 5), input);
        task.gc = noise.below(60);
        task.fetch = noise.below(40);
        task.peak = input * 2;
        change(&mut task);
        task
    };
    (0..count).map(make).collect()
}

fn run(id: &str, seed: u64, sick: bool) -> Made {
    let stages = (0..6).map(|number| {
        let mut stage = Stage::new(
            &format!("map at App.scala:{number}"),
            tasks(60, seed + number, |_| {}),
        );
        if sick && number == 2 {
            stage.tasks = tasks(60, seed + number, |task| {
                task.spilled = task.input;
                task.run = task.run * 13 / 10;
            });
        }
        if sick && number == 4 {
            stage.tasks = tasks(60, seed + number, |task| task.gc += 200);
        }
        stage
    });
    Made::new(id, stages.collect())
}

fn compare(first: &Made, second: &Made) -> Diff {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (left, right) = (first.open(folder.path()), second.open(folder.path()));
    diff(&folder.path().join("store"), &left, &right).expect("compares")
}

fn changes(diff: &Diff) -> Vec<(i32, &'static str, Verdict)> {
    diff.changed()
        .map(|(pair, figure)| (pair.first.stage, figure.key, figure.verdict))
        .collect()
}

#[test]
fn known_changes_are_found_and_no_others() {
    let (first, second) = (run("app-1", 1000, false), run("app-2", 2000, true));
    let diff = compare(&first, &second);
    let mut found = changes(&diff);
    found.sort_by_key(|it| (it.0, it.1));
    assert_eq!(
        found,
        [
            (2, "cpu_time", Verdict::More),
            (2, "disk_spilled", Verdict::More),
            (2, "memory_spilled", Verdict::More),
            (2, "run_time", Verdict::More),
            (2, "task_time", Verdict::More),
            (4, "cpu_time", Verdict::Less),
            (4, "gc_time", Verdict::More),
        ]
    );
    // The intervals have the change that was made.
    let truth = |stage: usize, of: &dyn Fn(&Task) -> i64| -> f64 {
        let sum = |run: &Made| run.stages[stage].tasks.iter().map(of).sum::<i64>() as f64;
        sum(&second) - sum(&first)
    };
    for (pair, figure) in diff.changed() {
        let stage = pair.first.stage as usize;
        let expected = match figure.key {
            "run_time" => truth(stage, &|task| task.run),
            "gc_time" => truth(stage, &|task| task.gc),
            "memory_spilled" => truth(stage, &|task| task.spilled),
            _ => continue,
        };
        let interval = figure.interval.expect("has an interval");
        assert!(
            interval.low <= expected && expected <= interval.high,
            "{figure:?}: {expected}"
        );
        assert!(
            (figure.second - figure.first - expected).abs() < 1.0,
            "{figure:?}: {expected}"
        );
    }
    assert!(
        diff.stages
            .iter()
            .all(|pair| pair.paired && pair.matched_by == Matched::CallSite)
    );
    let shown = text(&diff);
    assert!(
        shown.contains("\nStage 2 -> 2: map at App.scala:2\n") && shown.contains("4 of 6 stages"),
        "{shown}"
    );
    // The other way round it is less.
    let back = compare(&second, &first);
    assert!(changes(&back).contains(&(2, "run_time", Verdict::Less)));
}

/// Page faults of each task of a run, in the order of their ids; `None` of a task of which no worker wrote.
type Faults = Vec<Option<i64>>;

/// Page faults of a run of six stages of sixty tasks, with noise.
fn page_faults(seed: u64) -> Faults {
    let mut noise = Numbers::of(seed);
    (0..360).map(|_| Some(10_000 + noise.below(400))).collect()
}

/// Writes what a worker counted.
fn write(folder: &Path, id: &str, all: &Faults) {
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut batch = Batch::new(&TASKS);
    for (task, faults) in all.iter().enumerate() {
        let Some(faults) = faults else { continue };
        let (none, zero) = (Cell::None, Cell::Number(0));
        let state = Cell::Text("succeeded");
        let who = [zero, zero, Cell::Number(task as i64), none, state];
        let what = [none, Cell::Number(*faults), none, none, none];
        let more = [Cell::Text("{}"), none, none, none, none];
        batch.push(&[&who[..], &what[..], &more[..]].concat());
    }
    let mut workers = Workers::take(&folder.join("store"), "node-1", 1, None, any).expect("opens");
    let done = workers.add(Whose::of(id, 7), 0, &batch, &|uid| uid);
    done.expect("writes");
}

fn compare_counted(faults: &[Faults; 2]) -> Diff {
    let folder = tempfile::tempdir().expect("makes a folder");
    let runs = [run("app-1", 1000, false), run("app-2", 2000, false)];
    let [left, right] = [0, 1].map(|at| {
        let app = runs[at].open(folder.path());
        write(folder.path(), &runs[at].id, &faults[at]);
        app
    });
    diff(&folder.path().join("store"), &left, &right).expect("compares")
}

#[test]
fn page_faults_that_workers_counted_are_compared() {
    let mut faults = [page_faults(5), page_faults(6)];
    assert_eq!(changes(&compare_counted(&faults)), []);
    // 2,000 more of each task of stage 3.
    for count in faults[1][180..240].iter_mut().flatten() {
        *count += 2000;
    }
    let diff = compare_counted(&faults);
    assert_eq!(changes(&diff), [(3, "page_faults", Verdict::More)]);
    let (_, figure) = diff.changed().next().expect("is there");
    let sum = |run: &Faults| run[180..240].iter().flatten().sum::<i64>() as f64;
    let (first, second) = (sum(&faults[0]), sum(&faults[1]));
    assert_eq!((figure.first, figure.second), (first, second));
    let interval = figure.interval.expect("has an interval");
    assert!(
        interval.low <= second - first
            && second - first <= interval.high
            && interval.low > 60_000.0,
        "{interval:?}, the change is {}",
        second - first
    );
    let shown = text(&diff);
    assert!(shown.contains("page faults"), "{shown}");
    // Without one task's row in one of the runs the sum of the stage is not known: no figure, and no change to zero.
    for run in [0, 1] {
        let mut faults = faults.clone();
        faults[run][200] = None;
        let diff = compare_counted(&faults);
        assert_eq!(changes(&diff), [], "run {run}");
        let has = |stage: usize| {
            let mut figures = diff.stages[stage].figures.iter();
            figures.any(|figure| figure.key == "page_faults")
        };
        let stages: Vec<bool> = (0..6).map(has).collect();
        assert_eq!(stages, [true, true, true, false, true, true], "run {run}");
    }
}

#[test]
fn more_execution_memory_is_named() {
    let (first, mut second) = (run("app-1", 1000, false), run("app-2", 2000, false));
    for task in &mut second.stages[1].tasks {
        task.peak *= 2;
    }
    let diff = compare(&first, &second);
    let peak = "peak_execution_memory";
    assert_eq!(changes(&diff), [(1, peak, Verdict::More)]);
    let (_, figure) = diff.changed().next().expect("is there");
    let sum: i64 = first.stages[1].tasks.iter().map(|task| task.peak).sum();
    assert_eq!(figure.first, sum as f64);
    assert_eq!(figure.second, 2.0 * sum as f64);
    assert_eq!(
        changes(&compare(&second, &first)),
        [(1, peak, Verdict::Less)]
    );
}

#[test]
fn runs_of_the_same_have_no_change() {
    for seed in 1..=4 {
        let diff = compare(
            &run("app-1", seed * 100, false),
            &run("app-2", seed * 100 + 50, false),
        );
        assert_eq!(changes(&diff), [], "seed {seed}");
        assert!(diff.comparisons >= 6 * 7, "{}", diff.comparisons);
    }
}

/// The intervals of sums of tasks without a change exclude 0 as often as they say.
#[test]
fn intervals_hold_as_often_as_they_say() {
    let mut noise = Numbers::of(5);
    for (paired, is_skewed) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut draw = |count: usize| -> Vec<f64> {
            let one = |_| {
                let value = noise.below(1000) as f64;
                // A few tasks take up to eight times longer.
                if is_skewed {
                    value.powi(4) / 1e9
                } else {
                    value
                }
            };
            (0..count).map(one).collect()
        };
        let mut alarms = 0;
        for _ in 0..4000 {
            let (first, second) = (draw(40), draw(40));
            let found = difference(&first, &second, paired, 0.99);
            alarms += usize::from(found.low > 0.0 || found.high < 0.0);
        }
        // 40 are expected; three standard deviations are 19. Skewed values give fewer.
        let least = if is_skewed { 3 } else { 21 };
        assert!(
            (least..=59).contains(&alarms),
            "{paired} {is_skewed}: {alarms}"
        );
    }
}

#[test]
fn other_numbers_of_tasks_are_compared_by_their_sums() {
    let mut first = run("app-1", 1, false);
    let mut second = run("app-2", 2, false);
    first.stages.truncate(1);
    second.stages.truncate(1);
    // Each task is cut in two halves: the same work.
    let halves = |task: &Task| {
        let half = Task {
            run: task.run / 2,
            gc: task.gc / 2,
            fetch: task.fetch / 2,
            input: task.input / 2,
            peak: task.peak / 2,
            delay: 2,
            ..task.clone()
        };
        [half.clone(), half]
    };
    second.stages[0].tasks = second.stages[0].tasks.iter().flat_map(halves).collect();
    let same = compare(&first, &second);
    assert!(!same.stages[0].paired);
    assert_eq!(changes(&same), []);
    for task in &mut second.stages[0].tasks {
        task.run *= 2;
    }
    let more = compare(&first, &second);
    assert!(
        changes(&more).contains(&(0, "run_time", Verdict::More)),
        "{more:?}"
    );
}

#[test]
fn stages_are_matched_by_call_site_and_the_others_are_named() {
    let mut first = run("app-1", 1, false);
    let mut second = run("app-2", 2, false);
    // A loop's stages have one call site; the second run has an earlier stage more, and edited lines.
    first.stages[5] = Stage::new("loop at App.scala:9", tasks(20, 3, |_| {}));
    first
        .stages
        .push(Stage::new("loop at App.scala:9", tasks(20, 4, |_| {})));
    second.stages[5] = Stage::new("loop at App.scala:11", tasks(20, 5, |_| {}));
    second
        .stages
        .push(Stage::new("loop at App.scala:11", tasks(20, 6, |_| {})));
    second.stages.insert(
        0,
        Stage::new("new\u{1b}[2J at App.scala:1", tasks(3, 7, |_| {})),
    );
    first.stages.remove(3);
    second.properties[0].1 = "2".to_owned();
    let diff = compare(&first, &second);
    let pairs: Vec<(i32, i32, Matched)> = diff
        .stages
        .iter()
        .map(|pair| (pair.first.stage, pair.second.stage, pair.matched_by))
        .collect();
    let (site, lines) = (Matched::CallSite, Matched::CallSiteWithoutLines);
    assert_eq!(
        pairs,
        [
            (0, 1, site),
            (1, 2, site),
            (2, 3, site),
            (3, 5, site),
            (4, 6, lines),
            (5, 7, lines)
        ]
    );
    assert_eq!(diff.only_first.len(), 0);
    let alone: Vec<i32> = diff.only_second.iter().map(|it| it.side.stage).collect();
    assert_eq!(alone, [0, 4]);
    assert_eq!(diff.properties.len(), 1);
    let shown = text(&diff);
    assert!(
        !shown.contains('\u{1b}') && shown.contains("Only in the second run"),
        "{shown}"
    );
    assert!(shown.contains("spark.executor.cores: 4 -> 2"), "{shown}");
    let json = serde_json::to_value(&diff).expect("is JSON");
    assert_eq!(json["stages"][4]["matched_by"], "call_site_without_lines");
}

#[test]
fn few_tasks_are_not_judged() {
    let mut first = run("app-1", 1, false);
    let mut second = run("app-2", 2, false);
    first.stages = vec![Stage::new("few", vec![Task::new(1000, 10); 4])];
    second.stages = vec![Stage::new("few", vec![Task::new(9000, 10); 4])];
    let diff = compare(&first, &second);
    let verdicts: Vec<Verdict> = diff.stages[0].figures.iter().map(|it| it.verdict).collect();
    assert!(!verdicts.is_empty() && verdicts.iter().all(|it| *it == Verdict::TooFewTasks));
    assert_eq!(METRICS.len(), 14);
}
