//! A machine that was suspended: the clock of records and ticks counts that time, so ages and durations are right at once
//! after it, and what lived before lives on.

use smtt_common::settings::executor_key;
use smtt_model::decode::{Event, ExecutorDescribed, Fact, TaskStarted};
use smtt_model::rows::Filter;
use smtt_model::state::{Limits, State, Tick};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
/// Process ids of an executor that lives on, and of one that ends before the suspend.
const LIVES: u32 = 100;
const ENDS: u32 = 200;

fn tell(state: &mut State, pid: u32, time_ns: u64, fact: Fact) {
    state.apply(Event {
        time_ns,
        executor: executor_key(pid, 50),
        pid,
        tid: pid,
        uid: 1000,
        fact,
    });
}

#[test]
fn ages_are_right_after_a_suspend_and_the_living_stay() {
    let mut state = State::new(Limits::default());
    for pid in [LIVES, ENDS] {
        let described = ExecutorDescribed {
            application_id: "app".into(),
            executor_id: pid.to_string(),
            ..ExecutorDescribed::default()
        };
        tell(
            &mut state,
            pid,
            10 * SECOND,
            Fact::ExecutorDescribed(Box::new(described)),
        );
    }
    let started = TaskStarted {
        task_attempt_id: 7,
        stage_id: 1,
        stage_attempt: 0,
        partition: 0,
        attempt_number: 0,
        job_id: None,
    };
    tell(&mut state, LIVES, 11 * SECOND, Fact::TaskStarted(started));
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: true,
        end: None,
    };
    tell(&mut state, ENDS, 20 * SECOND, gone);
    assert!(state.take_in(&Tick::default(), 21 * SECOND).is_empty());

    // Ten minutes asleep: less than the retention.
    let awake = 21 * SECOND + 10 * MINUTE;
    assert!(state.take_in(&Tick::default(), awake).is_empty());
    let executors = state.list_executors(&Filter::default()).rows;
    let states: Vec<(u32, &str, u64)> = executors
        .iter()
        .map(|row| (row.who.pid, row.state.name(), row.watched_ns))
        .collect();
    assert_eq!(
        states,
        [
            (LIVES, "alive", awake - 10 * SECOND),
            (ENDS, "dead", 10 * SECOND),
        ]
    );
    let tasks = state.list_tasks(&Filter::default()).rows;
    assert_eq!(tasks[0].duration_ns, Some(awake - 11 * SECOND));

    // Sixteen minutes asleep: the executor that ended has been dead for longer than the retention.
    let later = 21 * SECOND + 16 * MINUTE;
    let forgotten = state.take_in(&Tick::default(), later);
    assert_eq!(forgotten, [executor_key(ENDS, 50)]);
    let executors = state.list_executors(&Filter::default()).rows;
    assert_eq!(executors.len(), 1);
    assert_eq!(executors[0].state.name(), "alive");
}
