//! Stages in quantiles, jobs, and failed tasks, over executors.

use std::collections::BTreeSet;

use smtt_common::event::used::{
    ACCOUNTS, CPU_NS, DISK_WAIT_NS, HELPER_SHIFT, PARTIAL, TaskUsed, UNTIL_EXIT,
};

use super::*;
use crate::decode::{JobDescribed, StageDescribed};
use crate::rows::{
    JobRow, Quantiles, StageSummaries, StageSummaryRow, WorkBy, WorkState, WorkSums,
};

/// A task of a stage that ended with this outcome and used the CPU for `cpu_ns`.
fn ran(state: &mut State, n: u32, task: u64, stage: u32, outcome: TaskOutcome, cpu_ns: u64) {
    ran_at(state, n, 2 * S, (task, stage), outcome, cpu_ns);
}

/// The same with the time of its end.
fn ran_at(
    state: &mut State,
    n: u32,
    end_ns: u64,
    (task, stage): (u64, u32),
    outcome: TaskOutcome,
    cpu_ns: u64,
) {
    tell(state, n, S, started(task, stage));
    let mut accounts = [0; ACCOUNTS];
    accounts[CPU_NS] = cpu_ns;
    let used = TaskUsed {
        task_attempt_id: task,
        accounts,
        duration_ns: S,
        present: 1 << CPU_NS,
        flags: 0,
    };
    tell(state, n, end_ns, Fact::TaskUsed(Box::new(used)));
    tell(state, n, end_ns, ended(task, stage, outcome));
}

fn summaries(state: &State) -> Vec<StageSummaryRow> {
    let mut summaries = StageSummaries::default();
    state.add_to_summaries(&Filter::default(), &|_| true, &mut summaries);
    summaries.rows()
}

fn jobs(state: &State) -> Vec<JobRow> {
    let mut jobs = WorkSums::new(WorkBy::Job);
    jobs.add(state, &Filter::default(), &|_| true);
    jobs.rows(state.measured())
}

/// The rules of advice take waits for disks from the rows with only what they need.
#[test]
fn waits_for_disks_are_summed_for_the_rules() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "1"));
    for (task, stage) in [(1, 3), (2, 4)] {
        tell(&mut state, 1, S, started(task, stage));
        let mut accounts = [0; ACCOUNTS];
        accounts[DISK_WAIT_NS] = 70;
        let used = TaskUsed {
            task_attempt_id: task,
            accounts,
            duration_ns: S,
            present: 1 << DISK_WAIT_NS,
            flags: 0,
        };
        tell(&mut state, 1, 2 * S, Fact::TaskUsed(Box::new(used)));
        let end = ended(task, stage, TaskOutcome::Succeeded);
        tell(&mut state, 1, 2 * S, end);
    }
    let rows = state.stages_in_short(&Filter::default());
    let waits: Vec<_> = rows.iter().map(|row| row.used.disk_wait_ns).collect();
    assert_eq!(waits, [Some(140)]);
}

/// The second attempt of an application has jobs, stages and tasks with the ids of the first.
#[test]
fn attempts_of_an_application_are_summed_apart() {
    let mut state = state();
    for (n, attempt, cpu_ns) in [(1, "1", 100), (2, "2", 900)] {
        tell(&mut state, n, S, described_attempt("app-1", "1", attempt));
        ran(&mut state, n, 7, 3, TaskOutcome::Succeeded, cpu_ns);
    }
    let jobs = jobs(&state);
    let sums: Vec<_> = jobs
        .iter()
        .map(|row| (row.application_attempt_id.as_deref(), row.used.cpu_ns))
        .collect();
    assert_eq!(sums, [(Some("1"), Some(100)), (Some("2"), Some(900))]);
    let stages = summaries(&state);
    assert_eq!(stages.len(), 2, "{stages:?}");
    for (stage, job) in stages.iter().zip(&jobs) {
        assert_eq!(stage.application_attempt_id, job.application_attempt_id);
        let one = Filter {
            application: Some(job.application()),
            ..Filter::default()
        };
        let executors = state.list_executors(&one).rows;
        assert_eq!(executors.len(), 1);
        assert_eq!(executors[0].who.application(), job.application());
    }
}

#[test]
fn a_stage_is_spread_over_its_tasks_and_executors() {
    let mut state = state();
    for n in [1, 2] {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
    }
    for task in 1..=10 {
        let n = if task <= 7 { 1 } else { 2 };
        ran(&mut state, n, task, 3, TaskOutcome::Succeeded, task * 100);
    }
    ran(&mut state, 2, 11, 3, TaskOutcome::Failed, 9999);
    ran(&mut state, 2, 12, 3, TaskOutcome::Killed, 8888);
    ran(&mut state, 1, 13, 4, TaskOutcome::Succeeded, 5);
    // A task whose begin was not seen counts as a task, and its figures do not.
    tell(&mut state, 1, S, started(14, 4));
    let late = TaskUsed {
        task_attempt_id: 14,
        present: 1 << CPU_NS,
        flags: PARTIAL,
        ..TaskUsed::default()
    };
    tell(&mut state, 1, S, Fact::TaskUsed(Box::new(late)));
    tell(&mut state, 1, S, ended(14, 4, TaskOutcome::Succeeded));
    let rows = summaries(&state);
    assert_eq!(rows.len(), 2);
    let stage = &rows[0];
    assert_eq!((stage.stage_id, stage.executors), (3, 2));
    assert_eq!((stage.tasks_succeeded, stage.tasks_in_quantiles), (10, 10));
    assert_eq!((stage.tasks_failed, stage.tasks_killed), (1, 1));
    let cpu = Quantiles {
        min: 100,
        p25: 300,
        median: 600,
        p75: 800,
        max: 1000,
        values: 10,
    };
    assert_eq!(stage.over_tasks["cpu_ns"], cpu);
    assert_eq!(stage.over_tasks["duration_ns"].max, S);
    assert!(!stage.over_tasks.contains_key("disk_wait_ns"));
    // Sums of all ended attempts, the failed one included.
    let over = stage.over_executors["cpu_ns"];
    assert_eq!(
        (over.min, over.max, over.values),
        (2800, 2700 + 9999 + 8888, 2)
    );
    assert_eq!(rows[1].over_tasks["cpu_ns"].values, 1);
    assert_eq!(rows[1].tasks_in_quantiles, 2);
    let failed: Vec<_> = state.list_failed_tasks(&Filter::default()).rows;
    let mut failed: Vec<_> = failed
        .iter()
        .map(|row| (row.task_attempt_id, row.used.cpu_ns))
        .collect();
    failed.sort_unstable();
    assert_eq!(failed, [(Some(11), Some(9999)), (Some(12), Some(8888))]);
    // All stages here are of job 0.
    let [job] = &jobs(&state)[..] else {
        panic!("one job")
    };
    assert_eq!((job.job_id, job.stages, job.executors), (Some(0), 2, 2));
    assert_eq!(job.used.cpu_ns, Some(5500 + 9999 + 8888 + 5));
    assert_eq!((job.used_tasks, job.used_partial_tasks), (14, 1));
    assert_eq!(
        (job.tasks_succeeded, job.tasks_failed, job.tasks_killed),
        (12, 1, 1)
    );
}

#[test]
fn tasks_that_have_left_the_table_are_missed_in_quantiles() {
    let mut state = state_with(Limits {
        tasks_per_executor: 8,
        ..Limits::default()
    });
    for task in 0..40 {
        ran(&mut state, 1, task, 3, TaskOutcome::Succeeded, 7);
    }
    let rows = summaries(&state);
    assert_eq!(rows[0].tasks_succeeded, 40);
    assert!((1..=8).contains(&rows[0].tasks_in_quantiles), "{rows:?}");
    assert_eq!(
        rows[0].over_tasks["cpu_ns"].values,
        rows[0].tasks_in_quantiles
    );
    // The job has the sums of all.
    assert_eq!(jobs(&state)[0].used.cpu_ns, Some(280));
    // Some of the tasks without a row may have failed.
    let failed = state.list_failed_tasks(&Filter::default()).rows;
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].task_attempt_id, None);
}

#[test]
fn failed_tasks_stay_in_the_table_and_leave_room_for_others() {
    use TaskOutcome::{Failed, Killed, Succeeded};
    let mut state = state_with(Limits {
        tasks_per_executor: 16,
        ..Limits::default()
    });
    let run = |state: &mut State, tasks: std::ops::Range<u64>, outcome| {
        for task in tasks {
            ran_at(state, 1, 2 * S + task, (task, 3), outcome, 7);
        }
    };
    let failed = |state: &State| -> BTreeSet<u64> {
        let rows = state.list_failed_tasks(&Filter::default()).rows;
        rows.iter().filter_map(|row| row.task_attempt_id).collect()
    };
    run(&mut state, 0..2, Failed);
    run(&mut state, 2..3, Killed);
    run(&mut state, 3..400, Succeeded);
    assert_eq!(failed(&state), BTreeSet::from([0, 1, 2]));
    // A flood of them does not take the whole table.
    run(&mut state, 400..800, Failed);
    run(&mut state, 800..801, Succeeded);
    run(&mut state, 801..804, Failed);
    let ids = failed(&state);
    assert!(ids.len() >= 7 && ids.contains(&803), "{ids:?}");
    assert!(!ids.contains(&0), "the oldest are let go: {ids:?}");
    let rows = state.list_tasks(&Filter::default()).rows;
    let has = |id| rows.iter().any(|row| row.task_attempt_id == Some(id));
    assert!(has(800), "one that succeeded lately has its row");
    assert_eq!(summaries(&state)[0].tasks_failed, 2 + 400 + 3);
}

#[test]
fn jobs_have_the_helpers_of_stages_that_have_left_the_table() {
    let mut state = state_with(Limits {
        stages_per_executor: 8,
        ..Limits::default()
    });
    for task in 0..40_u32 {
        let id = u64::from(task);
        ran(&mut state, 1, id, task, TaskOutcome::Succeeded, 7);
        let mut accounts = [0; ACCOUNTS];
        accounts[CPU_NS] = 5;
        let helper = TaskUsed {
            task_attempt_id: id,
            accounts,
            duration_ns: S,
            present: 1 << CPU_NS,
            flags: UNTIL_EXIT | 1 << HELPER_SHIFT,
        };
        tell(&mut state, 1, 2 * S, Fact::TaskUsed(Box::new(helper)));
    }
    let rows = jobs(&state);
    let over = rows.last().expect("the overflow row");
    assert_eq!(over.name.as_deref(), Some(crate::rows::OVERFLOW));
    let sums = rows.iter().filter_map(|row| row.helpers);
    let (threads, cpu_ns) = sums.fold((0, 0), |(threads, cpu), sum| {
        (threads + sum.threads, cpu + sum.used.cpu_ns.unwrap_or(0))
    });
    assert_eq!((threads, cpu_ns), (40, 200), "{rows:?}");
}

#[test]
fn the_same_stage_of_two_applications_is_two_rows() {
    let mut state = state();
    for n in [1, 2] {
        tell(&mut state, n, S, described(&format!("app-{n}"), "1"));
        ran(&mut state, n, 1, 3, TaskOutcome::Succeeded, u64::from(n));
    }
    let rows = summaries(&state);
    let cpu: Vec<u64> = rows
        .iter()
        .map(|row| row.over_tasks["cpu_ns"].max)
        .collect();
    assert_eq!(cpu, [1, 2]);
    assert_eq!(jobs(&state).len(), 2);
}

/// The driver's word for a job, also from an executor without a task of it.
#[test]
fn jobs_and_stages_have_the_state_and_the_times_of_the_driver() {
    let mut state = state();
    let job = |job_id, ended: Option<u64>, failure: &str| {
        Fact::JobDescribed(JobDescribed {
            job_id,
            started_unix_ms: 1000 + u64::from(job_id),
            ended_unix_ms: ended,
            sql_execution_id: Some(4),
            failure: failure.to_owned(),
        })
    };
    let stage = |stage_id, job_id, completed, failure: &str| {
        Fact::StageDescribed(StageDescribed {
            stage_id,
            job_id: Some(job_id),
            sql_execution_id: Some(4),
            submitted_unix_ms: Some(1000),
            completed_unix_ms: completed,
            failure: failure.to_owned(),
            ..StageDescribed::default()
        })
    };
    for n in [1, 2] {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
        for (id, completed, failure) in [(1, Some(1500), ""), (2, Some(1700), "a node is gone")] {
            tell(&mut state, n, S, stage(id, id, completed, failure));
        }
        tell(&mut state, n, S, stage(3, 3, None, ""));
    }
    for job in [1, 2, 3] {
        let mut start = started(u64::from(job), job);
        if let Fact::TaskStarted(start) = &mut start {
            start.job_id = Some(job);
        }
        tell(&mut state, 1, S, start);
    }
    tell(&mut state, 1, S, job(1, None, ""));
    tell(&mut state, 2, S, job(1, Some(2001), ""));
    tell(&mut state, 1, S, job(2, Some(1902), "stage 2 failed"));
    // No task of it ran here: it has no row, and its end is that of its query.
    tell(&mut state, 1, S, job(9, None, ""));

    let course = |row: &JobRow| {
        let course = &row.course;
        (course.state, course.started_unix_ms, course.duration_ns)
    };
    let seen: Vec<_> = jobs(&state).iter().map(course).collect();
    let (succeeded, failed) = (Some(WorkState::Succeeded), Some(WorkState::Failed));
    let expected = [
        (succeeded, Some(1001), Some(S)),
        (failed, Some(1002), Some(900_000_000)),
        (None, None, None),
    ];
    assert_eq!(seen, expected);
    let queries = |state: &State| {
        let mut queries = WorkSums::new(WorkBy::Query);
        queries.add(state, &Filter::default(), &|_| true);
        let rows = queries.rows(state.measured());
        assert_eq!(rows.len(), 1);
        course(&rows[0])
    };
    assert_eq!(
        queries(&state),
        (Some(WorkState::Running), Some(1001), None)
    );
    tell(&mut state, 2, S, job(9, Some(3001), ""));
    assert_eq!(queries(&state), (succeeded, Some(1001), Some(2 * S)));

    let stages = state.list_stages(&Filter::default()).rows;
    let seen: BTreeSet<_> = stages
        .iter()
        .map(|row| {
            (
                row.stage_id,
                row.state.map(|state| state as u8),
                row.duration_ns,
            )
        })
        .collect();
    let of = |state: WorkState| Some(state as u8);
    let expected = [
        (Some(1), of(WorkState::Succeeded), Some(500_000_000)),
        (Some(2), of(WorkState::Failed), Some(700_000_000)),
        (Some(3), of(WorkState::Running), None),
    ];
    assert_eq!(seen, expected.into());

    // Nobody will tell dead executors how it goes on.
    tell(&mut state, 1, S, job(3, None, ""));
    let states = |state: &State| {
        let stages = state.list_stages(&Filter::default()).rows;
        let third = stages.iter().find(|row| row.stage_id == Some(3));
        (jobs(state)[2].course.state, third.and_then(|row| row.state))
    };
    let running = Some(WorkState::Running);
    assert_eq!(states(&state), (running, running));
    for n in [1, 2] {
        state.executor_gone(key(n), 4 * S);
    }
    assert_eq!(states(&state), (None, None));
}

#[test]
fn the_first_jobs_make_room_for_later_ones() {
    let mut state = state_with(Limits {
        stages_per_executor: 8,
        ..Limits::default()
    });
    tell(&mut state, 1, S, described("app-1", "1"));
    for job_id in 0..100 {
        let failure = "x".repeat(200);
        let job = JobDescribed {
            job_id,
            failure,
            ..JobDescribed::default()
        };
        tell(&mut state, 1, S, Fact::JobDescribed(job));
    }
    let executor = state.executors().values().next().expect("an executor");
    let kept: Vec<u32> = executor.tasks.jobs.values().map(|job| job.job_id).collect();
    assert_eq!(kept, (92..100).collect::<Vec<u32>>());
}

#[test]
fn rdds_in_short_have_their_query_where_it_is_asked_for() {
    let mut state = state();
    let stage = StageDescribed {
        rdd_id: Some(7),
        sql_execution_id: Some(4),
        sql_description: "SELECT 1".to_owned(),
        ..StageDescribed::default()
    };
    tell(&mut state, 1, S, Fact::StageDescribed(stage));
    tell(&mut state, 1, S, stored(block(7, 0, 4096, &[])));
    let query = |queries| {
        let rows = state.rdds_in_short(&Filter::default(), queries);
        assert_eq!((rows.len(), rows[0].rdd_id), (1, Some(7)));
        (rows[0].sql_execution_id, rows[0].sql_description.clone())
    };
    assert_eq!(query(false), (None, None));
    assert_eq!(query(true), (Some(4), Some("SELECT 1".to_owned())));
}
