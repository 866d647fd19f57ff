//! Sick applications whose truth is known, the same after their remedy, and healthy ones.

mod workers;

use std::path::Path;

use super::workers::Figures;
use super::{Advice, Saving};
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::{Made, Numbers, Stage, Task};
use crate::open::App;

/// Advice from the log alone.
fn advise(app: &App) -> Result<Advice, smtt_store::read::ParquetError> {
    super::advise(app, Figures::default())
}

/// Even work: partitions of nearly one size, times with noise.
fn healthy(count: usize, seed: u64) -> Vec<Task> {
    let mut noise = Numbers::of(seed);
    let make = |_| {
        let input = 9_000_000 + noise.below(2_000_000);
        let mut task = Task::new(input / 5_000 + noise.below(200), input);
        task.gc = noise.below(80);
        task.fetch = noise.below(60);
        task.write = noise.below(60);
        task.shuffle_read = input / 4;
        task.peak = 50_000_000;
        task
    };
    (0..count).map(make).collect()
}

fn made(tasks: Vec<Task>) -> Made {
    Made::new("app-1", vec![Stage::new("sick at App.scala:1", tasks)])
}

fn advice(tasks: Vec<Task>) -> (Advice, f64) {
    told(&made(tasks))
}

/// The advice, and how long the application took in seconds.
fn told(made: &Made) -> (Advice, f64) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let length = made.log().1 as f64 / 1000.0;
    (advise(&made.open(folder.path())).expect("advises"), length)
}

/// The application of a log.
fn opened(folder: &Path, lines: &[String]) -> App {
    let path = folder.join("log");
    std::fs::write(&path, lines.join("\n")).expect("writes");
    let (store, admission) = (folder.join("store"), Admission::default());
    let imported = import(&store, &path, Bounds::default(), &admission).expect("imports");
    App::open(&imported.folder).expect("opens")
}

/// The sick application has this finding and no other; the truth is how much shorter it is after the remedy.
fn sick(rule: &str, reason: &str, before: Vec<Task>, after: Vec<Task>) {
    sick_run(rule, reason, &made(before), &made(after));
}

fn sick_run(rule: &str, reason: &str, before: &Made, after: &Made) {
    let (found, long) = told(before);
    let rules: Vec<&str> = found.findings.iter().map(|it| it.rule).collect();
    assert_eq!(rules, [rule], "{found:#?}");
    let finding = &found.findings[0];
    assert!(finding.title.contains(reason), "{}", finding.title);
    let (remedied, short) = told(after);
    assert!(
        remedied.findings.iter().all(|it| it.rule != rule),
        "{remedied:#?}"
    );
    let saved = long - short;
    let saving = finding.saving;
    assert!(
        saving.low <= saved + 0.05 && saved <= saving.high + 0.05,
        "{rule}: {saved:.2} s were saved, {saving:?}"
    );
    assert!(
        saving.low <= saving.expected && saving.expected <= saving.high,
        "{saving:?}"
    );
    assert!(
        !finding.settings.is_empty()
            && !finding.computed.is_empty()
            && !finding.disproof.is_empty()
    );
    let shown = super::text::text(&found);
    assert!(
        shown.contains(rule) && shown.contains("expected saving"),
        "{shown}"
    );
}

#[test]
fn healthy_applications_have_no_finding() {
    for seed in 1..9 {
        for count in [32, 64, 200] {
            let (found, _) = advice(healthy(count, seed));
            assert!(
                found.findings.is_empty(),
                "{seed} {count}: {:#?}",
                found.findings
            );
            assert_eq!(found.nothing.len(), 8);
        }
    }
}

#[test]
fn a_large_partition_is_skew_by_size() {
    let mut before = healthy(64, 3);
    let large = |task: &mut Task| {
        task.input *= 12;
        task.shuffle_read *= 12;
        task.run *= 12;
    };
    large(&mut before[40]);
    // After salting its work is in twelve tasks.
    let mut after = healthy(64, 3);
    let one = after[40].clone();
    after.splice(40..41, std::iter::repeat_n(one, 12));
    sick("skew", "read more", before, after);
}

/// A shuffle by few keys: fifty partitions have nothing, thirteen 1 MB, and one as many records as it is given.
fn mostly_empty(large: i64, records: Option<i64>) -> Vec<Task> {
    let mut tasks = vec![Task::new(10, 0); 50];
    tasks.extend(vec![Task::new(200, 1_000_000); 13]);
    let mut one = Task::new(200 * large, 1_000_000 * large);
    one.records = records;
    tasks.push(one);
    tasks
}

#[test]
fn a_large_partition_among_empty_ones_is_skew_by_size() {
    let before = mostly_empty(60, None);
    let mut after = mostly_empty(1, None);
    after.extend(vec![Task::new(200, 1_000_000); 59]);
    sick("skew", "read more", before.clone(), after);
    let (found, _) = advice(before);
    let finding = &found.findings[0];
    let shown = super::text::text(&found);
    assert!(shown.contains("the mean, because most tasks read nothing"));
    // 73 MB in 64 partitions.
    let settings: Vec<&str> = finding.settings.iter().map(|it| &*it.value).collect();
    assert!(settings.contains(&"53 parts"), "{settings:?}");
}

#[test]
fn one_large_record_cannot_be_cut() {
    let (found, _) = advice(mostly_empty(60, Some(1)));
    let is_skew = found.findings.iter().any(|it| it.rule == "skew");
    assert!(!is_skew, "{:#?}", found.findings);
}

#[test]
fn what_one_reader_reads_explains_nothing_that_something_else_does() {
    let mut tasks = vec![Task::new(10, 0); 63];
    let mut one = Task::new(60_000, 1000);
    one.gc = 59_000;
    tasks.push(one);
    let (found, _) = advice(tasks);
    let skew = found.findings.iter().find(|it| it.rule == "skew");
    let title = skew.map(|it| it.title.as_str()).unwrap_or_default();
    assert!(title.ends_with("garbage collections"), "{title}");
}

#[test]
fn collections_explain_late_tasks() {
    let mut before = healthy(64, 5);
    for task in before.iter_mut().skip(50).step_by(7) {
        task.gc += 9000;
        task.run += 9000;
    }
    sick("skew", "garbage collections", before, healthy(64, 5));
}

#[test]
fn data_elsewhere_explain_late_tasks() {
    let mut before = healthy(96, 6);
    for task in before.iter_mut().skip(80).step_by(3) {
        task.locality = "ANY";
        task.run *= 5;
    }
    sick("skew", "another node", before, healthy(96, 6));
}

/// Tasks from the 33rd on have their data elsewhere; those of the second round on each core start so much later.
fn held_back(run: i64, elsewhere: i64, ms: i64) -> Advice {
    let mut tasks = vec![Task::new(run, 1_000_000); 64];
    for task in &mut tasks[32..] {
        task.locality = "ANY";
        task.run = elsewhere;
    }
    let held = with_times(&made(tasks).log().0, |info| {
        if info["Task ID"].as_i64() >= Some(32) {
            later(info, "Launch Time", ms);
            later(info, "Finish Time", ms);
        }
    });
    let folder = tempfile::tempdir().expect("makes a folder");
    advise(&opened(folder.path(), &held)).expect("advises")
}

#[test]
fn cores_that_wait_for_tasks_near_their_data_are_found_and_others_are_not() {
    let found = held_back(2000, 2000, 3000);
    let finding = &found.findings[0];
    assert_eq!(finding.rule, "locality_wait", "{found:#?}");
    // A task takes as long elsewhere: waiting is worth nothing.
    assert_eq!(finding.settings[0].name, "spark.locality.wait");
    assert!(
        finding.settings[0].value.starts_with("0 ms"),
        "{finding:#?}"
    );
    let Saving { low, high, .. } = finding.saving;
    assert!(low <= 3.0 && 3.0 <= high, "{finding:#?}");
    // Where it takes four times as long, waiting for 3 s is right.
    let worth = held_back(1000, 4000, 3000);
    assert!(
        worth.findings.iter().all(|it| it.rule != "locality_wait"),
        "{worth:#?}"
    );
    let none = held_back(2000, 2000, 0);
    assert!(none.findings.is_empty(), "{none:#?}");
}

#[test]
fn time_around_the_run_advises_no_wait_for_locality() {
    let mut tasks = vec![Task::new(600, 1_000_000); 200];
    for task in &mut tasks[100..116] {
        task.delay = 3000;
    }
    let (found, _) = advice(tasks);
    let finding = &found.findings[0];
    assert!(finding.title.contains("around their run"), "{finding:#?}");
    let wait = "spark.locality.wait";
    assert!(finding.settings.iter().all(|it| it.name != wait));
}

#[test]
fn late_tasks_without_a_measured_reason_are_told_apart() {
    let mut before = healthy(64, 8);
    before[60].run *= 8;
    let mut after = healthy(64, 8);
    after[60].run *= 2;
    let (found, _) = advice(before.clone());
    assert!(
        found.findings[0]
            .settings
            .iter()
            .any(|it| it.name == "spark.speculation")
    );
    sick("skew", "nothing that was measured", before, after);
}

#[test]
fn a_slow_host_is_named() {
    let on = |slow: Option<(usize, i64)>| Made {
        slow,
        ..made(healthy(160, 9))
    };
    sick_run("slow_host", "host2", &on(Some((2, 2))), &on(None));
}

#[test]
fn few_tasks_leave_cores_idle() {
    // Four tasks on sixteen cores; the remedy gives each core two.
    let before: Vec<Task> = healthy(4, 10)
        .into_iter()
        .map(|mut task| {
            task.run *= 4;
            task
        })
        .collect();
    let after = before.iter().flat_map(|task| {
        let part = Task {
            run: task.run / 8,
            input: task.input / 8,
            shuffle_read: task.shuffle_read / 8,
            ..task.clone()
        };
        std::iter::repeat_n(part, 8)
    });
    let after = after.collect();
    sick("idle_cores", "4 tasks for 16 cores", before, after);
}

#[test]
fn small_tasks_cost_more_around_than_within() {
    let small = |count: usize, run: i64| -> Vec<Task> {
        let mut noise = Numbers::of(11);
        (0..count)
            .map(|_| {
                let mut task = Task::new(run, 1000);
                task.delay = 30 + noise.below(20);
                task
            })
            .collect()
    };
    sick(
        "small_tasks",
        "4000 tasks",
        small(4000, 20),
        small(80, 1000),
    );
}

#[test]
fn spilling_is_held_against_tasks_that_do_not_spill() {
    let with = |spills: bool| {
        let mut tasks = healthy(128, 12);
        for task in tasks.iter_mut().step_by(2) {
            if spills {
                task.spilled = 150_000_000;
                task.run = task.run * 7 / 5;
            }
        }
        tasks
    };
    let (found, _) = advice(with(true));
    let finding = &found.findings[0];
    // 50 MB were there and 150 MB spilled: four times as many partitions.
    assert_eq!(finding.settings[0].value, "512");
    sick("spilling", "64 of 128 tasks spill", with(true), with(false));
}

#[test]
fn where_all_tasks_spill_there_are_only_bounds() {
    let with = |spilled: i64| {
        let mut tasks = healthy(64, 13);
        for task in &mut tasks {
            task.spilled = spilled;
        }
        tasks
    };
    let (found, _) = advice(with(1 << 28));
    // The made tasks use a CPU all the time: a spill cannot have cost them anything.
    assert!(found.findings.is_empty(), "{found:#?}");
}

#[test]
fn waiting_for_blocks_has_its_share_and_its_hosts() {
    let with = |wait: i64| {
        let mut noise = Numbers::of(14);
        let mut tasks = healthy(96, 14);
        for task in &mut tasks {
            let wait = noise.below(wait.max(1));
            task.fetch += wait;
            task.run += wait;
        }
        tasks
    };
    let (found, _) = advice(with(3000));
    let finding = &found.findings[0];
    assert!(
        finding.numbers.iter().any(|it| it.value.contains("host")),
        "{finding:#?}"
    );
    assert!(finding.not_measured[0].contains("from which host"));
    sick("fetch_wait", "for shuffle blocks", with(3000), with(0));
}

/// The lines of a log in which the times of each task are changed.
fn with_times(log: &str, change: impl Fn(&mut serde_json::Value)) -> Vec<String> {
    log.lines()
        .map(|line| {
            let mut event: serde_json::Value = serde_json::from_str(line).expect("parses");
            if event.get("Task Info").is_some() {
                change(&mut event["Task Info"]);
            }
            event.to_string()
        })
        .collect()
}

fn later(info: &mut serde_json::Value, name: &str, ms: i64) {
    let time = info[name].as_i64().expect("a time");
    if time > 0 {
        info[name] = (time + ms).into();
    }
}

/// The driver learns of a task's end when it has launched the next one on that core already.
#[test]
fn late_ends_do_not_make_cores() {
    let mut made = made(vec![Task::new(10, 1000); 4000]);
    (made.executors, made.cores) = (1, 2);
    let (log, length) = made.log();
    // Three or four tasks seem to run at a time.
    let late = with_times(&log, |info| later(info, "Finish Time", 12));
    let folder = tempfile::tempdir().expect("makes a folder");
    let found = advise(&opened(folder.path(), &late)).expect("advises");
    let saving = found.findings[0].saving;
    // 20 s of run time on two cores, in tasks of a second.
    let saved = length as f64 / 1000.0 - 20.0;
    assert_eq!(found.findings[0].rule, "small_tasks");
    assert!(
        saving.low <= saved && saved <= saving.high && (saving.expected - saved).abs() < 2.0,
        "{saved}: {saving:?}"
    );
}

#[test]
fn a_stage_that_stood_still_has_no_small_tasks() {
    let mut made = made(vec![Task::new(75, 1000); 1000]);
    (made.executors, made.cores) = (1, 2);
    let stood = with_times(&made.log().0, |info| {
        if info["Task ID"].as_i64() >= Some(500) {
            later(info, "Launch Time", 240_000);
            later(info, "Finish Time", 240_000);
        }
    });
    let folder = tempfile::tempdir().expect("makes a folder");
    let found = advise(&opened(folder.path(), &stood)).expect("advises");
    assert!(found.findings.is_empty(), "{:#?}", found.findings);
}

#[test]
fn savings_are_in_order_and_within_the_stage_also_with_wrong_cores() {
    let mut tasks = vec![Task::new(1000, 1_000_000); 8];
    let spilling = Task {
        spilled: 1,
        ..Task::new(10_000, 1_000_000)
    };
    tasks.extend(vec![spilling; 8]);
    let log = made(tasks).log().0;
    let wrong: Vec<String> = log
        .lines()
        .filter(|line| {
            !line.contains("SparkListenerExecutorAdded") || line.contains(r#""Executor ID":"0""#)
        })
        .map(|line| line.replace(r#""Total Cores":4"#, r#""Total Cores":1"#))
        .collect();
    let folder = tempfile::tempdir().expect("makes a folder");
    let found = advise(&opened(folder.path(), &wrong)).expect("advises");
    assert!(!found.findings.is_empty());
    for finding in found.findings {
        let Saving {
            low,
            expected,
            high,
        } = finding.saving;
        assert!(
            low <= expected && expected <= high && high <= found.stage_seconds,
            "{finding:#?}"
        );
    }
}

#[test]
fn the_first_tasks_of_executors_that_start_are_no_skew() {
    let mut tasks = vec![Task::new(600, 1_000_000); 200];
    for task in &mut tasks[..16] {
        task.delay = 3000;
    }
    let (found, _) = advice(tasks.clone());
    assert!(found.findings.is_empty(), "{:#?}", found.findings);
    // Later ones are.
    tasks.rotate_left(100);
    let (found, _) = advice(tasks);
    assert_eq!(found.findings[0].rule, "skew", "{:#?}", found.findings);
}

#[test]
fn parts_of_a_long_task_take_as_long_as_tasks_of_their_size() {
    // The long task ran alone at the end, twice as fast as the others.
    let mut before = vec![Task::new(1000, 1_000_000); 64];
    before.push(Task::new(16_000, 32_000_000));
    let after = vec![Task::new(1000, 1_000_000); 96];
    sick("skew", "read more", before, after);
}

#[test]
fn hostile_names_do_not_reach_a_terminal() {
    let mut tasks = healthy(64, 3);
    tasks[40].run *= 30;
    let made = Made::new("app-1", vec![Stage::new("\u{1b}[2J\u{202e}", tasks)]);
    let folder = tempfile::tempdir().expect("makes a folder");
    let found = advise(&made.open(folder.path())).expect("advises");
    assert_eq!(found.findings.len(), 1);
    let shown = super::text::text(&found);
    assert!(
        !shown.contains('\u{1b}') && !shown.contains('\u{202e}'),
        "{shown}"
    );
}

#[test]
fn claimed_cores_are_bounded_also_in_their_sum() {
    for (executors, cores) in [(1, i32::MAX as usize), (40, 90_000), (4, 2_000_000_000)] {
        let mut made = made(healthy(4, 10));
        (made.executors, made.cores) = (4, 4);
        let log = made.log().0;
        let claimed = |executor: usize| {
            format!(
                r#"{{"Event":"SparkListenerExecutorAdded","Timestamp":1,"Executor ID":"x{executor}","Executor Info":{{"Host":"h","Total Cores":{cores}}}}}"#
            )
        };
        let mut lines: Vec<String> = log.lines().map(str::to_owned).collect();
        lines.splice(1..1, (0..executors).map(claimed));
        let folder = tempfile::tempdir().expect("makes a folder");
        let found = advise(&opened(folder.path(), &lines)).expect("advises");
        assert!(found.findings.iter().all(|it| it.rule != "idle_cores"));
        assert_eq!(found.stages_without_cores, 1, "{executors} of {cores}");
        assert!(super::text::text(&found).contains("too many cores"));
    }
}

#[test]
fn stages_of_one_name_are_one_finding_with_the_words_of_the_one_that_costs_most() {
    let mut merged = super::Merged::default();
    for stage in 0..30 {
        let seconds = f64::from((stage * 7) % 30 + 1);
        let saving = super::Saving::new(0.0, seconds, 2.0 * seconds);
        let attempt = super::read::Attempt {
            key: (stage, 0),
            ..super::read::Attempt::default()
        };
        merged.add(attempt.finding("skew", saving, format!("{seconds}")));
    }
    let one = merged.one().expect("is there");
    // Stage 17 has the longest: 17 * 7 is 29 in a count of 30.
    assert_eq!((one.title.as_str(), one.stages[0].as_str()), ("30", "17.0"));
    assert_eq!((one.stages.len(), one.more_stages), (20, 10));
    assert_eq!((one.saving.expected, one.saving.high), (465.0, 930.0));
}
