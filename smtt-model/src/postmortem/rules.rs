//! The rules that judge a death, as data: the first one that applies gives the verdict.

use super::Verdict;
use super::case::{CRASHES, Case, CgroupLimits, Exhaustion, FULL_PERCENT, signal_name};
use crate::decode::SignalSent;
use crate::state::{Noted, SignalNote};
use crate::units::bytes;

/// A verdict and its sentence.
type Judged = (Verdict, String);

/// One rule.
pub struct Rule {
    /// What it checks for.
    pub name: &'static str,
    /// Its verdict; `None` where it does not apply.
    judge: fn(&Case) -> Option<Judged>,
}

/// The rules, in order. What is certain comes before what is likely: the kernel names its victim, and a JVM that ran out
/// of memory ends in several ways that look like something else.
pub const RULES: &[Rule] = &[
    rule("the OOM killer chose the process", oom_killer),
    rule("a Python worker", python_worker),
    rule("the JVM ran out of memory", out_of_memory),
    rule("the JVM crashed", crash),
    rule("it was stopped", stopped),
    rule("a signal ended it", killed),
    rule("it ended by itself", exited),
    rule("its end was not seen", lost),
];

const fn rule(name: &'static str, judge: fn(&Case) -> Option<Judged>) -> Rule {
    Rule { name, judge }
}

const SIGABRT: u32 = 6;
const SIGKILL: u32 = 9;
const SIGTERM: u32 = 15;
/// HotSpot's exit code with `ExitOnOutOfMemoryError`.
const EXIT_ON_OUT_OF_MEMORY: u32 = 3;
/// Spark's exit code after an uncaught `OutOfMemoryError`.
const SPARK_OUT_OF_MEMORY: u32 = 52;

/// Exit codes of an executor, as Spark's `SparkExitCode` and `ExecutorExitCode` have them.
const EXIT_CODES: &[(u32, &str)] = &[
    (
        1,
        "an error at its start, or the driver could not be reached",
    ),
    (50, "an exception that no code caught"),
    (
        51,
        "an exception that no code caught, and another one while it ended",
    ),
    (53, "no folder for blocks on disk could be made"),
    (54, "the external block store could not be initialised"),
    (55, "no folder in the external block store could be made"),
    (56, "its heartbeats did not reach the driver"),
    (
        57,
        "a killed task did not end, and Spark's task reaper ended the JVM",
    ),
];

/// The verdict on a death.
pub(super) fn verdict(case: &Case) -> Judged {
    let judged = RULES.iter().find_map(|rule| (rule.judge)(case));
    judged.unwrap_or_else(|| (Verdict::Unknown, "Why it ended is not known.".into()))
}

/// Who sent a signal, for a sentence.
fn sender(case: &Case, note: &Noted<SignalNote>) -> String {
    let SignalSent {
        sender_pid,
        sender_uid,
        sender_name,
        from_kernel,
        ..
    } = &note.what.sent;
    if *from_kernel {
        return "the kernel".into();
    }
    let program = match &case.outside.sender_program {
        Some(program) => format!(", {program}"),
        None => String::new(),
    };
    format!("process {sender_pid} ({sender_name}{program}, user {sender_uid})")
}

/// At which limit the OOM killer worked, by what the kernel's log or its counts say.
fn scope(case: &Case) -> (Verdict, String) {
    let mut log = case.outside.kernel_log.iter();
    let constraint = log.find_map(|line| line.strip_prefix("oom-kill:constraint=CONSTRAINT_"));
    let cgroup = case.outside.cgroup.as_ref();
    let limit = match cgroup.and_then(|cgroup| cgroup.limit_bytes) {
        Some(limit) => format!("its cgroup had reached its limit of {}", bytes(limit)),
        None => "its cgroup had reached its limit".into(),
    };
    if constraint.is_some_and(|kind| kind.starts_with("MEMCG")) {
        return (Verdict::OomKilledCgroup, limit);
    }
    if constraint.is_some() {
        return (
            Verdict::OomKilledMachine,
            "the machine had no memory left".into(),
        );
    }
    match cgroup {
        Some(CgroupLimits {
            limit_hits: Some((before, after)),
            ..
        }) if after > before => (Verdict::OomKilledCgroup, limit),
        Some(CgroupLimits {
            limit_hits: Some(_),
            ..
        }) => (
            Verdict::OomKilledMachine,
            "its cgroup had not reached a limit, so the machine had no memory left".into(),
        ),
        // A container's cgroup goes with its last process, and its counts too. Old kernels of version 2 have no peak.
        Some(CgroupLimits {
            limit_bytes: Some(limit),
            peak_bytes,
            current_bytes,
            ..
        }) if *peak_bytes.max(current_bytes) >= Some(limit / 100 * FULL_PERCENT) => (
            Verdict::OomKilledCgroup,
            format!(
                "its cgroup had held {} of its limit of {}",
                bytes(peak_bytes.max(current_bytes).unwrap_or(0)),
                bytes(*limit)
            ),
        ),
        _ => (
            Verdict::OomKilled,
            "whether at the limit of its cgroup or because the machine had no memory left is not known".into(),
        ),
    }
}

fn is_oom_victim(case: &Case) -> bool {
    // Where the record was lost. The kernel also kills the processes of a container whose first process has ended, so its
    // SIGKILL alone says nothing.
    let ended_by_kernel = || {
        case.end().and_then(|end| end.signal()) == Some(SIGKILL)
            && case
                .signal(SIGKILL)
                .is_some_and(|note| note.what.sent.from_kernel)
    };
    let counted = || {
        let cgroup = case.outside.cgroup.as_ref();
        let kills = cgroup.and_then(|cgroup| cgroup.oom_kills);
        !case.outside.kernel_log.is_empty() || kills.is_some_and(|(before, after)| after > before)
    };
    case.is_oom_victim() || (ended_by_kernel() && counted())
}

fn oom_killer(case: &Case) -> Option<Judged> {
    if case.child.is_some() || !is_oom_victim(case) {
        return None;
    }
    let (verdict, why) = scope(case);
    Some((
        verdict,
        format!(
            "The kernel's OOM killer ended the JVM (process {}): {why}.",
            case.who.pid
        ),
    ))
}

/// A signal of a process of the executor itself is how Spark ends its Python workers.
fn python_worker(case: &Case) -> Option<Judged> {
    let child = case.child.as_ref()?;
    let signal = child.what.end.signal()?;
    let what = format!("Python worker {} ({})", child.what.pid, child.what.end.name);
    let why = if is_oom_victim(case) {
        format!("The kernel's OOM killer ended {what}: {}", scope(case).1)
    } else {
        match case.signal(signal) {
            Some(note) => format!(
                "{} of {} ended {what}",
                signal_name(signal),
                sender(case, note)
            ),
            None => format!("{what} crashed ({})", signal_name(signal)),
        }
    };
    let jvm = if case.end_seen {
        "ended after it"
    } else {
        "lived on"
    };
    Some((
        Verdict::PythonWorkerKilled,
        format!("{why}; the JVM {jvm}."),
    ))
}

fn out_of_memory(case: &Case) -> Option<Judged> {
    let end = case.jvm_end.as_ref();
    let (code, signal) = (
        end.and_then(|end| end.exit_code()),
        end.and_then(|end| end.signal()),
    );
    let told = case.out_of_memory();
    let note = case.decisive().and_then(|(_, note)| note);
    let uncaught = case.ran_out(note.map_or(u64::MAX, |note| note.time_ns));
    let killed_by = note.filter(|note| uncaught && note.what.sent.sender_pid != case.who.pid);
    let killed_by = killed_by.map(|note| {
        let signal = signal_name(note.what.sent.signal);
        format!("{} then killed it with {signal}", sender(case, note))
    });
    // A command of -XX:OnOutOfMemoryError is a child of the JVM, which reports the error after the command. A JVM that
    // crashes ends itself by a signal, so its own do not count.
    let own_command = case.has_option("-XX:OnOutOfMemoryError")
        && note.is_some()
        && case.signals.iter().any(|note| {
            let sent = &note.what.sent;
            note.what.from_own
                && sent.sender_pid != case.who.pid
                && matches!(sent.signal, SIGTERM | SIGKILL)
        });
    let how = match (code, signal) {
        (Some(SPARK_OUT_OF_MEMORY), _) => "Spark then ended the process with exit code 52".into(),
        (Some(EXIT_ON_OUT_OF_MEMORY), _)
            if told.is_some() || case.has_option("-XX:+ExitOnOutOfMemoryError") =>
        {
            "-XX:+ExitOnOutOfMemoryError then ended the process".into()
        }
        (_, Some(SIGABRT)) if case.has_option("-XX:+CrashOnOutOfMemoryError") => {
            "-XX:+CrashOnOutOfMemoryError then ended the process".into()
        }
        _ if own_command => "the command of -XX:OnOutOfMemoryError then ended the process".into(),
        _ if killed_by.is_some() => killed_by.unwrap_or_default(),
        (Some(code), _) if uncaught && code != 0 => {
            format!("the process then ended with exit code {code}")
        }
        (_, Some(signal)) if uncaught => format!("{} then ended it", signal_name(signal)),
        // The application went on.
        _ => return None,
    };
    let (verdict, what) = match told.map(|note| Exhaustion::of(&note.what)) {
        Some(Exhaustion::Heap) => (Verdict::HeapExhausted, "its Java heap"),
        Some(Exhaustion::Metaspace) => (Verdict::MetaspaceExhausted, "metaspace"),
        Some(Exhaustion::Direct) => (Verdict::DirectMemoryExhausted, "direct buffers"),
        Some(Exhaustion::Threads) => (Verdict::ThreadsExhausted, "threads"),
        Some(Exhaustion::Other) | None => {
            (Verdict::OutOfMemoryError, "memory, it is not known which")
        }
    };
    let heap = match case.heap_max_bytes {
        Some(most) if verdict == Verdict::HeapExhausted => format!(" of {}", bytes(most)),
        _ => String::new(),
    };
    let task = told.and_then(|note| note.task_attempt_id);
    let thread = task.map_or_else(String::new, |task| format!(" on the thread of task {task}"));
    Some((
        verdict,
        format!("The JVM ran out of {what}{heap}{thread}; {how}."),
    ))
}

fn crash(case: &Case) -> Option<Judged> {
    let end = case.jvm_end.as_ref()?;
    let signal = end.signal().filter(|signal| CRASHES.contains(signal));
    // HotSpot reports a crash and ends itself with SIGABRT.
    let signal = signal?;
    let note = case.decisive().and_then(|(_, note)| note);
    let sent = note.filter(|note| note.what.sent.sender_pid != case.who.pid);
    let why = match sent {
        Some(note) => format!(
            "The JVM crashed by {}, which {} sent",
            signal_name(note.what.sent.signal),
            sender(case, note)
        ),
        None => format!("The JVM crashed and ended by {}", signal_name(signal)),
    };
    let report = match (
        &case.outside.crash_report,
        &case.outside.crash_report_expected,
    ) {
        (Some(path), _) => format!("; its report is {path}"),
        (None, Some(path)) => format!("; its report would be {path}"),
        (None, None) => String::new(),
    };
    Some((Verdict::Crashed, format!("{why}{report}.")))
}

/// The parent of an executor is Spark's worker, or what the cluster manager started it with.
fn stopped(case: &Case) -> Option<Judged> {
    let (_, note) = case.decisive()?;
    let note = note?;
    let sent = &note.what.sent;
    if sent.from_kernel {
        return None;
    }
    let spark = case
        .outside
        .sender_program
        .as_ref()
        .is_some_and(|program| program.starts_with("org.apache."));
    let parent = case.outside.parent_pid == Some(sent.sender_pid);
    if !spark && !parent {
        return None;
    }
    let who = match (parent, spark) {
        (true, _) => "the process that had started it",
        (false, _) => "a process of Spark or of the cluster",
    };
    Some((
        Verdict::StoppedBySpark,
        format!(
            "{}, {who}, stopped it with {}.",
            sentence_case(&sender(case, note)),
            signal_name(sent.signal)
        ),
    ))
}

fn killed(case: &Case) -> Option<Judged> {
    let (ended, note) = case.decisive()?;
    let signal = note.map_or(ended, |note| note.what.sent.signal);
    let who = match note {
        Some(note) if note.what.from_own => {
            format!("{}, a process of the executor itself,", sender(case, note))
        }
        Some(note) => sender(case, note),
        None => "a process that is not known".into(),
    };
    let code = case.jvm_end.as_ref().and_then(|end| end.exit_code());
    let with = match code {
        Some(code) => format!("; the JVM then ended with exit code {code}"),
        None if ended != signal => format!("; {} then ended it", signal_name(ended)),
        None => String::new(),
    };
    Some((
        Verdict::KilledBySignal,
        format!(
            "{} killed it with {}{with}.",
            sentence_case(&who),
            signal_name(signal)
        ),
    ))
}

fn exited(case: &Case) -> Option<Judged> {
    let code = case.jvm_end.as_ref()?.exit_code()?;
    if code == 0 {
        return Some((
            Verdict::Ended,
            "It ended by itself with exit code 0.".into(),
        ));
    }
    let meaning = EXIT_CODES.iter().find(|(known, _)| *known == code);
    let meaning = meaning.map_or_else(String::new, |(_, text)| format!(": {text}"));
    let error = case
        .uncaught()
        .map_or_else(String::new, |note| format!(" ({})", note.what.description));
    Some((
        Verdict::Exited,
        format!("It ended by itself with exit code {code}{meaning}{error}."),
    ))
}

fn lost(case: &Case) -> Option<Judged> {
    let why = if case.end_seen {
        "Its process is gone; this kernel does not say how it ended."
    } else {
        "Its process is gone, and the record of its end was lost."
    };
    Some((Verdict::Lost, why.into()))
}

fn sentence_case(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}
