//! The section about jobs.

use super::tasks::rows;
use super::*;
use smtt_model::rows::{CourseRow, WorkState};

const BEGIN: u64 = 1_767_225_600_000;

fn job(id: u32, state: WorkState, started: u64, ended: Option<u64>) -> WorkOverWorkersRow {
    WorkOverWorkersRow {
        job_id: Some(id),
        name: Some(HOSTILE.to_owned()),
        course: CourseRow {
            state: Some(state),
            started_unix_ms: Some(BEGIN + started),
            ended_unix_ms: ended.map(|ended| BEGIN + ended),
            duration_ns: ended.map(|ended| (ended - started) * 1_000_000),
            failure: (state == WorkState::Failed).then(|| HOSTILE.to_owned()),
        },
        ..WorkOverWorkersRow::default()
    }
}

/// Where the bars are, in the order of the rows.
fn bars(page: &str) -> Vec<String> {
    let document = parsed(page);
    let bars = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("bar axis"));
    let bars = bars.filter_map(|bar| bar.first_element_child());
    bars.filter_map(|bar| {
        let class = bar.attribute("class")?;
        Some(format!("{class} {}", bar.attribute("style")?))
    })
    .collect()
}

#[test]
fn jobs_are_bars_on_one_axis_in_the_order_of_their_begin() {
    let mut facts = facts("links", 1);
    facts.history.now_unix_ms = BEGIN + 10_000;
    facts.jobs = vec![
        job(2, WorkState::Running, 7500, None),
        job(1, WorkState::Failed, 2500, Some(5000)),
        job(0, WorkState::Succeeded, 0, Some(2500)),
    ];
    let page = document::page(&facts);
    assert_eq!(
        bars(&page),
        [
            "k1 margin-left:0.00%;width:25.00%",
            "bad margin-left:25.00%;width:25.00%",
            "k2 margin-left:75.00%;width:25.00%",
        ]
    );
    let rows = rows(&page, "jobs-table");
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (row, (id, state)) in
        rows[1..]
            .iter()
            .zip([("0", "succeeded"), ("1", "failed"), ("2", "running")])
    {
        assert!(
            row.starts_with(&format!("{id}|")) && row.contains(state),
            "{row}"
        );
    }
    assert!(
        page.contains("3 jobs. The bars go from 00:00:00 to 00:00:10"),
        "{page}"
    );
}

/// A marker of an earlier release.
#[test]
fn jobs_without_times_have_no_bars_and_the_page_says_so() {
    let mut facts = facts("links", 1);
    facts.jobs = vec![WorkOverWorkersRow {
        job_id: Some(4),
        task_time_ns: 5_000_000,
        ..WorkOverWorkersRow::default()
    }];
    let page = document::page(&facts);
    assert!(bars(&page).is_empty());
    assert!(
        page.contains("without a column: State, When, Time"),
        "{page}"
    );
}

#[test]
fn of_very_many_jobs_those_that_took_longest_are_shown() {
    let mut facts = facts("links", 1);
    facts.jobs = (0..5000)
        .map(|id| job(id, WorkState::Succeeded, 0, Some(u64::from(id) + 1)))
        .collect();
    let page = document::page(&facts);
    assert_eq!(bars(&page).len(), 200);
    assert!(page.contains("Of 5,000 jobs, the 200 that took longest."));
    assert_eq!(rows(&page, "jobs-table")[1].split('|').next(), Some("4800"));
}

/// What a daemon says of a job that an executor claimed.
#[test]
fn impossible_times_and_counts_make_a_page() {
    for started in [0, 1, u64::MAX - BEGIN - 1, u64::MAX - BEGIN] {
        let mut facts = facts("links", 1);
        let mut hostile = job(1, WorkState::Running, started, None);
        hostile.tasks_failed = u64::MAX;
        hostile.tasks_lost = u64::MAX;
        let mut ended = job(2, WorkState::Succeeded, 0, Some(5));
        ended.course.started_unix_ms = Some(BEGIN + started);
        ended.course.ended_unix_ms = Some(0);
        facts.jobs = vec![hostile, ended];
        let page = document::page(&facts);
        assert_eq!(bars(&page).len(), 2);
        assert!(!page.contains("NaN") && !page.contains("inf%"));
    }
}
