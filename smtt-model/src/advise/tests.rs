//! Tests of the rules: what is found above a threshold, not below, and what absent figures make of it.

mod groups;
mod places;
mod stages;
mod waits;

use std::collections::BTreeMap;

use super::surroundings::{Process, Surroundings};
use super::*;
use crate::rows::{
    ExecutorId, FigureRow, NodeRow, NodeShare, Number, PageSizeRow, PageWalkRow, SampleRow,
    SpanRow, Spread,
};
use crate::state::FaultFigures;

const MIB: u64 = 1 << 20;
const MINUTE_NS: u64 = 60_000_000_000;

fn who() -> ExecutorId {
    ExecutorId {
        application_id: Some("app-1".to_owned()),
        executor_id: Some("0".to_owned()),
        pid: 7,
        uid: Some(1000),
        ..ExecutorId::default()
    }
}

fn executor() -> ExecutorRow {
    ExecutorRow {
        who: who(),
        state: crate::rows::ExecutorState::Alive,
        heap_max_bytes: Some(1 << 30),
        watched_ns: 10 * MINUTE_NS,
        ..ExecutorRow::default()
    }
}

fn rdd(id: u32, name: &str) -> RddRow {
    RddRow {
        who: who(),
        rdd_id: Some(id),
        name: Some(name.to_owned()),
        storage_memory_bytes: 128 * MIB,
        storage_memory_peak_bytes: 128 * MIB,
        partitions_cached: 4,
        blocks_stored: 4,
        block_reads: Some(4),
        tasks_since_stored: 40,
        last_stored_age_ns: Some(MINUTE_NS),
        kept_ns: Some(MINUTE_NS),
        ..RddRow::default()
    }
}

/// All of an RDD in memory on small pages of node 0.
fn in_memory(id: u32) -> PagesRow {
    PagesRow {
        who: who(),
        rdd_id: Some(id),
        held_bytes: 128 * MIB,
        resolved_bytes: Some(128 * MIB),
        present_bytes: Some(128 * MIB),
        swapped_bytes: Some(0),
        untouched_bytes: Some(0),
        zero_page_bytes: Some(0),
        page_sizes: Some(vec![PageSizeRow {
            page_bytes: 4096,
            bytes: 128 * MIB,
        }]),
        nodes: Some(vec![NodeRow {
            node: 0,
            bytes: 128 * MIB,
        }]),
        ..PagesRow::default()
    }
}

/// An RDD of objects with an examined sample.
fn of_objects(swapped: f64, nodes: &[(u32, f64)]) -> PagesRow {
    PagesRow {
        who: who(),
        rdd_id: Some(7),
        held_bytes: 128 * MIB,
        sampled_objects: Some(32),
        sample: Some(SampleRow {
            estimated: true,
            held_bytes: 128 * MIB,
            present_share: 1.0 - swapped,
            swapped_share: swapped,
            nodes: nodes
                .iter()
                .map(|(node, share)| NodeShare {
                    node: *node,
                    share: *share,
                })
                .collect(),
            ..SampleRow::default()
        }),
        ..PagesRow::default()
    }
}

fn view() -> View {
    View {
        executors: vec![executor()],
        rdds: vec![rdd(7, "links")],
        pages: vec![in_memory(7)],
        measured: Measured {
            page_faults: true,
            access: true,
            major: true,
        },
        now_unix_ms: 1_000_000_000_000,
        ..View::default()
    }
}

/// Two nodes, swap, and an executor that may use both.
fn around() -> Surroundings {
    Surroundings {
        transparent_huge_pages: Some("madvise".to_owned()),
        memory_bytes: Some(8 << 30),
        swap_bytes: Some(1 << 30),
        swap_used_bytes: Some(0),
        swappiness: Some(60),
        nodes: Some(vec![0, 1]),
        processes: BTreeMap::from([(
            7,
            Process {
                memory_nodes: Some(vec![0, 1]),
                cpu_nodes: Some(vec![0, 1]),
                options: Some(vec!["-Xmx1024m".to_owned()]),
                user_ns: Some(9_000_000_000),
                system_ns: Some(1_000_000_000),
                ..Process::default()
            },
        )]),
        ..Surroundings::default()
    }
}

fn found<'a>(advice: &'a ApplicationAdvice, id: &str) -> Option<&'a Finding> {
    advice.findings.iter().find(|finding| finding.id == id)
}

fn went(advice: &ApplicationAdvice, id: &str) -> RuleOutcome {
    let check = advice.checks.iter().find(|check| check.id == id);
    check.expect("every rule is listed").went
}

fn lines(finding: &Finding) -> String {
    let all = finding.remedies.iter().flat_map(|remedy| &remedy.lines);
    all.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_healthy_application_has_no_findings_and_every_rule_says_so() {
    let advice = advise(&view(), &around());
    assert_eq!(advice.findings, []);
    // The executor's first minute is unknown, and no task has ended: those were not checked.
    for check in &advice.checks {
        let unknown = ["first_touch", "major_faults", "fetch_wait", "skew"];
        let expected = if unknown.contains(&check.id.as_str()) {
            RuleOutcome::NotChecked
        } else {
            RuleOutcome::Nothing
        };
        assert_eq!(check.went, expected, "{check:?}");
        assert!(!check.why.is_empty() && !check.looks_for.is_empty());
    }
}

#[test]
fn without_figures_nothing_is_claimed_and_nothing_is_called_well() {
    let mut view = view();
    view.pages.clear();
    view.rdds[0].block_reads = None;
    view.measured = Measured::default();
    let advice = advise(&view, &Surroundings::default());
    assert_eq!(advice.findings, []);
    for id in [
        "swapped",
        "small_pages",
        "remote_memory",
        "never_read",
        "major_faults",
        "first_touch",
        "without_memory",
    ] {
        assert_eq!(went(&advice, id), RuleOutcome::NotChecked, "{id}");
    }
}

#[test]
fn executors_that_told_nothing_are_not_called_well() {
    let mut view = view();
    view.executors[0].who.application_id = None;
    let advice = advise(&view, &around());
    assert!(
        advice
            .checks
            .iter()
            .all(|check| check.went == RuleOutcome::NotChecked),
        "{advice:?}"
    );
}

#[test]
fn a_cached_rdd_without_reads_is_named_and_one_with_reads_is_not() {
    let mut view = view();
    view.rdds.push(rdd(8, "unread"));
    view.rdds[1].block_reads = Some(0);
    let advice = advise(&view, &around());
    let finding = found(&advice, "never_read").expect("found");
    assert_eq!(finding.subject.rdd_id, Some(8));
    assert_eq!(finding.cost.share, Some(0.5));
    assert_eq!(finding.severity, Severity::High);
    assert!(lines(finding).contains("unpersist"));
    assert!(finding.title.contains("is cached"), "{}", finding.title);
    assert!(!finding.is_past());
    assert_eq!(advice.findings.len(), 1);
    // It has been unpersisted meanwhile.
    let mut gone = view.clone();
    gone.rdds[1].storage_memory_bytes = 0;
    let advice = advise(&gone, &around());
    let finding = found(&advice, "never_read").expect("found");
    assert!(finding.title.contains("was cached"), "{}", finding.title);
    assert!(finding.is_past());
    // Read on another executor of this worker.
    let mut elsewhere = view.clone();
    elsewhere.rdds.push(RddRow {
        block_reads: Some(1),
        ..rdd(8, "unread")
    });
    assert!(found(&advise(&elsewhere, &around()), "never_read").is_none());
    // Too early to tell: fewer tasks have started since than a pass takes.
    view.rdds[1].tasks_since_stored = 3;
    assert!(found(&advise(&view, &around()), "never_read").is_none());
    // What an iteration stores for the next one may be read soon, and is no loss where it was given back soon.
    view.rdds[1].tasks_since_stored = 40;
    view.rdds[1].kept_ns = Some(4_900_000_000);
    assert!(found(&advise(&view, &around()), "never_read").is_none());
    view.rdds[1].kept_ns = Some(5_000_000_000);
    assert!(found(&advise(&view, &around()), "never_read").is_some());
    // Cached before the daemon watched.
    view.rdds[1].blocks_found = 1;
    let advice = advise(&view, &around());
    assert!(found(&advice, "never_read").is_none());
    let check = advice.checks.iter().find(|check| check.id == "never_read");
    assert!(check.is_some_and(|check| check.why.contains("before the daemon traced")));
}

#[test]
fn blocks_that_come_back_are_found_by_their_share() {
    let mut view = view();
    view.rdds[0].blocks_stored = 40;
    view.rdds[0].blocks_stored_again = 3;
    assert!(found(&advise(&view, &around()), "evicted_and_stored_again").is_none());
    view.rdds[0].blocks_stored_again = 10;
    view.rdds[0].storage_level = Some("Memory Deserialized 1x Replicated".to_owned());
    view.pages[0].sampled_objects = Some(64);
    let advice = advise(&view, &around());
    let finding = found(&advice, "evicted_and_stored_again").expect("found");
    assert_eq!(finding.cost.share, Some(0.25));
    let said = lines(finding);
    assert!(
        said.contains("MEMORY_ONLY_SER") && said.contains("MEMORY_AND_DISK"),
        "{said}"
    );
    // How many blocks there would be is not known.
    let last = finding.remedies.last().expect("has remedies");
    assert!(
        last.lines.is_empty() && last.why.contains("spark.memory.fraction"),
        "{last:?}"
    );
    // Four of eight partitions have 128 MiB, the others left memory here, and a heap of 1 GiB had room for 256 MiB.
    view.rdds[0].partitions = Some(8);
    view.rdds[0].blocks_evicted = view.rdds[0].blocks_stored_again + 4;
    view.executors[0].storage_memory_peak_bytes = 256 * MIB;
    let advice = advise(&view, &around());
    let finding = found(&advice, "evicted_and_stored_again").expect("found");
    let said = lines(finding);
    assert!(said.contains("spark.executor.memory  1536m"), "{said}");
    // What other workers hold takes no memory here.
    view.rdds[0].blocks_evicted = view.rdds[0].blocks_stored_again + 1;
    let fewer = advise(&view, &around());
    let fewer = found(&fewer, "evicted_and_stored_again").expect("found");
    assert!(
        lines(fewer).contains("spark.executor.memory  1152m"),
        "{fewer:?}"
    );
    assert_eq!(finding.saving, None);
    view.rdds[0].blocks_stored_again_ns = Some(3_000_000_000);
    let advice = advise(&view, &around());
    let finding = found(&advice, "evicted_and_stored_again").expect("found");
    assert_eq!(finding.saving, Some(Saving::new(0.0, 1.5, 3.0)));
    // A cached DataFrame has no objects that could be serialised.
    view.pages[0].sampled_objects = None;
    let advice = advise(&view, &around());
    let finding = found(&advice, "evicted_and_stored_again").expect("found");
    assert!(!lines(finding).contains("MEMORY_ONLY_SER"), "{finding:?}");
    // Python has no level of that name.
    view.rdds[0].storage_level = Some("Memory Serialized 1x Replicated".to_owned());
    let advice = advise(&view, &around());
    let finding = found(&advice, "evicted_and_stored_again").expect("found");
    let why: String = finding
        .remedies
        .iter()
        .map(|one| one.why.as_str())
        .collect();
    assert!(why.contains("in Python MEMORY_AND_DISK"), "{why}");
    view.rdds[0].blocks_stored = 200;
    assert!(found(&advise(&view, &around()), "evicted_and_stored_again").is_none());
}

#[test]
fn swapped_blocks_say_what_to_lower_and_no_swap_is_well() {
    let mut view = view();
    view.pages[0].swapped_bytes = Some(32 * MIB);
    let advice = advise(&view, &around());
    let finding = found(&advice, "swapped").expect("found");
    assert_eq!(
        (finding.severity, finding.cost.share),
        (Severity::High, Some(0.25))
    );
    let said = lines(finding);
    assert!(
        !said.contains("spark.executor.memory") && said.contains("vm.swappiness=1"),
        "what is swapped out of the executor is not known: {said}"
    );
    let mut known = around();
    known.processes.get_mut(&7).expect("there").swapped_bytes = Some(256 * MIB);
    let advice = advise(&view, &known);
    let finding = found(&advice, "swapped").expect("found");
    assert!(
        lines(finding).contains("spark.executor.memory  768m"),
        "{finding:?}"
    );
    let none = Surroundings {
        swap_bytes: Some(0),
        ..around()
    };
    assert_eq!(went(&advise(&view, &none), "swapped"), RuleOutcome::Nothing);
    // Seconds are those that its page faults took, and only where some waited for a disk.
    let saving = |view: &View| {
        let advice = advise(view, &around());
        let finding = found(&advice, "swapped").expect("found");
        (finding.saving, finding.computed.clone())
    };
    for (major, time_ns, why) in [
        (None, Some(3_000_000_000), "major faults are not counted"),
        (Some(0), Some(3_000_000_000), "has waited for a disk so far"),
        (Some(9), None, "too few of its page faults were timed"),
    ] {
        view.rdds[0].faults.page_faults = Some(1000);
        view.rdds[0].faults.page_faults_major = major;
        view.rdds[0].faults.page_fault_time_ns = time_ns;
        let (saving, computed) = saving(&view);
        assert!(saving.is_none() && computed.contains(why), "{computed}");
    }
    view.rdds[0].faults.page_faults_timed = Some(100);
    view.rdds[0].faults.page_fault_time_ns = Some(3_000_000_000);
    view.rdds[0].faults.page_fault_time_error_ns = Some(1_000_000_000);
    let (seconds, computed) = saving(&view);
    let seconds = seconds.expect("seconds");
    let ends = [seconds.low, seconds.expected, seconds.high];
    assert_eq!(ends.map(|end| (end * 1e3).round()), [0.0, 2000.0, 4000.0]);
    assert!(computed.contains("9 of 1,000 were major"), "{computed}");
    // Below a hundredth.
    view.pages[0].swapped_bytes = Some(MIB);
    assert!(found(&advise(&view, &around()), "swapped").is_none());
}

#[test]
fn swapped_objects_are_found_by_their_sample_and_marked_as_estimated() {
    let mut view = view();
    view.pages[0] = of_objects(0.5, &[(0, 1.0)]);
    let advice = advise(&view, &around());
    let finding = found(&advice, "swapped").expect("found");
    assert_eq!(
        (finding.cost.share, finding.cost.estimated),
        (Some(0.5), true)
    );
    assert!(
        finding.title.starts_with("64.0 MiB of"),
        "{}",
        finding.title
    );
    assert!(
        finding.not_measured[0].contains("32 objects were examined"),
        "{finding:?}"
    );
    // Beside blocks whose bytes are known.
    view.pages[0].held_bytes = 256 * MIB;
    view.pages[0].resolved_bytes = Some(128 * MIB);
    view.pages[0].swapped_bytes = Some(0);
    let advice = advise(&view, &around());
    let finding = found(&advice, "swapped").expect("found");
    assert_eq!(finding.cost.share, Some(0.25));
    view.pages[0] = of_objects(0.0, &[(0, 1.0)]);
    let advice = advise(&view, &around());
    assert!(found(&advice, "swapped").is_none());
    assert_eq!(
        went(&advice, "swapped"),
        RuleOutcome::Nothing,
        "it was examined"
    );
}

#[test]
fn the_costliest_come_first_and_long_lists_are_cut_and_counted() {
    let mut view = view();
    view.rdds.clear();
    for id in 0..9 {
        view.rdds.push(RddRow {
            block_reads: Some(0),
            storage_memory_peak_bytes: u64::from(id + 1) * 10 * MIB,
            ..rdd(id, "unread")
        });
    }
    view.pages[0] = PagesRow {
        swapped_bytes: Some(64 * MIB),
        ..in_memory(0)
    };
    let advice = advise(&view, &around());
    assert_eq!(advice.findings.len(), FINDINGS_PER_RULE + 1);
    assert_eq!(advice.findings[0].id, "swapped");
    assert_eq!(advice.findings[1].subject.rdd_id, Some(8));
    let order: Vec<Severity> = advice
        .findings
        .iter()
        .map(|finding| finding.severity)
        .collect();
    assert!(order.is_sorted_by(|left, right| left >= right), "{order:?}");
    let check = advice.checks.iter().find(|check| check.id == "never_read");
    assert_eq!(check.map(|check| check.left_out), Some(4));
}

/// A finding without seconds says why, and each says what would disprove it.
#[test]
fn every_finding_says_what_its_saving_rests_on() {
    let mut view = view();
    view.rdds[0].block_reads = Some(0);
    view.rdds[0].blocks_stored_again = 4;
    view.pages[0].swapped_bytes = Some(64 * MIB);
    view.executors[0].faults.page_faults_major = Some(60_000);
    view.stages = vec![StageRow {
        who: who(),
        task_time_ns: 100,
        ..StageRow::default()
    }];
    let mut advice = advise(&view, &around());
    let without = found(&advice, "major_faults").expect("found");
    assert_eq!(without.saving, None);
    view.stages[0].used.disk_wait_ns = Some(3_000_000_000);
    advice.findings.extend(advise(&view, &around()).findings);
    let waited = advice.findings.last().expect("found").saving;
    assert_eq!(waited, Some(Saving::new(0.0, 1.5, 3.0)));
    assert!(advice.findings.len() > 4, "{:?}", advice.findings.len());
    for finding in &advice.findings {
        assert!(!finding.disproof.is_empty(), "{finding:?}");
        let says_why = finding.computed.starts_with("not in seconds: ");
        assert_eq!(says_why, finding.saving.is_none(), "{finding:?}");
    }
}

/// The document lists every rule with its thresholds; a rule that changes changes it.
#[test]
fn the_document_lists_every_rule() {
    let document = include_str!("../../../docs/ADVICE.md");
    for check in advise(&view(), &around()).checks {
        assert!(
            document.contains(&format!("| `{}` |", check.id)),
            "{}",
            check.id
        );
    }
    for (rule, threshold) in [
        ("swapped", format!("{} MiB", pages::SWAPPED_BYTES / MIB)),
        ("swapped", format!("{:.0} %", pages::SWAPPED_SHARE * 100.0)),
        ("small_pages", format!("{} MiB", BYTES_WORTH / MIB)),
        (
            "small_pages",
            format!("{:.0} %", pages::SMALL_SHARE * 100.0),
        ),
        ("small_pages", format!("{:.0} %", pages::WALK_SHARE * 100.0)),
        ("small_pages", crate::units::count(pages::FAULTS)),
        (
            "remote_memory",
            format!("{:.0} %", nodes::REMOTE_SHARE * 100.0),
        ),
        ("never_read", format!("{} MiB", cache::CACHED_BYTES / MIB)),
        (
            "never_read",
            format!("{} s", cache::KEPT_NS / 1_000_000_000),
        ),
        (
            "evicted_and_stored_again",
            format!("{:.0} %", cache::BACK_SHARE * 100.0),
        ),
        (
            "evicted_and_stored_again",
            format!("{} blocks", cache::BACK_BLOCKS),
        ),
        ("spilling", format!("{:.0} %", work::SPILL_SHARE * 100.0)),
        ("fetch_wait", format!("{:.0} %", tasks::FETCH_SHARE * 100.0)),
        ("fetch_wait", format!("{} ended tasks", tasks::ENOUGH)),
        ("skew", format!("{} ended tasks", tasks::ENOUGH)),
        ("skew", format!("{} times the median", tasks::LATE.0)),
        ("skew", format!("{} ms", tasks::LATE.1)),
        ("major_faults", crate::units::count(work::MAJOR_FAULTS)),
        (
            "major_faults",
            format!("{:.0} per second", work::MAJOR_FAULTS_PER_SECOND),
        ),
        ("first_touch", crate::units::count(work::EARLY_FAULTS)),
        ("first_touch", format!("{:.0} %", work::EARLY_SHARE * 100.0)),
        (
            "without_memory",
            format!("{:.0} %", pages::WITHOUT_MEMORY_SHARE * 100.0),
        ),
    ] {
        let row = document
            .lines()
            .find(|line| line.starts_with(&format!("| `{rule}` |")));
        assert!(
            row.is_some_and(|row| row.contains(&threshold)),
            "{rule}: {threshold} is not in {row:?}"
        );
    }
}
