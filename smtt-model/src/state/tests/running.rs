//! Running tasks: their figures, the parts of their lives, and their bytes.

use smtt_common::event::used::{ACCOUNTS, CPU_NS, FAULTS_MAJOR, FAULTS_MINOR, TaskUsed};

use super::*;
use crate::rows::SplitsRow;
use crate::state::splits::LIVE_BYTES_MAX;

const MIB: usize = 1 << 20;
const ALL: u32 = (1 << ACCOUNTS) - 1;

/// A reading of a task that has used the CPU for `cpu_ns`, and had as many faults as seconds.
fn reading(task: u64, at_ns: u64, cpu_ns: u64) -> TaskReading {
    let mut accounts = [0; ACCOUNTS];
    accounts[CPU_NS] = cpu_ns;
    accounts[FAULTS_MINOR] = at_ns / S;
    TaskReading {
        task_attempt_id: task,
        accounts,
        present: ALL,
        duration_ns: at_ns,
        partial: false,
        virtual_bytes: Some(1 << 33),
        resident_bytes: Some(1 << 30),
    }
}

/// The accounts at a task's end.
fn used(task: u64, at_ns: u64, cpu_ns: u64) -> Fact {
    let reading = reading(task, at_ns, cpu_ns);
    Fact::TaskUsed(Box::new(TaskUsed {
        task_attempt_id: task,
        accounts: reading.accounts,
        duration_ns: at_ns,
        present: ALL & !(1 << FAULTS_MAJOR),
        flags: 0,
    }))
}

fn heap_so_far(task: u64, bytes: u64) -> Fact {
    Fact::TaskHeapSoFar {
        task_attempt_id: task,
        allocated_bytes: bytes,
    }
}

/// The row of a task that was asked for by its id.
fn row(state: &State, task: u64) -> TaskRow {
    let one = Filter {
        task: Some(task),
        ..Filter::default()
    };
    let mut rows = state.list_tasks(&one).rows;
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn splits(state: &State, task: u64) -> SplitsRow {
    row(state, task).splits.expect("splits")
}

#[test]
fn figures_of_a_running_task_are_shown_and_in_no_sum() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    assert_eq!(row(&state, 1).used_until, None);
    state.tasks_read(key(1), &[reading(1, 2 * S, S)]);
    assert_eq!(
        tell(&mut state, 1, 3 * S, heap_so_far(1, 77)),
        Outcome::Applied
    );
    let running = row(&state, 1);
    assert_eq!(running.used_until.as_deref(), Some("now"));
    assert_eq!(
        (running.used.cpu_ns, running.used_duration_ns),
        (Some(S), Some(2 * S))
    );
    assert_eq!(running.used.heap_allocated_bytes, Some(77));
    assert_eq!(running.used.collection_ns, None);
    // It is counted by the kernel side only, and read at the end.
    assert_eq!(running.used.touched_heap_bytes, None);
    let stage = |state: &State| state.list_stages(&Filter::default()).rows.remove(0);
    assert_eq!(
        (stage(&state).used.cpu_ns, stage(&state).used_tasks),
        (None, 0)
    );
    // The list without a task has no splits.
    assert_eq!(the_task(&state, 1).splits, None);
    // The accounts of the end replace the reading, and a later reading changes nothing.
    tell(&mut state, 1, 4 * S, ended(1, 3, TaskOutcome::Succeeded));
    assert_eq!(row(&state, 1).used_until.as_deref(), Some("last_reading"));
    tell(&mut state, 1, 4 * S, used(1, 3 * S, 2 * S));
    state.tasks_read(key(1), &[reading(1, 9 * S, 9 * S)]);
    assert_eq!(
        tell(&mut state, 1, 5 * S, heap_so_far(1, 99)),
        Outcome::Applied
    );
    let ended = row(&state, 1);
    assert_eq!(ended.used_until.as_deref(), Some("task_end"));
    assert_eq!(
        (ended.used.cpu_ns, ended.used_duration_ns),
        (Some(2 * S), Some(3 * S))
    );
    assert_eq!(ended.used.heap_allocated_bytes, None);
    assert_eq!(
        (stage(&state).used.cpu_ns, stage(&state).used_tasks),
        (Some(2 * S), 1)
    );
    assert_eq!(
        tell(&mut state, 1, 5 * S, heap_so_far(5, 99)),
        Outcome::Ignored("task_not_known")
    );
}

#[test]
fn the_parts_of_a_task_go_on_after_its_end() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    for second in 1..12 {
        // The CPU is used in the first half only; execution memory is held in the second.
        if second == 6 {
            let held = page(1, Some(0), 1 << 20);
            tell(&mut state, 1, S, Fact::PageAllocated(held));
        }
        let cpu = second.min(6) * S;
        state.tasks_read(key(1), &[reading(1, second * S, cpu)]);
    }
    let running = splits(&state, 1);
    let parts = |splits: &SplitsRow, name: &str| splits.series[name].parts.clone();
    assert_eq!(running.series["cpu_ns"].total, Some(6 * S));
    assert_eq!(
        (running.measured_points, &*running.progress_by),
        (13 - 1, "time")
    );
    tell(&mut state, 1, 14 * S, used(1, 12 * S, 6 * S));
    tell(&mut state, 1, 14 * S, ended(1, 3, TaskOutcome::Succeeded));
    let ended = splits(&state, 1);
    let cpu = parts(&ended, "cpu_ns");
    assert_eq!(cpu.iter().sum::<u64>(), 6 * S);
    assert!(
        cpu[..6].iter().all(|part| part.abs_diff(S) < S / 1000),
        "{cpu:?}"
    );
    assert_eq!(cpu[6..], [0; 6]);
    let held = parts(&ended, "execution_memory_bytes");
    assert_eq!((held[4], held[7]), (0, 1 << 20), "{held:?}");
    assert_eq!(ended.series["resident_bytes"].parts, [1 << 30; 12]);
    assert_eq!(parts(&ended, "wall_ns"), [S; 12]);
    assert_eq!(ended.measured_points, 13);
    // What the accounts at the end do not have has no parts.
    assert!(running.series.contains_key("thread_page_faults"));
    assert!(!ended.series.contains_key("thread_page_faults"));
    assert!(!ended.series.contains_key("heap_allocated_bytes"));
}

#[test]
fn readings_are_counted_in_bytes_and_stay_within_their_limit() {
    let mut state = state();
    let bytes = |state: &State| state.executors()[&key(1)].tasks.tasks.bytes();
    for task in 0..100 {
        tell(&mut state, 1, S, started(task, 3));
    }
    let before = bytes(&state);
    for second in 1..200 {
        let all: Vec<_> = (0..100).map(|task| reading(task, second * S, S)).collect();
        state.tasks_read(key(1), &all);
    }
    let tasks = &state.executors()[&key(1)].tasks.tasks;
    let grown = bytes(&state) - before;
    assert!(grown > 0 && grown <= 100 * LIVE_BYTES_MAX, "{grown}");
    assert_eq!(tasks.bytes(), tasks.recount());
    for task in 0..100 {
        tell(&mut state, 1, S, used(task, 300 * S, S));
    }
    let kept = bytes(&state) - before;
    assert!(kept <= 100 * LIVE_BYTES_MAX / 2, "{kept}");
    assert_eq!(
        state.executors()[&key(1)].tasks.tasks.recount(),
        bytes(&state)
    );
}

#[test]
fn readings_without_room_or_of_others_change_nothing() {
    let mut state = state_with(Limits {
        state_per_executor_bytes: 1,
        ..Limits::default()
    });
    tell(&mut state, 1, S, started(1, 3));
    state.tasks_read(key(1), &[reading(1, S, S), reading(2, S, S)]);
    state.tasks_read(key(9), &[reading(1, S, S)]);
    assert_eq!(state.executors().len(), 1);
    // Room for tasks, until readings fill it.
    let mut state = state_with(Limits {
        state_per_executor_bytes: MIB,
        ..Limits::default()
    });
    for task in 0..2000 {
        tell(&mut state, 1, S, started(task, 3));
        tell(&mut state, 1, S, heap_so_far(task, 5));
    }
    assert!(state.bytes() <= MIB, "{}", state.bytes());
    let refused = state.counts().over_cap["bytes"];
    assert!(refused > 0, "{:?}", state.counts());
    let mut state = self::state();
    tell(&mut state, 1, S, started(1, 3));
    state.tasks_read(key(1), &[reading(2, S, S)]);
    assert_eq!(state.list_tasks(&Filter::default()).rows.len(), 1);
    assert_eq!(row(&state, 1).used_until, None);
    assert_eq!(row(&state, 1).splits, None);
}

#[test]
fn threads_that_run_a_task_are_those_that_began_it() {
    let mut state = state();
    let begun = |task_attempt_id| Fact::TaskBegun {
        task_attempt_id,
        late: false,
    };
    for n in [1, 2, 3] {
        tell(&mut state, n, S, described("app-1", &n.to_string()));
    }
    tell(&mut state, 1, S + 1, begun(1));
    tell(&mut state, 1, S + 2, started(1, 3));
    // A snapshot is requested and never comes: the thread that tells the start has begun the task.
    state.resync_requested(key(2), 1, S);
    tell(&mut state, 2, S + 1, begun(2));
    tell(&mut state, 2, S + 2, started(2, 3));
    // The thread of a snapshot, which runs nothing.
    state.resync_requested(key(3), 1, S);
    tell(&mut state, 3, S + 2, started(3, 3));
    assert_eq!(state.task_threads(), [(101, key(1)), (102, key(2))]);
    tell(&mut state, 1, S + 3, ended(1, 3, TaskOutcome::Succeeded));
    assert_eq!(state.task_threads(), [(102, key(2))]);
    state.executor_gone(key(2), S + 4);
    assert_eq!(state.task_threads(), []);
}
