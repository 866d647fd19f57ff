//! Pauses of an executor's collector: which of them a task had, and when it is known that these are all.

use proptest::prelude::*;

use super::*;
use crate::decode::Paused;
use crate::rows::{COLLECTIONS, FunctionsRow, PausedRow};
use crate::state::pauses::{PAUSES_PER_EXECUTOR, PAUSES_PER_TASK};

fn pause(number: u64, age_ns: u64, duration_ns: u64) -> Fact {
    Fact::Paused(Paused {
        number,
        age_ns,
        duration_ns: Some(duration_ns),
    })
}

/// The pauses before this number, and those until `age_ns` ago, are reported; from there on each one will be.
fn since(number: u64, age_ns: u64) -> Fact {
    Fact::Paused(Paused {
        number,
        age_ns,
        duration_ns: None,
    })
}

/// Any report of few numbers.
pub(super) fn any_pause() -> impl Strategy<Value = Fact> {
    (0..6_u64, any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(number, age_ns, duration_ns, is_pause)| match is_pause {
            true => pause(number, age_ns % (20 * S), duration_ns % (20 * S)),
            false => since(number, age_ns),
        },
    )
}

/// Task 1 runs from 10 s to 20 s on an executor that reports its pauses from its begin on.
fn with(reports: &[(u64, Fact)]) -> State {
    let mut state = state();
    tell(&mut state, 1, 9 * S, described("app-1", "0"));
    tell(&mut state, 1, 10 * S, started(1, 1));
    for (at, report) in reports {
        tell(&mut state, 1, *at, report.clone());
    }
    tell(&mut state, 1, 20 * S, ended(1, 1, TaskOutcome::Succeeded));
    state
}

fn functions(state: &State) -> FunctionsRow {
    let one = Filter {
        task: Some(1),
        ..Filter::default()
    };
    let row = state.list_tasks(&one).rows.remove(0);
    row.functions.expect("has functions")
}

/// Begin after the task's and duration of each pause in its lane, in milliseconds.
fn lane(functions: &FunctionsRow) -> Vec<(u64, u64)> {
    let spans = functions.spans.iter();
    let own = spans.filter(|span| span.thread == COLLECTIONS);
    own.map(|it| (it.begin_ns / MS, it.duration_ns / MS))
        .collect()
}

#[test]
fn a_task_has_the_pauses_that_overlap_it_as_far_as_they_do() {
    let state = with(&[
        (9 * S, since(0, 0)),
        // From 9.90 to 10.05 s, reported late; before the task; within; beyond its end.
        (11 * S, pause(0, 950 * MS + 200 * MS, 50 * MS)),
        (11 * S, pause(1, 950 * MS, 150 * MS)),
        (12 * S, pause(2, 0, 40 * MS)),
        (20 * S + 100 * MS, pause(3, 0, 300 * MS)),
        (20 * S + 200 * MS, pause(4, 0, 10 * MS)),
        // Reported again.
        (20 * S + 300 * MS, pause(2, 0, 90 * MS)),
        (21 * S, since(5, 0)),
    ]);
    let functions = functions(&state);
    assert_eq!(lane(&functions), [(0, 50), (1960, 40), (9800, 200)]);
    let all = PausedRow {
        pauses: 3,
        paused_ns: 290 * MS,
        left_out: 0,
    };
    assert_eq!(functions.paused, Some(all));
    // They are in no sum of the task's own time.
    assert!(functions.activities.is_empty() && functions.helpers.is_empty());
    assert_eq!(functions.rest_ns, Some(functions.duration_ns));
}

#[test]
fn none_is_known_where_some_may_be_missing() {
    let paused = |reports: &[(u64, Fact)]| functions(&with(reports)).paused;
    assert_eq!(paused(&[]), None, "an older marker");
    let none = PausedRow::default();
    assert_eq!(
        paused(&[(9 * S, since(0, 0)), (21 * S, since(0, 0))]),
        Some(none)
    );
    // The marker came after the task's begin.
    assert_eq!(
        paused(&[(11 * S, since(0, 0)), (21 * S, since(0, 0))]),
        None
    );
    // Pause 1 is lost, until the marker reports it again.
    let lost = [
        (9 * S, since(0, 0)),
        (11 * S, pause(0, 0, MS)),
        (12 * S, pause(2, 0, MS)),
        (21 * S, since(3, 0)),
    ];
    assert_eq!(paused(&lost), None);
    let again = [
        (22 * S, since(0, 13 * S)),
        (22 * S, pause(0, 11 * S, MS)),
        (22 * S, pause(1, 10 * S + MS, MS)),
        (22 * S, pause(2, 10 * S, MS)),
        (22 * S, since(3, 0)),
    ];
    let pauses = |reports: &[(u64, Fact)]| paused(reports).map(|it| it.pauses);
    assert_eq!(pauses(&[&lost[..], &again].concat()), Some(3));
    let first_lost = [
        (9 * S, since(0, 0)),
        (11 * S, pause(1, 0, MS)),
        (21 * S, since(2, 0)),
    ];
    assert_eq!(paused(&first_lost), None);
    // Of the last pauses nothing was lost, of one more only the mark knows.
    let last_lost = [
        (9 * S, since(0, 0)),
        (11 * S, pause(0, 0, MS)),
        (21 * S, since(2, 0)),
    ];
    assert_eq!(paused(&last_lost), None);
    // A daemon that came later, to which the marker reports what it keeps; a new pause may come before.
    let again = [
        (13 * S, since(0, 5 * S)),
        (13 * S, pause(0, 2 * S, MS)),
        (13 * S, pause(1, S, MS)),
        (21 * S, since(2, 0)),
    ];
    assert_eq!(pauses(&again), Some(2));
    let before = [(12 * S, pause(1, 0, MS))];
    assert_eq!(pauses(&[&before[..], &again].concat()), Some(2));
    // There was none at all, and a mark comes before.
    let none_yet = [
        (12 * S, since(0, 0)),
        (13 * S, since(0, 5 * S)),
        (21 * S, since(0, 0)),
    ];
    assert_eq!(paused(&none_yet), Some(none));
    // A report in the middle takes nothing back where no pause is missing.
    let told_again = [
        (9 * S, since(0, 0)),
        (11 * S, pause(0, 0, MS)),
        (12 * S, since(1, 0)),
        (12 * S, pause(1, 0, MS)),
        (13 * S, since(1, S)),
        (21 * S, since(2, 0)),
    ];
    assert_eq!(pauses(&told_again), Some(2));
}

#[test]
fn only_what_is_reported_is_known() {
    let early = [(9 * S, since(0, 0)), (19 * S, since(0, 0))];
    let mut state = with(&early);
    assert_eq!(
        functions(&state).paused,
        None,
        "the end came after the mark"
    );
    // A late report of a pause that ended after the task, or a mark, makes it known.
    tell(&mut state, 1, 22 * S, pause(0, S, MS));
    assert_eq!(functions(&state).paused, Some(PausedRow::default()));
    let mut state = with(&early);
    tell(&mut state, 1, 22 * S, since(0, 2 * S - 1));
    assert_eq!(functions(&state).paused, Some(PausedRow::default()));
    // A task that runs has those up to the mark.
    let mut state = with(&[(9 * S, since(0, 0))]);
    tell(&mut state, 1, 21 * S, started(2, 1));
    tell(&mut state, 1, 23 * S, pause(0, S, 4 * MS));
    tell(&mut state, 1, 24 * S, since(1, 0));
    tell(&mut state, 1, 25 * S, pause(2, 0, MS));
    let two = Filter {
        task: Some(2),
        ..Filter::default()
    };
    let row = |state: &State| state.list_tasks(&two).rows.remove(0);
    let paused = |state: &State| row(state).functions.expect("has functions").paused;
    assert_eq!(paused(&state), None, "pause 1 is missing");
    let mut state = with(&[(9 * S, since(0, 0)), (20 * S, since(0, 0))]);
    tell(&mut state, 1, 21 * S, started(2, 1));
    assert_eq!(paused(&state), None, "nothing is reported since its begin");
    tell(&mut state, 1, 23 * S, pause(0, S, 4 * MS));
    let one = PausedRow {
        pauses: 1,
        paused_ns: 4 * MS,
        left_out: 0,
    };
    assert_eq!(paused(&state), Some(one));
}

#[test]
fn an_executor_keeps_the_last_pauses_and_a_task_lists_the_longest() {
    let number = PAUSES_PER_EXECUTOR as u64;
    let mut reports = vec![(9 * S, since(0, 0))];
    // One each millisecond; each hundredth is longer.
    let long = |at: u64| {
        if at.is_multiple_of(100) {
            500_000
        } else {
            1_000
        }
    };
    reports.extend((0..number).map(|at| (10 * S + (at + 1) * MS, pause(at, 0, long(at)))));
    reports.push((21 * S, since(number, 0)));
    let functions = functions(&with(&reports));
    let all = functions.paused.expect("all are known");
    assert_eq!(all.pauses, number);
    assert_eq!(all.left_out, number - PAUSES_PER_TASK as u64);
    let spans = functions.spans.iter();
    let longer = spans.filter(|span| span.duration_ns == 500_000).count() as u64;
    assert_eq!(longer, number.div_ceil(100));
    let begins: Vec<u64> = functions.spans.iter().map(|span| span.begin_ns).collect();
    assert!(begins.is_sorted(), "{begins:?}");
    // One more, and the first is not known any more.
    reports.push((21 * S, pause(number, 0, MS)));
    let state = with(&reports);
    assert_eq!(super::pauses::functions(&state).paused, None);
}
