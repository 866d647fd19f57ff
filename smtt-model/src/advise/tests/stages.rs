//! Rules about the tasks of a stage: waits for shuffle blocks, and skew.

use super::*;
use crate::rows::{EndedTask, StageTasks, TasksByStage};

const MS: u64 = 1_000_000;

/// A task of a partition that begins and ends at these milliseconds, reads so many MiB and as many records, and waits.
fn task(partition: u32, from: u64, to: u64, mib: u64, wait_ms: u64) -> EndedTask {
    EndedTask {
        partition,
        start_ns: from * MS,
        end_ns: to * MS,
        run_ms: Some(to - from),
        collection_ms: Some(0),
        bytes: Some(mib * MIB),
        records: Some(mib),
        fetch_wait_ns: Some(wait_ms * MS),
    }
}

fn stage(id: u32, ended: Vec<EndedTask>) -> StageTasks {
    StageTasks {
        id,
        name: Some("join at Job.scala:7".to_owned()),
        tasks: Some(100),
        executor_ids: ["0".to_owned()].into(),
        ended,
        ..StageTasks::default()
    }
}

fn with(stages: Vec<StageTasks>) -> View {
    let ended = stages.iter().flat_map(|it| &it.ended);
    let times = ended.map(|it| it.end_ns - it.start_ns);
    let mut view = view();
    view.stages = vec![StageRow {
        who: who(),
        task_time_ns: times.sum(),
        ..StageRow::default()
    }];
    view.tasks = TasksByStage::of(stages);
    view
}

/// Two cores: tasks of a second, of which the last but one reads `mib` and takes `ms`.
fn skewed(mib: u64, ms: u64) -> Vec<EndedTask> {
    let mut tasks: Vec<EndedTask> = (0..14)
        .map(|n| {
            task(
                n,
                u64::from(n / 2) * 1000,
                u64::from(n / 2 + 1) * 1000,
                10,
                0,
            )
        })
        .collect();
    tasks.push(task(31, 7000, 7000 + ms, mib, 0));
    tasks.push(task(15, 7000, 8000, 10, 0));
    tasks
}

fn number(finding: &Finding, what: &str) -> Option<Number> {
    let mut numbers = finding.numbers.iter();
    numbers.find(|it| it.what == what).map(|it| it.value)
}

#[test]
fn a_task_that_reads_more_and_takes_longer_is_skew() {
    let view = with(vec![stage(3, skewed(90, 9000))]);
    let advice = advise(&view, &around());
    let finding = found(&advice, "skew").expect("found");
    assert_eq!(finding.severity, Severity::High);
    assert_eq!(finding.subject.stage_id, Some(3));
    assert_eq!(finding.subject.executor_ids, ["0"]);
    for words in ["1 of 16 tasks of stage 3.0", "partition 31 9.0 times"] {
        assert!(finding.title.contains(words), "{}", finding.title);
    }
    for (what, value) in [
        ("partition of the longest of these tasks", 31),
        ("its duration", 9000 * MS),
        ("median duration", 1000 * MS),
        ("bytes that it read", 90 * MIB),
        ("bytes that the median task read", 10 * MIB),
        ("beyond the median, of all late tasks", 8000 * MS),
        ("tasks of the whole stage, on all workers", 100),
    ] {
        assert_eq!(number(finding, what), Some(Number::Whole(value)), "{what}");
    }
    // 8 of 24 s of task time.
    let share = finding.cost.share.expect("a share");
    assert!((share - 8.0 / 24.0).abs() < 1e-9, "{share}");
    // The stage takes 16 s on two cores, 12 s with even work; other workers may take all parts.
    let saving = finding.saving.expect("seconds");
    assert!(
        saving.low > 1.0 && saving.low <= saving.expected,
        "{saving:?}"
    );
    assert!(
        saving.expected < 4.0 && (saving.high - 8.0).abs() < 1e-9,
        "{saving:?}"
    );
    assert!(
        finding.computed.contains("on 2 cores"),
        "{}",
        finding.computed
    );
    let words = finding.saving_words().expect("seconds");
    assert!(words.ends_with("until the stage's tasks on this worker have ended"));
    let said = lines(finding);
    assert!(
        said.contains("spark.sql.adaptive.skewJoin.enabled  true")
            && said.contains("skewedPartitionThresholdInBytes  20971520b"),
        "{said}"
    );
    let why = &finding.remedies[1].why;
    assert!(why.contains("salt") && why.contains("in 9 parts"), "{why}");
    assert!(
        finding
            .not_measured
            .iter()
            .any(|it| it.contains("other workers"))
    );
}

#[test]
fn records_count_where_bytes_are_alike() {
    let mut tasks = skewed(10, 9000);
    tasks[14].records = Some(90);
    let view = with(vec![stage(3, tasks)]);
    let advice = advise(&view, &around());
    let finding = found(&advice, "skew").expect("found");
    assert_eq!(
        number(finding, "records that it read"),
        Some(Number::Whole(90))
    );
    assert!(!lines(finding).contains("ThresholdInBytes"), "{finding:?}");
}

/// Sixteen tasks, of which twelve read nothing; the others read so many MiB in so many milliseconds, one after the other.
fn mostly_empty(read: [(u64, u64); 4]) -> Vec<EndedTask> {
    let empty = (0..12).map(|n| task(n, 0, 20, 0, 0));
    let mut tasks: Vec<EndedTask> = empty.collect();
    for (partition, (mib, ms)) in (12..).zip(read) {
        tasks.push(task(partition, 20, 20 + ms, mib, 0));
    }
    tasks
}

#[test]
fn one_partition_with_nearly_all_is_skew_where_most_are_empty() {
    for (read, late, times) in [
        ([(0, 20), (0, 20), (0, 20), (160, 9000)], 1, "16.0"),
        ([(10, 1000), (10, 1000), (10, 1000), (90, 9000)], 4, "12.0"),
    ] {
        let advice = advise(&with(vec![stage(3, mostly_empty(read))]), &around());
        let finding = found(&advice, "skew").expect("found");
        assert_eq!(number(finding, "late tasks"), Some(Number::Whole(late)));
        let words = format!("partition 15 {times} times an even part");
        assert!(finding.title.ends_with(&words), "{}", finding.title);
        let what = "bytes that the median task read";
        assert_eq!(number(finding, what), Some(Number::Whole(0)));
        let what = "bytes that each task would read if all was even";
        assert!(number(finding, what).is_some(), "{finding:?}");
        let saving = finding.saving.expect("seconds");
        assert!(saving.expected > 5.0 && saving.high < 9.0, "{saving:?}");
    }
    // Others read at ten times its pace, and so it is slow for another reason.
    let other = [(10, 100), (10, 100), (10, 100), (90, 9000)];
    // One record cannot be cut.
    let mut one = mostly_empty([(0, 20), (0, 20), (0, 20), (160, 9000)]);
    one[15].records = Some(1);
    for tasks in [mostly_empty(other), one] {
        let advice = advise(&with(vec![stage(3, tasks)]), &around());
        assert_eq!(went(&advice, "skew"), RuleOutcome::Nothing);
    }
}

#[test]
fn healthy_stages_and_other_reasons_are_no_skew() {
    let none = |what: &str, tasks: Vec<EndedTask>| {
        let advice = advise(&with(vec![stage(3, tasks)]), &around());
        assert_eq!(went(&advice, "skew"), RuleOutcome::Nothing, "{what}");
    };
    none("even", skewed(10, 1000));
    none("reads more and is as fast", skewed(90, 1000));
    none("long for another reason", skewed(10, 9000));
    none("reads a little more", skewed(20, 9000));
    let mut collected = skewed(90, 9000);
    collected[14].bytes = Some(60 * MIB);
    collected[14].records = Some(60);
    collected[14].collection_ms = Some(7500);
    none("collections explain more", collected);
    let mut many = skewed(90, 9000);
    for late in &mut many[..5] {
        *late = task(late.partition, 0, 9000, 90, 0);
    }
    none("a third is long", many);
    // A tenth of a second is not worth it.
    let short = |it: EndedTask| EndedTask {
        start_ns: it.start_ns / 10,
        end_ns: it.end_ns / 10,
        run_ms: it.run_ms.map(|ms| ms / 10),
        ..it
    };
    none("short", skewed(90, 9000).into_iter().map(short).collect());
    // Of a small stage beside large ones.
    let mut view = with(vec![stage(3, skewed(90, 9000))]);
    view.stages[0].task_time_ns = 1_000_000 * MS;
    assert_eq!(
        went(&advise(&view, &around()), "skew"),
        RuleOutcome::Nothing
    );
}

#[test]
fn too_few_tasks_or_none_with_metrics_are_not_called_well() {
    let few: Vec<EndedTask> = skewed(90, 9000).into_iter().skip(9).collect();
    assert_eq!(few.len(), 7);
    let without = skewed(90, 9000).into_iter().map(|it| EndedTask {
        bytes: None,
        fetch_wait_ns: None,
        ..it
    });
    for tasks in [few, without.collect(), Vec::new()] {
        let advice = advise(&with(vec![stage(3, tasks)]), &around());
        for rule in ["skew", "fetch_wait"] {
            assert_eq!(went(&advice, rule), RuleOutcome::NotChecked, "{rule}");
        }
    }
}

#[test]
fn stages_of_one_name_are_one_finding() {
    let stages = (3..40).map(|id| stage(id, skewed(90 - u64::from(id), 9000)));
    let advice = advise(&with(stages.collect()), &around());
    let all: Vec<_> = advice
        .findings
        .iter()
        .filter(|it| it.id == "skew")
        .collect();
    assert_eq!(all.len(), 1);
    let what = "stage attempts of this name with the finding; cost and saving are of all";
    assert_eq!(number(all[0], what), Some(Number::Whole(37)));
    assert_eq!(all[0].subject.stage_id, Some(3), "which reads most");
    let saving = all[0].saving.expect("seconds");
    assert!((saving.high - 37.0 * 8.0).abs() < 1e-6, "{saving:?}");
}

#[test]
fn the_stage_attempt_that_costs_most_has_the_words() {
    // 3, 3 and 5 s: the last costs less than the others together, and more than each.
    let sizes = [(40, 4000), (40, 4000), (60, 6000)];
    let stages = (3..)
        .zip(sizes)
        .map(|(id, (mib, ms))| stage(id, skewed(mib, ms)));
    let advice = advise(&with(stages.collect()), &around());
    let finding = found(&advice, "skew").expect("found");
    assert_eq!(finding.subject.stage_id, Some(5));
    assert!(finding.title.contains("6.0 times"), "{}", finding.title);
    let saving = finding.saving.expect("seconds");
    assert!((saving.high - 11.0).abs() < 1e-6, "{saving:?}");
}

#[test]
fn waits_for_fetches_are_found_by_their_share_and_name_the_slow_host() {
    let tasks = |wait_ms: u64| -> Vec<EndedTask> {
        let one = |n: u32| task(n, 0, 1000, 10, if n < 2 { 0 } else { wait_ms });
        (0..10).map(one).collect()
    };
    let advice = advise(&with(vec![stage(3, tasks(100))]), &around());
    assert_eq!(went(&advice, "fetch_wait"), RuleOutcome::Nothing, "8 %");
    let slow =
        stage(3, tasks(450)).with_senders(&[("fast", 400, 50 * MIB), ("slow", 3000, 50 * MIB)]);
    let advice = advise(&with(vec![slow]), &around());
    let finding = found(&advice, "fetch_wait").expect("found");
    assert_eq!(finding.severity, Severity::High);
    assert!(finding.title.contains("36.0 %"), "{}", finding.title);
    assert!(
        finding.title.ends_with("most for those of slow"),
        "{}",
        finding.title
    );
    for (what, value) in [
        ("waiting for fetches", 3600 * MS),
        ("time of these tasks", 10_000 * MS),
        ("of the wait, for blocks of slow", 3000 * MS),
    ] {
        assert_eq!(number(finding, what), Some(Number::Whole(value)), "{what}");
    }
    // Two tasks wait for nothing: all of the wait may go.
    let saving = finding.saving.expect("seconds");
    assert!(
        (saving.low - 3.6).abs() < 1e-9 && (saving.high - 3.6).abs() < 1e-9,
        "{saving:?}"
    );
    let why: Vec<&str> = finding.remedies.iter().map(|it| it.why.as_str()).collect();
    assert!(
        why[0].contains("the host slow") && why[0].contains("60"),
        "{why:?}"
    );
    assert!(why[1].contains("spark.reducer.maxSizeInFlight"), "{why:?}");
    assert!(
        finding.not_measured[1].contains("200"),
        "200 ms have no host: {:?}",
        finding.not_measured
    );
    // Where each host makes tasks wait alike, none is named as the cause.
    let alike = stage(3, tasks(450)).with_senders(&[("a", 2000, 60 * MIB), ("b", 1500, 40 * MIB)]);
    let advice = advise(&with(vec![alike]), &around());
    let finding = found(&advice, "fetch_wait").expect("found");
    assert_eq!(finding.remedies.len(), 1, "{:?}", finding.remedies);
}

#[test]
fn waits_that_were_not_measured_are_not_called_none() {
    let tasks = (0..10).map(|n| EndedTask {
        fetch_wait_ns: None,
        ..task(n, 0, 1000, 10, 0)
    });
    let mut without = with(vec![stage(3, tasks.collect())]);
    without.tasks.without_waits = 2;
    let mut view = with(vec![stage(
        3,
        (0..10).map(|n| task(n, 0, 1000, 10, 0)).collect(),
    )]);
    view.tasks.without_waits = 1;
    view.tasks.refused = 7;
    for (view, went, parts) in [
        (
            &without,
            RuleOutcome::NotChecked,
            ["blocks: 2", "hook of ShuffleBlockFetcherIterator"],
        ),
        (
            &view,
            RuleOutcome::Nothing,
            [
                "without executors that do not report waits for shuffle blocks: 1",
                "7 facts",
            ],
        ),
    ] {
        let advice = advise(view, &around());
        let mut checks = advice.checks.iter();
        let check = checks.find(|it| it.id == "fetch_wait").expect("a check");
        assert_eq!(check.went, went);
        for part in parts {
            assert!(check.why.contains(part), "{}", check.why);
        }
    }
}

/// The work of the rules, in tasks that simulations run.
fn steps(stages: Vec<StageTasks>) -> (usize, bool) {
    let before = crate::advise::simulate::STEPS.get();
    let advice = advise(&with(stages), &around());
    let steps = crate::advise::simulate::STEPS.get() - before;
    (steps, found(&advice, "skew").is_some())
}

/// Of so many tasks a part takes an hour and claims a terabyte.
fn claimed(tasks: u32, one_of: u32) -> Vec<EndedTask> {
    let one = |n: u32| match n % one_of {
        0 => task(n, 0, 3_600_000, 1 << 20, 0),
        _ => task(n, 0, 1000, 1, 0),
    };
    (0..tasks).map(one).collect()
}

#[test]
fn claimed_sizes_make_no_endless_work() {
    // 8,000 late tasks in one stage, 16,000 in 160 of one name: 8 and 16 million parts are claimed.
    let one = vec![stage(3, claimed(40_000, 5))];
    let many = (0..160).map(|id| stage(id, claimed(400, 4))).collect();
    for stages in [one, many] {
        let (steps, is_found) = steps(stages);
        // All tasks as they ran, in two, and in parts.
        assert!(is_found && steps < 400_000, "{steps}");
    }
}

#[test]
fn what_is_not_listed_is_not_simulated() {
    let named = |id: u32, tasks: u32| StageTasks {
        name: Some(format!("stage {id}")),
        ..stage(id, claimed(tasks, 4))
    };
    // Of each stage the share is too small.
    let (none, is_found) = steps((0..160).map(|id| named(id, 400)).collect());
    assert_eq!((none, is_found), (0, false));
    // Five of twenty are listed, and the others counted.
    let stages: Vec<StageTasks> = (0..20).map(|id| named(id, 80)).collect();
    let advice = advise(&with(stages.clone()), &around());
    let mut checks = advice.checks.iter();
    let check = checks.find(|it| it.id == "skew").expect("a check");
    assert_eq!(check.left_out, 15);
    // Each of 80 tasks three times, and what the 20 late ones have in more than one part.
    let parts = 5 * (3 * 80 + 20 + 20 * 999);
    assert!(steps(stages).0 <= parts);
}
