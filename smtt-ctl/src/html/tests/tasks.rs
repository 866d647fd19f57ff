//! The sections about single tasks and about functions.

use super::*;
use smtt_model::rows::{ActivityRow, FunctionsRow, OnCpuRow, SampledActivityRow};

const MS: u64 = 1_000_000;

/// The texts of each row of a table.
pub(super) fn rows(page: &str, id: &str) -> Vec<String> {
    let document = parsed(page);
    let mut all = document.descendants();
    let table = all.find(|node| node.attribute("id") == Some(id));
    let rows = table.expect("the table").descendants();
    let rows = rows.filter(|node| node.has_tag_name("tr"));
    rows.map(|row| {
        let texts = row.descendants().filter(roxmltree::Node::is_text);
        let texts: Vec<&str> = texts.filter_map(|node| node.text()).collect();
        texts.join("|")
    })
    .collect()
}

fn task(facts: &Facts, id: u64) -> TaskRow {
    let mut row = facts.tasks[0].clone();
    row.task_attempt_id = Some(id);
    row.stage_id = Some(3);
    row.execution_memory_peak_bytes = 0;
    row
}

/// A task of a stage: samples of `insert` and `sort`, and 30 ms of `sort` in spans.
fn ended(facts: &Facts, stage: u32, samples: [u64; 2]) -> TaskRow {
    let mut row = task(facts, 1);
    row.stage_id = Some(stage);
    row.duration_ns = Some(100 * MS);
    let all = samples[0] + samples[1];
    let sampled = |activity: &str, samples: u64| SampledActivityRow {
        activity: activity.to_owned(),
        samples,
        share: samples as f64 / all as f64,
        ..SampledActivityRow::default()
    };
    row.functions = Some(FunctionsRow {
        duration_ns: 100 * MS,
        activities: vec![ActivityRow {
            activity: "sort".to_owned(),
            spans: 2,
            own_ns: 30 * MS,
        }],
        rest_ns: Some(70 * MS),
        on_cpu: (all > 0).then(|| OnCpuRow {
            event: "cycles".to_owned(),
            samples: all,
            activities: vec![sampled("insert", samples[0]), sampled("sort", samples[1])],
        }),
        ..FunctionsRow::default()
    });
    row
}

#[test]
fn tasks_with_most_of_a_figure_are_listed_once_and_the_others_not() {
    let mut facts = facts("links", 1);
    let mut all: Vec<TaskRow> = (0..1000).map(|id| task(&facts, id)).collect();
    for (at, row) in all.iter_mut().enumerate() {
        row.used.cpu_ns = Some((1000 - at as u64) * MS);
        row.duration_ns = Some(5 * MS);
    }
    all[900].faults.page_faults = Some(70_000);
    all[901].execution_memory_peak_bytes = 7 << 30;
    all[902].duration_ns = Some(77_000 * MS);
    for row in &mut all {
        row.faults.page_faults = row.faults.page_faults.or(Some(1));
    }
    facts.tasks = all;
    facts.tasks_total = 1000;
    let page = document::page(&facts);
    assert!(page.contains("Of 1,000 task attempts, the 20 with most CPU time"));
    let rows = rows(&page, "most");
    // Its heading; 20 by CPU time, of which the first are also among those of equal durations and faults.
    assert!((23..=62).contains(&rows.len()), "{}", rows.len());
    assert!(rows[1].starts_with("0|"), "{}", rows[1]);
    for (id, figure) in [("900|", "70,000"), ("901|", "7.0 GiB"), ("902|", "1m17s")] {
        let of: Vec<&String> = rows.iter().filter(|row| row.starts_with(id)).collect();
        assert_eq!(of.len(), 1, "{id}");
        assert!(of[0].contains(figure), "{}", of[0]);
    }
    assert!(!rows.iter().any(|row| row.starts_with("950|")), "{rows:?}");
    assert!(page.contains(", Waited for a CPU, Waited for a disk, Collections, "));
}

#[test]
fn functions_add_up_by_stage_with_the_interval_of_all_samples() {
    let mut facts = facts("links", 1);
    facts.ended = vec![
        ended(&facts, 3, [90, 10]),
        ended(&facts, 3, [10, 290]),
        ended(&facts, 4, [0, 0]),
    ];
    (facts.ended_longest, facts.ended_total) = (3, 7);
    let page = document::page(&facts);
    assert!(page.contains("Of the 3 of 7 ended tasks that took longest."));
    let rows = rows(&page, "functions-of-stages");
    assert_eq!(rows.len(), 1 + 3 + 2, "{rows:?}");
    // 300 of 400 samples, 100 of 400; Wilson's intervals as an independent calculator has them.
    assert!(
        rows[1].starts_with("3: links|2 tasks, 200.0 ms|sort|75.0 %|70.5 %|79.0 %|300|60.0 ms|4"),
        "{}",
        rows[1]
    );
    assert!(
        rows[2].contains("|insert|25.0 %|21.0 %|29.5 %|100|"),
        "{}",
        rows[2]
    );
    assert!(
        rows[3].contains("|outside the spans|") && rows[3].contains("140.0 ms"),
        "{}",
        rows[3]
    );
    // Without samples there is no share, and no zero.
    assert!(
        rows[4].starts_with("4|1 task, 100.0 ms|sort|–|–|–|–|30.0 ms|2"),
        "{}",
        rows[4]
    );
}

#[test]
fn functions_are_bounded_in_stages_in_functions_and_in_the_length_of_a_name() {
    let mut facts = facts("links", 1);
    let mut all = Vec::new();
    for stage in 0..100 {
        let mut row = ended(&facts, stage, [1, 1]);
        row.duration_ns = Some(u64::MAX);
        let functions = row.functions.as_mut().expect("functions");
        functions.activities = (0..50)
            .map(|at| ActivityRow {
                activity: format!("{HOSTILE}{at}"),
                spans: u64::MAX,
                own_ns: u64::MAX,
            })
            .collect();
        functions.rest_ns = Some(u64::MAX);
        all.push(row.clone());
        all.push(row);
    }
    facts.ended_total = all.len() as u64;
    facts.ended_longest = facts.ended_total;
    facts.ended = all;
    let page = document::page(&facts);
    assert!(rows(&page, "functions-of-stages").len() <= 1 + 8 * 9);
    assert!(page.contains("92 stages with less task time and"));
    assert!(!page.contains(&"x".repeat(200)));
}

#[test]
fn tasks_of_a_stage_are_those_among_the_longest_of_the_application() {
    let mut facts = facts("links", 1);
    facts.ended = vec![ended(&facts, 3, [90, 10])];
    (facts.ended_longest, facts.ended_total) = (200, 5000);
    let page = document::page(&facts);
    let text = "Of the 200 ended tasks of the application that took longest (of 5,000), 1 is of this stage.";
    assert!(page.contains(text));
    facts.ended.push(facts.ended[0].clone());
    facts.ended_total = 200;
    facts.ended_of = "this attempt of the application";
    let page = document::page(&facts);
    let text = "Of all 200 ended tasks of the application that the daemon keeps, 2 are of this attempt of the application.";
    assert!(page.contains(text));
    facts.ended.clear();
    facts.ended_total = 5000;
    facts.ended_of = "this stage";
    let page = document::page(&facts);
    let text = "None of the 200 ended tasks of the application that took longest (of 5,000) is of this stage.";
    assert!(page.contains(text));
    assert!(!page.contains("No ended task with functions is known"));
}

#[test]
fn without_ended_tasks_the_section_says_so() {
    let page = document::page(&facts("links", 1));
    assert!(page.contains("No ended task with functions is known"));
}

#[test]
fn no_two_parts_have_the_same_anchor() {
    let mut facts = facts("links", 3);
    facts.ended = vec![ended(&facts, 3, [1, 1])];
    (facts.ended_longest, facts.ended_total) = (1, 1);
    let page = document::page(&facts);
    let document = parsed(&page);
    let ids = document
        .descendants()
        .filter_map(|node| node.attribute("id"));
    let mut seen = std::collections::BTreeSet::new();
    for id in ids {
        assert!(seen.insert(id), "{id} twice");
    }
}
