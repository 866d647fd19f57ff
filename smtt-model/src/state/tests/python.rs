//! Python workers: the memory of a task's workers.

use smtt_common::event::used::{
    ACCOUNTS, CPU_NS, FAULTS_MINOR, HELPER_SHIFT, Helper, PARTIAL, REST, TaskUsed, WorkerUsed,
};

use super::*;
use crate::decode::{Figure, MemoryReported, OomKilled, ProcessEnd, PythonWorker, SignalSent};
use crate::postmortem::{Case, Report, judge};
use crate::rows::{StageSummaries, WorkBy, WorkSums};

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

/// A signal to the JVM or to a worker, at this time in tenths of a second. The sender 0 is the kernel.
fn signal(target_pid: u32, signal: u32, sender_pid: u32, tenths: u64) -> (u32, u64, Fact) {
    let sent = SignalSent {
        target_pid,
        is_executor: target_pid == JVM,
        signal,
        from_kernel: sender_pid == 0,
        sender_pid,
        ..SignalSent::default()
    };
    (
        target_pid,
        tenths * S / 10,
        Fact::SignalSent(Box::new(sent)),
    )
}

/// The end of the JVM or of a worker with this status.
fn end(pid: u32, status: u32, tenths: u64) -> (u32, u64, Fact) {
    let end = ProcessEnd {
        status,
        peak_rss_bytes: 1,
        name: "python3".into(),
    };
    let gone = Fact::ProcessGone {
        exec: false,
        is_executor: pid == JVM,
        end: Some(Box::new(end)),
    };
    (pid, tenths * S / 10, gone)
}

/// The process of [`tell`]'s first executor, and workers of it.
const JVM: u32 = 101;
const WORKER: u32 = 500;
const WORKERS: u32 = 12;

/// How many workers and how many JVMs are to be explained.
fn due_after(facts: Vec<(u32, u64, Fact)>) -> (usize, usize) {
    let mut state = state();
    tell(&mut state, 1, S, described("app", "1"));
    for pid in WORKER..WORKER + WORKERS {
        tell(&mut state, 1, S, Fact::ProcessForked { child_pid: pid });
    }
    for (pid, time_ns, fact) in facts {
        of_process(&mut state, pid, time_ns, fact);
    }
    let due = state.deaths_due(60 * S);
    let workers = due.iter().filter(|(_, child)| child.is_some()).count();
    (workers, due.len() - workers)
}

#[test]
fn a_child_that_is_killed_with_its_jvm_is_no_death_of_its_own() {
    // By the kernel, and by a container's runtime, the JVM first or last.
    for sender in [0, 77] {
        for jvm in [100, 106, 94] {
            let facts = vec![
                signal(JVM, 9, sender, jvm),
                signal(WORKER, 9, sender, 100),
                end(WORKER, 9, 103),
                end(JVM, 9, 120),
            ];
            assert_eq!(due_after(facts), (0, 1), "{sender} {jvm}");
        }
    }
    // Many at once, some of whose signals are kept no more, and which take time to end.
    let mut facts = vec![signal(JVM, 9, 0, 100)];
    let workers = || WORKER..WORKER + WORKERS;
    facts.extend(workers().map(|pid| signal(pid, 9, 0, 100)));
    facts.extend(workers().rev().map(|pid| end(pid, 9, 130)));
    facts.push(end(JVM, 9, 150));
    assert_eq!(due_after(facts), (0, 1));
    // The record of the JVM's signal was lost.
    let lost = vec![
        signal(WORKER, 9, 0, 100),
        end(WORKER, 9, 101),
        end(JVM, 9, 105),
    ];
    assert_eq!(due_after(lost), (0, 1));
    // A container that ends: the JVM has stopped, then the kernel kills what is left.
    let stopped = vec![
        signal(JVM, 15, 77, 100),
        end(JVM, 143 << 8, 110),
        signal(WORKER, 9, 0, 111),
        end(WORKER, 9, 112),
    ];
    assert_eq!(due_after(stopped), (0, 1));
}

#[test]
fn a_child_has_its_own_death_where_the_jvm_has_another_or_none() {
    let died = |jvm: Vec<(u32, u64, Fact)>| {
        let mut facts = vec![signal(WORKER, 9, 0, 100), end(WORKER, 9, 101)];
        facts.extend(jvm);
        due_after(facts)
    };
    assert_eq!(died(Vec::new()), (1, 0));
    // Somebody else's signal, as when a cluster manager gives up on a container whose worker the OOM killer ended.
    assert_eq!(
        died(vec![signal(JVM, 9, 77, 104), end(JVM, 9, 105)]),
        (1, 1)
    );
    // Much later.
    assert_eq!(died(vec![signal(JVM, 9, 0, 150), end(JVM, 9, 151)]), (1, 1));
    // It ended by itself.
    assert_eq!(died(vec![end(JVM, 0, 105)]), (1, 1));
    // A JVM that ignores a signal which ends its worker.
    let hung_up = vec![
        signal(JVM, 1, 77, 100),
        signal(WORKER, 1, 77, 100),
        end(WORKER, 1, 101),
    ];
    assert_eq!(due_after(hung_up), (1, 0));
}

#[test]
fn children_that_end_together_share_one_snapshot() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "1"));
    tell(&mut state, 1, S, started(1, 3));
    let end = ProcessEnd {
        status: 9,
        peak_rss_bytes: 1,
        name: "python3".into(),
    };
    let gone = || Fact::ProcessGone {
        exec: false,
        is_executor: false,
        end: Some(Box::new(end.clone())),
    };
    for (pid, time_ns) in [(500, 2 * S), (501, 2 * S + S / 2), (502, 3 * S)] {
        tell(
            &mut state,
            1,
            time_ns,
            Fact::ProcessForked { child_pid: pid },
        );
        of_process(&mut state, pid, time_ns, gone());
        // With a snapshot for each, the next child would see one task more.
        let task = u64::from(pid);
        tell(&mut state, 1, time_ns, started(task, 3));
    }
    let due = state.deaths_due(4 * S);
    let running: Vec<u64> = due
        .iter()
        .map(|(executor, child)| {
            let case = state.case(*executor, child.clone()).expect("a case");
            case.last.running
        })
        .collect();
    // The snapshot of the first two was replaced by that of the third; they have what runs when they are judged.
    assert_eq!(running, [4, 4, 3]);
    let before = |time_ns| {
        let notes = &state.executors()[&key(1)].black_box;
        notes
            .before_child(time_ns)
            .map(|before| before.last.running)
    };
    assert_eq!(before(3 * S + S / 2), Some(3));
    assert_eq!((before(2 * S + S / 2), before(4 * S)), (None, None));
}

#[test]
fn a_stage_and_its_job_have_what_the_processes_held_while_it_ran() {
    let mut state = state();
    tell(&mut state, 1, S, described("app-1", "1"));
    let read = |state: &mut State, time_ns, resident_bytes, resident_peak_bytes| {
        let process = ProcessMemory {
            resident_bytes,
            resident_peak_bytes,
            virtual_bytes: 10 * resident_bytes,
            virtual_peak_bytes: 10 * resident_peak_bytes,
            ..ProcessMemory::default()
        };
        let kernel = KernelMemory {
            process,
            ..KernelMemory::default()
        };
        state.set_memory(key(1), kernel, time_ns);
    };
    let most = |state: &State, stage: u32| {
        let rows = state.list_stages(&Filter::default()).rows;
        let row = rows.iter().find(|row| row.stage_id == Some(stage));
        let row = row.expect("a stage");
        let peak = |name: &str| row.executor_peaks.get(name).map(|peak| peak.value);
        (
            peak("ProcessTreeJVMRSSMemory"),
            peak("ProcessTreeJVMVMemory"),
        )
    };
    // The executor held more before the stage.
    read(&mut state, S, 50, 900);
    tell(&mut state, 1, S, started(1, 3));
    read(&mut state, 2 * S, 60, 950);
    assert_eq!(
        most(&state, 3),
        (Some(60), Some(600)),
        "the mark may be older"
    );
    read(&mut state, 3 * S, 70, 950);
    assert_eq!(most(&state, 3), (Some(70), Some(700)));
    read(&mut state, 4 * S, 70, 990);
    assert_eq!(most(&state, 3), (Some(990), Some(9900)), "a short peak");
    tell(&mut state, 1, 4 * S, ended(1, 3, TaskOutcome::Succeeded));
    tell(&mut state, 1, 4 * S, started(2, 4));
    read(&mut state, 5 * S, 80, 2000);
    assert_eq!(most(&state, 3), (Some(990), Some(9900)));
    assert_eq!(most(&state, 4), (Some(80), Some(800)));
    let mut jobs = WorkSums::new(WorkBy::Job);
    jobs.add(&state, &Filter::default(), &|_| true);
    let jobs = jobs.rows(state.measured());
    let figures: Vec<_> = jobs
        .iter()
        .map(|row| {
            (
                row.stages,
                row.jvm_resident_max_bytes,
                row.jvm_virtual_max_bytes,
            )
        })
        .collect();
    assert_eq!(figures, [(2, Some(990), Some(9900))], "a maximum, no sum");
    let mut stages = StageSummaries::default();
    state.add_to_summaries(&Filter::default(), &|_| true, &mut stages);
    let stages = stages.rows();
    let stage = stages.iter().find(|row| row.stage_id == 3);
    let over = &stage.expect("a stage").over_executors["ProcessTreeJVMRSSMemory"];
    assert_eq!((over.max, over.values), (990, 1));
}

#[test]
fn a_stage_has_the_largest_peak_of_its_tasks_workers() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, S, started(2, 3));
    tell(&mut state, 1, S, worker(5, Some(1)));
    tell(&mut state, 1, S, worker(6, Some(2)));
    read(&mut state, 2 * S, &[(500, 5, 100, 100), (600, 6, 30, 30)]);
    read(&mut state, 3 * S, &[(500, 5, 40, 100), (600, 6, 90, 90)]);
    let rows = state.list_stages(&Filter::default()).rows;
    assert_eq!(rows[0].python_worker_peak_bytes, Some(100));
}

/// What the marker examined: these parts of `anonymous` bytes.
fn examined(anonymous: u64, direct: u64) -> Fact {
    use smtt_common::event::memory::MemoryFigure as F;
    let figure = |(figure, value): (F, u64)| Figure {
        code: figure.0,
        age_ms: 0,
        value,
    };
    let figures = [
        (F::ANONYMOUS, anonymous),
        (F::HEAP_RESIDENT, 40 << 20),
        (F::HEAP_USED, 30 << 20),
        (F::DIRECT, direct),
        (F::HEAP_MAX, 64 << 20),
    ];
    Fact::MemoryReported(Box::new(MemoryReported {
        examined: true,
        overhead_is_default: false,
        figures: figures.map(figure).into(),
    }))
}

/// A reading of the JVM with a Python worker, and the sample of that second.
fn read_all(state: &mut State, time_ns: u64, anonymous_bytes: u64) {
    let process = ProcessMemory {
        resident_bytes: anonymous_bytes + (9 << 20),
        anonymous_bytes,
        file_bytes: 9 << 20,
        ..ProcessMemory::default()
    };
    let worker = ChildMemory {
        pid: 500,
        inner_pid: 5,
        name: "python3".into(),
        kind: ChildKind::Python,
        memory: ProcessMemory {
            resident_bytes: 910 << 20,
            ..ProcessMemory::default()
        },
    };
    let kernel = KernelMemory {
        process,
        children: vec![worker],
        ..KernelMemory::default()
    };
    state.set_memory(key(1), kernel, time_ns);
    let sample = MemorySample {
        time_ns,
        anonymous_bytes: Some(anonymous_bytes),
        ..MemorySample::default()
    };
    state.sample_memory(key(1), &sample);
}

#[test]
fn a_death_has_the_memory_table_of_its_last_second() {
    let mut state = state();
    tell(&mut state, 1, S, described("app", "1"));
    tell(&mut state, 1, S, Fact::ProcessForked { child_pid: 500 });
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, S, worker(5, Some(1)));
    tell(&mut state, 1, S, examined(100 << 20, 10 << 20));
    // Far more readings than divisions are kept.
    for second in 2..400 {
        read_all(&mut state, second * S, 100 << 20);
    }
    tell(&mut state, 1, 400 * S, examined(150 << 20, 45 << 20));
    read_all(&mut state, 400 * S, 152 << 20);
    let bytes = state.executors()[&key(1)].black_box.bytes();
    assert!(bytes < 16 << 10, "{bytes} bytes");
    // The worker dies; soon its task has failed and the process is gone.
    let end = ProcessEnd {
        status: 9,
        peak_rss_bytes: 1,
        name: "python3".into(),
    };
    let gone = |is_executor, end: &ProcessEnd| Fact::ProcessGone {
        exec: false,
        is_executor,
        end: Some(Box::new(end.clone())),
    };
    of_process(&mut state, 500, 401 * S, gone(false, &end));
    tell(&mut state, 1, 401 * S, ended(1, 3, TaskOutcome::Failed));
    state.set_memory(key(1), KernelMemory::default(), 402 * S);
    let due = state.deaths_due(402 * S);
    let [(executor, Some(child))] = &due[..] else {
        panic!("one child is dead: {due:?}");
    };
    let check = |case: &Case| {
        let memory = case.memory.as_ref().expect("the memory");
        let part = |name: &str| {
            let found = memory.parts.iter().find(|part| part.name == name);
            found.map(|part| part.bytes >> 20)
        };
        let sum: i64 = memory.parts.iter().map(|part| part.bytes).sum();
        assert_eq!(u64::try_from(sum).ok(), memory.resident_bytes);
        assert_eq!(
            (part("direct_buffers"), part("since_examined")),
            (Some(45), Some(2))
        );
        assert_eq!(memory.children[0].resident_bytes, 910 << 20);
        assert_eq!(memory.limits[0].limit_bytes, 64 << 20);
        let tasks = &case.last.tasks;
        assert_eq!(tasks.len(), 1, "{tasks:?}");
        assert_eq!(tasks[0].python_worker_peak_bytes, Some(910 << 20));
        let report = judge(case, 5);
        let grown = report.growth.iter();
        let grown: Vec<_> = grown
            .map(|grown| (grown.what.as_str(), grown.to_bytes >> 20))
            .collect();
        assert!(grown.contains(&("direct buffers", 45)), "{grown:?}");
        let text = serde_json::to_string(&report).expect("written");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("read"), report);
    };
    let case = state.case(*executor, Some(child.clone())).expect("a case");
    check(&case);
    assert_eq!(case.memory.and_then(|memory| memory.age_ns), Some(S));
    // The JVM dies with the next worker.
    tell(&mut state, 1, 402 * S, started(2, 3));
    tell(&mut state, 1, 402 * S, worker(5, Some(2)));
    read_all(&mut state, 403 * S, 152 << 20);
    of_process(&mut state, 101, 404 * S, gone(true, &end));
    let due = state.deaths_due(405 * S);
    let [(executor, None)] = &due[..] else {
        panic!("the JVM is dead: {due:?}");
    };
    check(&state.case(*executor, None).expect("a case"));
}

/// What worker `pid` used for task 1, of which `present` is known.
fn served(pid: u32, cpu_ns: u64, flags: u32) -> Fact {
    let mut accounts = [0; ACCOUNTS];
    (accounts[CPU_NS], accounts[FAULTS_MINOR]) = (cpu_ns, 3);
    Fact::WorkerUsed(Box::new(WorkerUsed {
        used: TaskUsed {
            task_attempt_id: 1,
            accounts,
            duration_ns: S / 2,
            present: 1 << CPU_NS | 1 << FAULTS_MINOR,
            flags: flags | u32::from(Helper::PYTHON_WORKER.0) << HELPER_SHIFT,
        },
        pid,
        reserved: 0,
    }))
}

#[test]
fn a_worker_s_services_are_a_helper_of_their_task_and_no_part_of_its_own_figures() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    tell(&mut state, 1, 2 * S, served(500, 70, 0));
    tell(&mut state, 1, 3 * S, served(400, 20, PARTIAL));
    // What worker 500 did after its service and before the next one.
    tell(&mut state, 1, 3 * S, served(500, 5, REST));
    tell(&mut state, 1, 3 * S, ended(1, 3, TaskOutcome::Succeeded));
    let rows = state.list_tasks(&Filter::default()).rows;
    let helper = &rows[0].helpers[0];
    assert_eq!(
        (rows[0].helpers.len(), helper.name.as_str()),
        (1, "python worker")
    );
    assert_eq!((helper.threads, helper.partial_threads), (2, 1));
    assert_eq!(helper.pids, [400, 500]);
    assert_eq!(helper.used.cpu_ns, Some(95));
    assert_eq!(helper.used.thread_minor_faults, Some(9));
    assert_eq!(helper.used.cpu_wait_ns, None);
    assert_eq!(rows[0].used.cpu_ns, None);
    let stages = state.list_stages(&Filter::default()).rows;
    let sum = stages[0].helpers.as_ref().expect("a sum");
    assert_eq!((sum.threads, sum.used.cpu_ns), (2, Some(95)));
}

#[test]
fn a_task_lists_its_first_workers_and_adds_up_all() {
    let mut state = state();
    tell(&mut state, 1, S, started(1, 3));
    for pid in 1..=100 {
        tell(&mut state, 1, 2 * S, served(pid, 1, 0));
    }
    let rows = state.list_tasks(&Filter::default()).rows;
    let helper = &rows[0].helpers[0];
    assert_eq!((helper.threads, helper.used.cpu_ns), (100, Some(100)));
    assert_eq!(helper.pids, (1..=16).collect::<Vec<_>>());
}

#[test]
fn services_to_a_task_without_a_row_make_none() {
    let mut state = state();
    tell(&mut state, 1, S, started(2, 3));
    tell(&mut state, 1, 2 * S, served(5, 1, 0));
    let rows = state.list_tasks(&Filter::default()).rows;
    assert_eq!(rows.len(), 1);
    assert!(rows[0].helpers.is_empty());
}
