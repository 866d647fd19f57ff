//! Python workers: the memory of a task's workers.

use super::*;
use crate::decode::{OomKilled, ProcessEnd, PythonWorker, SignalSent};

fn worker(pid: u32, task: Option<u64>) -> Fact {
    Fact::PythonWorker(PythonWorker {
        pid,
        task_attempt_id: task,
        ..PythonWorker::default()
    })
}

/// A reading of children: their ids on the host, ids inside, resident bytes and high-water marks.
fn read(state: &mut State, time_ns: u64, children: &[(u32, u32, u64, u64)]) {
    let child = |(pid, inner_pid, resident_bytes, resident_peak_bytes): &(u32, u32, u64, u64)| {
        let memory = ProcessMemory {
            resident_bytes: *resident_bytes,
            resident_peak_bytes: *resident_peak_bytes,
            ..ProcessMemory::default()
        };
        ChildMemory {
            pid: *pid,
            inner_pid: *inner_pid,
            name: "python3".into(),
            kind: ChildKind::Python,
            memory,
        }
    };
    let kernel = KernelMemory {
        children: children.iter().map(child).collect(),
        ..KernelMemory::default()
    };
    state.set_memory(key(1), kernel, time_ns);
}

fn peak(state: &State, task: u64) -> Option<u64> {
    let one = Filter {
        task: Some(task),
        ..Filter::default()
    };
    let rows = state.list_tasks(&one).rows;
    assert_eq!(rows.len(), 1);
    rows[0].python_worker_peak_bytes
}

#[test]
fn a_task_has_the_peak_of_its_own_workers_only() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, S, started(2, 3));
    // Worker 5 was large for an earlier task.
    read(&mut state, S, &[(500, 5, 10, 900), (600, 6, 10, 10)]);
    assert_eq!(peak(&state, 1), None);
    tell(&mut state, 1, 2 * S, worker(5, Some(1)));
    read(&mut state, 3 * S, &[(500, 5, 100, 950), (600, 6, 10, 10)]);
    // The mark may have risen before the worker served this task.
    assert_eq!(peak(&state, 1), Some(100));
    tell(&mut state, 1, 3 * S, worker(6, Some(1)));
    read(&mut state, 4 * S, &[(500, 5, 90, 950), (600, 6, 30, 40)]);
    assert_eq!(peak(&state, 1), Some(120), "both together");
    // A short peak of one worker, between two readings.
    read(&mut state, 5 * S, &[(500, 5, 90, 950), (600, 6, 30, 700)]);
    assert_eq!(peak(&state, 1), Some(700));
    tell(&mut state, 1, 5 * S, worker(5, None));
    tell(&mut state, 1, 5 * S, worker(6, Some(2)));
    read(
        &mut state,
        6 * S,
        &[(500, 5, 9_000, 9_000), (600, 6, 20, 700)],
    );
    assert_eq!(peak(&state, 1), Some(700));
    assert_eq!(peak(&state, 2), Some(20));
    tell(&mut state, 1, 6 * S, ended(2, 3, TaskOutcome::Succeeded));
    read(&mut state, 7 * S, &[(600, 6, 8_000, 8_000)]);
    assert_eq!(peak(&state, 2), Some(20), "an ended task gains nothing");
}

/// The fact of a process that is not the executor's JVM.
fn of_process(state: &mut State, pid: u32, time_ns: u64, fact: Fact) {
    state.apply(Event {
        time_ns,
        executor: key(1),
        pid,
        tid: pid,
        uid: 1000,
        fact,
    });
}

/// Whether the executor itself, by its notes, ended a Python worker; the OOM killer ran in the worker.
fn from_own(from_kernel: bool) -> bool {
    let mut state = state();
    let worker = 500;
    tell(&mut state, 1, S, described("app", "1"));
    tell(&mut state, 1, S, Fact::ProcessForked { child_pid: worker });
    let sent = SignalSent {
        target_pid: worker,
        signal: 9,
        from_kernel,
        sender_pid: worker,
        ..SignalSent::default()
    };
    let killed = OomKilled {
        victim_pid: worker,
        is_executor: false,
    };
    let end = ProcessEnd {
        status: 9,
        peak_rss_bytes: 1,
        name: "python3".into(),
    };
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: false,
        end: Some(Box::new(end)),
    };
    let facts = [
        Fact::OomKilled(killed),
        Fact::SignalSent(Box::new(sent)),
        gone,
    ];
    for fact in facts {
        of_process(&mut state, worker, 2 * S, fact);
    }
    let due = state.deaths_due(3 * S);
    let [(executor, Some(child))] = &due[..] else {
        panic!("one child is dead: {due:?}");
    };
    let case = state.case(*executor, Some(child.clone())).expect("a case");
    assert!(case.is_oom_victim());
    case.signals[0].what.from_own
}

#[test]
fn a_signal_of_the_kernel_is_none_of_the_process_that_it_ran_in() {
    assert!(from_own(false));
    assert!(!from_own(true));
}
