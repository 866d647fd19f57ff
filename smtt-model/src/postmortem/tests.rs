//! The rules on made-up deaths; `tests/tests/spark/deaths.rs` has real ones.

mod signals;

use super::*;
use crate::decode::{Exhausted, OomKilled, ProcessEnd, SignalSent};
use crate::rows::{MemoryPart, MemoryRow};
use crate::state::{ChildEnd, Noted, SignalNote};

const S: u64 = 1_000_000_000;
const JVM: u32 = 100;

fn ended(status: u32) -> Case {
    Case {
        who: ExecutorId {
            pid: JVM,
            ..ExecutorId::default()
        },
        died_ns: 1000 * S,
        heap_max_bytes: Some(1 << 30),
        end_seen: true,
        jvm_end: Some(ProcessEnd {
            status,
            peak_rss_bytes: 1 << 30,
            name: "java".into(),
        }),
        ..Case::default()
    }
}

fn at<T>(time_ns: u64, what: T) -> Noted<T> {
    Noted {
        time_ns,
        task_attempt_id: None,
        what,
    }
}

fn sent(target: u32, signal: u32, from: u32) -> Noted<SignalNote> {
    let sent = SignalSent {
        target_pid: target,
        is_executor: target == JVM,
        signal,
        from_kernel: false,
        sender_pid: from,
        sender_uid: 1000,
        sender_name: "sender".into(),
    };
    let from_own = false;
    at(999 * S, SignalNote { sent, from_own })
}

fn out_of(description: &str, uncaught: bool, before: u64) -> Noted<Exhausted> {
    let what = Exhausted {
        uncaught,
        flags: 1,
        description: description.into(),
    };
    Noted {
        task_attempt_id: Some(7),
        ..at(1000 * S - before, what)
    }
}

/// A JVM that the kernel's OOM killer chose.
fn oom_killed() -> Case {
    let mut case = ended(9);
    case.oom.push(at(
        999 * S,
        OomKilled {
            victim_pid: JVM,
            is_executor: true,
        },
    ));
    case
}

fn of(case: &Case) -> Verdict {
    let report = judge(case, 5);
    assert!(report.row.sentence.ends_with('.'), "{report:?}");
    assert!(!report.evidence.is_empty());
    report.row.verdict
}

#[test]
fn an_end_without_a_cause_gets_none() {
    assert_eq!(of(&ended(0)), Verdict::Ended);
    assert_eq!(of(&ended(56 << 8)), Verdict::Exited);
    assert!(
        judge(&ended(56 << 8), 0)
            .row
            .sentence
            .contains("heartbeats")
    );
    // The application caught the error and went on.
    let mut case = ended(0);
    case.exhausted.push(out_of("Java heap space", false, S));
    assert_eq!(of(&case), Verdict::Ended);
    case = ended(1 << 8);
    case.exhausted.push(out_of("Java heap space", false, S));
    assert_eq!(of(&case), Verdict::Exited);
    case = Case {
        jvm_end: None,
        end_seen: false,
        ..ended(0)
    };
    assert_eq!(of(&case), Verdict::Lost);
}

#[test]
fn the_text_of_an_error_says_what_ran_out() {
    for (text, verdict) in [
        (
            "java.lang.OutOfMemoryError: Java heap space",
            Verdict::HeapExhausted,
        ),
        (
            "java.lang.OutOfMemoryError: GC overhead limit exceeded",
            Verdict::HeapExhausted,
        ),
        (
            "java.lang.OutOfMemoryError: Metaspace",
            Verdict::MetaspaceExhausted,
        ),
        (
            "java.lang.OutOfMemoryError: Cannot reserve 1048576 bytes of direct buffer memory (allocated: 1, limit: 2)",
            Verdict::DirectMemoryExhausted,
        ),
        (
            "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory",
            Verdict::ThreadsExhausted,
        ),
        (
            "java.lang.OutOfMemoryError: of another kind",
            Verdict::OutOfMemoryError,
        ),
    ] {
        let mut case = ended(52 << 8);
        case.exhausted.push(out_of(text, true, S));
        assert_eq!(of(&case), verdict, "{text}");
        assert!(judge(&case, 0).row.sentence.contains("task 7"));
    }
    assert_eq!(of(&ended(52 << 8)), Verdict::OutOfMemoryError);
}

#[test]
fn options_of_the_jvm_end_it_in_other_ways() {
    let mut case = ended(3 << 8);
    assert_eq!(of(&case), Verdict::Exited);
    case.outside.options = vec!["-XX:+ExitOnOutOfMemoryError".into()];
    assert_eq!(of(&case), Verdict::OutOfMemoryError);
    let mut case = ended(143 << 8);
    case.outside.options = vec!["-XX:OnOutOfMemoryError=kill %p".into()];
    case.signals.push(sent(JVM, 15, 300));
    case.exhausted.push(out_of("Java heap space", false, S));
    assert_eq!(
        of(&case),
        Verdict::KilledBySignal,
        "another process sent it"
    );
    case.signals[0].what.from_own = true;
    assert_eq!(of(&case), Verdict::HeapExhausted);
}

#[test]
fn the_kernel_names_its_victim_and_the_counts_the_limit() {
    let mut case = oom_killed();
    case.signals.push(sent(JVM, 9, 300));
    assert_eq!(of(&case), Verdict::OomKilled);
    let limits = CgroupLimits {
        limit_bytes: Some(1536 << 20),
        limit_hits: Some((3, 4)),
        ..CgroupLimits::default()
    };
    case.outside.cgroup = Some(limits);
    assert_eq!(of(&case), Verdict::OomKilledCgroup);
    let advice = judge(&case, 0).advice.concat();
    assert!(
        advice.contains("leaves 512.0 MiB beside a heap of 1.0 GiB"),
        "{advice}"
    );
    assert!(
        advice.contains("spark.executor.memoryOverhead="),
        "{advice}"
    );
    if let Some(cgroup) = &mut case.outside.cgroup {
        cgroup.limit_hits = Some((3, 3));
    }
    assert_eq!(of(&case), Verdict::OomKilledMachine);
    case.outside.kernel_log = vec!["oom-kill:constraint=CONSTRAINT_MEMCG,task=java".into()];
    assert_eq!(of(&case), Verdict::OomKilledCgroup);
    // The cgroup went before its counts were read again.
    case.outside.kernel_log.clear();
    let mut of_peak = |peak: Option<u64>| {
        if let Some(cgroup) = &mut case.outside.cgroup {
            (cgroup.limit_hits, cgroup.peak_bytes) = (None, peak);
        }
        let report = judge(&case, 0);
        let advice = report.advice.concat();
        assert!(advice.contains("leaves 512.0 MiB"), "{advice}");
        (report.row.verdict, report.row.sentence)
    };
    assert_eq!(of_peak(None).0, Verdict::OomKilled);
    assert_eq!(of_peak(Some(1200 << 20)).0, Verdict::OomKilled);
    let (verdict, sentence) = of_peak(Some(1535 << 20));
    assert_eq!(verdict, Verdict::OomKilledCgroup);
    assert!(
        sentence.contains("its cgroup had held 1.5 GiB of its limit of 1.5 GiB"),
        "{sentence}"
    );
    // Another process was the victim.
    case.oom[0].what.victim_pid = JVM + 1;
    assert_eq!(of(&case), Verdict::KilledBySignal);
}

#[test]
fn a_signal_is_of_spark_or_of_another_process() {
    for (status, signal) in [(9, 9), (143 << 8, 15), (15, 15), (130 << 8, 2)] {
        let mut case = ended(status);
        assert_eq!(of(&case), Verdict::KilledBySignal, "by an unknown process");
        case.signals.push(sent(JVM, signal, 300));
        assert_eq!(of(&case), Verdict::KilledBySignal);
        assert!(
            judge(&case, 0)
                .row
                .sentence
                .contains("Process 300 (sender, user 1000)")
        );
        case.outside.parent_pid = Some(300);
        assert_eq!(of(&case), Verdict::StoppedBySpark);
        assert!(of(&case).ended_well());
        case.outside.parent_pid = Some(301);
        case.outside.sender_program = Some("org.apache.spark.deploy.worker.Worker".into());
        assert_eq!(of(&case), Verdict::StoppedBySpark);
    }
    // Asked to stop, it ended by itself with another code.
    let mut case = ended(0);
    case.signals.push(sent(JVM, 15, 300));
    assert_eq!(of(&case), Verdict::Ended);
}

#[test]
fn a_crash_names_its_report_and_its_sender() {
    let mut case = ended(6);
    case.outside.crash_report = Some("/work/hs_err_pid100.log".into());
    assert_eq!(of(&case), Verdict::Crashed);
    case.signals.push(sent(JVM, 11, 300));
    let sentence = judge(&case, 0).row.sentence;
    assert!(
        sentence.contains("SIGSEGV, which process 300") && sentence.contains("hs_err_pid100.log"),
        "{sentence}"
    );
}

#[test]
fn a_crash_of_a_jvm_with_a_command_for_out_of_memory_is_a_crash() {
    // HotSpot reports the crash and ends itself with SIGABRT; Spark on YARN always sets the command.
    let mut case = ended(6);
    case.outside.options = vec!["-XX:OnOutOfMemoryError=kill %p".into()];
    let mut own = sent(JVM, 6, JVM);
    own.what.from_own = true;
    case.signals.push(own);
    assert_eq!(of(&case), Verdict::Crashed);
    // The command itself is a child.
    let mut case = ended(9);
    case.outside.options = vec!["-XX:OnOutOfMemoryError=kill -9 %p".into()];
    let mut child = sent(JVM, 9, JVM + 1);
    child.what.from_own = true;
    case.signals.push(child);
    assert_eq!(of(&case), Verdict::OutOfMemoryError);
}

#[test]
fn a_kill_by_the_kernel_without_an_oom_kill_is_none() {
    // The first process of its container has ended.
    let mut case = ended(9);
    let mut kernel = sent(JVM, 9, 0);
    kernel.what.sent.from_kernel = true;
    case.signals.push(kernel);
    assert_eq!(of(&case), Verdict::KilledBySignal);
    // The record was lost, and the cgroup counted it.
    case.outside.cgroup = Some(CgroupLimits {
        oom_kills: Some((1, 2)),
        ..CgroupLimits::default()
    });
    assert_eq!(of(&case), Verdict::OomKilled);
}

#[test]
fn a_python_worker_dies_while_the_jvm_lives() {
    let child = at(
        1000 * S,
        ChildEnd {
            pid: 200,
            end: ProcessEnd {
                status: 9,
                peak_rss_bytes: 910 << 20,
                name: "python3".into(),
            },
        },
    );
    let mut case = Case {
        jvm_end: None,
        end_seen: false,
        child: Some(child.clone()),
        child_ends: vec![child],
        signals: vec![sent(200, 9, 300)],
        ..ended(0)
    };
    let report = judge(&case, 0);
    assert_eq!(report.row.verdict, Verdict::PythonWorkerKilled);
    assert_eq!(report.row.child_pid, Some(200));
    assert!(report.row.sentence.contains("process 300"), "{report:?}");
    case.outside.cgroup = Some(CgroupLimits {
        limit_bytes: Some((1 << 30) + (384 << 20)),
        limit_hits: Some((0, 1)),
        ..CgroupLimits::default()
    });
    let advice = judge(&case, 0).advice.concat();
    assert!(
        advice.contains("leaves 384.0 MiB") && advice.contains("needed 910.0 MiB"),
        "{advice}"
    );
    assert!(
        advice.contains("spark.executor.memoryOverhead=1g"),
        "{advice}"
    );
    case.signals.clear();
    assert!(judge(&case, 0).row.sentence.contains("crashed (SIGKILL)"));
}

/// Four tasks with a Python worker each, and room for three of them.
#[test]
fn the_advice_says_how_many_cores_fit() {
    let mut case = oom_killed();
    case.outside.cgroup = Some(CgroupLimits {
        limit_bytes: Some(1800 << 20),
        limit_hits: Some((3, 4)),
        ..CgroupLimits::default()
    });
    case.last.running = 4;
    case.samples = vec![MemorySample {
        resident_bytes: Some(1 << 30),
        children_bytes: Some(910 << 20),
        ..MemorySample::default()
    }];
    let advice = |case: &Case| judge(case, 0).advice.concat();
    let text = advice(&case);
    assert!(
        text.contains("leaves 776.0 MiB")
            && text.contains("needed 910.0 MiB")
            && text.contains("spark.executor.memoryOverhead=1280m")
            && text.contains("or 3 instead of 4 cores (spark.executor.cores)."),
        "{text}"
    );
    // All of them fitted at the last sample.
    case.samples[0].children_bytes = Some(700 << 20);
    assert!(
        advice(&case).contains("or 3 instead of 4 cores"),
        "{}",
        advice(&case)
    );
    // Not one task's workers fit.
    case.samples[0].children_bytes = Some(8 << 30);
    assert!(!advice(&case).contains("cores"), "{}", advice(&case));
    case.last.running = 1;
    assert!(!advice(&case).contains("cores"));
    let mut full = ended(52 << 8);
    full.exhausted.push(out_of(
        "java.lang.OutOfMemoryError: Java heap space",
        true,
        S,
    ));
    full.last.running = 4;
    let text = advice(&full);
    assert!(
        text.contains("4 tasks ran at once: 2 instead of 4 cores"),
        "{text}"
    );
}

#[test]
fn a_report_survives_json_and_a_verdict_of_a_later_version() {
    let report = judge(&ended(9), 1_700_000_000_000);
    let text = serde_json::to_string(&report).expect("written");
    assert_eq!(serde_json::from_str::<Report>(&text).expect("read"), report);
    let later = text.replace("killed_by_signal", "eaten");
    let read: Report = serde_json::from_str(&later).expect("read");
    assert_eq!(read.row.verdict, Verdict::Unknown);
    for verdict in Verdict::ALL {
        let name = serde_json::to_value(verdict).expect("a name");
        assert_eq!(name, verdict.name());
    }
}

#[test]
fn a_report_of_an_earlier_version_is_readable() {
    let text = r#"{"id":"5-100","died_unix_ms":5,"application_id":"app-1","application_attempt_id":null,
        "executor_id":"1","pid":100,"uid":1000,"verdict":"exited","sentence":"It ended.",
        "samples":[{"time_ns":1,"resident_bytes":4096,"anonymous_bytes":null,"file_bytes":null,"shared_bytes":null,
            "swapped_bytes":null,"heap_used_bytes":null,"heap_committed_bytes":null,"storage_bytes":0,
            "execution_bytes":0,"children_bytes":0,"cgroup_bytes":null,"threads":3}],
        "last":{"tasks":[{"task_attempt_id":7,"stage_id":1,"stage_attempt":0,"partition":2,"age_ns":9,
            "execution_bytes":5,"execution_peak_bytes":6}],"running":1,"storage_bytes":0,"storage_off_heap_bytes":0,
            "execution_bytes":5,"execution_off_heap_bytes":0,"python_workers":0,"children":0}}"#;
    let read: Report = serde_json::from_str(text).expect("read");
    assert_eq!(read.memory, None);
    assert_eq!(read.last.tasks[0].python_worker_peak_bytes, None);
    assert_eq!(read.samples[0].threads, Some(3));
}

#[test]
fn what_grew_most_comes_first() {
    let sample = |anonymous, children| MemorySample {
        anonymous_bytes: Some(anonymous),
        children_bytes: children,
        ..MemorySample::default()
    };
    let samples = [
        sample(10 << 20, None),
        sample(11 << 20, Some(1 << 20)),
        sample(14 << 20, Some(100 << 20)),
    ];
    let part = |name: &str, bytes| MemoryPart {
        name: name.into(),
        bytes,
        estimated: false,
    };
    let case = Case {
        samples: samples.into(),
        first_parts: vec![
            ("direct_buffers", 5 << 20),
            ("mapped_files", 0),
            ("native_not_explained", -(1 << 20)),
        ],
        memory: Some(Box::new(MemoryRow {
            parts: vec![
                part("direct_buffers", 7 << 20),
                part("mapped_files", 50 << 20),
                part("native_not_explained", 3 << 20),
                part("metaspace", 50 << 20),
            ],
            ..MemoryRow::default()
        })),
        ..Case::default()
    };
    let grown = evidence::growth(&case);
    let names: Vec<&str> = grown.iter().map(|growth| growth.what.as_str()).collect();
    assert_eq!(
        names,
        [
            "children, such as Python workers",
            "anonymous memory of the JVM",
            "native, not explained",
            "direct buffers",
        ]
    );
}

#[test]
fn an_end_after_a_report_in_advance_is_the_end_that_it_is_about() {
    const MINUTE_MS: u64 = 60_000;
    let row = |died_unix_ms, pid, uid| {
        let mut row = Row {
            died_unix_ms,
            ..Row::default()
        };
        (row.who.pid, row.who.uid) = (pid, Some(uid));
        row
    };
    let at = 100 * MINUTE_MS;
    let in_advance = Report {
        row: row(at, 7, 1),
        ..Report::default()
    };
    let is_ended_by = |row: &Row| in_advance.is_ended_by(row, MINUTE_MS / 2);
    // The list was written late, or not for a while.
    assert!(is_ended_by(&row(at + 10 * MINUTE_MS, 7, 1)));
    assert!(is_ended_by(&row(at - MINUTE_MS, 7, 1)));
    assert!(!is_ended_by(&row(at - 10 * MINUTE_MS, 7, 1)), "its number");
    assert!(!is_ended_by(&row(at, 8, 1)));
    assert!(!is_ended_by(&row(at, 7, 2)));
    let mut said = row(at, 7, 1);
    said.who.executor_id = Some("3".into());
    assert!(is_ended_by(&said), "it described itself after the list");
    let child = Row {
        child_pid: Some(9),
        ..row(at, 7, 1)
    };
    assert!(!is_ended_by(&child));
}
