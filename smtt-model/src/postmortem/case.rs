//! What is known of one death.

use serde::{Deserialize, Serialize};

use crate::decode::{Exhausted, OomKilled, ProcessEnd};
use crate::rows::{ExecutorId, MemoryRow, memory_row};
use crate::state::{ChildEnd, LastMoment, MemorySample, Noted, SignalNote, State};

/// Time before the death in which an error of the JVM counts as its cause, in nanoseconds: a heap dump may take that long.
const CAUSE_NS: u64 = 120_000_000_000;

/// Share of its limit, in hundredths, that a cgroup had reached when the limit was the cause.
pub const FULL_PERCENT: u64 = 97;

const SIGKILL: u32 = 9;
/// Signals that ask a process to stop; a JVM then exits with 128 and the signal.
const STOPS: [u32; 3] = [15, 2, 1];
/// Signals of a program's error.
pub(super) const CRASHES: [u32; 6] = [4, 5, 6, 7, 8, 11];

/// What the JVM ran out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhaustion {
    /// The Java heap.
    Heap,
    /// Memory for classes.
    Metaspace,
    /// Direct buffers.
    Direct,
    /// Threads.
    Threads,
    /// Something that the text does not name.
    Other,
}

/// Beginnings and parts of HotSpot's and Netty's texts, and what they mean. The first that occurs applies.
const TEXTS: &[(&str, Exhaustion)] = &[
    ("Java heap space", Exhaustion::Heap),
    ("GC overhead limit exceeded", Exhaustion::Heap),
    ("Requested array size exceeds VM limit", Exhaustion::Heap),
    ("Metaspace", Exhaustion::Metaspace),
    ("Compressed class space", Exhaustion::Metaspace),
    ("direct buffer memory", Exhaustion::Direct),
    ("Direct buffer memory", Exhaustion::Direct),
    ("OutOfDirectMemoryError", Exhaustion::Direct),
    ("native thread", Exhaustion::Threads),
];
/// Flag of JVMTI's event: a thread could not be started.
const JVMTI_THREADS: u64 = 4;
/// Flag of JVMTI's event: the Java heap.
const JVMTI_HEAP: u64 = 2;

impl Exhaustion {
    /// What a report of the JVM means.
    #[must_use]
    pub fn of(exhausted: &Exhausted) -> Self {
        let text = TEXTS
            .iter()
            .find(|(part, _)| exhausted.description.contains(part));
        match text {
            Some((_, what)) => *what,
            None if exhausted.flags & JVMTI_THREADS != 0 => Self::Threads,
            None if exhausted.flags & JVMTI_HEAP != 0 => Self::Heap,
            None => Self::Other,
        }
    }
}

/// Memory limits of a cgroup, and what the kernel counted there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Path of the cgroup below its hierarchy.
    pub path: String,
    /// Version of the hierarchy that has the memory controller: 1 or 2.
    pub version: u8,
    /// Limit of this cgroup and of those above it, the smallest; absent where there is none.
    pub limit_bytes: Option<u64>,
    /// Most memory at once.
    pub peak_bytes: Option<u64>,
    /// Memory at the last reading.
    pub current_bytes: Option<u64>,
    /// Times that the limit was reached and memory could not be freed, before and after the death.
    pub limit_hits: Option<(u64, u64)>,
    /// Processes that the OOM killer ended, before and after the death.
    pub oom_kills: Option<(u64, u64)>,
}

/// What only the machine knows of a death.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// The process that started the JVM.
    pub parent_pid: Option<u32>,
    /// Options of the JVM.
    pub options: Vec<String>,
    /// Limits of its cgroup.
    pub cgroup: Option<CgroupLimits>,
    /// What the kernel's log reports of the victim.
    pub kernel_log: Vec<String>,
    /// Path of the JVM's crash report, which exists.
    pub crash_report: Option<String>,
    /// Where the crash report would be, where that could not be inspected.
    pub crash_report_expected: Option<String>,
    /// Main class, or name, of the process that sent the decisive signal.
    pub sender_program: Option<String>,
}

/// What is known of one death.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// The executor.
    pub who: ExecutorId,
    /// Name of the application.
    pub application_name: Option<String>,
    /// Host as Spark names it.
    pub host: Option<String>,
    /// First record of the executor, in nanoseconds since boot.
    pub first_seen_ns: u64,
    /// The death, in nanoseconds since boot.
    pub died_ns: u64,
    /// Maximum size of the Java heap.
    pub heap_max_bytes: Option<u64>,
    /// The child that died; `None` where it was the JVM.
    pub child: Option<Noted<ChildEnd>>,
    /// How the JVM ended.
    pub jvm_end: Option<ProcessEnd>,
    /// Whether a record of its end came.
    pub end_seen: bool,
    /// Signals to the process that died.
    pub signals: Vec<Noted<SignalNote>>,
    /// Choices of the OOM killer.
    pub oom: Vec<Noted<OomKilled>>,
    /// What ran out in the JVM.
    pub exhausted: Vec<Noted<Exhausted>>,
    /// Children of the JVM that signals ended.
    pub child_ends: Vec<Noted<ChildEnd>>,
    /// Memory over the last two minutes.
    pub samples: Vec<MemorySample>,
    /// Bytes of the parts of the memory when they were first measured in that time.
    pub first_parts: Vec<(&'static str, i64)>,
    /// What it held and ran at its end.
    pub last: LastMoment,
    /// Where its memory was at its end; `None` where the kernel was not asked.
    pub memory: Option<Box<MemoryRow>>,
    /// What only the machine knows.
    pub outside: Outside,
}

impl State {
    /// What is known of a death that [`State::deaths_due`] named, to judge it; `None` where the executor has no row any more.
    #[must_use]
    pub fn case(&mut self, executor: u64, child: Option<Noted<ChildEnd>>) -> Option<Case> {
        let died_ns = match &child {
            Some(child) => child.time_ns,
            None => {
                self.see_judged(executor);
                self.executors().get(&executor)?.died_ns?
            }
        };
        self.case_at(executor, child, died_ns)
    }

    /// What would be known of an executor if it were lost at this time, with the machine or with the daemon; of a dead one
    /// what is known. `None` where it has no row.
    #[must_use]
    pub fn case_in_advance(&self, executor: u64, now_ns: u64) -> Option<Case> {
        let row = self.executors().get(&executor)?;
        self.case_at(executor, None, row.died_ns.unwrap_or(now_ns))
    }

    fn case_at(&self, executor: u64, child: Option<Noted<ChildEnd>>, died_ns: u64) -> Option<Case> {
        let row = self.executors().get(&executor)?;
        let (notes, said) = (&row.black_box, row.described.as_ref());
        let signals = match &child {
            None => notes.signals.clone(),
            Some(child) => notes
                .child_signals
                .iter()
                .filter(|note| note.what.sent.target_pid == child.what.pid)
                .cloned()
                .collect(),
        };
        let before = child
            .as_ref()
            .and_then(|child| notes.before_child(child.time_ns));
        let usage = before.map_or(&row.usage, |before| &before.usage);
        let memory = memory_row(row, usage, died_ns);
        Some(Case {
            who: ExecutorId::new(row),
            application_name: said.map(|said| said.application_name.clone()),
            host: said.map(|said| said.host.clone()),
            first_seen_ns: row.first_seen_ns,
            died_ns,
            heap_max_bytes: said
                .map(|said| said.heap_max_bytes)
                .filter(|bytes| *bytes > 0),
            child,
            jvm_end: notes.end.clone(),
            end_seen: notes.end_seen,
            signals,
            oom: notes.oom.clone(),
            exhausted: notes.exhausted.clone(),
            child_ends: notes.child_ends.clone(),
            samples: notes.samples().collect(),
            first_parts: notes.divisions.first(),
            last: match (before, &notes.last) {
                (Some(before), _) => before.last.clone(),
                (None, Some(last)) => last.clone(),
                (None, None) => row.last_moment(died_ns),
            },
            memory: memory.resident_bytes.map(|_| Box::new(memory)),
            outside: Outside::default(),
        })
    }
}

impl Case {
    /// The process that died.
    #[must_use]
    pub fn subject_pid(&self) -> u32 {
        self.child
            .as_ref()
            .map_or(self.who.pid, |child| child.what.pid)
    }

    /// How it ended.
    #[must_use]
    pub fn end(&self) -> Option<&ProcessEnd> {
        match &self.child {
            Some(child) => Some(&child.what.end),
            None => self.jvm_end.as_ref(),
        }
    }

    /// The last signal with this number that it got.
    #[must_use]
    pub fn signal(&self, number: u32) -> Option<&Noted<SignalNote>> {
        let mut all = self.signals.iter().rev();
        all.find(|note| note.what.sent.signal == number)
    }

    /// The signal that ended it, or to which it ended, and its record. A JVM that does not stop in time is killed: the first
    /// signal that asked it to stop decides, and the first that another process sent where it crashed.
    #[must_use]
    pub fn decisive(&self) -> Option<(u32, Option<&Noted<SignalNote>>)> {
        let end = self.end()?;
        let number = match (end.signal(), end.exit_code()) {
            (Some(number), _) => number,
            (None, code) => STOPS.into_iter().find(|stop| code == Some(128 + stop))?,
        };
        let from = self.died_ns.saturating_sub(CAUSE_NS);
        let decides = |note: &&Noted<SignalNote>| {
            let sent = &note.what.sent;
            let is_of_kind = match number {
                SIGKILL => sent.signal == number || STOPS.contains(&sent.signal),
                _ if CRASHES.contains(&number) => {
                    CRASHES.contains(&sent.signal) && sent.sender_pid != self.who.pid
                }
                _ => sent.signal == number,
            };
            is_of_kind && note.time_ns >= from && self.child.is_none()
        };
        let all = self.signals.iter().filter(decides);
        let first = all.min_by_key(|note| note.time_ns);
        Some((number, first.or_else(|| self.signal(number))))
    }

    /// Whether the OOM killer chose it.
    #[must_use]
    pub fn is_oom_victim(&self) -> bool {
        let pid = self.subject_pid();
        self.oom.iter().any(|note| note.what.victim_pid == pid)
    }

    /// The error with which Spark ends the process.
    #[must_use]
    pub fn uncaught(&self) -> Option<&Noted<Exhausted>> {
        self.recent().find(|note| note.what.uncaught)
    }

    /// The error of the JVM that may be the cause: an uncaught one before what the JVM reports, the last one first.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&Noted<Exhausted>> {
        let uncaught = self.recent().filter(|note| note.what.uncaught);
        uncaught
            .chain(self.recent().filter(|note| !note.what.uncaught))
            .find(|note| is_memory(&note.what))
    }

    /// Whether an error that no code caught says that memory ran out, at this time at the latest.
    pub(super) fn ran_out(&self, until_ns: u64) -> bool {
        self.recent()
            .any(|note| note.what.uncaught && note.time_ns <= until_ns && is_memory(&note.what))
    }

    fn recent(&self) -> impl Iterator<Item = &Noted<Exhausted>> {
        let from = self.died_ns.saturating_sub(CAUSE_NS);
        let all = self.exhausted.iter().rev();
        all.filter(move |note| note.time_ns >= from)
    }

    /// Whether the JVM has this option.
    #[must_use]
    pub fn has_option(&self, beginning: &str) -> bool {
        let mut all = self.outside.options.iter();
        all.any(|option| option.starts_with(beginning))
    }

    /// The last figure of the samples.
    #[must_use]
    pub fn last_figure(&self, figure: impl Fn(&MemorySample) -> Option<u64>) -> Option<u64> {
        self.samples.iter().rev().find_map(figure)
    }

    /// The largest figure of the samples.
    #[must_use]
    pub fn largest(&self, figure: impl Fn(&MemorySample) -> Option<u64>) -> Option<u64> {
        self.samples.iter().filter_map(figure).max()
    }
}

fn is_memory(exhausted: &Exhausted) -> bool {
    let text = &exhausted.description;
    !exhausted.uncaught
        || text.contains("OutOfMemoryError")
        || text.contains("OutOfDirectMemoryError")
}

/// Name of a signal.
#[must_use]
pub fn signal_name(number: u32) -> String {
    const NAMES: [(u32, &str); 10] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(
        || format!("signal {number}"),
        |(_, name)| (*name).to_owned(),
    )
}
